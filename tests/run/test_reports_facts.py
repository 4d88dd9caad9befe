"""What the speed of a run depends on: when compiling pays, and that the advice's facts are true."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor
from toys_helpers import EndlessPay

import quintet
from quintet.envs import backends, envpool_library
from quintet.envs.env_source import EnvLike, settle
from quintet.envs.envpool import EnvPoolVectorEnv
from quintet.envs.make import make_group_env
from quintet.errors import ConfigError, QuintetError
from quintet.findings.speed import RunFacts
from quintet.models import compiled
from quintet.models.config import resolve_model
from quintet.options import machine
from quintet.options.layers import Layer
from quintet.options.resolve import compose, resolve
from quintet.options.runtime import RuntimeConfig
from quintet.protocols import DataPlan
from quintet.run import reports
from quintet.system import compiler
from quintet.system.compiler import compiler_fault
from quintet.types import Spaces

may_compile = pytest.mark.skipif(compiler.too_old() is not None, reason=f"{compiler.too_old()}")

TOY = "toys_helpers:EndlessPay"
NUMBERS = Spaces(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2))
PICTURES = Spaces(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2))
GRIDS = Spaces(
    spaces.Dict(
        {
            "direction": spaces.Discrete(4),
            "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": spaces.Box(0, 255, (512,), np.uint8),
        }
    ),
    spaces.Discrete(7),
)
SMALL = {
    "preset": "none",
    "env.num_streams": 4,
    "unroll_steps": 32,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "total_env_steps": 1024,
}
OF_PPO = ("minibatch_steps", "num_epochs")
CORES = 4
IN_CPP = "the same id in C++ (--env.backend envpool)"


@pytest.mark.parametrize(
    ("seen", "updates", "options", "worth"),
    [
        (NUMBERS, 30_000, {}, True),
        (NUMBERS, 29_999, {}, False),
        (NUMBERS, 15_000, {"num_epochs": 2}, True),
        (PICTURES, 3_000, {}, True),
        (PICTURES, 2_999, {}, False),
        (NUMBERS, 10**6, {"device": "cuda"}, False),
        (PICTURES, 10**6, {"device": "cuda:1"}, False),
        (NUMBERS, 10**6, {"model.core": "lstm"}, False),
        (NUMBERS, 10**6, {"model.core": "gru"}, False),
        (NUMBERS, 10**6, {"model.encoder": "my.models:Net"}, False),
        (PICTURES, 10**6, {"model.encoder": "my.models:Net"}, False),
        (GRIDS, 10**6, {"model.encoder": "mlp"}, True),
        (GRIDS, 10**6, {}, False),
        (NUMBERS, 10**6, {"check_numerics": True}, False),
        (NUMBERS, 59_999, {"population.size": 2}, False),
        (NUMBERS, 60_000, {"population.size": 2}, True),
    ],
)
def test_compiling_is_worth_it_in_long_runs_of_plain_networks(
    seen: Spaces, updates: int, options: dict[str, Any], worth: bool
) -> None:
    given = dict(options)
    device = given.pop("device", "cpu")
    values = SMALL | {"env.id": TOY, "total_env_steps": 32 * updates} | given
    config = compose("ppo", [Layer("call", values)]).config
    model = resolve_model(config.model, seen)
    assert machine.worth_compiling(config, model, seen, device) is worth


def test_the_option_says_from_when_on_it_compiles() -> None:
    said = RuntimeConfig.model_fields["compile"].description
    assert said is not None
    assert f"at least {machine.COMPILE_FROM_UPDATES:,} planned optimizer steps of a policy" in said
    assert f"({machine.COMPILE_FROM_UPDATES_OF_PICTURES:,} on pictures)" in said


@may_compile
def test_the_compiler_is_what_cxx_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And it must make a library with what PyTorch's code includes."""
    monkeypatch.delenv("CXX", raising=False)
    assert machine.has_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not machine.has_compiler()
    for said, cure in (("Python.h: No such file", "python3-dev"), ("omp.h: none", "install g++")):
        broken = tmp_path / f"{cure.split()[0]}-cxx"
        broken.write_text(f"#!/bin/sh\necho 'fatal error: {said}' >&2; exit 1\n")
        broken.chmod(0o700)
        monkeypatch.setenv("CXX", str(broken))
        fault = compiler_fault()
        assert fault is not None
        assert said in fault
        assert cure in fault
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    assert not machine.has_compiler()


def test_an_old_pytorch_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, able in (
        ("2.7.1+cu126", False),
        ("2.12.1", False),
        ("2.13.0+cpu", True),
        ("3.0", True),
    ):
        monkeypatch.setattr(compiler.metadata, "version", lambda _, version=version: version)
        fault = compiler.too_old()
        assert (fault is None) == able
        assert able or f"PyTorch {version} can't compile ahead of time" in str(fault)
        assert able or not machine.has_compiler()


