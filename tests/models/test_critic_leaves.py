"""Leaves of the observation that only the critic sees."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_run_helpers import SMALL

import quintet
from quintet.algorithms import registry
from quintet.algorithms.parts.setup import Compute
from quintet.errors import ConfigError, QuintetError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, critic_leaves, resolve_model
from quintet.models.heads import action_family
from quintet.types import Spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SECRET = spaces.Dict({"a": BOX, "b": BOX})


class Secrets(gymnasium.Env):
    """Pays for an action that the seen leaf names; how much, only the secret leaves tell."""

    def __init__(self, secrets: bool = True, continuous: bool = False) -> None:
        parts = {"seen": BOX} | ({"secret": SECRET} if secrets else {})
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(2)
        if continuous:
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw(), {}

    def draw(self) -> dict[str, Any]:
        space = spaces.Dict(self.observation_space.spaces)
        space.seed(int(self.np_random.integers(2**31)))
        self.obs = space.sample()
        return self.obs

    def step(self, action):
        self.steps += 1
        pays = (np.ravel(action)[0] > 0) == (self.obs["seen"][0] > 0)
        return self.draw(), float(pays), self.steps >= 5, False, {}


def network(**options: Any) -> tuple[ActorCritic, Spaces]:
    env = Secrets()
    of = Spaces(env.observation_space, env.action_space)
    model = resolve_model(ModelConfig(critic_leaves=("secret",), policy_hidden=(8,), **options), of)
    family = action_family(of.action, model.action_bounds)
    return ActorCritic(of, family, model, torch.Generator().manual_seed(0)), of


def rows(count: int = 3) -> dict[str, torch.Tensor]:
    return {name: torch.randn(count, 2) for name in ("seen", "secret/a", "secret/b")}


def test_only_the_value_depends_on_them() -> None:
    made, _ = network()
    obs = rows()
    params, value, _ = made(obs)
    other = obs | {"secret/b": torch.randn(3, 2)}
    params_then, value_then, _ = made(other)
    assert torch.equal(params, params_then)
    assert not torch.equal(value, value_then)
    assert torch.equal(made.policy({"seen": obs["seen"]})[0], params)
    assert not torch.equal(made(obs | {"seen": torch.randn(3, 2)})[0], params)


def test_a_recurrent_critic_keeps_its_state_where_it_sees_nothing() -> None:
    made, _ = network(core="gru", core_size=4)
    obs, state = rows(), made.initial_state(3)
    first = torch.zeros(3, dtype=torch.bool)
    params, _, whole = made(obs, state, first)
    blind, kept = made.policy({"seen": obs["seen"]}, state, first)
    assert torch.equal(params, blind)
    assert torch.equal(kept["policy/h0"], whole["policy/h0"])
    assert torch.equal(kept["value/h0"], state["value/h0"])
    assert torch.equal(made.policy(obs, state, first)[1]["value/h0"], whole["value/h0"])


def test_names_are_leaves_or_groups() -> None:
    _, of = network()
    assert critic_leaves(ModelConfig(critic_leaves=("secret",)), of) == {"secret/a", "secret/b"}
    assert critic_leaves(ModelConfig(critic_leaves=("secret/a",)), of) == {"secret/a"}
    for names, message in ((("secre",), "or groups of them, got 'secre'"),
                           (("seen", "secret"), "leave the policy something to see")):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            critic_leaves(ModelConfig(critic_leaves=names), of)


OWN: dict[str, dict[str, Any]] = {
    "ppo": {},
    "impala": {"batch_unrolls": 4, "runtime.kind": "serial"},
    "appo": {"minibatch_steps": 64, "minibatches_per_iteration": 1, "runtime.kind": "serial"},
    "acer": {"replay_start_steps_per_stream": 20, "model.shared_torso": False},
    "ddpg": {"model.value_hidden": (8, 8), "env.kwargs": {"continuous": True}},
}


def trained(run_dir: Path, algo: str, **own: Any):
    small = {k: x for k, x in SMALL.items() if algo == "ppo" or k not in (
        "minibatch_steps", "num_epochs", "unroll_steps")}  # fmt: skip
    small |= {} if algo == "ddpg" else {"unroll_steps": 16}
    config = small | {"model.critic_leaves": ("secret",), "preset": "none"} | OWN[algo] | own
    return quintet.train(algo, "test_critic_leaves:Secrets", 256, run_dir=run_dir, config=config)


@pytest.mark.parametrize("algo", OWN)
def test_a_policy_of_every_learner_acts_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    policy = trained(tmp_path / "run", algo).policy
    seen = {"seen": np.array([0.5, -0.5], np.float32)}
    secret = {"secret": {"a": seen["seen"], "b": -seen["seen"]}}
    action, _ = policy.act(seen)
    assert np.array_equal(action, policy.act(seen | secret)[0])
    assert [leaf.path for leaf in policy.leaves] == ["seen"]
    continuous = OWN[algo].get("env.kwargs", {})
    blind = lambda: Secrets(secrets=False, **continuous)  # noqa: E731
    assert len(quintet.evaluate(policy, blind, episodes=3).returns) == 3
    assert len(quintet.evaluate(policy, lambda: Secrets(**continuous), episodes=3).returns) == 3
    if algo not in ("acer", "ddpg"):
        assert policy.value(seen | secret).shape == ()
        with pytest.raises(QuintetError, match="must have the leaves"):
            policy.value(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "core", [{}, {"model.core": "gru", "model.core_size": 4, "bptt_steps": 16}], ids=["mlp", "gru"]
)
def test_policies_are_exported_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: dict[str, Any]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    policy = trained(tmp_path / "run", "ppo", **core).policy
    made = policy.export(tmp_path / "export", format="numpy")
    inputs = [port.name for port in made.interface.inputs]
    assert inputs[0] == "obs/seen"
    assert not any("secret" in name for name in inputs)
    assert "value" not in [port.name for port in made.interface.outputs]


def test_evaluations_of_a_run_may_lack_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    elsewhere = {"eval.episodes": 2, "eval.env.kwargs": {"secrets": False}}
    assert trained(tmp_path / "run", "ppo", **elsewhere).metrics["eval/episodes"] == 2
    others = elsewhere | {"model.critic_leaves": ("secret/a",)}
    with pytest.raises(ConfigError, match="observation space is Dict"):
        trained(tmp_path / "other", "ppo", **others)


@pytest.mark.parametrize(
    ("env", "own", "message"),
    [
        ("test_critic_leaves:Secrets", {"model.shared_torso": True}, "model.shared_torso=false"),
        ("CartPole-v1", {"env.backend": "gymnasium"}, "an observation that is a Dict"),
        ("test_critic_leaves:Secrets", {"model.critic_leaves": ("x",)}, "or groups of them, got"),
    ],
)
def test_what_has_no_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, own: dict[str, Any], message: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    config = SMALL | {"model.critic_leaves": ("secret",)} | own
    with pytest.raises(ConfigError, match=message):
        quintet.train("ppo", env, 256, run_dir=tmp_path, config=config)


def test_actors_of_learners_know_no_more() -> None:
    """Of a policy with the leaves that the network was built for."""
    _, of = network()
    model = resolve_model(ModelConfig(critic_leaves=("secret",)), of)
    entry = registry.find("ppo")
    actor = entry.make_actor(entry.config(), model, of, Compute(records=()))
    assert actor.network.encoder.layers[0].in_features == 2
    assert actor.network.value_encoder.layers[0].in_features == 6


def test_what_only_the_critic_sees_chooses_no_encoder_for_the_policy():
    picture = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    of = Spaces(spaces.Dict({"seen": BOX, "secret": picture}), spaces.Discrete(2))
    assert resolve_model(ModelConfig(), of).encoder == "nature_cnn"
    assert resolve_model(ModelConfig(critic_leaves=("secret",)), of).encoder == "mlp"


def test_the_memory_of_the_value_function_goes_on_where_all_leaves_are_given(tmp_path: Path):
    config = SMALL | {"model.critic_leaves": ["secret"], "model.core": "lstm", "bptt_steps": 4}
    config |= {"report.progress": False, "eval.episodes": 0}
    policy = quintet.train("ppo", Secrets, 128, 1, tmp_path, config).policy
    env = Secrets()
    first, _ = env.reset(seed=3)
    second = env.step(0)[0]
    _, state = policy.act(first)
    assert state["value/h0"].any()
    seen_only, less = policy.act({"seen": first["seen"]})
    assert not less["value/h0"].any()
    assert seen_only == policy.act(first)[0]
    rows = {k: torch.from_numpy(np.stack([a, b])) for k, a, b in _pairs(first, second)}
    network = policy.actor.network
    with torch.no_grad():
        is_first = torch.tensor([True, False])
        wanted = network.value(policy.actor.normalizer(rows), network.initial_state(1), is_first)
    assert policy.value(second, state) == pytest.approx(wanted[1].item(), abs=1e-5)


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    flat = [{"seen": x["seen"], **{f"secret/{k}": x["secret"][k] for k in "ab"}} for x in (a, b)]
    return [(k, flat[0][k], flat[1][k]) for k in flat[0]]
