"""Every option of every learner, switched on: a learner on a GPU is the CPU's."""

import pytest
from conformance_helpers import LEARNERS, switches
from gpu_cases_helpers import CPU, CUDA, learned, worst

CASES = {name: case for algo in LEARNERS for name, case in switches(algo).items()}
FAST = ("ppo: together 0", "appo: together 0", "ddpg: together 0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES],
)
def test_a_learner_with_an_option_has_the_cpus_weights(name: str) -> None:
    here, there = (learned(CASES[name], device, 2) for device in (CPU, CUDA))
    assert worst(here.state, there.state) == (0.0, "")
    assert [each.keys() for each in here.metrics] == [each.keys() for each in there.metrics]
