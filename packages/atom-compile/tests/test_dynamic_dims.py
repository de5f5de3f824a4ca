"""Which dimensions of a forward's arguments vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import pytest
import torch  # noqa: TC002  (the annotations are evaluated)

from atom.compile.dynamic_dims import infer_dynamic_arg_dims, normalize_dynamic_arg_dims
from atom.compile.errors import DynamicDimsError

if TYPE_CHECKING:
    from collections.abc import Callable


def tensors_and_others(
    self: Any, ids: torch.Tensor, count: int, mask: torch.Tensor | None = None, text: str = ""
) -> torch.Tensor:
    return ids


def old_style(self: Any, mask: Optional[torch.Tensor], names: list[str]) -> None:  # noqa: UP045
    return None


def test_the_batch_is_dimension_0_of_each_tensor_argument() -> None:
    assert infer_dynamic_arg_dims(tensors_and_others) == {"ids": (0,), "mask": (0,)}
    assert infer_dynamic_arg_dims(old_style) == {"mask": (0,)}


def test_a_type_that_only_checkers_can_see_does_not_hide_the_others() -> None:
    def forward(self: Any, x: torch.Tensor, y: torch.Tensor | None, meta: Missing) -> None:  # type: ignore[name-defined] # noqa: F821
        return None

    assert infer_dynamic_arg_dims(forward) == {"x": (0,), "y": (0,)}


def test_given_dims_become_tuples() -> None:
    assert normalize_dynamic_arg_dims(tensors_and_others, {"ids": 0, "mask": [0, -1]}) == {
        "ids": (0,),
        "mask": (0, -1),
    }


@pytest.mark.parametrize("call", [lambda f: normalize_dynamic_arg_dims(f, {}), infer_dynamic_arg_dims])
def test_nothing_dynamic_is_refused(call: Callable[[Any], object]) -> None:
    def forward(self: Any, count: int) -> None:
        return None

    with pytest.raises(DynamicDimsError, match="forward"):
        call(forward)
