"""DDPG's update against plain loops, its statistics, and what its actors do."""

import copy
import math
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conformance import CONTINUOUS, NUMBERS, Case, Task
from ddpg_helpers import NETWORK, PLAIN, acting, case, replayed, with_endings
from torch import Tensor

from quintet.algorithms.ddpg.actor import WARMING_UP, DDPGActor
from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.ddpg.exploration import Exploration, adapted, ou_step, parse
from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.algorithms.ddpg.network import perturbable
from quintet.algorithms.ddpg.popart import TargetStatistics
from quintet.algorithms.registry import find
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, resolve_model
from quintet.types import Rollout, Spaces

# The loss


def loss_in_loops(learner: DDPGLearner, batch: Rollout) -> tuple[Tensor, Tensor]:
    """The critic's and the actor's loss, row by row, by the formulas of the papers."""
    config, network = learner.config, learner.network
    target_network = copy.deepcopy(network)
    with torch.no_grad():
        for name, parameter in target_network.named_parameters():
            parameter.copy_(learner.trained.averaged()[name])
    steps, columns = batch.valid.shape
    critic, actor = [], []
    for b in range(columns):
        total, weight = 0.0, 1.0
        for t in range(steps):
            total += weight * config.reward_scale * batch.reward[t, b].item()
            if batch.terminated[t, b]:
                weight = 0.0
                break
            weight *= config.gamma
            if batch.truncated[t, b]:
                break
        after = {"obs": batch.obs["obs"][t + 1, b][None]}
        with torch.no_grad():
            bootstrap = target_network.critic(after, target_network.actor(after)).item()
        obs = {"obs": batch.obs["obs"][0, b][None]}
        q = network.critic(obs, batch.action[0, b][None])
        critic.append(0.5 * (q - (total + weight * bootstrap)).square())
        actor.append(-network.critic(obs, network.actor(obs)))
    kernels = [p for name, p in network.critic.named_parameters() if p.ndim == 2]
    l2 = sum(p.square().sum() for p in kernels) - network.critic.head.weight.square().sum()
    critic_loss = config.critic_loss_coef * torch.stack(critic).mean()
    return critic_loss + 0.5 * config.critic_l2_coef * l2, torch.stack(actor).mean()


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_loss_and_its_gradient(n_step: int) -> None:
    of = case(**PLAIN, n_step=n_step, reward_scale=0.5)
    learner = of.learner()
    with torch.no_grad():  # targets of their own
        learner.trained.average += 0.1 * torch.randn_like(learner.trained.average)
    batch = with_endings(replayed(of)[0])
    learner.trained.keep_gradient()
    critic, actor = loss_in_loops(learner, batch)
    names = list(learner.trained.parameters)
    values = [learner.network.state_dict(keep_vars=True)[name] for name in names]
    of_critic = torch.autograd.grad(critic, values, allow_unused=True)
    of_actor = torch.autograd.grad(actor, values, allow_unused=True)
    expected = [
        (a if name.startswith("actor.") else c).flatten()
        for name, a, c in zip(names, of_actor, of_critic, strict=True)
    ]
    learner.update(batch, 0)
    found = learner.metrics()
    total = found["loss/critic"] + found["loss/l2"]
    assert total == pytest.approx(critic.item(), rel=1e-5)
    assert found["loss/actor"] == pytest.approx(actor.item(), rel=1e-5)
    torch.testing.assert_close(learner.trained.gradient, torch.cat(expected), rtol=1e-4, atol=1e-6)


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


def test_fresh_batches_change_statistics_alone() -> None:
    of = case()
    learner, batch = of.learner(), of.batches(3)[0][0]
    theta = learner.trained.theta.clone()
    learner.update(batch, 0)
    assert torch.equal(theta, learner.trained.theta)
    assert learner.updates == 0
    count = learner.normalizer.leaf_moments("obs").count
    assert count == batch.valid.sum()
    action = batch.action[batch.valid]
    assert learner.metrics()["exploration/action_mean"] == pytest.approx(action.mean().item())


# Normalised returns


