"""ACER as presets have it: normalised observations, other networks than linear ones, bfloat16, and
what is refused.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from acer_helpers import (
    LINEAR,
    MULTI,
    STREAMS,
    apart,
    config,
    loss_of,
    make_batch,
    make_learner,
    numbers,
)
from conformance_helpers import CONTINUOUS as BOX
from conformance_helpers import NUMBERS, Case, Task, learn, options_without_effect
from gymnasium import spaces as gym
from ppo_helpers import CONTINUOUS, DISCRETE
from torch.testing import assert_close

from quintet.algorithms.acer.config import ACERConfig
from quintet.algorithms.acer.learner import ACERLearner, make_actor
from quintet.algorithms.acer.network import StochasticDueling, encoded
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.parts.trained import FOLD_EVERY
from quintet.algorithms.registry import find
from quintet.errors import NonFiniteError
from quintet.models.config import ModelConfig, resolve_model
from quintet.options.bounds import LARGEST
from quintet.options.declaration import Facts, bounds_of, idle
from quintet.types import Spaces

DEEP = ModelConfig(policy_hidden=(8,), shared_torso=False)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_the_loss_sees_normalised_observations(spaces: Spaces) -> None:
    """As one without a normaliser sees observations that were normalised before."""
    options = config(normalize_observations=True, observation_clip=1.5)
    learner, plain = (apart(make_learner(x, spaces, DEEP)) for x in (options, config()))
    batch = make_batch(learner, spaces)
    (name,) = batch.obs
    raw = replace(batch, obs={name: 3.0 * batch.obs[name] + 2.0})
    learner.normalizers.merge(raw)
    x = raw.obs[name]
    moments = x[:-1][raw.valid].double()
    eps = options.normalizer_variance_epsilon
    by_hand = (x - moments.mean(0)) / (moments.var(0, correction=0) + eps).sqrt()
    by_hand = by_hand.float().clamp(-1.5, 1.5)
    loss, gradient, told = loss_of(learner, raw)
    expected = loss_of(plain, replace(raw, obs={name: by_hand}))
    assert_close(loss, expected[0], rtol=1e-4, atol=1e-5)
    for weight, g in expected[1].items():
        assert_close(gradient[weight], g, rtol=1e-3, atol=1e-4)
    share = (by_hand[:-1][raw.valid].abs() >= 1.5).double().mean().item()
    assert 0.05 < share < 0.5
    assert told.means["normalizer/observation_clip_frac"].item() == pytest.approx(share)


def test_what_is_told_of_a_batch() -> None:
    learner = apart(make_learner(config(), DISCRETE), size=0.4)
    batch = make_batch(learner)
    unrolls = learner._unrolls(batch)
    params, features, _ = learner.network(unrolls.obs)
    rows = learner._rows(params.detach(), unrolls, numbers(learner.config))
    found = learner._estimates(
        learner.trained.parameters, features, rows, unrolls, numbers(learner.config)
    )
    valid = batch.valid
    told = learn(learner, [batch])
    pi = params.detach().softmax(-1).view(*rows.pi.shape)[:-1]
    entropy = -(pi * pi.log()).sum(-1)[valid].mean().item()
    assert told["policy/entropy"] == pytest.approx(entropy, rel=1e-5)
    log_rho = rows.log_rho[valid].double()
    kl = (log_rho.exp() - 1 - log_rho).mean().item()
    assert abs(kl - (log_rho.neg().exp() - 1 + log_rho).mean().item()) > 0.01
    assert told["policy/approx_kl"] == pytest.approx(kl, rel=1e-4)
    q, target = found.q.detach()[valid].double(), found.target[valid].double()
    assert told["value/prediction_mean"] == pytest.approx(q.mean().item(), rel=1e-4)
    explained = 1.0 - (target - q).var(correction=0) / target.var(correction=0)
    assert told["value/explained_variance"] == pytest.approx(explained.item(), abs=1e-4)
    advantage = found.advantage[valid].double()
    assert told["advantage/mean"] == pytest.approx(advantage.mean().item(), rel=1e-4, abs=1e-6)
    assert told["advantage/std"] == pytest.approx(advantage.std(correction=0).item(), rel=1e-4)
    assert told["data/valid_frac"] == pytest.approx(valid.double().mean().item())


def test_rewards_that_are_told_are_the_fresh_ones() -> None:
    learner = make_learner(config())
    batch = make_batch(learner)
    fresh = replace(batch, replayed=False)
    told = learn(learner, [fresh, replace(batch, reward=batch.reward + 50.0)])
    assert told["reward/mean"] == pytest.approx(batch.reward[batch.valid].mean().item(), rel=1e-5)


def test_heads_begin_with_their_gains() -> None:
    network = make_learner(config(), DISCRETE, DEEP).network
    for head, gain in ((network.policy_head, 0.01), (network.critic_head, 1.0)):
        weight = head.linear.weight.detach()
        assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_dueling_network_has_the_networks_activation_and_norm(activation: Any) -> None:
    for norm in (False, True):
        model = DEEP.model_copy(update={"activation": activation, "layer_norm": norm})
        head = make_learner(config(), CONTINUOUS, model).network.critic_head
        assert isinstance(head, StochasticDueling)
        names = [type(layer).__name__.lower() for layer in head.hidden]
        assert names == ["linear", *["layernorm"] * norm, activation]


@pytest.mark.parametrize(("size", "units"), [(1, 64), (64, 64), (65, 65)])
def test_few_features_leave_the_dueling_network_its_width(size: int, units: int) -> None:
    family = make_learner(config(), CONTINUOUS).family
    head = StochasticDueling(size, family, DEEP, "fp32")
    assert head.advantage.in_features == units
    value, advantages = head(torch.randn(5, size), torch.randn(5, 3, *family.action_shape))
    assert value.shape == (5,)
    assert advantages.shape == (5, 3)


def test_no_two_actions_look_alike_to_the_dueling_network() -> None:
    family = make_learner(config(), MULTI).family
    actions = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    seen = encoded(family, actions)
    assert seen.shape == (6, 5)
    assert len({tuple(x.tolist()) for x in seen}) == 6
    assert (seen.sum(-1) == 2.0).all()


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_bfloat16_is_for_all_layers_but_the_heads(spaces: Spaces) -> None:
    """And the policy that acts is to the bit the one that learns."""
    setup = Setup(STREAMS, 1_000, (1, 2), torch.device("cpu"), Compute(precision="bf16"))
    model = resolve_model(DEEP, spaces)
    learner = ACERLearner(config(), model, spaces, setup)
    seen: dict[str, torch.dtype] = {}
    for name, module in learner.network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *of, name=name: seen.__setitem__(name, of[2].dtype))
    batch = make_batch(learner, spaces)
    loss_of(learner, batch)
    half = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    heads = {name for name in seen if name.endswith((".linear", ".value", ".advantage"))}
    assert half == seen.keys() - heads
    assert half >= ({"critic_head.hidden.0"} if spaces is CONTINUOUS else set())
    actor = make_actor(config(), model, spaces, Compute(precision="bf16"))
    actor.load(learner.publication())
    obs = {name: x[0] for name, x in batch.obs.items()}
    first = torch.ones(STREAMS, dtype=torch.bool)
    noise = actor.draw_noise(1, STREAMS, torch.Generator().manual_seed(0))
    acted = actor.act(obs, actor.initial_state(STREAMS), first, noise[0]).record["params_mu"]
    with torch.no_grad():
        params = learner.network(obs)[0]
    assert torch.equal(acted, params)


# What is refused


@pytest.mark.parametrize("check", [False, True])
def test_a_reward_that_is_not_a_number_ends_the_run(check: bool) -> None:
    learner = make_learner(config(check_numerics=check))
    batch = make_batch(learner)
    reward = batch.reward.clone()
    reward[tuple(batch.valid.nonzero()[0])] = torch.nan
    for _ in range(0 if check else FOLD_EVERY - 1):
        learner.update(batch, 0)
    with pytest.raises(NonFiniteError):  # at once, or when statistics are put together
        learner.update(replace(batch, reward=reward), 0)


def test_an_entropy_bonus_of_a_fixed_spread_has_no_effect() -> None:
    spaces = Case("acer", BOX).spaces
    model = resolve_model(LINEAR, spaces)
    assert options_without_effect(ACERConfig(), model, spaces)["entropy_coef"].rest == 0.0
    assert "entropy_coef" not in options_without_effect(ACERConfig(learn_std=True), model, spaces)
    choice = Case("acer", Task(NUMBERS, gym.Discrete(3))).spaces
    model = resolve_model(LINEAR, choice)
    assert "entropy_coef" not in options_without_effect(ACERConfig(), model, choice)


def test_a_replay_that_never_begins_is_refused() -> None:
    options = ACERConfig(replay_start_steps_per_stream=500)
    [fault] = find("acer").check(options, LINEAR, 8, 4_000)
    assert fault.startswith("replay_start_steps_per_stream x streams must be below")
    assert find("acer").check(options, LINEAR, 8, 4_001) == []


@pytest.mark.parametrize("option", ["retrace_lambda", "c_bar"])
def test_traces_need_a_future(option: str) -> None:
    assert "gamma > 0" in idle(ACERConfig(gamma=0.0), Facts())[option].needs
    assert option not in idle(ACERConfig(), Facts())


def test_a_population_may_tune_the_cap_of_traces() -> None:
    """Which is one of two in other learners."""
    assert bounds_of(ACERConfig(), ("c_bar",)) == {"c_bar": (0.0, LARGEST)}


@pytest.mark.parametrize("bounds", ["clip", "squash", "mean_tanh"])
def test_the_critic_reads_actions_as_the_environment_gets_them(bounds: Any) -> None:
    """In the units of the policy, in which the bounds are -1 and 1."""
    model = resolve_model(DEEP.model_copy(update={"action_bounds": bounds}), CONTINUOUS)
    family = ACERLearner(
        config(), model, CONTINUOUS, Setup(STREAMS, 10**4, (1, 2), torch.device("cpu"), Compute())
    ).family
    action = torch.tensor([[0.3, -2.0], [5.0, 0.9]])[:, : family.size]
    box: Any = CONTINUOUS.action
    got = family.to_env(action)
    wanted = (got - torch.tensor(box.low)) / torch.tensor(box.high - box.low) * 2 - 1
    assert_close(encoded(family, action), wanted, atol=1e-5, rtol=1e-5)
    assert (encoded(family, action) - action).abs().max() > 1
