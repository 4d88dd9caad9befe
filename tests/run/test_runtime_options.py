"""Every option of the runtime does something."""

import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from run_helpers import SMALL, TOY, Where, resolved, run, weights
from torch import nn

import quintet
from quintet.algorithms.parts.setup import PLAIN
from quintet.envs.toy import Contextual
from quintet.errors import ConfigError
from quintet.findings.start import on_gpu
from quintet.observe.timing import PhaseTimer
from quintet.options import machine
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.runtime import RuntimeConfig
from quintet.options.saved import load_config
from quintet.run import launch, learners, sampling
from quintet.run.launch import Result
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.lockstep import LockstepSampling
from quintet.runtime.parallel.learners import Learners
from quintet.runtime.replay.replay import Replay
from quintet.runtime.sampler import SerialSampling
from quintet.runtime.torch_settings import GpuMath


def sampling_of(**options: Any) -> Any:
    """What would sample; no process has begun."""
    given = {"env.num_streams": 4} | {k.replace("__", "."): v for k, v in options.items()}
    loaded = load_config("ppo", [], Layer("call", {**SMALL, "env.id": TOY, **given}))
    source = sampling.open_source(loaded.config, loaded.env)
    config = resolution.resolve(loaded, source.spaces).config
    learner = learners.make_learner(config, source.spaces)
    made = sampling.make_sampling(config, source, [learner], PhaseTimer(), print, print, print)
    source.close()
    OPEN.append(made)
    return made


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


def _kind(where: Where) -> None:
    kinds = [type(sampling_of(runtime__kind=kind)) for kind in ("serial", "lockstep", "async")]
    assert kinds == [SerialSampling, LockstepSampling, AsyncSampling]
    with pytest.raises(ConfigError, match="input should be 'serial', 'lockstep' or 'async'"):
        run(where.folder, runtime__kind="parallel")


def _lag(where: Where) -> None:
    for lag in (0, 1):
        made = sampling_of(runtime__kind="lockstep", runtime__lag=lag)
        assert (made.lag, made.workers.spec.num_slots) == (lag, 1 + lag)
    with pytest.raises(ConfigError, match=r"runtime.lag=0 has no effect without runtime.kind=lock"):
        run(where.folder, runtime__lag=0)


def _num_workers(where: Where) -> None:
    for count in (1, 2, 4):
        made = sampling_of(
            runtime__kind="async", runtime__num_workers=count, env__streams_per_group=1
        )
        groups = [[place.group for place in p.places] for p in made.workers.grants.samplers]
        assert len(groups) == count
        assert [group for mine in groups for group in mine] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="num_workers must be at most the number of groups, 2"):
        sampling_of(runtime__kind="async", runtime__num_workers=3, env__streams_per_group=2)


def _max_policy_lag(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__max_policy_lag=7)
    assert made.delivery.plan.max_policy_lag == 7
    assert sampling_of(runtime__kind="async").delivery.plan.max_policy_lag is None


def _slots(where: Where) -> None:
    assert sampling_of(runtime__kind="async").workers.spec.num_slots == 2
    assert sampling_of(runtime__kind="async", runtime__slots=5).workers.spec.num_slots == 5
    with pytest.raises(ConfigError, match="slots must be at least 2 for batches of 4 unrolls"):
        sampling_of(runtime__kind="async", runtime__slots=1)


def _prefetch_batches(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__prefetch_batches=3)
    assert made.prefetch_batches == 3


def _publish_interval(where: Where) -> None:
    lags: list[float | None] = []

    def trained(interval: int) -> Result:
        return run(
            where.folder / str(interval),
            512,
            on_report=lambda report: lags.append(report.get("policy_lag/max")),
            checkpoint__interval_iterations=100,  # at exact ones weights are published too
            runtime__publish_interval_iterations=interval,
        )

    every = trained(1)
    assert set(lags) == {None}
    lags.clear()
    third = trained(3)
    assert weights(every) != weights(third)
    assert lags == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    # the policy that is saved is the newest, whatever the actors had
    assert third.policy.publication.version == every.policy.publication.version


