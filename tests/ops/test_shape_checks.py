"""What makes the annotations real leaves out no call that differs in what they depend on."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from shape_checks_helpers import checked_once
from torch import Tensor

from quintet.ops import returns
from quintet.ops.discrete import Categorical


@checked_once
def weighted(x: Float[Tensor, "T B"], weight: Float[Tensor, " T"], rows: int | None) -> Any:
    return x * weight[:, None]


@dataclass(frozen=True)
class Sized:
    size: int

    @checked_once
    def take(self, x: Float[Tensor, "*n {self.size}"]) -> Tensor:
        return x


def test_a_call_of_another_kind_is_checked_after_one_that_passed() -> None:
    x, weight = torch.zeros(4, 2), torch.zeros(4)
    for _ in range(2):
        weighted(x, weight, 1)
    weighted(torch.zeros(5, 3), torch.zeros(5), None)
    for wrong in (
        (x, torch.zeros(5), 1), (x[0], weight, 1), (x, weight[:, None], 1),
        (x, weight.long(), 1), (x.tolist(), weight, 1), (x, weight, 0.5),
    ):  # fmt: skip
        for _ in range(2):
            with pytest.raises(TypeCheckError, match="parameters of"):
                weighted(*wrong)
        weighted(x, weight, rows=1)


def test_what_a_call_returns_is_checked_too() -> None:
    """Though the call is the same; sizes that are told by a value are those of this value."""
    given = torch.zeros(0)

    @checked_once
    def head(x: Float[Tensor, " T"], rows: int) -> Float[Tensor, "{rows}"]:
        return given

    for rows in (2, 3):
        given = torch.zeros(rows)
        head(torch.zeros(7), rows)
        given = torch.zeros(rows + 1)
        with pytest.raises(TypeCheckError, match="return value of"):
            head(torch.zeros(7), rows)


def test_functions_that_are_made_anew_are_told_apart_by_their_annotations() -> None:
    def make(shape: str) -> Any:
        @checked_once
        def same(x: Float[Tensor, shape]) -> Tensor:  # type: ignore[valid-type]
            return x

        return same

    make("a")(torch.zeros(3))
    with pytest.raises(TypeCheckError):
        make("a b")(torch.zeros(3))


def test_quintets_own_functions_methods_and_dataclasses_are_checked() -> None:
    x = torch.zeros(5, 2)
    with pytest.raises(TypeCheckError):
        returns.gae(x, x, x, x, torch.zeros(5), lambda_=0.9)
    with pytest.raises(TypeCheckError):
        Categorical(3).log_prob(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(TypeCheckError):
        Categorical("3")  # type: ignore[arg-type]


def test_sizes_of_self_are_those_of_this_one() -> None:
    three, x = Sized(3), torch.zeros(2, 3)
    three.take(x)
    with pytest.raises(TypeCheckError):
        Sized(4).take(x)
    Sized(3).take(x)
