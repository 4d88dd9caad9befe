"""How often the host waits for a GPU in each part of a learner's work.

A number here is the most that a part may wait, after its first call.  What waits more fails with
the lines that wait.  Lower a number when fewer are needed; raise it only for what is worth a wait.
"""

from typing import Any

import gpu_runs_helpers
import pytest
import standin_helpers
from gpu_cases_helpers import CUDA, case_of, learned

Budget = dict[str, int]
BUDGETS: dict[tuple[str, str], Budget] = {
    ("ppo", "normalised"): {"publication": 1, "metrics": 4},
    ("ppo", "masked, gru"): {"publication": 1, "metrics": 4},
    ("impala", "choices"): {"publication": 1, "metrics": 1},
    ("appo", "choices"): {"update": 1, "publication": 1, "metrics": 2},
    ("ddpg", "numbers"): {"publication": 1, "metrics": 6},
    ("acer", "normalised"): {"publication": 1, "metrics": 4},
    ("sac", "numbers"): {"update (replayed)": 1, "publication": 1},
}
"""By learner and spaces (`gpu_cases_helpers.SPACES`); parts that are missing never wait.
batch: a batch goes to the device; load: an actor on the CPU takes a publication.
"""


@pytest.mark.parametrize(
    ("algo", "spaces"), [pytest.param(*row, id=" ".join(row)) for row in BUDGETS]
)
def test_a_learner_waits_no_more_than_it_may(algo: str, spaces: str) -> None:
    budget = BUDGETS[algo, spaces]
    parts = learned(case_of(algo, spaces), CUDA).parts
    assert parts.keys() > budget.keys()
    faults = []
    for part, calls in parts.items():
        most = max(calls[1:], key=lambda counts: counts.waits)
        allowed = budget.get(part, 0)
        if most.waits > allowed:
            head = f"{part}: {most.waits} waits, {allowed} are allowed:"
            faults.append("\n  ".join([head, *most.lines()]))
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "steps", "options", "most"),
    [
        ("ppo", "CartPole-v1", 8_000, {}, 1),
        ("ppo", "Pendulum-v1", 9_000, {}, 1),
        ("impala", "CartPole-v1", 5_000, {}, 1),
        ("appo", "CartPole-v1", 8_000, {}, 2),
        ("acer", "CartPole-v1", 4_000, {"replay_start_steps_per_stream": 20}, 1),
        ("ddpg", "Pendulum-v1", 1_200, {}, 1),
    ],
)
def test_an_iteration_of_a_preset_waits_no_more_than_it_may(
    algo: str, env: str, steps: int, options: dict[str, Any], most: int
) -> None:
    """All replayed updates and the publication to actors on the CPU with it."""
    ran = gpu_runs_helpers.run(algo, env, steps, options)
    lines = [phase.told(name) for name, phase in ran.phases.items() if name != "run"]
    assert ran.iteration <= most, "\n".join(lines)
    assert not standin_helpers.races
