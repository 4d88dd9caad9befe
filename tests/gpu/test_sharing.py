"""Learners on GPUs that share every batch, as threads of one process; NCCL's part is gloo's."""

import pytest
from conformance_helpers import LEARNERS
from gpu_cases_helpers import CPU, CUDA, case_of, learner_on, matrix, worst
from rank_threads_helpers import RankThreads, states

FAST = {("appo", "choices"), ("ppo", "normalised")}


@pytest.mark.parametrize(
    ("algo", "spaces"),
    [
        pytest.param(*row, marks=() if row in FAST else pytest.mark.slow, id=" ".join(row))
        for row in matrix()
        if LEARNERS[row[0]].shared
    ],
)
def test_two_learners_have_the_weights_of_two_on_the_cpu(algo: str, spaces: str) -> None:
    case = case_of(algo, spaces)
    found = []
    for device in (CPU, CUDA):
        threads = RankThreads(2, lambda ranks, on=device: learner_on(case, on, ranks), device)
        for number, batches in enumerate(case.batches(2)):
            for batch in batches:
                threads.update(batch, 500 * number)
        first, second = ({k: x.cpu() for k, x in s.items()} for s in states(threads.learners))
        assert worst(first, second) == (0.0, "")
        found.append(first)
    bound = 2e-2 if "pictures" in spaces or "tree" in spaces else 0.0
    difference, name = worst(*found)
    assert difference <= bound, name