@may_compile
def test_auto_goes_on_uncompiled_and_says_why(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(machine, "COMPILE_FROM_UPDATES", 1)
    given = {"env.num_streams": 2, "unroll_steps": 16, "eval.episodes": 0}
    quintet.train("ppo", "CartPole-v1", 64, 3, tmp_path / "auto", given)
    note = "are not compiled, which makes them slower: /bin/false can't compile"
    assert note in capsys.readouterr().out
    assert "\nruntime.compile: 'off'" in (tmp_path / "auto" / "config.yaml").read_text()
    quintet.train("ppo", "CartPole-v1", 96, 3, tmp_path / "auto", given)
    assert note not in capsys.readouterr().out  # it was resolved when the run began
    given["runtime.compile"] = "on"
    with pytest.raises(ConfigError, match=r"/bin/false can't compile .*; install g"):
        quintet.train("ppo", "CartPole-v1", 64, 3, tmp_path / "on", given)
    assert not (tmp_path / "on").exists()


def test_what_the_compiler_fails_with_is_one_sentence(monkeypatch) -> None:
    class Doubling:
        def method(self, x: Tensor) -> Tensor:
            return 2 * x

    def fails(*_args: object, **_given: object) -> None:
        raise RuntimeError("cc1plus: killed\nand many lines more")

    monkeypatch.setattr(compiled, "_inductor", fails)
    with pytest.raises(
        QuintetError, match=r"compile .*method \(RuntimeError: cc1.*--runtime.compile off"
    ) as raised:
        compiled.Graph(Doubling().method)(torch.ones(2))
    assert "\n" not in str(raised.value)
    assert "many lines more" in raised.value.detail


def facts_for(env: EnvLike, callback: bool = False, algo: str = "ppo", **options: Any) -> RunFacts:
    """Of a run on these environments, which are made to see what they are."""
    says, source = settle(env)
    given = {name.replace("__", "."): value for name, value in options.items()}
    small = SMALL if algo == "ppo" else {k: v for k, v in SMALL.items() if k not in OF_PPO}
    values = small | {f"env.{name}": value for name, value in says.items()} | given
    loaded = compose(algo, [Layer("call", values)], source)
    made = make_group_env(loaded.env, loaded.env.group_size)
    try:
        config = resolve(loaded, made.spaces).config
        plan = DataPlan(SMALL["unroll_steps"], config.env.num_streams)
        about = made.description
        found = reports.facts_of(config, plan, made.spaces, about, loaded.env, callback)
        if isinstance(made, EnvPoolVectorEnv):
            assert found.env_threads == made.num_threads
        assert found.num_streams == found.num_groups * made.num_streams
        return found
    finally:
        made.close()


def told(found: RunFacts, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(found, name) for name in names)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (backends, reports):
        monkeypatch.setattr(module, "usable_cores", lambda: CORES)
    monkeypatch.setattr(reports.torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("env", "options", "groups", "threads", "auto", "pictures"),
    [
        ("CartPole-v1", {}, 1, 1, 1, False),  # cheap: one thread, whatever the cores
        ("CartPole-v1", {"env__streams_per_group": 1}, 4, 1, 1, False),
        ("CartPole-v1", {"env__num_threads": 3}, 1, 3, 1, False),
        ("HalfCheetah-v4", {"env__num_streams": 8}, 2, 2, 2, False),
        ("HalfCheetah-v4", {"env__num_streams": 8, "env__streams_per_group": 8}, 1, 4, 4, False),
        ("HalfCheetah-v4", {"env__num_streams": 8, "env__streams_per_group": 2}, 4, 1, 1, False),
        ("HalfCheetah-v4", {"env__num_streams": 8, "env__num_threads": 1}, 2, 1, 2, False),
        ("HalfCheetah-v4", {"env__num_streams": 1}, 1, 1, 1, False),  # one per stream at most
        ("Pong-v5", {"env__num_streams": 2, "env__streams_per_group": 2}, 1, 2, 2, True),
    ],
)
def test_pools(
    env: str, options: dict[str, Any], groups: int, threads: int, auto: int, pictures: bool
) -> None:
    pytest.importorskip("envpool")
    found = facts_for(env, env__backend="envpool", **options)
    assert told(found, "env", "backend", "source") == (env, "envpool", "id")
    assert told(found, "in_python", "faster", "single_only", "cores") == (False, "", False, CORES)
    assert told(found, "num_groups", "env_threads", "auto_env_threads") == (groups, threads, auto)
    assert found.auto_num_groups == (1 if env == "CartPole-v1" else min(2, found.num_streams))
    assert found.large_network is pictures


@pytest.mark.parametrize(
    ("env", "options", "source", "known"),
    [
        ("CartPole-v1", {"env__backend": "gymnasium"}, "id", IN_CPP),
        ("OwnPay-v0", {}, "id", ""),
        (TOY, {}, "maker", ""),
        ("gymnasium:CartPole-v1", {}, "maker", ""),
        (EndlessPay, {}, "maker", ""),
        (partial(gymnasium.make, "CartPole-v1"), {}, "maker", ""),
        (partial(gymnasium.make_vec, "CartPole-v1"), {}, "group maker", ""),
        ("gymnasium:make_vec", {"env__kwargs": {"id": "CartPole-v1"}}, "group maker", ""),
    ],
)
def test_environments_in_python(
    monkeypatch: pytest.MonkeyPatch,
    env: EnvLike,
    options: dict[str, Any],
    source: str,
    known: str,
) -> None:
    pytest.importorskip("envpool")
    own = EnvSpec("OwnPay-v0", entry_point=EndlessPay)
    monkeypatch.setitem(gymnasium.registry, "OwnPay-v0", own)
    found = facts_for(env, **options)
    assert told(found, "source", "faster", "backend") == (source, known, "gymnasium")
    assert told(found, "num_streams", "num_groups") == (4, 1)
    assert told(found, "env_threads", "auto_env_threads", "single_only") == (1, 1, False)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_given_vector_environments(kind: Any) -> None:
    given = kind([EndlessPay] * 3)
    try:
        found = facts_for(given)
    finally:
        given.close()
    assert told(found, "source", "backend") == ("vector environment", "gymnasium")
    assert told(found, "num_streams", "num_groups", "batch_steps") == (3, 1, 96)


def test_a_given_pool_stands_for_its_id() -> None:
    made = pytest.importorskip("envpool").make(
        "CartPole-v1", env_type="gymnasium", num_envs=2, num_threads=2
    )
    found = facts_for(made)
    assert told(found, "env", "source", "backend") == ("CartPole-v1", "id", "envpool")
    assert told(found, "num_streams", "env_threads", "auto_env_threads") == (2, 2, 1)


def test_without_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool_library, "is_installed", lambda: False)
    found = facts_for("CartPole-v1")
    assert found.faster == "EnvPool, if it has this id in C++ (see quintet envs)"
    assert found.backend == "gymnasium"