def _inference(where: Where) -> None:
    assert sampling_of(runtime__kind="async").workers.server is None
    made = sampling_of(runtime__kind="async", runtime__inference="server")
    assert made.workers.server.kind.module == "quintet.runtime.processes.server"
    # Two groups of a worker take turns only where one steps by itself meanwhile.
    given = {"runtime.kind": "async", "runtime.inference": "server", "runtime.num_workers": 2}
    for backend, size in (("envpool", 2), ("gymnasium", 4)):
        asked = {**SMALL, "env.id": "CartPole-v1", "env.num_streams": 8, "env.backend": backend}
        loaded = load_config("ppo", [], Layer("call", asked | given))
        assert machine.streams_per_group(loaded.config, loaded.env) == size
    pong: dict[str, Any] = {"env__id": "Pong-v5", "runtime__device": "cuda"}
    for gpus, options, expected in (
        (1, pong, "device"),
        (1, pong | {"runtime__device": "cpu"}, "local"),
        (1, pong | {"runtime__kind": "lockstep", "env__num_streams": 2}, "local"),
        (1, {"runtime__device": "cuda"}, "local"),  # a small network acts faster beside it
        (1, {"runtime__device": "cuda", "runtime__inference": "device"}, "device"),
        (0, {}, "local"),
    ):
        gpu_count(where, gpus)
        assert resolved(**options)["runtime.inference"] == expected, options
    for options in ({"device": "cpu"}, {"kind": "lockstep", "device": "cuda"}):
        asked = {f"runtime__{name}": value for name, value in options.items()}
        with pytest.raises(ConfigError, match=r"inference=device has no effect without runtime.k"):
            resolved(**asked, runtime__inference="device")
    chosen, given = (
        SimpleNamespace(runtime=RuntimeConfig(inference=x)) for x in ("auto", "device")
    )
    (told,) = on_gpu(SimpleNamespace(config=chosen), given)
    assert "--runtime.inference local" in told.said
    assert not [*on_gpu(SimpleNamespace(config=given), given)]
    with pytest.raises(ConfigError, match=r"inference=device needs a CUDA GPU, but .*auto"):
        resolved(runtime__device="auto", runtime__inference="device")


def gpu_count(where: Where, count: int) -> None:
    where.monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    where.monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    where.monkeypatch.setattr("quintet.models.precision.fast_bf16", lambda _: False)


def _inference_batches(where: Where) -> None:
    given = {"batch_min": 3, "batch_max": 9, "timeout_ms": 7.0}
    options = {f"runtime__inference_{name}": value for name, value in given.items()}
    made = sampling_of(runtime__kind="async", runtime__inference="server", **options)
    server = made.workers.spec.server
    assert (server.batch_min, server.batch_max, server.batch_timeout_s) == (3, 9, 0.007)
    with pytest.raises(ConfigError, match="inference_batch_max must be at least 9"):
        sampling_of(
            runtime__kind="async",
            runtime__inference="server",
            runtime__inference_batch_min=9,
            runtime__inference_batch_max=8,
        )


def _worker_timeout_s(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__worker_timeout_s=1.5)
    assert made.workers.spec.timeout_s == 1.5


def _max_restarts(where: Where) -> None:
    assert sampling_of(runtime__kind="async", runtime__max_restarts=0).max_restarts == 0


def learners_of(**options: Any) -> Learners:
    """What would learn; no process has begun."""
    given = {k.replace("__", "."): v for k, v in options.items()}
    given |= {"env.id": TOY, "preset": "none", "total_env_steps": 10_000}
    loaded = load_config("impala", [], Layer("call", given))
    source = sampling.open_source(loaded.config, loaded.env)
    made = learners.make_learners(resolution.resolve(loaded, source.spaces).config, source.spaces)
    source.close()
    OPEN.append(made)
    return made


