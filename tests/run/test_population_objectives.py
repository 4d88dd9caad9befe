"""By what policies of a population are ranked and when they are considered, without training."""

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from quintet.checkpoint import Checkpoint
from quintet.config.load import Layer
from quintet.config.run import RunConfig
from quintet.config.saved import load_config
from quintet.run.folder import RunFolder
from quintet.run.learners import make_policies
from quintet.run.policy_run import PolicyRun
from quintet.run.population import Population
from quintet.run.resolution import resolve_loaded
from quintet.runtime.batch import Episode
from quintet.runtime.loop import Counters
from quintet.types import Spaces

TWO: dict[str, Any] = {
    "env.id": "CartPole-v1",
    "env.num_streams": 6,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "total_env_steps": 3_000,
    "runtime.kind": "async",
    "eval.episodes": 0,
    "population.size": 2,
    "population.start_env_steps": 300,
    "population.period_env_steps": 150,
}


def of_two(folder: Path, **config: Any) -> tuple[RunConfig, Spaces]:
    """The configuration of two policies, and the spaces of their environment."""
    given = {**TWO, "run_dir": str(folder), **config}
    loaded = load_config("appo", [], Layer("call", given))
    box = gym.Box(-np.inf, np.inf, (4,), np.float32)
    spaces = Spaces(box, gym.Discrete(2))
    return resolve_loaded(loaded, spaces).config, spaces


def two_policies(folder: Path, **config: Any) -> list[PolicyRun]:
    """Policies that have learned nothing."""
    resolved, spaces = of_two(folder, **config)
    return make_policies(resolved, [resolved.learner] * 2, spaces, RunFolder(folder, signed=True))