def test_statistics_of_targets() -> None:
    """Those of all targets, but for what there was before any."""
    x = 3.0 + 2.0 * torch.randn(4, 1_000, generator=torch.Generator().manual_seed(0))
    all_alike, moving = TargetStatistics(None), TargetStatistics(0.25)
    mean, variance = 0.0, 1.0
    for each in x:
        all_alike.merge(each)
        moving.merge(each)
        second = 0.75 * (variance + mean**2) + 0.25 * each.double().square().mean().item()
        mean = 0.75 * mean + 0.25 * each.double().mean().item()
        variance = second - mean**2
    assert all_alike.mean.item() == pytest.approx(x.mean().item(), rel=1e-4)
    assert all_alike.std.item() == pytest.approx(x.std(correction=0).item(), rel=1e-4)
    assert moving.mean.item() == pytest.approx(mean)
    assert moving.variance.item() == pytest.approx(variance)


@pytest.mark.parametrize("popart", [True, False])
def test_popart_keeps_the_values_of_both_critics(popart: bool) -> None:
    of = case(exploration="none", normalize_returns=True, popart=popart)
    learner, batch = of.learner(), replayed(of)[0]
    with torch.no_grad():
        learner.trained.average += 0.1
    batch = replace(batch, reward=100.0 * batch.reward + 50.0)

    def values() -> Tensor:
        obs = {"obs": batch.obs["obs"][0]}
        mean, std = learner.targets.numbers()
        target = copy.deepcopy(learner.network)
        with torch.no_grad():
            for name, parameter in target.named_parameters():
                parameter.copy_(learner.trained.averaged()[name])
            both = [x.critic(obs, batch.action[0]) for x in (learner.network, target)]
            return torch.stack(both) * std + mean

    before = values()
    own = learner._transitions(batch)
    learner._known_targets(own)
    assert learner.targets.std > 2.0
    kept = torch.allclose(values(), before, rtol=1e-5, atol=1e-5)
    assert kept == popart


# Exploration


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", Exploration()),
        ("normal_0.1", Exploration(normal=0.1)),
        (" ou_0.2 , normal_1e-2 ", Exploration(normal=0.01, ou=0.2)),
        ("adaptive-param_0.2,ou_0.1,normal_0.3", Exploration(0.3, 0.1, 0.2)),
        ("adaptive-param_1,normal_1.5", Exploration(normal=1.5, param=1.0)),
    ],
)
def test_grammar(text: str, found: Exploration) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((entry, f"the entry {entry!r} is none of these") for entry in (
            "", "gauss_0.1", "normal", "normal_", "normal_0", "normal_-1", "normal_nan",
            "normal_inf", "normal_x", "none_1",
        )),
        ("none,normal_0.1", "the entry 'none' must stand alone"),
        ("normal_0.1,normal_0.2", "normal may stand in it once"),
        ("normal_0.1,,ou_0.1", "the entry '' is none of these"),
    ],
)  # fmt: skip
def test_what_the_grammar_refuses(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="must be a list of none, normal_S") as raised:
        parse(text)
    assert str(raised.value).endswith(f"; {words}")


def test_the_ou_process_has_its_variance_and_memory() -> None:
    theta, dt, size = 2.0, 0.05, 0.3
    x = torch.zeros(20_000)
    generator = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(130):
        x = ou_step(x, torch.randn(len(x), generator=generator), size, theta, dt)
        seen.append(x)
    keep = 1 - theta * dt
    variance = size**2 * dt / (1 - keep**2)
    assert seen[-1].var().item() == pytest.approx(variance, rel=0.05)
    covariance = (seen[-1] * seen[-6]).mean().item()
    assert covariance == pytest.approx(variance * keep**5, rel=0.07)


def test_the_scale_goes_up_and_down_by_its_factor() -> None:
    scale = torch.tensor(0.5)
    assert adapted(scale, torch.tensor(0.21), 0.2, 1.01).item() == pytest.approx(0.5 / 1.01)
    assert adapted(scale, torch.tensor(0.19), 0.2, 1.01).item() == pytest.approx(0.5 * 1.01)


