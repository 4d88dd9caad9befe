"""Within which bounds a population may change options of learners."""

import math

import pytest
from pydantic import BaseModel, Field

from quintet.algorithms.appo.config import APPOConfig
from quintet.algorithms.tuning import bounds_of
from quintet.bounds import LARGEST


class Options(BaseModel):
    open_: float = Field(1.0, gt=0, lt=2)
    closed: float = Field(1.0, ge=0, le=2)
    free: float = 1.0


def test_bounds_are_those_of_the_fields_whose_ends_may_not_belong_to_them() -> None:
    found = bounds_of(Options(), ["open_", "closed", "free"])
    low, high = found["open_"]
    assert 0.0 < low < 1e-300
    assert 2.0 - 1e-15 < high < 2.0
    assert Options.model_validate({"open_": low}).open_ == low
    assert Options.model_validate({"open_": high}).open_ == high
    assert found["closed"] == (0.0, 2.0)
    assert found["free"] == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["c_bar"], {"c_bar": (0.0, 1.5)}),
        (["rho_bar"], {"rho_bar": (0.5, LARGEST)}),
        (["c_bar", "rho_bar"], {"c_bar": (0.0, LARGEST), "rho_bar": (5e-324, LARGEST)}),
    ],
)
def test_a_cap_that_stays_bounds_the_other(
    names: list[str], wanted: dict[str, tuple[float, float]]
) -> None:
    assert bounds_of(APPOConfig(rho_bar=1.5, c_bar=0.5), names) == wanted
