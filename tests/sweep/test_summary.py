"""What the terminal says of the scores on fresh seeds."""

import pytest

pytest.importorskip("optuna")
from quintet.sweep.summary import _interval


def test_the_interval_is_that_of_the_mean_and_one_seed_has_none() -> None:
    """That of the interquartile mean would end at 15."""
    assert _interval([]) == "-"
    assert _interval([7.0]) == "7, 1 seed"
    assert _interval([3.0, 1.0]) == "2 [1, 3], 2 seeds"
    assert _interval([0.0] * 9 + [90.0]) == "9 [0, 27], 10 seeds"
