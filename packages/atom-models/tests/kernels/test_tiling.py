import pytest

from atom.models.kernels.tiling import ceil_div, next_power_of_2


@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_next_power_is_the_least_not_below(number, power):
    assert next_power_of_2(number) == power


@pytest.mark.parametrize(("number", "size", "pieces"), [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2)])
def test_pieces_cover_the_number(number, size, pieces):
    assert ceil_div(number, size) == pieces
