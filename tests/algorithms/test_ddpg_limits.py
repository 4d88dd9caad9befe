"""DDPG where the answer is known without an oracle: values that PopArt keeps, options at their
limits, several learners of the same data.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance_helpers import everything, go_on, learn, weights
from ddpg_helpers import PLAIN, acting, case, replayed
from rank_threads_helpers import RankThreads
from torch import Tensor

from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.runtime.batch import select
from quintet.types import Rollout

TINY = 1e-60
"""A rate that float32 has no number for but 0, which is refused as such."""

STILL: dict[str, Any] = {"actor_lr": TINY, "critic_lr": TINY, "tau": TINY}


# PopArt


def values(learner: DDPGLearner, batch: Rollout) -> Tensor:
    """Values of the batch's first rows by the critic and by the target critic, in reward units,
    ``[2, B]``, float64.
    """
    mean, std = learner.targets.mean, learner.targets.std
    target = copy.deepcopy(learner.network.critic)
    for name, parameter in target.named_parameters():
        parameter.data.copy_(learner.trained.averaged()[f"critic.{name}"])
    obs = learner.normalizer({"obs": batch.obs["obs"][0]})
    with torch.no_grad():
        both = [critic(obs, batch.action[0]) for critic in (learner.network.critic, target)]
    return torch.stack(both).double() * std + mean


@pytest.mark.parametrize("step_size", [None, 0.3])
@pytest.mark.parametrize("popart", [True, False])
def test_an_update_that_moves_statistics_alone_keeps_the_values_of_both_critics(
    popart: bool, step_size: float | None
) -> None:
    """Over updates whose rewards grow a thousandfold and move away from 0, to 1e-6 of the spread
    and the mean of targets, which float32 can tell apart.
    """
    of = case(**STILL, normalize_returns=True, popart=popart, popart_step_size=step_size)
    learner, batch = of.learner(), replayed(of)[0]
    generator = torch.Generator().manual_seed(0)
    for network in (learner.trained.theta, learner.trained.average):  # each with values of its own
        network.data += 0.3 * torch.randn(network.shape, generator=generator)
    before, theta = values(learner, batch), learner.trained.theta.clone()
    assert (before[0] - before[1]).abs().max() > 0.1
    for size in (3.0, 100.0, 3_000.0):
        moved = replace(batch, reward=size * (batch.reward + 2.0))
        mean, std = learner.targets.numbers().tolist()
        learner.update(moved, 0)
        assert abs(learner.targets.mean - mean) > 0.3 * std
        assert (learner.targets.std / std - 1).abs() > 0.1
        reach = learner.targets.std + learner.targets.mean.abs()
        off = ((values(learner, batch) - before).abs().amax(1) / reach).tolist()
        assert (max(off) < 1e-6) == popart, off
        assert popart or min(off) > 1e-3  # without it neither critic keeps its values
        before = values(learner, batch)
    changed = (learner.trained.theta != theta).sum().item()
    assert changed == (learner.network.critic.head.in_features + 1 if popart else 0)


# Options at their limits


def test_nothing_changes_at_a_rate_of_nothing() -> None:
    learner = case(**PLAIN, **STILL).learner()
    theta, average = learner.trained.theta.clone(), learner.trained.average.clone()
    for batch in replayed(case(**PLAIN))[:8]:
        learner.update(batch, 0)
    assert learner.updates == 8
    assert learner.metrics()["optim/critic_grad_norm"] > 0.0
    assert torch.equal(learner.trained.theta, theta)
    assert torch.equal(learner.trained.average, average)


def test_both_rates_follow_the_schedule() -> None:
    """Steps of either network shrink with what is left of the budget, to nothing at its end."""
    of = case(**PLAIN, lr_schedule="linear")
    batch, total = replayed(of)[0], of.learner().setup.total_env_steps

    def moved(env_steps: int, schedule: str = "linear") -> Tensor:
        learner = case(**PLAIN, lr_schedule=schedule).learner()
        theta, config = learner.trained.theta.double(), learner.config
        learner.update(batch, env_steps)
        left = 1.0 if schedule == "constant" else 1.0 - env_steps / total
        told = learner.metrics()
        assert told["optim/actor_learning_rate"] == pytest.approx(config.actor_lr * left)
        assert told["optim/critic_learning_rate"] == pytest.approx(config.critic_lr * left)
        return learner.trained.theta.double() - theta

    whole = moved(0)
    assert (whole.abs() > 1e-5).float().mean() > 0.5
    torch.testing.assert_close(moved(total // 4), 0.75 * whole, rtol=0.0, atol=1e-6)
    assert torch.equal(moved(total // 4, "constant"), whole)
    assert not moved(total).any()


def test_without_a_coefficient_there_is_no_penalty() -> None:
    batch = replayed(case(**PLAIN))[0]
    told, gradients = [], []
    for coefficient in (0.0, 1e-2):
        learner = case(**PLAIN, critic_l2_coef=coefficient).learner()
        learner.trained.keep_gradient()
        told.append(learn(learner, [batch]))
        gradients.append(learner.trained.gradient.clone())
    assert "loss/l2" not in told[0]
    assert told[0]["loss/critic"] == told[1]["loss/critic"]
    fresh = case(**PLAIN).learner()
    names, sizes = zip(*((n, p.numel()) for n, p in fresh.trained.parameters.items()), strict=True)
    parts = zip(names, *(each.split(sizes) for each in gradients), strict=True)
    for name, without, with_it in parts:
        weight = fresh.trained.parameters[name].detach().flatten()
        expected = 1e-2 * weight if name in fresh.penalised else 0.0 * weight
        torch.testing.assert_close(with_it - without, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_an_actor_without_noise_acts_as_in_an_evaluation() -> None:
    actor, state = acting(case(exploration="none"), 32)
    obs = {"obs": torch.randn(32, 3)}
    noise = actor.draw_noise(2, 32, torch.Generator().manual_seed(0))
    first = torch.ones(32, dtype=torch.bool)
    greedy = actor.act(obs, state, first, None)
    for row in noise:
        out = actor.act(obs, state, first, row)
        assert torch.equal(out.action, greedy.action)
        assert torch.equal(out.env_action, greedy.env_action)
        assert out.state == {}


# Several learners

SHARED: dict[str, Any] = {
    "normalize_returns": True, "popart": True, "popart_step_size": 0.1, "max_grad_norm": 1.0,
    "adapt_interval_updates": 1,
}  # fmt: skip


def drawn(count: int) -> list[list[Rollout]]:
    """Fresh batches, each with what was drawn after it, of which there is something."""
    found = [each for each in case(**SHARED).batches(count) if len(each) > 1]
    assert len(found) > 1
    return found


@pytest.mark.slow
def test_two_learners_are_one_on_the_same_draws() -> None:
    """With the normaliser, PopArt, and the distance that parameter noise moves actions by."""
    of = case(**SHARED)
    one, threads = of.learner(), RankThreads(2, lambda ranks: of.learner(ranks=ranks))
    seen = set()
    for each in drawn(4):
        for batch in each:
            told = threads.update(batch, 0)
            assert told == pytest.approx(learn(one, [batch]), rel=2e-5, abs=2e-6)
            seen |= set(told)
    assert {"exploration/param_noise_distance", "normalizer/target_std"} <= seen
    assert one.updates > 10
    first, second = map(everything, threads.learners)
    assert first == second
    assert (weights(one) - weights(threads.learners[0])).abs().max() < 1e-5
    theirs = threads.learners[0].targets.numbers()
    torch.testing.assert_close(one.targets.numbers(), theirs, rtol=1e-5, atol=1e-6)
    assert one.param_scale.item() == threads.learners[0].param_scale.item()


def test_learners_of_the_same_data_are_one_learner_of_it() -> None:
    """Statistics that count all targets alike would count these twice, so theirs move by shares."""
    of = case(**SHARED)
    half = of.learner().config.batch_size // 2
    one = case(**SHARED, batch_size=half).learner()
    threads = RankThreads(2, lambda ranks: of.learner(ranks=ranks))
    for batch in (batch for each in drawn(3) for batch in each):
        if batch.replayed:
            columns = torch.arange(half)
            one.update(select(batch, columns), 0)
            batch = select(batch, columns.repeat(2))
        else:
            one.update(batch, 0)
        threads.update(batch, 0)
    assert one.updates > 5
    assert (weights(one) - weights(threads.learners[0])).abs().max() < 1e-5
    assert one.param_scale.item() == threads.learners[0].param_scale.item()


@pytest.mark.parametrize("updates", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_ranks_stay_bit_identical(updates: int) -> None:
    of = case(**SHARED)
    threads, batches = RankThreads(2, lambda ranks: of.learner(ranks=ranks)), drawn(4)
    before, done = weights(threads.learners[0]).clone(), 0
    while done < updates:
        threads.at_once(lambda learner: go_on(learner, batches))
        done = threads.learners[0].updates
        first, second = map(everything, threads.learners)
        assert first == second, f"after {done} updates"
    assert (weights(threads.learners[0]) - before).abs().max() > 0.01
