"""Fixed work: every field is in the run's configuration, and what the limit computes is the same
work.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import acer_step
import pytest
import torch
from fixed_work import acer as bare_acer
from fixed_work import ddpg as bare_ddpg
from fixed_work import workloads
from fixed_work.acer import ACERWork
from fixed_work.bare import BareActorCritic, transitions
from fixed_work.on_policy import OnPolicyWork
from fixed_work.work import Work

from quintet.algorithms.acer.learner import ACERLearner
from quintet.algorithms.ddpg.config import Knobs
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts.minibatches import Minibatch, Rows
from quintet.algorithms.parts.trained import StepOptions, knobs_of
from quintet.algorithms.parts.windows import Windows
from quintet.ops import adam, reduce
from quintet.options.resolve import compose, resolve
from quintet.run.learners import make_learner
from quintet.types import Spaces

ON_POLICY = ("cartpole-ppo", "pong-ppo", "halfcheetah-ppo", "cartpole-appo", "pong-appo")

OF_ALL = {
    "env.id": "env_id", "env.backend": "env_backend", "env.num_streams": "num_envs",
    "model.policy_hidden": "hidden", "model.activation": "activation", "gamma": "gamma",
}  # fmt: skip
FIELDS = {
    "small": {
        "unroll_steps": "rollout", "minibatch_steps": "minibatch", "num_epochs": "epochs",
        "model.shared_torso": "shared_torso", "learning_rate": "learning_rate",
        "adam_epsilon": "adam_eps", "gae_lambda": "gae_lambda", "clip_epsilon": "clip",
        "entropy_coef": "entropy_coef", "max_grad_norm": "max_grad_norm",
    },
    "replayed": {
        "batch_size": "minibatch", "updates_per_env_step": "updates_per_step",
        "actor_lr": "learning_rate", "critic_lr": "learning_rate", "adam_epsilon": "adam_eps",
        "tau": "tau", "replay_capacity_steps": "buffer_size",
        "replay_start_steps": "learning_starts",
    },
    "sequences": {
        "unroll_steps": "rollout", "replay_ratio": "replay_ratio",
        "model.shared_torso": "shared_torso", "learning_rate": "learning_rate",
        "rmsprop_decay": "rmsprop_decay", "rmsprop_epsilon": "rmsprop_eps",
        "value_coef": "value_coef", "entropy_coef": "entropy_coef",
        "importance_clip": "importance_clip", "trust_region": "trust_region",
        "trust_region_delta": "trust_region_delta", "tau": "tau", "max_grad_norm": "max_grad_norm",
    },
}  # fmt: skip
"""Fields of workloads by the options that have their values."""

FIXED = {
    "small": {
        "value_coef": 0.6,  # of half the squared error
        "normalize_advantage": "minibatch", "reward_normalizer": "none",
        "lr_schedule": "constant", "value_clip": None, "target_kl": None,
    },
    "replayed": {
        "exploration": "normal_0.3", "warmup_policy": "uniform",
        "value_coef": 2.0,  # of half the squared error
        "critic_l2_coef": 0.0, "action_layer": 1, "model.layer_norm": False,
    },
    "sequences": {
        "replay_capacity_steps_per_stream": 3200 // 4, "replay_start_steps_per_stream": 1600 // 4,
        "lr_schedule": "constant", "rmsprop_epsilon_inside_sqrt": True,
        "replay_sampling": "per_stream", "retrace_lambda": 1.0, "c_bar": 1.0,
    },
}  # fmt: skip
"""Options that follow from several fields, or from none."""


def options_of(work: Work) -> dict[str, Any]:
    return compose(work.algo, [workloads.layer(work)]).config.flat()


def eager_learner(work: Work, spaces: Spaces) -> Any:
    config = resolve(compose(work.algo, [workloads.layer(work)]), spaces).config
    eager = config.runtime.model_copy(update={"compile": "off"})
    return make_learner(config.model_copy(update={"runtime": eager}), spaces)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_a_workload_is_in_the_configuration(small: Path, name: str) -> None:
    table, options = tomllib.loads(small.read_text())[name], options_of(workloads.read(name))
    for option, field in (OF_ALL | FIELDS[name]).items():
        assert options[option] == table[field], option
    assert {option: options[option] for option in FIXED[name]} == FIXED[name]
    assert not options["normalize_observations"]


def test_work_without_a_trust_region_has_none(small: Path) -> None:
    work = acer_step.read("sequences")
    assert work.update_rows == 4 * 8
    unbounded = work.model_copy(update={"trust_region": False})
    assert options_of(unbounded)["trust_region"] is False


def test_the_bare_update_of_ddpg_is_the_trained_one(usual: None) -> None:
    """With the same weights and transitions: losses, and the weights and targets after a step."""
    work = workloads.read("halfcheetah-ddpg")
    assert isinstance(work, bare_ddpg.DDPGWork)
    spaces = acer_step.spaces_of(work)
    learner = eager_learner(work, spaces)
    torch.manual_seed(0)
    bare = bare_ddpg.BareNetworks(work, spaces)
    obs, action, reward, next_obs, end = data = transitions(work.minibatch, spaces)
    # Weights beside biases, layer by layer, in both.
    theirs = [p for part in (bare.critic, bare.policy) for p in part.parameters()]
    critic, actor = learner.network.critic, learner.network.actor
    parts = (critic.layers, critic.head, actor.encoder, actor.head)
    ours = [p for part in parts for p in part.parameters()]
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine)
    update = bare_ddpg.update(work, bare, "fp32", data, compiled=False)
    named = dict(bare.named_parameters())
    expected = bare_ddpg.losses(work, bare, "fp32", named, named, data)
    rows = work.minibatch
    never = torch.zeros(1, rows, dtype=torch.bool)
    windows = Windows(
        {"obs": torch.cat((obs, next_obs))}, action, reward[None], ~never, never | (end > 0), never,
        {}, rows,
    )  # fmt: skip
    batch = Transitions(windows, None, torch.tensor([0.0, 1.0]))
    knobs = knobs_of(Knobs, learner.config)
    tensors = Knobs(*map(torch.tensor, knobs))
    _, told = learner.trained.evaluate(learner.trained.parameters, batch, tensors)
    assert told.means["loss/critic"].item() == pytest.approx(expected[0].item(), rel=1e-5)
    assert told.means["loss/actor"].item() == pytest.approx(expected[1].item(), rel=1e-5)
    rates = StepOptions(adam.rates(1, work.learning_rate, work.adam_eps), None)
    learner.trained.step(batch, knobs, rates, rates, polyak=work.tau)
    update()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ON_POLICY)
def test_the_bare_network_is_the_trained_one(usual: None, name: str) -> None:
    work = workloads.read(name)
    spaces = acer_step.spaces_of(work)
    learner = eager_learner(work, spaces)
    assert isinstance(work, OnPolicyWork)
    bare = BareActorCritic(work, spaces, work.shared_torso)
    shapes = sorted(tuple(p.shape) for p in bare.parameters())
    assert shapes == sorted(
        tuple(x.shape)
        for key, x in learner.publication().tensors.items()
        if key.startswith("network/")
    )
    obs = work.batch(spaces, 3)[0]
    policy, value = bare(obs)
    assert value.shape == (3,)
    assert policy.shape[0] == 3


@pytest.mark.parametrize("name", ["cartpole-ppo", "halfcheetah-ppo"])
def test_the_bare_loss_is_the_trained_one(usual: None, name: str) -> None:
    """With the same weights and rows: what the limit computes is PPO's loss, no part of it."""
    work = workloads.read(name)
    spaces = acer_step.spaces_of(work)
    learner = eager_learner(work, spaces)
    assert isinstance(work, OnPolicyWork)
    bare = BareActorCritic(work, spaces, work.shared_torso)
    ours = learner.network
    with torch.no_grad():
        for part, encoder, head in (
            (bare.policy, ours.encoder, ours.policy_head.linear),
            (bare.value, ours.value_encoder, ours.value_head),
        ):
            layers = [x for x in part if isinstance(x, torch.nn.Linear)]
            theirs = [x for x in encoder.modules() if isinstance(x, torch.nn.Linear)]
            for mine, other in zip(layers, [*theirs, head], strict=True):
                mine.weight.copy_(other.weight)
                mine.bias.copy_(other.bias)
    torch.manual_seed(0)
    obs, action, advantage, target, logp = work.batch(spaces, 64)
    parameters = dict(bare.named_parameters())
    expected = work.loss(bare, "fp32", (obs, action, advantage, target, logp), parameters)

    rows = Rows(
        {"obs": obs}, torch.zeros(64, dtype=torch.bool), action, logp,
        torch.zeros(64, learner.family.param_size), target, advantage, target, {},
    )  # fmt: skip
    weight, every = torch.full((64,), 1 / 64), torch.arange(64)
    given = Minibatch(rows, every, every, weight, reduce.normalize_valid(advantage, weight))
    knobs = type(learner.knobs())(*map(torch.tensor, learner.knobs()))
    loss, stats = learner.trained.evaluate(learner.trained.parameters, given, knobs)
    # The deviation that theirs divides advantages by has Bessel's correction.
    policy = stats.means["loss/policy"].item()
    corrected = loss.item() + ((63 / 64) ** 0.5 - 1) * policy
    assert corrected == pytest.approx(expected.item(), rel=1e-6)


