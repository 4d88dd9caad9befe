"""What a learner says of itself in the registry: defaults, action spaces, advice; and that nothing
else says it.
"""

import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from a2c_helpers import A2C
from gymnasium import spaces as gym

import quintet
from quintet.algorithms import registry
from quintet.algorithms.ppo.config import PPOConfig
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.observe.metrics import METRICS
from quintet.options.layers import Layer, learner_defaults
from quintet.options.resolve import Loaded, compose
from quintet.options.saved import load_config, load_seeds
from quintet.protocols import DataPlan

CARTPOLE = {"env.id": "CartPole-v1"}
ROOT = Path(quintet.__file__).parent
OWN = {
    "model.activation": "relu",
    "model.action_bounds": "squash",
    "env.num_streams": 2,
    "runtime.kind": "lockstep",
    "runtime.lag": 0,
}


@pytest.fixture(autouse=True)
def _a2c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", replace(A2C, defaults=OWN, presets=None))


# Defaults of a learner's own


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """Value and source of every option, as `quintet config` prints them."""
    assert main(["config", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    pairs = (line.split("  # ") for line in lines)
    named = ((line.partition(":"), source) for line, source in pairs)
    return {name: (value.strip(), source) for (name, _, value), source in named}


def test_a_learner_s_defaults_lie_below_presets_and_above_the_others() -> None:
    preset = Layer("preset P", {"env.num_streams": 16})
    loaded = compose("a2c", [preset, Layer("call", CARTPOLE | {"runtime.lag": 1})])
    values, sources = loaded.config.flat(), loaded.sources
    assert (values["model.activation"], sources["model.activation"]) == ("relu", "default of a2c")
    assert (values["env.num_streams"], sources["env.num_streams"]) == (16, "preset P")
    assert (values["runtime.lag"], sources["runtime.lag"]) == (1, "call")
    assert (values["gamma"], sources["gamma"]) == (0.98, "default")
    assert compose("ppo", [Layer("call", CARTPOLE)]).config.env.num_streams == 8


def test_the_command_line_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "a2c", "--env", "CartPole-v1")
    assert found["model.activation"] == ("relu", "default of a2c")
    assert found["env.num_streams"] == ("2", "default of a2c")
    assert found["runtime.kind"] == ("lockstep", "default of a2c")
    assert found["runtime.worker_timeout_s"] == ("60.0", "default")
    for algo, said in (("a2c", "(default of a2c: relu)"), ("ppo", "(default: none)")):
        with pytest.raises(SystemExit):
            main(["train", algo, "--help", "all"])
        text = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
        assert said in text[text.index("--model.activation") : text.index("--model.layer-norm")]


def test_what_others_leave_without_effect_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    """Who did not give it can't leave it out; a learner knows neither layers nor spaces."""
    nothing = "default (the value of a2c has no effect here)"
    found = shown(capsys, "a2c", "--env", "CartPole-v1", "--runtime.kind", "serial")
    assert found["runtime.lag"] == ("1", nothing)
    assert found["model.action_bounds"] == ("clip", nothing)
    assert found["model.activation"] == ("relu", "default of a2c")
    found = shown(capsys, "a2c", "--env", "CartPole-v1", "--model.policy-hidden", "[]")
    assert found["model.activation"] == ("tanh", nothing)
    found = shown(capsys, "a2c", "--env", "Pendulum-v1")
    assert found["model.action_bounds"] == ("squash", "default of a2c")
    with pytest.raises(ConfigError, match=r"model\.action_bounds=squash .* without continuous"):
        quintet.train("a2c", "CartPole-v1", 64, config={"model.action_bounds": "squash"})


def test_a_fault_names_the_learner_that_set_the_option() -> None:
    with pytest.raises(ConfigError) as raised:
        compose("a2c", [Layer("call", CARTPOLE | {"runtime.slots": 3})])
    assert str(raised.value) == (
        "runtime.slots=3 has no effect without runtime.kind=async; leave it out (runtime.kind from "
        "the default of a2c; set it yourself)"
    )


def test_learners_that_share_no_batches_are_not_made_several_times() -> None:
    several = CARTPOLE | {"runtime.num_learners": 2, "minibatch_steps": 64}
    compose("ppo", [Layer("call", several)])
    del several["minibatch_steps"]
    with pytest.raises(ConfigError, match=r"num_learners=2 has no effect without .* can share"):
        compose("a2c", [Layer("call", several)])


def test_a_run_goes_on_with_what_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"runtime.kind": "serial", "eval.episodes": 0, "report.progress": False}
    quintet.train("a2c", "CartPole-v1", 32, run_dir="run", config=few)
    changed = replace(A2C, defaults=OWN | {"env.num_streams": 4})
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", changed)
    result = quintet.train("a2c", "CartPole-v1", 64, run_dir="run", config=few)
    assert result.metrics["env_steps"] == 64


