"""By what policies of a population are ranked and when they are considered, without training."""

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from quintet.checkpoints.checkpoint import Checkpoint
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import resolve
from quintet.options.run import RunConfig
from quintet.options.saved import load_config
from quintet.run import population as population_of_run
from quintet.run.folder import RunFolder
from quintet.run.learners import make_policies
from quintet.run.policy_run import PolicyRun, leader, objectives
from quintet.run.population import Population
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
    return resolve(loaded, spaces).config, spaces


def two_policies(folder: Path, **config: Any) -> list[PolicyRun]:
    """Policies that have learned nothing."""
    resolved, spaces = of_two(folder, **config)
    return make_policies(resolved, spaces, RunFolder(folder, signed=True))


@pytest.mark.parametrize(
    ("found", "spent", "decided"),
    [
        ((None, None), False, False),
        ((1.0, None), False, False),
        ((None, 1.0), False, False),
        ((1.0, 2.0), True, False),
        ((1.0, 1.0), False, True),
    ],
)
def test_nothing_is_decided_of_a_policy_that_is_ranked_alone_or_not_or_at_the_end(
    found: tuple[float | None, ...],
    spent: bool,
    decided: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is considered as soon as it can be: the time of its last consideration stays."""
    monkeypatch.setattr(population_of_run, "objectives", lambda _: found)
    monkeypatch.setattr(Population, "write", lambda _: None)
    policies = two_policies(tmp_path)
    population = Population(policies[0].config, RunFolder(tmp_path, signed=True))
    population.begin(policies)
    made = policies[0].config.total_env_steps // 4
    policies[0].counters.env_steps = made
    batch: Any = SimpleNamespace(policy=0, env_steps=1)
    of_run = policies[0].config.total_env_steps if spent else 2 * made
    assert not population.consider(batch, of_run, lambda _: None)
    assert population.controller.due(0, made) != decided


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
    with pytest.raises(ConfigError, match="got a change of unroll_steps; begin a new run"):
        one.configure(one.config.learner.model_copy(update={"unroll_steps": 17}))
    assert one.config.learner == rates[1]


OF_REPORTS = {"population.objective": "eval/return_mean", "eval.episodes": 1}


def evaluated(policy: PolicyRun, score: float) -> None:
    policy.scores = {"eval/return_mean": score}
    policy.report(1.0)


def test_a_copy_has_no_objective_of_reports_until_it_is_measured(tmp_path: Path) -> None:
    one, donor = two_policies(tmp_path, **OF_REPORTS)
    one.counters.env_steps = 50
    evaluated(one, 3.0)
    assert (one.reported, one.measured_env_steps) == (3.0, 50)
    evaluated(donor, 8.0)
    one.scores = {"eval/return_mean": 2.0}  # of the former weights, not yet reported
    one.counters.env_steps = 60
    one.become(donor, one.config.learner)
    one.report(1.0)
    assert objectives([one, donor]) == [None, 8.0]
    evaluated(one, 9.0)
    assert (one.reported, one.measured_env_steps) == (9.0, 60)
    assert objectives([one, donor]) == [9.0, 8.0]


def test_a_score_of_reports_is_considered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many periods pass until the next one."""
    monkeypatch.setattr(Population, "write", lambda _: None)
    policies = two_policies(tmp_path, **OF_REPORTS)
    config = policies[0].config
    population = Population(config, RunFolder(tmp_path, signed=True))
    population.begin(policies)
    one, period = policies[1], population.controller.period + 1
    one.counters.env_steps = population.controller.start + period
    for policy, score in zip(policies, (5.0, 1.0), strict=True):
        evaluated(policy, score)
    batch: Any = SimpleNamespace(policy=1, env_steps=1)

    def considered() -> int:
        one.counters.env_steps += period
        population.consider(batch, 0, lambda _: None)
        return population.controller.considered[1]

    first = one.counters.env_steps + period
    assert considered() == first
    assert [considered() for _ in range(3)] == [first] * 3
    evaluated(one, 2.0)
    assert considered() == first + 4 * period
    evaluated(one, 3.0)  # in the same iteration, after the consideration
    assert considered() == first + 5 * period


def test_when_a_score_was_reported_is_saved(tmp_path: Path) -> None:
    one, other = two_policies(tmp_path, **OF_REPORTS)
    one.counters.env_steps = 50
    evaluated(one, 3.0)
    tensors, part = one.save()
    both = {name.replace("_0", "_1"): x for name, x in tensors.items()} | tensors
    meta = {"counters": asdict(Counters()), "policies": [part, part]}
    other.load(Checkpoint(tmp_path, both, meta, None))
    assert (other.reported, other.measured_env_steps) == (3.0, 50)


def test_scores_that_are_not_finite_rank_last(tmp_path: Path) -> None:
    policies = two_policies(tmp_path, **OF_REPORTS)
    for score in (math.nan, math.inf, -math.inf):
        for policy, own in zip(policies, (score, -1e9), strict=True):
            evaluated(policy, own)
        assert objectives(policies) == [-math.inf, -1e9]
        assert leader(policies) is policies[1]


def test_episodes_that_former_weights_began_do_not_rank_a_copy(tmp_path: Path) -> None:
    policies = one, donor = two_policies(tmp_path, **{"population.min_episodes": 1})
    one.counters.env_steps = 100
    one.add_episodes([])
    one.learner.trained.steps = 5  # type: ignore[attr-defined]
    one.become(donor, one.config.learner)
    one.counters.env_steps = 300
    one.add_episodes([Episode(0, 0, 9.0, 10, version=4)])
    assert one.counters.ended_episodes == 1
    assert objectives(policies) == [None, None]
    one.add_episodes([Episode(0, 0, 7.0, 10, version=5)])
    assert objectives(policies) == [7.0, None]


def test_the_winner_and_the_reason_are_told(tmp_path: Path) -> None:
    policies = two_policies(tmp_path, **OF_REPORTS)
    population = Population(policies[0].config, RunFolder(tmp_path, signed=True))
    population.begin(policies)
    none = (
        "policy 0 is the run's policy: no policy has a finite eval/return_mean, so it is the first"
    )
    assert population.winner() == none
    evaluated(policies[1], 7.5)
    told = "policy 1 is the run's policy: it has the highest eval/return_mean, 7.5"
    assert population.winner() == f"{told} (policy 0 has none)"
    evaluated(policies[0], 3.0)
    assert population.winner() == f"{told} (policy 0 has 3)"


def test_it_is_told_which_policies_have_no_objective(tmp_path: Path) -> None:
    """Once for each set of them, after a further period with the same weights."""
    policies = two_policies(tmp_path)
    population = Population(policies[0].config, RunFolder(tmp_path, signed=True))
    population.begin(policies)
    said: list[str] = []

    def consider(env_steps: int, *found: float | None) -> None:
        for policy in policies:
            policy.counters.env_steps = env_steps
        population._tell_of_missing(found, said.append)

    for _ in range(2):
        consider(300, None, None)
        consider(460, 1.0, None)
        consider(460, None, None)
        policies[1].record.since = 100  # it became a copy
        consider(460, None, None)
        policies[1].record.since = 0
    rest = (
        "have no episode/return_mean of 20 episodes yet; until they have, they are neither copied"
    )
    assert said == [f"policies {who} {rest} nor replaced" for who in ("1", "0, 1", "0")]