def test_masks_from_info_are_of_single_environments() -> None:
    taxi = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
    found = facts_for(taxi, env__backend="gymnasium", env__mask_from_info=True)
    assert told(found, "source", "single_only") == ("id", True)


def test_learner_and_reports() -> None:
    found = facts_for(TOY)
    assert told(found, "device", "threads", "gpu", "large_network") == ("cpu", 1, False, False)
    assert told(found, "batch_steps", "update") == (
        (
            128,
            (
                "num_epochs=1, minibatch_steps=32",
                ("a higher minibatch_steps than 32 (--minibatch-steps)",),
                (),
            ),
        )
    )
    assert told(found, "compiles", "may_compile", "compiler") == (False, False, True)
    assert told(found, "sinks", "callback", "report_interval_s") == (True, False, 1.0)

    found = facts_for(
        TOY,
        callback=True,
        model__core="lstm",
        bptt_steps=16,
        num_epochs=3,
        minibatch_steps=None,
        eval__episodes=7,
        report__sinks=[],
        report__interval_s=0.5,
    )
    assert found.update == (
        "num_epochs=3",
        ("a lower num_epochs than 3 (--num-epochs)",),
        (),
    )
    assert told(found, "sinks", "callback", "report_interval_s") == (False, True, 0.5)
    assert found.eval_episodes == 7


@may_compile
@pytest.mark.parametrize(("option", "compiles"), [("auto", True), ("on", True), ("off", False)])
def test_compiling_is_told_as_it_was_resolved(
    monkeypatch: pytest.MonkeyPatch, option: str, compiles: bool
) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # which is never called
    found = facts_for(TOY, runtime__compile=option, total_env_steps=32 * 30_000)
    assert told(found, "compiles", "may_compile", "compiler") == (compiles, True, True)


def test_one_process() -> None:
    assert told(facts_for(TOY), "kind", "num_workers") == ("serial", 0)
    assert told(facts_for(TOY), "num_learners") == (1,)


@pytest.mark.parametrize(("gpus", "enough"), [(0, False), (1, False), (2, True)])
def test_several_learners(gpus: int, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(reports.torch.cuda, "device_count", lambda: gpus)
    found = facts_for(
        TOY, algo="impala", batch_unrolls=8, runtime__num_learners=2, runtime__kind="serial"
    )
    assert told(found, "num_learners", "gpu") == (2, enough)
    assert found.update.larger_batches == ("a higher batch_unrolls than 8 (--batch-unrolls)",)


def test_workers() -> None:
    found = facts_for(
        TOY,
        env__streams_per_group=2,
        runtime__kind="lockstep",
        runtime__lag=0,
        runtime__num_workers=2,
        runtime__actor_threads=3,
        runtime__threads=2,
    )
    assert told(found, "kind", "lag", "num_workers", "inference") == ("lockstep", 0, 2, "local")
    assert told(found, "threads", "actor_threads", "num_streams") == (2, 3, 4)
    assert told(found, "num_groups", "env_threads") == (2, 1)
    found = facts_for(
        TOY,
        env__streams_per_group=1,
        runtime__kind="async",
        runtime__num_workers=2,
        runtime__inference="server",
        runtime__inference_batch_max=3,
    )
    assert told(found, "kind", "num_workers", "inference", "num_groups") == (
        "async",
        2,
        "server",
        4,
    )
    assert found.inference_batch_max == 3