def test_the_scale_goes_to_where_actions_move_as_far_as_desired() -> None:
    of = case(exploration="adaptive-param_0.2", normalize_observations=False)
    learner, draw = of.learner(), torch.Generator().manual_seed(0)
    with torch.no_grad():  # a policy that tells observations apart
        learner.network.actor.head.weight.normal_(generator=draw)
    obs = {"obs": torch.randn(64, 3, generator=draw)}
    seen = []
    for seed in range(900):
        learner._adapt(obs)
        seen.append(learner._distance(obs, seed))
    # As often above as below.
    assert torch.stack(seen[300:]).median().item() == pytest.approx(0.2, rel=0.05)


def test_every_stream_is_perturbed_by_itself_from_one_start_to_the_next() -> None:
    of = case(exploration="adaptive-param_0.5", normalize_observations=False)
    actor, state = acting(of, 4)
    generator = torch.Generator().manual_seed(0)
    noise = actor.draw_noise(3, 4, generator)
    obs = {"obs": torch.randn(1, 3).expand(4, 3)}
    starts = torch.tensor([[True] * 4, [False] * 4, [False, True, False, False]])
    actions = []
    for row in range(3):
        out = actor.act(obs, state, starts[row], noise[row])
        state = out.state
        actions.append(out.action)
    assert len({tuple(x.tolist()) for x in actions[0]}) == 4
    assert torch.equal(actions[0], actions[1])
    assert (actions[1] != actions[2]).any(1).tolist() == [False, True, False, False]
    # What a stream does follows from its own noise, wherever it stands.
    swapped, state = acting(of, 2)
    out = swapped.act({"obs": obs["obs"][:2]}, state, starts[0, :2], noise[0][[2, 0]])
    torch.testing.assert_close(out.action, actions[0][[2, 0]])


def test_normalising_layers_are_never_perturbed() -> None:
    of = case(exploration="adaptive-param_0.5")
    actor, state = acting(of, 1)
    noise = actor.draw_noise(1, 1, torch.Generator().manual_seed(0))
    obs = {"obs": torch.zeros(1, 3)}
    weights = actor.act(obs, state, torch.tensor([True]), noise[0]).state["weights"][0]
    sizes = [shape.numel() for shape in actor.shapes.values()]
    moved = perturbable(actor.network)
    assert set(moved.values()) == {True, False}
    parts = zip(actor.shapes, weights.split(sizes), actor.theta.split(sizes), strict=True)
    for name, after, before in parts:
        assert (after != before).all() if moved[name] else torch.equal(after, before), name


def test_noises_add_up_and_stay_in_bounds() -> None:
    of = case(exploration="normal_0.3,ou_3.0")
    actor, state = acting(of, 64)
    noise = actor.draw_noise(50, 64, torch.Generator().manual_seed(0))
    obs = {"obs": torch.randn(64, 3)}
    first = torch.ones(64, dtype=torch.bool)
    seen = []
    for row in noise:
        out = actor.act(obs, state, first, row)
        state, first = out.state, first & False
        seen.append(out.action)
        assert (out.env_action >= -2.0).all()
        assert (out.env_action <= 1.0).all()
    actions = torch.stack(seen)
    assert actions.abs().max() == 1.0
    assert actions[-1].std() > actions[0].std()  # the process wanders
    greedy = actor.act(obs, state, first, None).action
    assert torch.equal(greedy, actor.act(obs, state, first, None).action)


