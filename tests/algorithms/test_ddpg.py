"""DDPG: what it tells, its statistics of targets, and what its actors do."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance_helpers import copied
from ddpg_helpers import PLAIN, acting, case, replayed
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.ddpg.actor import PARAM_SCALE, DDPGActor
from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.ddpg.exploration import Exploration, adapted, ou_step, parse
from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.algorithms.ddpg.network import perturbable
from quintet.algorithms.ddpg.popart import TargetStatistics
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts.acting import WARMING_UP
from quintet.algorithms.parts.windows import windows_of
from quintet.algorithms.registry import find
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.models.flat import views_of
from quintet.types import Publication


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


def values_of(learner: DDPGLearner, obs: Tensor, action: Tensor) -> Tensor:
    """By the critic, in reward units."""
    mean, std = learner.targets.numbers()
    with torch.no_grad():
        return learner.network.critic(learner.normalizer({"obs": obs}), action) * std + mean


SPREAD: dict[str, Any] = {"normalize_returns": True, "exploration": "none"}


def test_what_is_told_of_executed_actions() -> None:
    of = case(**SPREAD)
    learner, batches = of.learner(), [each[0] for each in of.batches(3)]
    learner.targets.merge(5.0 + 2.0 * torch.randn(50))
    q, actions = [], []
    for batch in batches:
        action = torch.where(batch.action > 0.0, 0.995, 0.9 * batch.action)  # as of a tanh
        q.append(values_of(learner, batch.obs["obs"][:-1][batch.valid], action[batch.valid]))
        actions.append(action[batch.valid])
        learner.update(replace(batch, action=action), 0)
    told, action = learner.metrics(), torch.cat(actions)
    assert told["q/collected_mean"] == pytest.approx(torch.cat(q).mean().item(), rel=1e-5)
    share = (action > 0.99).float().mean().item()
    assert 0.2 < share < 0.8
    assert told["exploration/action_saturation_frac"] == pytest.approx(share)
    assert told["exploration/action_std"] == pytest.approx(action.std(correction=0).item())
    assert "exploration/action_mean" not in learner.metrics()  # it began anew


def test_the_reference_batch_is_that_of_the_first_update() -> None:
    of = case(**SPREAD)
    learner = of.learner()
    first, *others = replayed(of)[:4]
    assert "reference/q_mean" not in learner.metrics()
    for batch in (first, *others):
        learner.update(batch, 0)
        told = learner.metrics()
        obs, action = first.obs["obs"][0], first.action[0]
        with torch.no_grad():
            chosen = learner.network.actor(learner.normalizer({"obs": obs}))
        expected = {
            "q": values_of(learner, obs, action),
            "actor_q": values_of(learner, obs, chosen),
            "action": chosen,
        }
        for name, x in expected.items():
            assert told[f"reference/{name}_mean"] == pytest.approx(x.mean().item(), rel=1e-4)
            assert told[f"reference/{name}_std"] == pytest.approx(
                x.std(correction=0).item(), rel=1e-4
            )


@pytest.mark.parametrize("updates", [1, 3])
def test_a_cycle_has_so_many_updates(updates: int) -> None:
    counts = [
        len(each) - 1
        for each in case(**PLAIN, updates_per_cycle=updates, replay_start_steps=40).batches(6)
    ]
    assert set(counts) == {0, updates}
    assert counts == sorted(counts)  # none before there is a batch


def test_a_warm_start_without_a_spread_keeps_the_values_of_one_with() -> None:
    donor = case(**SPREAD).learner()
    donor.targets.merge(-90.0 + 40.0 * torch.randn(50))
    for network in (donor.trained.theta, donor.trained.average):
        network.data += 0.1 * torch.randn(network.shape)
    obs, action = torch.randn(16, 3), torch.rand(16, 2)
    own = case(**PLAIN | {"normalize_observations": True}).learner()
    own.warm_start(donor.weights())
    assert own.targets.numbers().tolist() == [0.0, 1.0]
    wanted = values_of(donor, obs, action)
    torch.testing.assert_close(values_of(own, obs, action), wanted, rtol=1e-4, atol=1e-3)
    for learner in (donor, own):  # and the target critic's
        learner.trained.theta.data.copy_(learner.trained.average)
    wanted = values_of(donor, obs, action)
    torch.testing.assert_close(values_of(own, obs, action), wanted, rtol=1e-4, atol=1e-3)


def test_frozen_statistics_of_returns_must_be_there() -> None:
    """The returns would be divided by nothing."""
    frozen = SPREAD | {"update_normalizers": False}
    donor = case(**SPREAD).learner()
    for name in donor.normalizer.names:
        donor.normalizer.leaf_moments(name).merge(torch.randn(50, 3))
    with pytest.raises(ConfigError, match="must have statistics of returns"):
        case(**frozen).learner().warm_start(donor.weights())
    donor.targets.merge(torch.randn(50))
    own = case(**frozen).learner()
    own.warm_start(donor.weights())
    assert own.targets.numbers().tolist() == donor.targets.numbers().tolist()


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
    spread = learner.targets.numbers()
    windows = windows_of(batch, learner.ranks, learner.normalizer, truncation_as_termination=False)
    learner._known_targets(Transitions(windows, None, spread))
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
        *((entry, f"the word {entry!r} is none of these") for entry in (
            "", "gauss_0.1", "normal", "normal_", "normal_0", "normal_-1", "normal_nan",
            "normal_inf", "normal_x", "none_1",
        )),
        ("none,normal_0.1", "the word 'none' must stand alone"),
        ("normal_0.1,normal_0.2", "normal may stand in it once"),
        ("normal_0.1,,ou_0.1", "the word '' is none of these"),
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


@pytest.mark.slow
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


def test_perturbed_policies_see_normalised_observations() -> None:
    of = case(exploration="adaptive-param_0.5")
    learner, fresh = of.learner(), of.batches(3)[0][0]
    learner.normalizer.merge({"obs": 3.0 * fresh.obs["obs"][:-1] + 2.0}, fresh.valid)
    actor = of.actor()
    told = learner.publication().tensors | {PARAM_SCALE: torch.tensor(0.5)}
    actor.load(Publication(1, told))
    noise = actor.draw_noise(1, 4, torch.Generator().manual_seed(0))
    obs = {"obs": torch.randn(4, 3)}
    out = actor.act(obs, actor.initial_state(4), torch.ones(4).bool(), noise[0])
    for row, weights in enumerate(out.state["weights"]):
        own = views_of(weights, actor.shapes)
        by_hand, raw = (
            functional_call(actor.network, own, ({"obs": x[row : row + 1]},))
            for x in (learner.normalizer(obs)["obs"], obs["obs"])
        )
        torch.testing.assert_close(out.action[row : row + 1], by_hand)
        assert (by_hand - raw).abs().max() > 1e-3


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


def test_every_normalising_layer_of_pytorch_is_known() -> None:
    names = [name for name in dir(nn) if name.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d"))]
    assert len(names) >= 10
    for name in names:
        if name.startswith("Lazy") or name == "LocalResponseNorm":
            continue  # becomes another; has no weights
        given = (2, 4) if name == "GroupNorm" else (4,)
        plain = name.endswith(("LayerNorm", "GroupNorm", "RMSNorm", "SyncBatchNorm"))
        norm = getattr(nn, name)(*given) if plain else getattr(nn, name)(*given, affine=True)
        moved = perturbable(nn.Sequential(nn.Linear(4, 4), norm))
        expected = [each.startswith("0.") for each in moved]
        assert len(expected) > 2, name
        assert [*moved.values()] == expected, name


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
    stored, learners = 0, [learner]
    for each in of.batches(6):
        for learner in learners:
            learner.update(each[0], 10_000)  # of which other policies of a population made most
        stored += int(each[0].valid.sum())
        told = [bool(x.publication().tensors[WARMING_UP]) for x in learners]
        assert told == [stored < 50] * len(learners)
        if len(learners) == 1:  # and a resumed one
            learners.append(of.learner())
            learners[1].load(copied(learners[0].save()))
    assert stored > 50
    actor, state = acting(of, 5_000, warming_up=True)
    noise = actor.draw_noise(1, 5_000, torch.Generator().manual_seed(0))
    obs = {"obs": torch.zeros(5_000, 3)}
    action = actor.act(obs, state, torch.ones(5_000).bool(), noise[0]).action
    shares = torch.histc(action[:, 0], 4, -1.0, 1.0) / 5_000
    torch.testing.assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.03)


def test_the_actor_has_nothing_of_the_critic() -> None:
    names = case().learner().publication().tensors
    assert not [name for name in names if "critic" in name or "average" in name]
    assert isinstance(case().actor(), DDPGActor)


def test_parameter_noise_without_layer_norm_is_warned_of() -> None:
    noisy, plain = DDPGConfig(), DDPGConfig(exploration="normal_0.1")
    bare, normed = ModelConfig(layer_norm=False), ModelConfig(layer_norm=True)
    [said] = find("ddpg").warnings(noisy, bare)
    assert "--model.layer-norm true" in said
    assert find("ddpg").warnings(noisy, normed) == find("ddpg").warnings(plain, bare) == []
