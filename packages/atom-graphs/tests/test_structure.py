from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from atom.graphs.structure import fresh_containers, holds_mutable_container, map_tensors, span, tensors_in


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Plain:
    t: torch.Tensor
    n: int = 3


@dataclass(frozen=True)
class Frozen:
    items: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    t: Any = None
    unset: Any = field(init=False)


A, B = torch.zeros(2), torch.ones(3)


@pytest.mark.parametrize(
    "value",
    [A, (A, 1, B), [A, None, B], {"a": A, "b": {"c": B}}, Pair(A, B), Plain(A), Frozen([A, B]), Slotted(A)],
)
def test_tensors_are_found_and_replaced_wherever_they_sit(value: Any) -> None:
    found = tensors_in(value)
    doubled = map_tensors(value, lambda t: t + 2)
    assert type(doubled) is type(value)
    assert [t.shape for t in tensors_in(doubled)] == [t.shape for t in found]
    assert all(torch.equal(a, b + 2) for a, b in zip(tensors_in(doubled), found, strict=True))
    assert all(a is b for a, b in zip(tensors_in(value), found, strict=True))  # the original is untouched


@pytest.mark.parametrize("value", [None, 3, "x", (), [1], {"a": 1}, Frozen([1]), torch.nn.ReLU(), object()])
def test_what_holds_no_tensor_keeps_its_identity(value: Any) -> None:
    assert map_tensors(value, lambda t: t + 1) is value
    assert not holds_mutable_container((value,))


def test_containers_of_tensors_are_copied_and_the_tensors_shared() -> None:
    value = ([A], {"b": B}, Plain(A), Pair(A, [B]), 5)
    fresh = fresh_containers(value)
    assert fresh[0] is not value[0]
    assert fresh[1] is not value[1]
    assert fresh[2] is not value[2]
    assert fresh[3].right is not value[3].right
    assert fresh[0][0] is A
    assert fresh[4] == 5
    assert holds_mutable_container(value)
    assert not holds_mutable_container((A, Pair(A, B), 5))


@pytest.mark.parametrize(
    ("tensor", "nbytes"),
    [
        (torch.zeros(3, 4), 48),
        (torch.zeros(3, 4).t(), 48),
        (torch.zeros(3, 4)[:, :2], 40),
        (torch.zeros(3, 1).expand(3, 4), 12),
        (torch.zeros(0, 4), 0),
        (torch.zeros((), dtype=torch.int64), 8),
    ],
)
def test_a_span_reaches_from_the_first_element_to_the_end_of_the_last(
    tensor: torch.Tensor, nbytes: int
) -> None:
    assert span(tensor) == nbytes
