"""Every option that changes a graph, captured: the bytes of what is eager."""

import pytest
from gpu_cases_helpers import CUDA, learned, worst
from graph_options_helpers import ALGOS, case_of, rows

from quintet.algorithms.parts.setup import Compute

SQUASHED = "model.action_bounds=squash"


def require_the_same_bytes(algo: str, name: str) -> None:
    case = case_of(algo, rows(algo)[name])
    eager, captured = (learned(case, CUDA, compute=Compute(graph=x)) for x in (False, True))
    assert worst(eager.state, captured.state) == (0.0, ""), name
    assert [repr(each) for each in captured.metrics] == [repr(each) for each in eager.metrics], name


@pytest.mark.parametrize("algo", [algo for algo in ALGOS if algo not in ("ddpg", "sac")])
def test_a_captured_learner_has_the_bytes_of_an_eager_one(algo: str) -> None:
    require_the_same_bytes(algo, SQUASHED)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_with_every_option(algo: str) -> None:
    for name in rows(algo):
        require_the_same_bytes(algo, name)
