"""How often the host waits for a GPU in each part of a learner's work.

A number here is the most that a part may wait, after its first call.  What waits more fails with
the lines that wait.  Lower a number when fewer are needed; raise it only for what is worth a wait.
"""

import pytest
from cases import CUDA, case_of, learned

BUDGETS: dict[tuple[str, str], dict[str, int]] = {
    ("ppo", "normalised"): {
        "batch": 18, "update": 31, "publication": 1, "load": 12, "metrics": 20,
    },
    ("ppo", "masked, gru"): {
        "batch": 21, "update": 33, "publication": 1, "load": 19, "metrics": 20,
    },
    ("impala", "choices"): {
        "batch": 15, "update": 10, "publication": 1, "load": 8, "metrics": 6,
    },
    ("appo", "choices"): {
        "batch": 16, "update": 20, "publication": 1, "load": 8, "metrics": 9,
    },
    ("ddpg", "numbers"): {
        "batch": 15, "update": 8, "update (replayed)": 2,
        "publication": 1, "load": 10, "metrics": 22,
    },
    ("acer", "normalised"): {
        "batch": 17, "update": 13, "update (replayed)": 3,
        "publication": 1, "load": 8, "metrics": 19,
    },
    ("sac", "numbers"): {
        "batch": 15, "update": 1, "update (replayed)": 5,
        "publication": 1, "load": 5, "metrics": 4,
    },
}  # fmt: skip
"""By learner and spaces (`cases.SPACES`).  batch: one batch to the device; publication: the
learner's part of it; load: an actor on the CPU takes it.
"""


@pytest.mark.parametrize(
    ("algo", "spaces"), [pytest.param(*row, id=" ".join(row)) for row in BUDGETS]
)
def test_a_learner_waits_no_more_than_it_may(algo: str, spaces: str) -> None:
    budget = BUDGETS[algo, spaces]
    parts = learned(case_of(algo, spaces), CUDA).parts
    assert parts.keys() == budget.keys()
    faults = []
    for part, calls in parts.items():
        most = max(calls[1:], key=lambda counts: counts.waits)
        if most.waits > budget[part]:
            head = f"{part}: {most.waits} waits, {budget[part]} are allowed:"
            faults.append("\n  ".join([head, *most.lines()]))
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