def _num_learners(where: Where) -> None:
    """More in test_learners."""
    made = learners_of(runtime__num_learners=3)
    assert [process.kind.name for process in made.processes] == ["learner 1", "learner 2"]
    with pytest.raises(ConfigError, match="must divide minibatch_steps evenly, got 32"):
        run(where.folder, runtime__num_learners=3)


def _learner_timeout_s(where: Where) -> None:
    made = learners_of(runtime__num_learners=2, runtime__learner_timeout_s=1.5)
    assert made.spec.timeout_s == 1.5


class Threads(Contextual):
    """Notes how many threads PyTorch has beside it."""

    seen: ClassVar[set[int]] = set()

    def step(self, action):
        self.seen.add(torch.get_num_threads())
        return super().step(action)


def _actor_threads(where: Where) -> None:
    learning = []
    for threads in (2, None):
        Threads.seen.clear()
        run(
            where.folder / str(threads),
            env=Threads,
            runtime__actor_threads=threads,
            on_report=lambda _: learning.append(torch.get_num_threads()),
        )
        assert (threads or 1) in Threads.seen, "beside what the check whether it repeats has seen"
    assert set(learning) == {1}
    assert sampling_of(runtime__kind="async", runtime__threads=2).workers.spec.threads == 1


def _device(where: Where) -> None:
    where.monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved(runtime__device="auto")["runtime.device"] == "cpu"
    with pytest.raises(ConfigError, match="must have 1 CUDA GPU"):
        resolved(runtime__device="cuda")


def _threads(where: Where) -> None:
    before, seen = torch.get_num_threads(), []
    run(
        where.folder / "a",
        64,
        runtime__threads=2,
        on_report=lambda _: seen.append(torch.get_num_threads()),
    )
    assert torch.get_num_threads() == before
    run(where.folder / "b", 64, on_report=lambda _: seen.append(torch.get_num_threads()))
    assert set(seen) == {1, 2}
    assert seen[0] == 2
    assert torch.get_num_threads() == before


def _compile(where: Where) -> None:
    said: list[str] = []
    where.monkeypatch.setattr(shutil, "which", lambda _, **__: "/usr/bin/g++")
    for name in ("compute", "actor_compute"):  # what they compile, other tests show
        where.monkeypatch.setattr(
            RuntimeConfig, name, property(lambda self: said.append(self.compile) or PLAIN)
        )
    run(where.folder / "a", 64, runtime__compile="on")
    assert set(said) == {"on"}
    said.clear()
    run(where.folder / "b", 64, runtime__compile="auto")  # far too short to be worth it
    assert set(said) == {"off"}
    many = {"total_env_steps": 1_500_000, "runtime__compile": "auto"}
    assert resolved(**many)["runtime.compile"] == "on"
    assert resolved(**many, minibatch_steps=64)["runtime.compile"] == "off"
    assert resolved(**many, check_numerics=True)["runtime.compile"] == "off"
    _graphs(where)


def _graphs(where: Where) -> None:
    """On a GPU, which is pretended."""
    gpu_count(where, 1)
    auto: dict[str, Any] = {"runtime__compile": "auto", "runtime__device": "cuda"}
    own = {"model__encoder": "test_runtime_options:OwnPicture", "model__policy_hidden": None}
    for options, expected in (
        ({}, "graph"),
        ({"model__core": "lstm", "bptt_steps": 8, "unroll_steps": 8}, "graph"),
        ({"check_numerics": True}, "off"),
        ({"env__id": "Pong-v5", **own}, "off"),
        ({"env__id": "Pong-v5", **own, "runtime__compile": "graph"}, "graph"),
        ({"runtime__device": "cpu"}, "off"),
    ):
        assert resolved(**auto | options)["runtime.compile"] == expected, options
    with pytest.raises(ConfigError, match=r"compile=graph has no effect without a CUDA GPU"):
        resolved(runtime__compile="graph", runtime__device="cpu")
    where.monkeypatch.setattr(machine, "cuda_compiler_fault", lambda: "there is no Triton")
    with pytest.raises(ConfigError, match=r"there is no Triton, or begin .* --runtime.compile gr"):
        resolved(runtime__compile="on", runtime__device="cuda")


