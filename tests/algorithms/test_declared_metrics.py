"""Every metric that a learner declares is reported, and every one that it reports is declared."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import acer_helpers
import appo_helpers
import impala_helpers
import ppo_helpers
import pytest
import torch

from quintet.algorithms import registry
from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.ppo.config import PPOConfig
from quintet.errors import ConfigError
from quintet.observe import metrics
from quintet.protocols import Learner
from quintet.types import Rollout

EVERY_PPO = PPOConfig(
    minibatch_steps=16,
    num_epochs=2,
    unroll_steps=16,
    kl_coef_init=1.0,
    kl_cutoff_coef=1.0,
    log_gradients=True,
)


def of_ppo() -> set[str]:
    found: set[str] = set()
    for spaces in (ppo_helpers.CONTINUOUS, ppo_helpers.DISCRETE):
        learner = ppo_helpers.make_learner(EVERY_PPO, spaces)
        for seed in range(6):
            learner.update(ppo_helpers.make_rollout(spaces, seed=seed), 0)
        found |= set(learner.metrics())
    return found


def of_now(batch: Rollout, learner: Learner) -> Rollout:
    """As if the learner's weights of now had acted."""
    return replace(batch, version=torch.full_like(batch.version, learner.version))


def of_impala() -> set[str]:
    from test_impala_aux import OWN

    config = ImpalaConfig(normalize_observations=True, reward_normalizer="return_std")
    found: set[str] = set()
    for spaces, model in ((ppo_helpers.CONTINUOUS, ppo_helpers.SMALL), (ppo_helpers.DISCRETE, OWN)):
        learner = impala_helpers.make_learner(config, spaces, model)
        for seed in range(6):
            learner.update(
                of_now(impala_helpers.make_batch(learner, spaces, seed=seed), learner), 0
            )
        found |= set(learner.metrics())
    return found


def of_appo() -> set[str]:
    normalized = {"normalize_observations": True, "reward_normalizer": "return_std"}
    found: set[str] = set()
    for spaces, options in (
        (ppo_helpers.CONTINUOUS, {"kl_coef": 0.1, **normalized}),
        (ppo_helpers.DISCRETE, {"exploration_loss": "symmetric_kl", **normalized}),
    ):
        learner = appo_helpers.make_learner(spaces, **options)
        for seed in range(6):
            learner.update(of_now(appo_helpers.make_batch(learner, spaces, seed=seed), learner), 0)
        found |= set(learner.metrics())
    return found


def of_acer() -> set[str]:
    found: set[str] = set()
    for spaces in (ppo_helpers.CONTINUOUS, ppo_helpers.DISCRETE):
        options = acer_helpers.config(normalize_observations=True, reward_normalizer="return_std")
        learner = acer_helpers.make_learner(options, spaces)
        replayed = acer_helpers.make_batch(learner, spaces)
        shape = acer_helpers.STEPS, acer_helpers.STREAMS
        carry = ppo_helpers.make_rollout(spaces, *shape).return_carry
        for _ in range(5):
            learner.update(replace(replayed, replayed=False, return_carry=carry), 0)
        learner.update(replayed, 0)
        found |= set(learner.metrics())
    return found


def families(names: Iterable[str], declared: Iterable[str]) -> set[str]:
    """The names, those of a declared family by its beginning."""
    prefixes = tuple(name for name in declared if name.endswith("/"))
    return {next((p for p in prefixes if name.startswith(p)), name) for name in names}


@pytest.mark.parametrize(
    ("algo", "reported"),
    [("ppo", of_ppo), ("impala", of_impala), ("appo", of_appo), ("acer", of_acer)],
)
def test_what_is_declared_is_what_is_reported(algo: str, reported: Any) -> None:
    declared = registry.find(algo).reported()
    assert len(set(declared)) == len(declared)
    assert families(reported(), declared) == set(declared)


def test_metrics_of_one_learner_are_its_own_and_those_of_several_are_not() -> None:
    learners = [registry.find(name) for name in registry.LEARNERS.names()]
    who = Counter(name for one in learners for name in one.metrics())
    own = Counter(name for one in learners for name in one.own_metrics)
    assert {name for name, count in who.items() if count == 1} <= set(metrics.OF_RUNS)
    assert set(metrics.OF_LEARNERS) == set(who) - set(metrics.OF_RUNS)
    assert set(metrics.OF_RUNS) & set(who) == {"data/valid_frac"}
    assert not set(own) & {*metrics.OF_LEARNERS, *metrics.OF_RUNS}
    assert set(own.values()) == {1}
    for name in own:
        assert metrics.describe(name) is not None, name


def test_a_name_has_one_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    monkeypatch.setattr(metrics, "PREFIXES", dict(metrics.PREFIXES))
    mine = {"tests/mine": metrics.Metric("m", "a length"), "tests/of/": metrics.Metric("1", "some")}
    for _ in range(2):
        metrics.declare(mine, "learner 'tests'")
    metrics.check(["tests/mine", "tests/of/any"])
    with pytest.raises(ConfigError) as raised:
        metrics.declare({"loss/total": metrics.Metric("m", "a length")}, "learner 'tests'")
    assert str(raised.value) == (
        "metric loss/total of learner 'tests' must have the meaning of the existing metric of that "
        "name (weighted sum of all terms), got a length: rename it there"
    )
