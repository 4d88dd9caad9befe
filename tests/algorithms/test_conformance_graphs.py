"""Captured updates and acts have the bytes of eager ones, for every learner."""

import pytest
import torch
from compiled_helpers import CONTINUOUS, HYBRID, Twins, acts, awkward
from conformance_helpers import (
    LEARNERS,
    MASKED,
    STREAMS,
    TOGETHER,
    Case,
    everything,
    gated,
    go_on,
    learn,
)
from gymnasium import spaces as gym
from taped_helpers import use_tapes

from quintet.algorithms.parts.setup import ALONE, Compute
from quintet.protocols import Ranks

EAGER, GRAPH = Compute(), Compute(graph=True)
UPDATED = [
    algo
    for algo, entry in LEARNERS.items()
    if entry.planned_updates(entry.config(), STREAMS, 10**9)
]


@pytest.fixture(autouse=True)
def _tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tapes(monkeypatch)


def tasks(algo: str) -> tuple[object, object, str]:
    entry = LEARNERS[algo]
    plain, masked = (HYBRID, MASKED) if entry.acts_in(gym.Discrete(2)) else (CONTINUOUS,) * 2
    return plain, masked, "none" if "model.core" in entry.needs else "gru"


def same_updates(case: Case, ranks: Ranks = ALONE) -> None:
    learners = [case.learner(compute, ranks) for compute in (EAGER, GRAPH)]
    for i, (fresh, *drawn) in enumerate(case.batches(3)):
        batches = [awkward(fresh) if i == 1 else fresh, *drawn]
        eager, captured = (learn(learner, batches, 1000 * i) for learner in learners)
        assert captured == eager
    assert everything(learners[0]) == everything(learners[1])


@pytest.mark.parametrize("algo", gated(UPDATED))
def test_updates(algo: str) -> None:
    _, masked, core = tasks(algo)
    same_updates(Case(algo, masked, core=core))  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", gated(UPDATED))
def test_updates_of_several_learners(algo: str) -> None:
    if not LEARNERS[algo].shared:
        pytest.skip(f"only one {algo} learner can learn from a batch")
    same_updates(Case(algo, tasks(algo)[0]), Twins())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("algo", gated(UPDATED))
def test_updates_with_other_options(algo: str) -> None:
    plain, masked, core = tasks(algo)
    for options in TOGETHER.get(algo, ()):
        same_updates(Case(algo, plain, options))  # type: ignore[arg-type]
        same_updates(Case(algo, masked, options, core=core))  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", gated(LEARNERS))
def test_acts(algo: str) -> None:
    plain, _, core = tasks(algo)
    case = Case(algo, plain, core=core)  # type: ignore[arg-type]
    learner, actors = case.learner(), [case.actor(compute) for compute in (EAGER, GRAPH)]
    for batches in case.batches(3):
        eager, captured = acts(case, learner, actors, batches[0])
        torch.testing.assert_close(captured, eager, rtol=0.0, atol=0.0)
        go_on(learner, [batches])