def apart(learner: ACERLearner) -> None:
    """Weights that tell every part of the update, policies far from uniform."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for head in (learner.network.policy_head, learner.network.critic_head):
            for p in head.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=g))
        average = learner.trained.average
        if average is not None:
            average.copy_(learner.trained.theta)


def copy_of(learner: ACERLearner, work: ACERWork, spaces: Spaces) -> BareActorCritic:
    """The bare network with the learner's weights."""
    bare, network = work.network(spaces), learner.network
    with torch.no_grad():
        for mine, other in zip(ours(learner), theirs(bare), strict=True):
            other.copy_(mine)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in theirs(bare))
    return bare


def ours(learner: ACERLearner) -> list[torch.Tensor]:
    network = learner.network
    parts = (network.encoder, network.policy_head.linear, network.critic_head)
    return [p for part in parts for p in part.parameters()]


def theirs(bare: BareActorCritic) -> list[torch.Tensor]:
    return [p for part in (bare.shared, bare.policy, bare.value) for p in part.parameters()]


HARSH = {
    "importance_clip": 1.2,
    "trust_region_delta": 0.05,
    "tau": 0.4,
    "learning_rate": 0.5,
    "max_grad_norm": 0.5,
    "entropy_coef": 0.1,
}
"""What makes every bound hold some rows back."""


