"""Every learner learns on a GPU what it learns on the CPU, with every network and in all spaces."""

import math

import pytest
from gpu_cases_helpers import CPU, CUDA, case_of, learned, matrix, worst

FAST = {
    ("ppo", "normalised"),
    ("ppo", "masked, gru"),
    ("impala", "choices, lstm"),
    ("appo", "parts"),
    ("ddpg", "numbers"),
    ("acer", "choices"),
}


@pytest.mark.parametrize(
    ("algo", "spaces"),
    [
        pytest.param(*row, marks=() if row in FAST else pytest.mark.slow, id=" ".join(row))
        for row in matrix()
    ],
)
def test_a_learner_has_the_cpus_weights(algo: str, spaces: str) -> None:
    case = case_of(algo, spaces)
    here, there = learned(case, CPU), learned(case, CUDA)
    # PyTorch convolves on a GPU by another method.  RMSProp and Adam magnify the rounding of
    # gradients that are nearly 0: two methods on the CPU differ by up to 2e-4 here, too.
    bound = 2e-2 if "pictures" in spaces or "tree" in spaces else 0.0
    found, name = worst(here.state, there.state)
    assert found <= bound, name
    for one, other in zip(here.metrics, there.metrics, strict=True):
        assert one.keys() == other.keys()
        if not bound:
            differing = {k: (x, other[k]) for k, x in one.items() if not _same(x, other[k])}
            assert not differing


def _same(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))
