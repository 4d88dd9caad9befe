"""Schedules at their ends, in between, and at their limits."""

import itertools
import math

import pytest

from quintet.ops.schedules import OF_FRACTION, kl_adaptive_rate, linear


def test_linear():
    assert linear(0, 7) == 1.0
    assert linear(7, 7) == 0.0
    assert linear(8, 7) == 0.0
    assert linear(25, 100) == 0.75
    fractions = [linear(k, 1_000_003) for k in range(0, 1_000_003, 991)]
    assert all(a > b > 0 for a, b in itertools.pairwise(fractions))


@pytest.mark.parametrize("total", [0, -5])
def test_linear_needs_a_total(total: int):
    with pytest.raises(ValueError, match="positive"):
        linear(0, total)


def test_kl_adaptive_rate():
    target = 0.01
    assert math.isclose(kl_adaptive_rate(3e-4, 0.021, target), 2e-4)
    assert math.isclose(kl_adaptive_rate(2e-4, 0.0049, target), 3e-4)
    for inside in (0.02, 0.01, 0.005):
        assert kl_adaptive_rate(3e-4, inside, target) == 3e-4
    assert kl_adaptive_rate(1e-6, 1.0, target) == 1e-6
    assert kl_adaptive_rate(1e-2, 0.0, target) == 1e-2


BY_FRACTION = {
    "constant": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    "linear": [1.0, 0.9, 0.75, 0.7, 0.5, 0.25, 0.2, 0.0],
    "double_linear_con": [1.0, 0.8, 0.5, 0.4, 0.125, 0.125, 0.125, 0.125],
    "middle_drop": [1.0, 0.9, 0.75, 0.075, 0.075, 0.075, 0.075, 0.075],
    "double_middle_drop": [1.0, 0.9, 0.75, 0.075, 0.075, 0.075, 0.125, 0.125],
}
"""By name, at these fractions of the run:"""
FRACTIONS = (0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.8, 1.0)


@pytest.mark.parametrize("name", OF_FRACTION)
def test_schedules_of_a_fraction(name: str):
    """As OpenAI baselines computes them, of what is left: at a quarter exactly nothing has dropped,
    and at three quarters the second drop has not come.
    """
    found = [OF_FRACTION[name](done) for done in FRACTIONS]
    assert found == pytest.approx(BY_FRACTION[name], abs=1e-15)