class OwnPicture(nn.Module):
    """Puts linear features in a float32 tensor of its own, which autocast would break."""

    feature_size = 2

    def __init__(self, leaves: Any):
        super().__init__()
        self.linear = nn.Linear(4 * 84 * 84, 2)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        x = obs["obs"].flatten(1).float() / 255.0
        out = torch.zeros(len(x), 2)
        out[torch.arange(len(x))] = self.linear(x)
        return out


def _precision(where: Where) -> None:
    full = run(where.folder / "a", 64, runtime__precision="fp32")
    half = run(where.folder / "b", 64, runtime__precision="bf16")
    assert weights(full) != weights(half)
    assert all(x.dtype != torch.bfloat16 for x in half.policy.publication.tensors.values())
    pixels = {"env__id": "Pong-v5", "runtime__precision": "auto"}
    for able, expected in ((True, "bf16"), (False, "fp32")):
        where.monkeypatch.setattr(
            "quintet.models.precision.fast_bf16", lambda device, able=able: able
        )
        assert resolved(**pixels)["runtime.precision"] == expected
        assert resolved(runtime__precision="auto")["runtime.precision"] == "fp32"
        own = {"model__encoder": "test_runtime_options:OwnPicture", "model__policy_hidden": None}
        assert resolved(**pixels, **own)["runtime.precision"] == "fp32"


def _actor_precision(where: Where) -> None:
    full = run(where.folder / "a", 64, runtime__actor_precision="fp32")
    half = run(where.folder / "b", 64, runtime__actor_precision="bf16")
    assert weights(full) != weights(half)
    where.monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    where.monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    served = {"runtime__kind": "async", "runtime__inference": "server", "env__num_streams": 2}
    for cpu, others, expected in (
        (False, {"runtime__inference": "local"}, ("bf16", "fp32")),
        (True, {"runtime__inference": "local"}, ("bf16", "bf16")),
        (False, {}, ("bf16", "bf16")),  # serial acts on pictures on the GPU
        (False, served, ("bf16", "bf16")),
        (False, {"runtime__device": "cpu"}, ("fp32", "fp32")),
        (False, {"runtime__precision": "fp32"}, ("fp32", "fp32")),
        (False, {"runtime__actor_precision": "bf16"}, ("bf16", "bf16")),
    ):
        where.monkeypatch.setattr(
            "quintet.models.precision.fast_bf16",
            lambda device, cpu=cpu: device.type == "cuda" or cpu,
        )
        values = resolved(**{"env__id": "Pong-v5", "runtime__device": "cuda"} | others)
        found = values["runtime.precision"], values["runtime.actor_precision"]
        assert found == expected, others


def _gpu_math(where: Where) -> None:
    where.monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    where.monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    where.monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "none")
    seen: list[tuple[bool, bool]] = []

    def stop(*_: Any, **__: Any) -> None:
        seen.append((torch.backends.cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32))
        raise KeyboardInterrupt

    where.monkeypatch.setattr(launch, "make_policies", stop)
    for deterministic, tf32 in (("auto", "auto"), ("off", "on")):
        options = {"runtime__deterministic": deterministic, "runtime__tf32": tf32}
        with pytest.raises(KeyboardInterrupt):
            run(where.folder / tf32, 64, runtime__device="cuda", **options)
    assert seen == [(True, False), (False, True)]
    begun: list[str | None] = []
    where.monkeypatch.setattr(
        "quintet.runtime.processes.process.prepare",
        lambda: begun.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG")),
    )
    with pytest.raises(KeyboardInterrupt):
        run(where.folder / "workers", 64, runtime__device="cuda", runtime__kind="lockstep")
    assert begun == [":4096:8"]  # or its processes would need another fork server
    served = {"env.id": TOY, "runtime.kind": "lockstep", "runtime.inference": "server"}
    given = Layer("call", {**SMALL, **served, "runtime.device": "cuda", "runtime.tf32": "on"})
    loaded = load_config("ppo", [], given)
    source = sampling.open_source(loaded.config, loaded.env)
    config = resolution.resolve(loaded, source.spaces).config
    source.close()
    assert sampling._server(config, source.spaces).gpu == GpuMath(deterministic=True, tf32=True)
    with pytest.raises(ConfigError, match=r"tf32=on has no effect without a CUDA GPU .*is cpu"):
        run(where.folder / "cpu", 64, runtime__device="cpu", runtime__tf32="on")
    for name, value in (("tf32", "off"), ("deterministic", "on")):
        with pytest.raises(ConfigError, match=f"{name}={value} needs a CUDA GPU, but .*auto"):
            run(where.folder / "auto", 64, **{f"runtime__{name}": value})