class Maze(gymnasium.Env[Any, Any]):
    """Seen from above if asked for."""

    action_space = gym.Discrete(2)

    def __init__(self, from_above: bool = False) -> None:
        place, picture = gym.Box(-1.0, 1.0, (2,)), gym.Box(0, 255, (36, 36), np.uint8)
        self.observation_space = picture if from_above else place


def test_the_kind_of_an_environment_is_seen_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests_registry_maze.py").write_text(f"from {__name__} import Maze\n")
    monkeypatch.syspath_prepend(tmp_path)
    command = Layer("call", {"env.id": "tests_registry_maze:Maze"})
    assert load_config("ppo", [], command).sources["clip_epsilon"] == "default"
    ppo = replace(registry.find("ppo"), defaults={"env.kwargs": {"from_above": True}})
    monkeypatch.setitem(registry.LEARNERS.loaded, "ppo", ppo)
    for loaded in (load_config("ppo", [], command), *load_seeds("ppo", [], command, [1])):
        assert isinstance(loaded, Loaded)
        assert loaded.sources["clip_epsilon"] == "preset pixels"


@pytest.mark.parametrize("algo", registry.LEARNERS.names())
def test_every_learner_s_defaults_are_options(algo: str) -> None:
    values = learner_defaults(algo).values
    env = CARTPOLE
    if not registry.find(algo).acts_in(gymnasium.spaces.Discrete(2)):
        env = {"env.id": "Pendulum-v1"}
    found = compose(algo, [Layer("call", env)]).config.flat()
    assert {name: found[name] for name in values} == values


@pytest.mark.parametrize("name", ["model.activatoin", "gamma", "total_env_steps", "eval.episodes"])
def test_other_defaults_are_a_mistake_of_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", replace(A2C, defaults={name: 1}))
    with pytest.raises(AssertionError, match=f"defaults of a2c must be options .*{name}"):
        compose("a2c", [Layer("call", CARTPOLE)])


# Spaces that a learner can't do


