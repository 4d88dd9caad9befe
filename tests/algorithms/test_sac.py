"""The learner of plugins/sac: its loss against a loop, delayed policies, warm-up, its size."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_helpers import Case, Task, learn
from gymnasium import spaces
from quintet_sac.config import Knobs, SACConfig
from quintet_sac.config import check as check_options
from quintet_sac.metrics import Samples
from test_conformance_spaces import OBSERVATIONS, check
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from quintet.algorithms.parts.acting import WARMING_UP
from quintet.algorithms.parts.trained import knobs_of
from quintet.algorithms.parts.windows import Windows
from quintet.errors import ConfigError, NonFiniteError
from quintet.models.config import ModelConfig
from quintet.types import Rollout

PACKAGE = Path(__file__).parents[2] / "plugins" / "sac"
FIXED = {"learn_temperature": False, "temperature": 0.3}


def case(**options: Any) -> Case:
    return Case("sac", options=options)


def drawn(of: Case) -> Rollout:
    """A batch of replay."""
    return of.batches(2)[1][1]


def chosen(network: Any, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The action in [-1, 1] of an observation, and its log-density, by PyTorch's distributions."""
    mean, log_std = network.actor({"obs": obs}).double().chunk(2, -1)
    normal = Independent(Normal(mean, log_std.exp()), 1)
    action = (mean + log_std.exp() * noise.double()).tanh()
    return action.float(), TransformedDistribution(normal, [TanhTransform()]).log_prob(action)


def lowest(network: Any, obs: Tensor, action: Tensor) -> Tensor:
    q = [critic({"obs": obs}, action) for critic in network.critic]
    return torch.stack(q).amin(0).double()


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_loss_is_that_of_a_loop(n_step: int, learned: bool) -> None:
    options = {} if learned else FIXED
    of = case(n_step=n_step, gamma=0.9, reward_scale=0.5, **options)
    learner, batch = of.learner(), drawn(of)
    alpha = 0.3
    if learned:
        alpha = 0.7
        with torch.no_grad():
            learner.network.temperature["log"].fill_(alpha).log_()
    target_network = copy.deepcopy(learner.network)
    with torch.no_grad():
        learner.trained.average.mul_(0.9)
        for name, x in target_network.named_parameters():
            x.copy_(learner.trained.averaged()[name])
    network, samples = learner.network, learner._samples(batch, True)
    knobs = Knobs(*map(torch.tensor, knobs_of(Knobs, of.config)))
    parameters = learner.trained.parameters
    _, outputs = learner.loss(parameters, samples, knobs)
    noise = samples.windows.record["noise"]
    rows, size = batch.valid.shape[1], 2
    errors, policy, log_probs = [], [], []
    for b in range(rows):
        target, factor = 0.0, 1.0
        for t in range(n_step):
            target += factor * 0.5 * batch.reward[t, b].double()
            factor *= 0.0 if batch.terminated[t, b] else 0.9
            if batch.cut[t, b] or t == n_step - 1:
                obs = batch.obs["obs"][t + 1, b : b + 1]
                action, log_prob = chosen(network, obs, noise[t, b, 1])
                value = lowest(target_network, obs, action) - alpha * log_prob
                target = target + factor * value
                break
        obs, action = batch.obs["obs"][0, b : b + 1], batch.action[0, b : b + 1].tanh()
        both = torch.stack([critic({"obs": obs}, action) for critic in network.critic])
        errors.append(0.5 * (both.double() - target.detach()).square().sum())
        action, log_prob = chosen(network, obs, noise[0, b, 0])
        policy.append((alpha * log_prob - lowest(network, obs, action)).squeeze())
        log_probs.append(log_prob.squeeze())
    expected = {
        "loss/critic": torch.stack(errors).mean(),
        "loss/policy": torch.stack(policy).mean(),
    }
    if learned:
        expected["loss/temperature"] = -alpha * (torch.stack(log_probs).mean() - size)
    found = {name: x.item() for name, x in outputs.losses.items()}
    assert found == pytest.approx({k: x.item() for k, x in expected.items()}, rel=1e-4, abs=1e-5)
    # Each part is moved by its own term alone.
    slopes = torch.autograd.grad(sum(outputs.losses.values()), [*parameters.values()])
    for name, slope in zip(parameters, slopes, strict=True):
        of_what = {"a": "loss/policy", "c": "loss/critic", "t": "loss/temperature"}[name[0]]
        wanted = expected[of_what]
        if name[0] == "t":
            wanted = parameters[name].exp() * (wanted.detach() / alpha)
        (own,) = torch.autograd.grad(wanted, parameters[name], retain_graph=True)
        torch.testing.assert_close(slope, own, rtol=1e-3, atol=1e-5)


def test_the_temperature_falls_where_the_policy_is_too_random() -> None:
    for target, rises in ((-50.0, False), (50.0, True)):
        of = case(temperature_lr=0.1, temperature_init=0.5)
        learner = of.learner()
        learner.target_entropy = target
        learn(learner, of.batches(2)[1])
        found = learn(learner, of.batches(2)[1])["policy/temperature"]
        assert (found > 0.5) == rises


def test_a_target_that_no_policy_reaches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"below the 1\.39 nats .* got 2: usual is -2"):
        case(target_entropy=2.0).learner()


@pytest.mark.parametrize("checks", [False, True])
def test_numbers_that_are_not_finite_are_blamed_on_rates_that_it_has(checks: bool) -> None:
    of = case(check_numerics=checks)
    learner, batch = of.learner(), copy.deepcopy(drawn(of))
    batch.reward[batch.valid] = torch.inf
    with pytest.raises(NonFiniteError, match="must be finite, got inf at update 1") as raised:
        learn(learner, [batch])
    said = str(raised.value)
    assert (
        "lower --actor-lr and --critic-lr and --temperature-lr, or with --env.reward-clip" in said
    )
    assert ("find the tensor with --check-numerics" in said) != checks