@pytest.mark.parametrize(
    ("other", "spent", "told"),
    [(None, False, 1), (math.nan, False, 1), (math.inf, False, 1), (2.0, True, 0)],
)
def test_nothing_is_decided_without_finite_objectives_or_when_the_budget_is_spent(
    other: float | None, spent: bool, told: int, tmp_path: Path
) -> None:
    config, _ = of_two(tmp_path)
    population = Population(config, RunFolder(tmp_path, signed=True))
    made = SimpleNamespace(env_steps=config.total_env_steps // 4)
    measured = {"counters": made, "measured_env_steps": made.env_steps}
    policies: Any = [SimpleNamespace(**measured, objective=x) for x in (1.0, other)]
    batch: Any = SimpleNamespace(policy=0, env_steps=1)
    said: list[str] = []
    of_run = config.total_env_steps if spent else 2 * made.env_steps
    assert not population.consider(batch, policies, of_run, said.append)
    assert len(said) == told
    assert population.controller.due(0, made.env_steps)


def test_the_first_consideration_and_the_period_are_shares_of_a_policys_budget(
    tmp_path: Path,
) -> None:
    given = {"population.start_env_steps": None, "population.period_env_steps": None}
    config, _ = of_two(tmp_path, total_env_steps=80_000, **given)
    found = Population(config, RunFolder(tmp_path, signed=True)).controller
    assert (found.start, found.period) == (4_000, 2_000)


@pytest.mark.parametrize(("given", "wanted"), [(5e-4, 2e-4), (6e-4, 2.4e-4)])
def test_a_copy_goes_on_with_the_rate_that_the_donors_schedule_has_reached(
    given: float, wanted: float, tmp_path: Path
) -> None:
    """A mutation changes it by as much as its option."""
    one, donor = two_policies(tmp_path, lr_schedule="kl_adaptive")
    rates = [one.config.learner.model_copy(update={"learning_rate": x}) for x in (5e-4, given)]
    donor.configure(rates[0])
    donor.learner.learning_rate = 2e-4  # type: ignore[attr-defined]
    one.become(donor, rates[1])
    assert one.learner.learning_rate == pytest.approx(wanted)  # type: ignore[attr-defined]


OF_REPORTS = {"population.objective": "eval/return_mean", "eval.episodes": 1}


def evaluated(policy: PolicyRun, score: float) -> None:
    policy.scores = {"eval/return_mean": score}
    policy.report(1.0)


def test_a_copy_has_its_donors_objective_of_reports_until_it_is_measured(tmp_path: Path) -> None:
    one, donor = two_policies(tmp_path, **OF_REPORTS)
    one.counters.env_steps = 50
    evaluated(one, 3.0)
    assert (one.objective, one.measured_env_steps) == (3.0, 50)
    evaluated(donor, 8.0)
    one.scores = {"eval/return_mean": 2.0}  # of the former weights, not yet reported
    one.counters.env_steps = 60
    one.become(donor, one.config.learner)
    one.report(1.0)
    assert (one.objective, one.measured_env_steps) == (8.0, 50)
    evaluated(one, 9.0)
    assert (one.objective, one.measured_env_steps) == (9.0, 60)


def test_a_score_of_reports_is_considered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many periods pass until the next one."""
    monkeypatch.setattr(Population, "write", lambda _: None)
    policies = two_policies(tmp_path, **OF_REPORTS)
    config = policies[0].config
    population = Population(config, RunFolder(tmp_path, signed=True))
    one, period = policies[1], population.controller.period + 1
    one.counters.env_steps = population.controller.start + period
    for policy, score in zip(policies, (5.0, 1.0), strict=True):
        evaluated(policy, score)
    batch: Any = SimpleNamespace(policy=1, env_steps=1)

    def considered() -> int:
        one.counters.env_steps += period
        population.consider(batch, policies, 0, lambda _: None)
        return population.controller.considered[1]

    first = one.counters.env_steps + period
    assert considered() == first
    assert [considered() for _ in range(3)] == [first] * 3
    evaluated(one, 2.0)
    assert considered() == first + 4 * period
    evaluated(one, 3.0)  # in the same iteration, after the consideration
    assert considered() == first + 5 * period


@pytest.mark.parametrize("known", [True, False])
def test_when_a_score_was_reported_is_saved(known: bool, tmp_path: Path) -> None:
    """Checkpoints of before lack it: their policies wait for another score."""
    one, other = two_policies(tmp_path, **OF_REPORTS)
    one.counters.env_steps = 50
    evaluated(one, 3.0)
    tensors, part = one.save()
    if not known:
        del part["reported_objective"]
    both = {name.replace("_0", "_1"): x for name, x in tensors.items()} | tensors
    meta = {"counters": asdict(Counters()), "policies": [part, part]}
    other.load(Checkpoint(tmp_path, both, meta, None))
    assert (other.objective, other.measured_env_steps) == (3.0, 50 if known else 0)


def test_episodes_that_former_weights_began_do_not_rank_a_copy(tmp_path: Path) -> None:
    one, donor = two_policies(tmp_path)
    one.learner.trained.steps = 5  # type: ignore[attr-defined]
    one.become(donor, one.config.learner)
    one.add_episodes([Episode(0, 0, 9.0, 10, version=4)])
    assert one.counters.ended_episodes == 1
    assert one.objective is None
    one.add_episodes([Episode(0, 0, 7.0, 10, version=5)])
    assert one.objective == 7.0


def test_it_is_told_which_policies_have_no_objective() -> None:
    """Once for each set of them, and where some have one only after a further period."""
    population: Any = SimpleNamespace(
        _told_of_missing=set(), _late_env_steps=450,
        config=SimpleNamespace(population=SimpleNamespace(objective="episode/return_mean")),
    )  # fmt: skip
    said: list[str] = []

    def consider(env_steps: int, *found: float | None) -> None:
        policies: Any = [SimpleNamespace(counters=SimpleNamespace(env_steps=env_steps))] * 3
        Population._tell_of_missing(population, found, policies, said.append)

    for _ in range(2):
        consider(300, None, None, None)
        consider(300, None, 1.0, 2.0)
        consider(460, 1.0, math.nan, 2.0)
        consider(460, None, 1.0, math.inf)
    rest = "finite episode/return_mean yet: until all have it, none is copied or changed"
    who = "no policy has a", "policy 1 has no", "policies 0, 2 have no"
    assert said == [f"{each} {rest}" for each in who]