def test_actions_are_uniform_while_it_warms_up() -> None:
    of = case(exploration="normal_0.1", replay_start_steps=50, warmup_policy="uniform")
    learner = of.learner()
    assert bool(learner.publication().tensors[WARMING_UP])
    for batch in (each[0] for each in of.batches(3)):
        learner.update(batch, 30)
    assert not bool(learner.publication().tensors[WARMING_UP])
    actor, state = acting(of, 5_000, warming_up=True)
    noise = actor.draw_noise(1, 5_000, torch.Generator().manual_seed(0))
    obs = {"obs": torch.zeros(5_000, 3)}
    action = actor.act(obs, state, torch.ones(5_000).bool(), noise[0]).action
    shares = torch.histc(action[:, 0], 4, -1.0, 1.0) / 5_000
    torch.testing.assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ([-1.0, -np.inf], [1.0, 1.0], "ddpg requires finite bounds of actions"),
        ([-1.0, 1.0], [1.0, 1.0], "low below high is required"),
    ],
)
def test_bounds_that_are_refused(low: Any, high: Any, words: str) -> None:
    box = gymnasium.spaces.Box(np.float32(low), np.float32(high))
    with pytest.raises(ConfigError, match=words):
        Case("ddpg", Task(NUMBERS, box)).actor()


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_the_action_enters_the_critic_where_it_is_told_to(layer: int) -> None:
    learner = case(action_layer=layer).learner()
    kernels = [
        tuple(p.shape) for name, p in learner.network.critic.named_parameters() if p.ndim == 2
    ]
    sizes = [(8, 3), (6, 8), (1, 6)]
    sizes[layer - 1] = (sizes[layer - 1][0], sizes[layer - 1][1] + 2)
    assert kernels == sizes or sorted(kernels) == sorted(sizes)
    assert len(learner.penalised) == 2
    for head in (learner.network.actor.head, learner.network.critic.head):
        assert head.weight.abs().max() <= 3e-3
        assert head.weight.abs().max() > 1e-3


def test_a_layer_that_is_not_there_is_refused() -> None:
    model = resolve_model(ModelConfig(policy_hidden=(8,)), Spaces(*CONTINUOUS[:2]))
    entry = Case("ddpg").algorithm
    faults = entry.check(DDPGConfig(action_layer=3), model, 1, 10_000)
    assert "action_layer must be at most 2" in faults[0]
    assert entry.check(DDPGConfig(action_layer=2), model, 1, 10_000) == []
    like_the_policy = ModelConfig(policy_hidden=(8, 8))
    faults = entry.check(DDPGConfig(action_layer=4), like_the_policy, 1, 10_000)
    assert "action_layer must be at most 3" in faults[0]


def test_the_actor_has_nothing_of_the_critic() -> None:
    names = case().learner().publication().tensors
    assert not [name for name in names if "critic" in name or "average" in name]
    assert isinstance(case().actor(), DDPGActor)


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


def test_parameter_noise_without_layer_norm_is_warned_of() -> None:
    noisy, plain = DDPGConfig(), DDPGConfig(exploration="normal_0.1")
    bare, normed = ModelConfig(layer_norm=False), ModelConfig(layer_norm=True)
    [said] = find("ddpg").warnings(noisy, bare)
    assert "--model.layer-norm true" in said
    assert find("ddpg").warnings(noisy, normed) == find("ddpg").warnings(plain, bare) == []


PICTURE_AND_NUMBERS = Task(
    gymnasium.spaces.Dict(
        {
            "numbers": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32),
            "picture": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        }
    ),
    CONTINUOUS.action,
)


@pytest.mark.parametrize("layer", [1, 2])
def test_a_picture_and_numbers_together_with_the_action(layer: int) -> None:
    """Both networks read both leaves, the critic beside the action, wherever that enters."""
    of = Case("ddpg", PICTURE_AND_NUMBERS, {"action_layer": layer}, network=NETWORK)
    assert of.model.encoder == "nature_cnn"
    learner = of.learner()
    torch.manual_seed(0)
    obs = {
        "numbers": torch.randn(4, 3),
        "picture": torch.randint(256, (4, 36, 36, 3), dtype=torch.uint8),
    }
    action = torch.rand(4, 2)
    network = learner.network
    before = network.actor(obs), network.critic(obs, action)
    others = {"numbers": -obs["numbers"], "picture": 255 - obs["picture"]}
    for name, x in others.items():
        assert (network.actor(obs | {name: x}) != before[0]).any(1).all(), name
        assert (network.critic(obs | {name: x}, action) != before[1]).all(), name
    assert (network.critic(obs, -action) != before[1]).all()


def test_pictures_are_drawn_as_bytes_and_every_layer_learns_from_them() -> None:
    of = Case("ddpg", PICTURE_AND_NUMBERS, network=NETWORK)
    learner, batches = of.learner(), replayed(of)
    assert batches[0].obs["picture"].dtype == torch.uint8
    for batch in batches[:3]:
        before = {name: x.clone() for name, x in learner.trained.parameters.items()}
        learner.update(batch, 0)
    for name, x in learner.trained.parameters.items():
        assert not torch.equal(x, before[name]), name