def test_targets_of_more_steps_than_the_budget_are_refused() -> None:
    config = SACConfig(n_step=51, replay_start_steps=0, batch_size=8, unroll_steps=1)
    assert check_options(config, ModelConfig(), 2, 102) == []
    (said,) = check_options(config, ModelConfig(), 2, 101)
    assert said == "n_step must be at most the 50 steps of each stream, got 51; lower it"


def test_the_policy_of_another_run_collects_the_first_steps() -> None:
    of = case(replay_start_steps=50)
    learner = of.learner()
    assert learner.publication().tensors[WARMING_UP]
    learner.warm_start(of.learner(seeds=(7, 8)).weights())
    assert not learner.publication().tensors[WARMING_UP]
    again = of.learner()
    again.load(learner.save())
    assert not again.publication().tensors[WARMING_UP]


def test_a_delayed_policy_sits_updates_out() -> None:
    """And the target critics still follow in every update."""
    of = case(policy_delay=3)
    learner, batch = of.learner(), drawn(of)
    moved = []
    for _ in range(6):
        before = {name: x.clone() for name, x in learner.trained.save().items()}
        learner.update(batch, 0)
        after = learner.trained.save()
        changed = {name for name, x in after.items() if not torch.equal(x, before[name])}
        moved.append(
            tuple(
                any(name.startswith(start) for name in changed)
                for start in ("network/actor", "network/temp", "network/critic", "average/critic")
            )
        )
    assert moved == [(True,) * 4, *[(False, False, True, True)] * 2] * 2
    found = learner.metrics()
    assert found["policy/entropy"] > 0
    assert found["optim/actor_grad_norm"] > 0


def test_actions_are_uniform_until_the_first_update_is_due() -> None:
    of = case(replay_start_steps=40)
    learner, warming = of.learner(), []
    for each in of.batches(3):
        warming.append(bool(learner.publication().tensors[WARMING_UP]))
        learner.update(each[0], 0)
    rows = [int(each[0].valid.sum()) for each in of.batches(3)]
    assert warming == [sum(rows[:k]) < 40 for k in range(3)]
    assert set(warming) == {True, False}


SEEN = {
    "nested": OBSERVATIONS["nested"],
    "integers": OBSERVATIONS["multi_discrete"],
    "picture": spaces.Box(0, 255, (2, 36, 36), np.uint8),
    "picture and numbers": spaces.Dict(
        {"a": spaces.Box(-1.0, 1.0, (3,)), "eye": spaces.Box(0, 255, (36, 36, 3), np.uint8)}
    ),
}


@pytest.mark.parametrize("kind", SEEN)
def test_every_kind_of_observation_is_learned_from(kind: str) -> None:
    options = {"replay_start_steps": 16, "normalize_observations": kind == "nested"}
    check(Case("sac", Task(SEEN[kind], spaces.Box(-2.0, 1.0, (2, 2))), options))


def test_the_bare_update_of_the_benchmark_has_the_same_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(PACKAGE.parents[1] / "benchmarks")
    from fixed_work.bare import transitions
    from fixed_work.sac import BareNetworks, SACWork
    from fixed_work.workloads import TABLES

    table = tomllib.loads(TABLES.read_text())["halfcheetah-sac"]
    work = SACWork(name="halfcheetah-sac", **table | {"hidden": (16, 16)})
    of = Case(
        "sac",
        Task(spaces.Box(-1.0, 1.0, (17,)), spaces.Box(-1.0, 1.0, (6,))),
        {"gamma": work.gamma, "temperature_init": 0.4},
        network={
            "policy_hidden": work.hidden, "activation": "relu", "action_std": "state_dependent",
        },
    )  # fmt: skip
    learner, bare = of.learner(), BareNetworks(work, of.spaces)
    network, rows = learner.network, 32
    with torch.no_grad():
        bare.log_alpha.fill_(0.4).log_()
        head = network.actor.head
        both = zip(
            (head.linear.weight, head.linear.bias), head.std_linear.parameters(), strict=True
        )
        ours = [*network.actor.encoder.parameters(), *(torch.cat(pair) for pair in both)]
        for critic in network.critic:
            ours += [*critic.layers.parameters(), *critic.head.parameters()]
        theirs = [*bare.policy.parameters(), *bare.critics.parameters()]
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine)
    obs, action, reward, next_obs, end = data = transitions(rows, of.spaces)
    end[:9] = 1.0
    noise, never = torch.randn(1, rows, 2, 6), torch.zeros(1, rows, dtype=torch.bool)
    drawn = iter((noise[0, :, 1], noise[0, :, 0]))
    monkeypatch.setattr(torch, "randn_like", lambda _: next(drawn))
    windows = Windows(
        {"obs": torch.cat((obs, next_obs))}, action.atanh(), reward[None], ~never,
        (end > 0)[None], never, {"noise": noise}, rows,
    )  # fmt: skip
    knobs = Knobs(*map(torch.tensor, knobs_of(Knobs, of.config)))
    total, _ = learner.loss(learner.trained.parameters, Samples(windows, True), knobs)
    named = dict(bare.named_parameters())
    assert bare.loss(named, named, data, work.gamma).item() == pytest.approx(total.item(), rel=1e-4)


def test_the_package_is_short() -> None:
    files = [path for path in PACKAGE.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    kept = [path for path in files if ".egg-info" not in str(path) and "build" not in path.parts]
    assert sum(len(path.read_text().splitlines()) for path in kept) <= 800