@pytest.mark.parametrize("form", ["eager", "graph"])
@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize(("name", "steps"), [("cartpole-acer", 4), ("pong-acer", 2)])
def test_the_bare_update_is_the_trained_one(
    name: str, steps: int, region: bool, form: str, usual: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same weights and batch: the weights after some updates, and so the average too."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the graph, eagerly
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", dict, raising=False
    )  # float32 on every processor
    small = {"num_envs": 3, "rollout": 5} if name == "pong-acer" else {}
    work = acer_step.read(name).model_copy(update={**HARSH, **small, "trust_region": region})
    spaces = acer_step.spaces_of(work)
    torch.manual_seed(0)
    data = bare_acer.batch(work, spaces)
    assert (data.discount == 0).any() or name == "pong-acer"
    learner = acer_step.learner_of(work, spaces, compiled=False)
    apart(learner)
    bare = copy_of(learner, work, spaces)
    before = [p.clone() for p in ours(learner)]
    update = bare_acer.update(work, bare, "fp32", data, form == "graph")
    batch = acer_step.rollout_of(work, data)
    for _ in range(steps):
        update()
        learner.update(batch, 0)
    for mine, other, old in zip(ours(learner), theirs(bare), before, strict=True):
        moved = (mine - old).abs().max().item()
        assert moved > 1e-4
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-3 * moved)
    told = learner.metrics()
    assert told["optim/grad_clip_frac"] > 0
    assert told["policy/rho_clip_frac"] > 0
    assert not region or 0 < told["trust_region/active_frac"] < 1


def test_replayed_rows_are_as_the_learner_gets_them(usual: None) -> None:
    """A fresh batch of the same rows makes the same update."""
    work = acer_step.read("cartpole-acer")
    spaces = acer_step.spaces_of(work)
    torch.manual_seed(0)
    data = bare_acer.batch(work, spaces)
    batch = acer_step.rollout_of(work, data)
    learners = [acer_step.learner_of(work, spaces, compiled=False) for _ in range(2)]
    for learner, replayed in zip(learners, (True, False), strict=True):
        learner.update(replace(batch, replayed=replayed), 0)
    assert torch.equal(*(learner.trained.theta for learner in learners))
    assert [learner.metrics().get("replay/age_mean") for learner in learners] == [0.0, None]
