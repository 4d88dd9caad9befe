"""Every option that changes a graph, captured with the bytes of what is eager, and traced."""

import pytest
from gpu_cases_helpers import CUDA, learned, worst
from graph_options_helpers import ALGOS, case_of, compare, packed, rows, traced_only

from quintet.algorithms.parts.setup import Compute

QUICK = [
    (algo, next((name for name in packed(algo) if "squash" in name), next(iter(packed(algo)))))
    for algo in ALGOS
]
"""Of each learner one case of many options."""
EACH = [(algo, name) for algo in ALGOS for name in rows(algo)]


@pytest.mark.parametrize(
    ("algo", "name"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in EACH)],
    ids=lambda x: x if len(x) < 60 else "many",
)
def test_a_graph_gives_what_is_eager(algo: str, name: str) -> None:
    given = (packed(algo) | rows(algo))[name]
    case = case_of(algo, given)
    eager, captured = (learned(case, CUDA, compute=Compute(graph=x)) for x in (False, True))
    assert worst(eager.state, captured.state) == (0.0, "")
    assert [repr(each) for each in captured.metrics] == [repr(each) for each in eager.metrics]
    traced_only()
    assert compare(algo, given) == ""
