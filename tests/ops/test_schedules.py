"""Schedules at their ends, in between, and at their limits."""

import itertools
import math

import pytest

from quintet.ops.schedules import kl_adaptive_rate, linear


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