def _replay_device(where: Where) -> None:
    """That the GPU's draws are the CPU's is in tests/gpu/test_replay_draws.py."""
    asked: list[bool] = []

    def draw_on(self: Replay, device: torch.device, must: bool) -> None:
        asked.append(must)

    small = {"replay_start_steps": 32, "batch_size": 4, "env.num_streams": 4}
    quiet = {"report.progress": False, "eval.episodes": 0, "model.policy_hidden": (8,)}
    with mock.patch.object(Replay, "draw_on", draw_on):
        for value in ("cpu", "learner"):
            config = {**small, **quiet, "runtime.replay_device": value}
            quintet.train("ddpg", "Pendulum-v1", 64, run_dir=where.folder / value, config=config)
    assert asked == [True]
    with pytest.raises(ConfigError, match="replay_device=cpu has no effect without an algorithm"):
        run(where.folder / "none", 64, runtime__replay_device="cpu")


EFFECTS: dict[str, Callable[[Where], None]] = {
    "runtime.kind": _kind,
    "runtime.lag": _lag,
    "runtime.inference": _inference,
    "runtime.inference_batch_min": _inference_batches,
    "runtime.inference_batch_max": _inference_batches,
    "runtime.inference_timeout_ms": _inference_batches,
    "runtime.num_workers": _num_workers,
    "runtime.max_policy_lag": _max_policy_lag,
    "runtime.slots": _slots,
    "runtime.prefetch_batches": _prefetch_batches,
    "runtime.publish_interval_iterations": _publish_interval,
    "runtime.worker_timeout_s": _worker_timeout_s,
    "runtime.max_restarts": _max_restarts,
    "runtime.num_learners": _num_learners,
    "runtime.learner_timeout_s": _learner_timeout_s,
    "runtime.actor_threads": _actor_threads,
    "runtime.device": _device,
    "runtime.threads": _threads,
    "runtime.precision": _precision,
    "runtime.actor_precision": _actor_precision,
    "runtime.deterministic": _gpu_math,
    "runtime.tf32": _gpu_math,
    "runtime.replay_device": _replay_device,
    "runtime.compile": _compile,
}


def test_no_option_is_without_a_check():
    assert set(EFFECTS) == {f"runtime.{name}" for name in RuntimeConfig.model_fields}


@pytest.mark.parametrize("name", EFFECTS)
def test_every_option_has_an_effect(name, tmp_path, monkeypatch):
    EFFECTS[name](Where(tmp_path, monkeypatch))


def test_graphs_are_only_on_a_gpu() -> None:
    config = RuntimeConfig(device="cuda", precision="fp32", compile="graph", actor_precision="fp32")
    assert config.compute.graph
    assert not config.actor_compute.graph  # it acts on the CPU
    on_gpu = config.model_copy(update={"inference": "device"}).actor_compute
    assert (on_gpu.act_on, on_gpu.graph) == ("cuda", True)
    # A resume on a machine without a GPU.
    resumed = config.model_copy(update={"inference": "device", "device": "cpu"})
    assert (resumed.actor_compute, resumed.compute) == (PLAIN, PLAIN)