class FixedPart(gymnasium.Env[Any, Any]):
    """One of its two actions can't be chosen."""

    observation_space = gym.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.Box(0.0, np.array([3.0, 0.0], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(
    ("actions", "env", "said"),
    [
        (
            (gym.Discrete,),
            "Pendulum-v1",
            "a2c must have Discrete actions, got the action space Box(-2.0, 2.0, (1,), float32); "
            "use another environment or algorithm (ppo, impala, appo, ddpg, acer)",
        ),
        (
            (gym.Box, gym.MultiBinary),
            "CartPole-v1",
            "a2c must have Box or MultiBinary actions, got the action space Discrete(2); use "
            "another environment or algorithm (ppo, impala, appo, acer)",
        ),
    ],
)
def test_actions_that_a_learner_can_t_choose_are_refused_at_once(
    actions: tuple[type[gym.Space[Any]], ...],
    env: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before what is said of the network, whose options may depend on the actions."""
    fussy = replace(A2C, actions=actions)
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", fussy)
    for command in ("config", "train"):
        arguments = [command, "a2c", "--env", env, "--model.encoder-kwargs", '{"a": 1}']
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"error: {said}\n"
    assert not Path("runs").exists()
    with pytest.raises(ConfigError, match="a2c must have"):
        quintet.train("a2c", env, seeds=[1, 2])
    assert main(["config", "ppo", "--env", env]) == 0


def test_quintet_config_refuses_what_a_network_can_t_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests_registry_env.py").write_text(f"from {__name__} import FixedPart\n")
    monkeypatch.syspath_prepend(tmp_path)
    for algo in ("ppo", "impala", "a2c"):
        said = []
        for command in ("config", "train"):
            assert main([command, algo, "--env", "tests_registry_env:FixedPart"]) == 2
            said.append(capsys.readouterr().err)
        assert "low must be below high in every dimension of an action" in said[0]
        assert said[0] == said[1]
    assert not Path("runs").exists()


# What is said of the speed of updates


def test_ppo_advises_nothing_that_is_done_already() -> None:
    advice = registry.find("ppo").advice
    assert advice(PPOConfig(), 2048) == (
        "num_epochs=10, minibatch_steps=64",
        (
            "a lower num_epochs than 10 (--num-epochs)",
            "a higher minibatch_steps than 64 (--minibatch-steps)",
        ),
        (),
    )
    assert advice(PPOConfig(minibatch_steps=2048, num_epochs=1), 2048).less_work == ()
    assert advice(PPOConfig(minibatch_steps=None, num_epochs=2), 2048) == (
        "num_epochs=2",
        ("a lower num_epochs than 2 (--num-epochs)",),
        (),
    )


@pytest.mark.parametrize(
    ("algo", "options", "said"),
    [
        ("impala", {}, ("batch_unrolls", "a higher batch_unrolls than 24 (--batch-unrolls)")),
        ("appo", {}, ("minibatch_steps", "a higher minibatch_steps than 1024 (--minibatch-steps)")),
        (
            "acer",
            {"replay_ratio": 0.0},
            ("unroll_steps", "a higher unroll_steps than 20 (--unroll"),
        ),
    ],
)
def test_options_that_make_batches_larger(
    algo: str, options: dict[str, Any], said: tuple[str, str]
) -> None:
    entry = registry.find(algo)
    work, less, (larger,) = entry.advice(entry.config(**options), 1024)
    assert said[0] in work
    assert less == ()
    assert larger.startswith(said[1])


def test_options_without_effect_are_not_advised() -> None:
    entry = registry.find("ddpg")
    often = "a lower updates_per_env_step than 0.5 (--updates-per-env-step)"
    assert often in entry.advice(entry.config(), 100).less_work
    found = entry.advice(entry.config(updates_per_cycle=50), 100)
    assert found.work == "updates_per_cycle=50, batch_size=64"
    assert len(found.less_work) == 2


# Nobody else names a learner or its options

KEYS = {field.name for field in fields(DataPlan)} | {name.rpartition("/")[2] for name in METRICS}
"""Names of options that are also fields of a plan or metrics, where they stand for themselves."""

OF_ENVPOOL = ("batch_size",)
"""Names of options that are also arguments of EnvPool's."""

OF_EVERY = ("lr_schedule", "normalize_observations")
"""Names of options that every learner has: an argument of `quintet.train`, and what helps where
observations lie around a large offset.
"""

MAY_NAME = ("algorithms", "models", "ops", "protocols.py")
"""Learners, work that is fixed for each of them, what they are made of, and the plan's own file."""


def named_in(source: str) -> set[str]:
    """Learners, and options that are of learners alone, in a module's attributes and texts;
    docstrings are not looked at.
    """
    learners = {name for name in registry.LEARNERS.names() if name != "a2c"}
    theirs = {name for each in learners for name in registry.find(each).config.model_fields}
    theirs = {name for name in theirs if "_" in name}  # others are words of their own, as gamma
    theirs -= {*OF_ENVPOOL, *OF_EVERY}
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in theirs - KEYS:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in prose or node.value in KEYS or node.value in METRICS:
                continue
            words = {word.strip("-").lower() for word in re.findall(r"[\w-]+", node.value)}
            found |= {word.replace("-", "_") for word in words} & (theirs | learners)
    return found


def test_no_learner_and_none_of_their_options_is_named_outside_algorithms() -> None:
    named = {
        str(path.relative_to(ROOT)): found
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in MAY_NAME and (found := named_in(path.read_text()))
    }
    assert named == {}
    for each in {*registry.LEARNERS.names()} - {"a2c"}:
        assert set(OF_EVERY) <= registry.find(each).config.model_fields.keys()


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ('passes = options.get("num_epochs")', "num_epochs"),
        ('advice.append(f"larger (--batch-unrolls {n})")', "batch_unrolls"),
        ("passes = config.learner.num_epochs", "num_epochs"),
        ('raise ConfigError("make room, or lower unroll_steps")', "unroll_steps"),
        ('num_learners: int = Field(1, description="several. IMPALA only")', "impala"),
        ('if config.algo == "ppo": pass', "ppo"),
    ],
)
def test_such_names_are_found(fault: str, name: str) -> None:
    assert named_in(fault) == {name}


def test_the_help_names_the_learners(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry.LEARNERS.loaded, "a2c")
    assert main(["--help"]) == 0
    assert f"Algorithms: {', '.join(registry.LEARNERS.names())}." in capsys.readouterr().out
