"""The first batch goes into the normalisers before it is learned from, later ones afterwards."""

from dataclasses import replace
from typing import Any

import acer_helpers
import appo_helpers
import impala_helpers
import ppo_helpers
import pytest
import torch

from quintet.algorithms.acer.config import ACERConfig
from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.ppo.config import PPOConfig
from quintet.models.normalize import ObservationNormalizer
from quintet.types import Rollout

OPTIONS: dict[str, Any] = {"normalize_observations": True, "reward_normalizer": "step_std"}


def made(name: str, **options: Any) -> tuple[Any, Rollout]:
    """A learner and a batch for it, fresh."""
    options = OPTIONS | options
    if name == "ppo":
        return ppo_helpers.make_learner(PPOConfig(**options)), ppo_helpers.make_rollout(seed=1)
    if name == "impala":
        impala = impala_helpers.make_learner(ImpalaConfig(**options))
        return impala, impala_helpers.make_batch(impala)
    if name == "appo":
        appo = appo_helpers.make_learner(**options)
        return appo, appo_helpers.make_batch(appo)
    acer = acer_helpers.make_learner(ACERConfig(**options, unroll_steps=16))
    return acer, replace(acer_helpers.make_batch(acer), replayed=False)


def counts_seen(learner: Any, batch: Rollout) -> set[tuple[float, float]]:
    """Rows in both normalisers (rewards, observations) at each step of an update."""
    step, seen = learner.trained.step, set()

    def watched(*given: Any, **named: Any) -> None:
        normalizers = learner.normalizers
        leaf = normalizers.observations.leaf_moments(normalizers.observations.names[0])
        seen.add((normalizers.rewards.moments.count.item(), leaf.count.item()))
        step(*given, **named)

    learner.trained.step = watched
    learner.update(batch, 0)
    learner.trained.step = step
    return seen


@pytest.mark.parametrize("name", ["ppo", "impala", "appo", "acer"])
def test_the_first_batch_goes_in_before_it_is_learned_from(name: str) -> None:
    learner, batch = made(name)
    rows = float(batch.valid.sum())
    assert counts_seen(learner, batch) == {(rows, rows)}
    assert counts_seen(learner, batch) == {(rows, rows)}
    assert counts_seen(learner, batch) == {(2 * rows, 2 * rows)}


@pytest.mark.parametrize("name", ["ppo", "impala", "appo", "acer"])
def test_saved_statistics_have_had_their_first_batch(name: str) -> None:
    learner, batch = made(name)
    learner.update(batch, 0)
    other, _ = made(name)
    other.load(learner.save())
    rows = float(batch.valid.sum())
    assert counts_seen(other, batch) == {(rows, rows)}
    learner.update(batch, 0)
    assert torch.equal(learner.trained.theta, other.trained.theta)


@pytest.mark.parametrize("name", ["ppo", "impala", "appo", "acer"])
def test_a_used_learner_that_loads_the_state_of_a_new_one_has_a_first_batch(name: str) -> None:
    learner, batch = made(name)
    new = learner.save()
    tensors = {key: x.clone() for key, x in new.tensors.items()}
    for _ in range(2):
        learner.update(batch, 0)
    learner.load(replace(new, tensors=tensors))
    rows = float(batch.valid.sum())
    assert counts_seen(learner, batch) == {(rows, rows)}
    other, _ = made(name)
    other.update(batch, 0)
    assert torch.equal(learner.trained.theta, other.trained.theta)


def test_statistics_of_one_kind_alone() -> None:
    """As after a warm start by a policy, which brings no statistics of rewards."""
    learner, batch = made("ppo")
    learner.normalizers._merge(batch, observations=True, rewards=False)
    rows = float(batch.valid.sum())
    assert counts_seen(learner, batch) == {(rows, rows)}
    assert counts_seen(learner, batch) == {(rows, 2 * rows)}


@pytest.mark.parametrize("name", ["ppo", "impala", "appo"])
def test_frozen_statistics_stay_empty(name: str) -> None:
    learner, batch = made(name, update_normalizers=False)
    assert counts_seen(learner, batch) == {(0.0, 0.0)}
    assert counts_seen(learner, batch) == {(0.0, 0.0)}


def test_a_batch_without_a_valid_row_is_not_the_first() -> None:
    learner, batch = made("ppo")
    learner.update(replace(batch, valid=torch.zeros_like(batch.valid)), 0)
    rows = float(batch.valid.sum())
    assert counts_seen(learner, batch) == {(rows, rows)}


def test_large_rewards_are_divided_from_the_first_batch_on() -> None:
    """PPO's first value loss was of rewards as they are, 1e8 for rewards of 1e4."""
    learner, batch = made("ppo", reward_normalizer="return_std", value_source="recomputed")
    carry = batch.return_carry
    assert carry is not None
    learner.update(replace(batch, reward=1e4 * batch.reward, return_carry=1e4 * carry), 0)
    assert learner.metrics()["loss/value"] < 10.0


def unlike(running: torch.Tensor, newest: torch.Tensor) -> float | None:
    """By statistics of `running` rows, then of `newest` ones ``[N, 4]``."""
    normalizer = ObservationNormalizer({"obs": (4,)}, clip=5.0, epsilon=1e-3)
    for rows in (running, newest):
        obs = rows.unsqueeze(1)
        normalizer.merge({"obs": obs}, torch.ones(obs.shape[:2], dtype=torch.bool))
    return normalizer.unlike()


def test_a_batch_unlike_its_statistics_is_told() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 546.0 * torch.randn(2000, 4, generator=generator)
    batch = torch.randn(100, 4, generator=generator) * torch.tensor([0.0, 30.0, 80.0, 546.0])
    assert unlike(rows, rows[:100]) == 0.0
    assert unlike(rows, batch) == 0.75
    assert unlike(rows.repeat(10, 1), 546.0 * 20.0 + batch) == 1.0
    assert unlike(rows[:200], batch) is None, "the statistics are hardly more than the batch"
    assert unlike(rows, batch[:10]) is None, "too few rows"
    still = rows.clone()
    still[:, :3] = 7.0  # numbers that never change say nothing
    assert unlike(still, still[:100]) == 0.0
    assert unlike(torch.full((2000, 4), 7.0), torch.full((100, 4), 7.0)) is None
