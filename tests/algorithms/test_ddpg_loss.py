"""DDPG's update against plain loops over rows, and where the answer is known without."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from ddpg_helpers import PLAIN, case, replayed, with_endings
from torch import Tensor

from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.algorithms.ddpg.network import Networks
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts.windows import windows_of
from quintet.types import Rollout


def moved_statistics(learner: DDPGLearner, targets: list[float]) -> tuple[float, float]:
    """Mean and standard deviation after the targets, by moments."""
    config, old = learner.config, learner.targets
    mean, variance, count = old.mean.item(), old.variance.item(), len(targets)
    if config.normalize_returns and config.update_normalizers:
        share = config.popart_step_size or count / (old.count.item() + count)
        second = (1 - share) * (variance + mean**2) + share * sum(x * x for x in targets) / count
        mean = (1 - share) * mean + share * sum(targets) / count
        variance = second - mean**2
    return mean, math.sqrt(max(variance, 0.01))


def loss_in_loops(learner: DDPGLearner, batch: Rollout) -> tuple[Tensor, Tensor, Networks]:
    """The critic's and the actor's loss, row by row, by the formulas of the papers, and the
    networks that they are of.
    """
    config, (m, s) = learner.config, learner.targets.numbers().tolist()
    network, target_network = copy.deepcopy(learner.network), copy.deepcopy(learner.network)
    with torch.no_grad():
        for name, parameter in target_network.named_parameters():
            parameter.copy_(learner.trained.averaged()[name])
    steps, columns = batch.valid.shape
    targets = []
    for b in range(columns):
        total, weight = 0.0, 1.0
        for t in range(steps):
            total += weight * config.reward_scale * batch.reward[t, b].item()
            if batch.terminated[t, b]:
                weight = 0.0
                break
            weight *= config.gamma
            if batch.truncated[t, b] or (batch.trace_cut is not None and batch.trace_cut[t, b]):
                break
        after = learner.normalizer({"obs": batch.obs["obs"][t + 1, b][None]})
        with torch.no_grad():
            bootstrap = target_network.critic(after, target_network.actor(after)).item() * s + m
        low, high = config.return_range
        targets.append(min(max(total + weight * bootstrap, low), high))
    m_new, s_new = moved_statistics(learner, targets)
    if config.popart:
        head = network.critic.head
        with torch.no_grad():
            head.weight *= s / s_new
            head.bias.copy_((head.bias * s + m - m_new) / s_new)
    critic, actor = [], []
    for b, target in enumerate(targets):
        obs = learner.normalizer({"obs": batch.obs["obs"][0, b][None]})
        q = network.critic(obs, batch.action[0, b][None])
        error = (q - (target - m_new) / s_new).abs()
        delta = config.critic_huber_delta or math.inf
        critic.append(0.5 * error.square() if error <= delta else delta * (error - 0.5 * delta))
        actor.append(-(network.critic(obs, network.actor(obs)) * s_new + m_new))
    kernels = [p for name, p in network.critic.named_parameters() if p.ndim == 2]
    l2 = sum(p.square().sum() for p in kernels) - network.critic.head.weight.square().sum()
    critic_loss = config.value_coef * torch.stack(critic).mean()
    return critic_loss + 0.5 * config.critic_l2_coef * l2, torch.stack(actor).mean(), network


RETURNS: dict[str, Any] = {"normalize_returns": True, "n_step": 3}
BOUNDS: dict[str, Any] = {"return_low": 3.0, "return_high": 7.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3, "reward_scale": 0.5},
        {"critic_huber_delta": 0.3},
        {"normalize_observations": True},
        {"normalize_observations": True, "update_normalizers": False, "normalize_returns": True},
        BOUNDS,
        RETURNS,
        RETURNS | BOUNDS,
        RETURNS | {"popart": True},
        RETURNS | BOUNDS | {"popart": True, "popart_step_size": 0.3},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_loss_and_its_gradient(options: dict[str, Any]) -> None:
    """With windows of each ending, and one that ends at a gap in what is stored."""
    of = case(**{**PLAIN, **options})
    learner, fresh, g = of.learner(), of.batches(3)[0][0], torch.Generator().manual_seed(0)
    learner.normalizer.merge({"obs": 3.0 * fresh.obs["obs"][:-1] + 2.0}, fresh.valid)
    if learner.config.normalize_returns:
        learner.targets.merge(5.0 + 2.0 * torch.randn(50, generator=g))
    for network in (learner.trained.theta, learner.trained.average):  # values far from each other
        network.data += 0.3 * torch.randn(network.shape, generator=g)
    batch = with_endings(replayed(of)[0])
    critic, actor, network = loss_in_loops(learner, batch)
    names = list(learner.trained.parameters)
    values = [network.state_dict(keep_vars=True)[name] for name in names]
    of_critic = torch.autograd.grad(critic, values, allow_unused=True)
    of_actor = torch.autograd.grad(actor, values, allow_unused=True)
    expected = [
        (a if name.startswith("actor.") else c).flatten()
        for name, a, c in zip(names, of_actor, of_critic, strict=True)
    ]
    learner.trained.keep_gradient()
    learner.update(batch, 0)
    found = learner.metrics()
    total = found["loss/critic"] + found["loss/l2"]
    assert total == pytest.approx(critic.item(), rel=1e-5)
    assert found["loss/actor"] == pytest.approx(actor.item(), rel=1e-5)
    torch.testing.assert_close(learner.trained.gradient, torch.cat(expected), rtol=1e-4, atol=2e-6)


def test_truncation_is_no_termination() -> None:
    batch = replayed(case(**PLAIN))[0]
    cut = replace(batch, truncated=torch.ones_like(batch.valid), terminated=batch.valid & False)
    ended = replace(batch, truncated=batch.valid & False, terminated=torch.ones_like(batch.valid))
    losses = []
    for each, options in ((cut, {}), (ended, {}), (cut, {"truncation_as_termination": True})):
        learner = case(**PLAIN, **options).learner()
        with torch.no_grad():
            learner.trained.average += 0.5
        learner.update(each, 0)
        losses.append(learner.metrics()["loss/critic"])
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    assert losses[1] == losses[2]


@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_targets_follow(tau: float) -> None:
    learner = case(**PLAIN, tau=tau).learner()
    before = learner.trained.average.clone()
    learner.update(replayed(case(**PLAIN))[0], 0)
    expected = before + tau * (learner.trained.theta - before)
    assert not torch.equal(expected, before)
    if tau == 1.0:
        assert torch.equal(learner.trained.average, learner.trained.theta)
    torch.testing.assert_close(learner.trained.average, expected)


def test_nothing_of_the_discount_is_left_at_gamma_0() -> None:
    learner = case(**PLAIN, gamma=0.0, critic_l2_coef=0.0).learner()
    batch = replayed(case(**PLAIN))[0]
    with torch.no_grad():
        q = learner.network.critic({"obs": batch.obs["obs"][0]}, batch.action[0])
    expected = (q - batch.reward[0]).square().mean()
    learner.update(batch, 0)
    assert learner.metrics()["loss/critic"] == pytest.approx(expected.item(), rel=1e-5)


def test_rewards_beyond_the_range_of_returns() -> None:
    of = case(**PLAIN)
    low, high = -1.0, 0.5
    learner = case(**PLAIN, return_low=low, return_high=high).learner()
    batch = replayed(of)[0]
    far = torch.linspace(-100, 100, batch.reward.numel()).view_as(batch.reward)
    learner.update(replace(batch, reward=far), 0)
    found = learner.metrics()["q/target_mean"]
    assert found == pytest.approx((low + high) / 2, abs=0.1)
    assert math.isfinite(found)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_targets_beyond_any_return_are_told(scale: float) -> None:
    """A critic and its targets that drive each other up agree, so the error tells nothing."""
    of = case(**PLAIN | {"gamma": 0.9, "reward_scale": 0.5})
    learner = of.learner()
    with torch.no_grad():
        learner.trained.average *= scale
    assert "q/target_bound_frac" not in learner.metrics()
    fresh, replay = of.batches(1)[0][0], replayed(of)[0]
    learner.update(replace(fresh, replayed=False), 0)
    largest = fresh.reward[fresh.valid].abs().max()
    windows = windows_of(replay, learner.ranks, learner.normalizer, truncation_as_termination=False)
    own = Transitions(windows, None, learner.targets.numbers())
    target = learner._targets_of(own, torch.tensor([0.9, 0.5])).abs().max()
    learner.update(replay, 0)
    found = learner.metrics()["q/target_bound_frac"]
    assert found == pytest.approx((target / (0.5 * largest / 0.1)).item(), rel=1e-5)
    assert (found > 3.0) == (scale > 1.0)
    other = of.learner()
    other.load(learner.save())
    assert other.largest_reward == largest
