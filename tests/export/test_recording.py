"""What is recorded for a certificate."""

import numpy as np
import pytest
from cells import OBSERVATIONS, Cell
from gymnasium import spaces

from quintet.export import recording

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("low", "high", "least", "most"),
    [
        (-LARGEST, LARGEST, -100.0, 100.0),
        (200.0, 300.0, 200.0, 300.0),
        (-300.0, -200.0, -300.0, -200.0),
        (0.0, LARGEST, 0.0, 100.0),
        (-np.inf, np.inf, -10.0, 10.0),
    ],
)
def test_samples_are_in_the_space_and_not_too_wide(low, high, least, most, monkeypatch) -> None:
    monkeypatch.setitem(OBSERVATIONS, "wide", spaces.Box(low, high, (2,), np.float32))
    seen = recording.of_space(Cell(observation="wide").policy(), 200, 0)
    found = seen.obs["obs"]
    assert least <= found.min() < found.max() <= most
    assert len(np.unique(found)) > 300
    assert seen.is_first[0].all()
    assert 0 < seen.is_first[1:].mean() < 0.1
