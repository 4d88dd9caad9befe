"""Intervals of fractions and means."""

import numpy as np
import pytest

from quintet.observe.intervals import fraction_interval, mean_interval


@pytest.mark.parametrize(
    ("fraction", "count", "low", "high"),
    [(1.0, 50, 0.9287, 1.0), (0.0, 50, 0.0, 0.0713), (0.5, 10, 0.2366, 0.7634), (1, 1, 0.2065, 1)],
)
def test_fractions(fraction: float, count: int, low: float, high: float) -> None:
    """Values of Wilson's formula, from R's prop.test without correction."""
    assert fraction_interval(fraction, count) == pytest.approx((low, high), abs=1e-4)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    for chance in (0.02, 0.3, 0.97):
        held = 0
        for _ in range(2000):
            wins = (rng.random(50) < chance).astype(float)
            found = mean_interval(wins.mean(), wins.std(), wins.min(), wins.max(), 50)
            low, high = found or fraction_interval(wins.mean(), 50)
            held += low <= chance <= high
        assert 0.92 <= held / 2000 <= 0.99


def test_means() -> None:
    x = np.array([1.0, 2.0, 4.0])
    half = 1.96 * x.std() / 2**0.5
    found = mean_interval(x.mean(), x.std(), x.min(), x.max(), 3)
    assert found == pytest.approx((x.mean() - half, x.mean() + half), rel=1e-4)
    assert mean_interval(3.0, 0.0, 3.0, 3.0, 50) is None
    assert mean_interval(3.0, 0.0, 3.0, 3.0, 1) is None
    # Two numbers always have two values.
    assert mean_interval(0.5, 0.5, 0.0, 1.0, 2) == pytest.approx((-0.48, 1.48), rel=1e-3)
