"""Every option that changes a graph, captured: the bytes of what is eager."""

import pytest
from gpu_cases_helpers import CUDA, learned, worst
from graph_options_helpers import ALGOS, case_of, rows

from quintet.algorithms.parts.setup import Compute

SQUASHED = "model.action_bounds=squash"
CASES = [
    pytest.param(algo, name, marks=() if name == SQUASHED else pytest.mark.slow)
    for algo in ALGOS
    for name in rows(algo)
]


@pytest.mark.parametrize(("algo", "name"), CASES)
def test_a_captured_learner_has_the_bytes_of_an_eager_one(algo: str, name: str) -> None:
    case = case_of(algo, rows(algo)[name])
    eager, captured = (learned(case, CUDA, compute=Compute(graph=x)) for x in (False, True))
    assert worst(eager.state, captured.state) == (0.0, "")
    assert [repr(each) for each in captured.metrics] == [repr(each) for each in eager.metrics]
