"""The cases of `gpu.py`, in a process of their own: what is measured on a GPU, part by part.

    python benchmarks/gpu_cases.py PART --device cuda --to ROWS.jsonl

Writes two lines per case, {"begin": NAME} and {"end": NAME, "result": {...}}, so that a case that
ends the process, or hangs, leaves the results before it.  `gpu.py` calls this; use that.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpu_measures import (
    SERIAL,
    Asked,
    Learned,
    Options,
    Result,
    environment,
    peer,
    random_steps,
    same_as_cpu,
    same_twice,
    speed,
    watch,
)

PICTURES: Options = {"model.shared_torso": True, "env.num_streams": 4, "env.streams_per_group": 4}
LSTM: Options = {"model.core": "lstm", "model.core_size": 16}
REPLAY: Options = {"replay_start_steps_per_stream": 100}


SHORT: Mapping[str, Learned] = {
    "ppo mlp": Learned(
        "ppo",
        "CartPole-v1",
        3 * 512,
        {"unroll_steps": 64, "num_epochs": 2, "minibatch_steps": 256},
    ),
    "ppo cnn": Learned(
        "ppo",
        "Pong-v5",
        3 * 64,
        {**PICTURES, "unroll_steps": 16, "num_epochs": 2, "minibatch_steps": 32},
    ),
    "ppo lstm": Learned(
        "ppo",
        "CartPole-v1",
        3 * 256,
        {**LSTM, "unroll_steps": 32, "bptt_steps": 16, "num_epochs": 2, "minibatch_steps": 128},
    ),
    "impala mlp": Learned("impala", "CartPole-v1", 4 * 640, {}),
    "impala cnn": Learned("impala", "Pong-v5", 4 * 640, PICTURES),
    "impala lstm": Learned("impala", "CartPole-v1", 4 * 640, LSTM),
    "appo mlp": Learned("appo", "CartPole-v1", 3000, {}),
    "appo lstm": Learned("appo", "CartPole-v1", 3000, LSTM),
    "acer mlp": Learned("acer", "CartPole-v1", 960, REPLAY),
    "acer pendulum": Learned("acer", "Pendulum-v1", 960, REPLAY),
    "ddpg mlp": Learned(
        "ddpg",
        "Pendulum-v1",
        384,
        {"replay_start_steps": 300, "model.policy_hidden": [32, 32]},
    ),
}

WATCHED: Mapping[str, tuple[str, str, Options]] = {
    "ppo CartPole": ("ppo", "CartPole-v1", {}),
    "ppo Pendulum": ("ppo", "Pendulum-v1", {}),
    "ppo Pong": ("ppo", "Pong-v5", {}),
    "ppo CartPole lstm": ("ppo", "CartPole-v1", {"model.core": "lstm"}),
    "impala Pong": ("impala", "Pong-v5", {}),
    "appo CartPole": ("appo", "CartPole-v1", {}),
    "acer CartPole": ("acer", "CartPole-v1", {"replay_start_steps_per_stream": 100}),
    "ddpg Pendulum": ("ddpg", "Pendulum-v1", {"replay_start_steps": 1000}),
}

PEERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "LeanRL compile cudagraphs": (
        "ppo_atari_envpool_torchcompile.py",
        ("--compile", "--cudagraphs"),
    ),
    "LeanRL cudagraphs": ("ppo_atari_envpool_torchcompile.py", ("--cudagraphs",)),
    "CleanRL": ("ppo_atari_envpool.py", ()),
}


def like_theirs(env: str) -> dict[str, Any]:
    """Options of the work of CleanRL's and LeanRL's PPO on Atari: 8 streams of 128 steps, 4 epochs
    of 4 minibatches of 256 rows.
    """
    from fixed_work import workloads

    work = workloads.read("pong-ppo").model_copy(update={"env_id": env, "num_envs": 8})
    options = dict(workloads.layer(work).values)
    for name in ("env.id", "total_env_steps"):
        options.pop(name)
    return {**options, **SERIAL}


class Case(NamedTuple):
    """One measurement; it fails if it takes longer than `limit_s`."""

    name: str
    call: Callable[[Asked], Result]
    limit_s: float = 60


def _equality() -> list[Case]:
    return [Case(name, partial(same_as_cpu, run=run)) for name, run in SHORT.items()]


def _exactness() -> list[Case]:
    return [
        Case(f"{name} {compile_}", partial(same_twice, run=run, compile_=compile_))
        for name, run in SHORT.items()
        for compile_ in ("off", "graph")
    ]


def _steps() -> list[Case]:
    return [
        Case(
            f"{name} {compile_}",
            partial(watch, algo=algo, env=env, options={**given, "runtime.compile": compile_}),
        )
        for name, (algo, env, given) in WATCHED.items()
        for compile_ in ("off", "graph")
    ]


def _peers() -> list[Case]:
    return [
        Case(f"{name} {env}", partial(peer, file=file, arguments=arguments, env=env), 150)
        for env in ("Pong-v5", "Breakout-v5")
        for name, (file, arguments) in PEERS.items()
        if env == "Pong-v5" or "compile" in name
    ]


def _turns() -> list[Case]:
    """Our PPO and LeanRL's on Pong, with the same work, twice in turns."""
    env, name = "Pong-v5", "LeanRL compile cudagraphs"
    file, arguments = PEERS[name]
    tf32 = {**_way("device", "fp32"), "runtime.tf32": "on"}
    served = {**tf32, "runtime.kind": "lockstep", "runtime.inference": "server"}
    ways: dict[str, Options] = {
        "tf32 two groups": {**tf32, "env.streams_per_group": 4},  # as is chosen
        "bf16 two groups": {**_way("device", "bf16"), "env.streams_per_group": 4},
        "tf32 one group": {**tf32, "env.streams_per_group": 8},
        "tf32 four groups": {**tf32, "env.streams_per_group": 2},
        "tf32 server": {**served, "env.streams_per_group": 4, "runtime.num_workers": 2},
    }
    cases = []
    for turn in (1, 2):
        for way, how in ways.items():
            options = {**like_theirs(env), **how}
            call = partial(_on_device, algo="ppo", env=env, options=options)
            cases.append(Case(f"{turn} quintet {way}", call))
        call = partial(peer, file=file, arguments=arguments, env=env)
        cases.append(Case(f"{turn} {name}", call, 150))
    return cases


def _on_device(asked: Asked, algo: str, env: str, options: Options) -> Result:
    return speed(asked, algo, env, options, asked.device)


def _compiled() -> list[Case]:
    """What a peer compiles stays in PyTorch's cache, so that its measurement begins sooner."""
    name = "LeanRL compile cudagraphs"
    file, arguments = PEERS[name]

    def call(asked: Asked) -> Result:
        told = peer(asked, file, arguments, "Pong-v5", seconds=0.1)
        return {"first_iterations_s": told["first_iterations_s"]}  # the rest is no measurement

    return [Case(f"{name} Pong-v5", call, 150)]


def _runs(runs: Mapping[str, tuple[str, str, Options]], ways: Mapping[str, Options]) -> list[Case]:
    """Every run in every way of computing: on the CPU alone (`cpu`), else on the device asked."""

    def case(asked: Asked, algo: str, env: str, options: Options, on_cpu: bool) -> Result:
        return speed(asked, algo, env, options, "cpu" if on_cpu else asked.device)

    return [
        Case(
            f"{name} {way}",
            partial(case, algo=algo, env=env, options={**given, **how}, on_cpu=way == "cpu fp32"),
        )
        for name, (algo, env, given) in runs.items()
        for way, how in ways.items()
    ]


def _way(inference: str, precision: str, compile_: str = "graph") -> Options:
    return {
        "runtime.inference": inference,
        "runtime.precision": precision,
        "runtime.compile": compile_,
    }


CPU_WAY: Options = {"runtime.precision": "fp32"}


def _games(env: str, short: bool) -> list[Case]:
    """PPO with the work of CleanRL's, and with 64 streams; IMPALA with its preset."""
    eight = ("ppo", env, like_theirs(env))
    serial = {
        "cpu fp32": CPU_WAY,
        "local fp32 eager": _way("local", "fp32", "off"),
        "local fp32": _way("local", "fp32"),
        "local bf16": _way("local", "bf16"),
        "device fp32 eager": _way("device", "fp32", "off"),
        "device fp32": _way("device", "fp32"),
        "device tf32": {**_way("device", "fp32"), "runtime.tf32": "on"},
        "device bf16": _way("device", "bf16"),
    }
    queued = {
        "cpu fp32": CPU_WAY,
        "local fp32": _way("local", "fp32"),
        "local bf16": _way("local", "bf16"),
        "server fp32": _way("server", "fp32"),
        "server bf16": _way("server", "bf16"),
    }
    whole = ("ppo", env, {**eight[2], "env.streams_per_group": 8})
    wide = {**eight[2], "env.num_streams": 64, "minibatch_steps": 2048}
    if short:
        best = ("device tf32", "device bf16")
        return _runs({"ppo 8 streams": eight}, {name: serial[name] for name in best})
    on_device = {name: serial[name] for name in serial if "device" in name}
    return [
        *_runs({"ppo 8 streams": eight}, serial),
        *_runs({"ppo 8 streams one group": whole}, on_device),
        *_runs({"ppo 64 streams": ("ppo", env, wide)}, on_device),
        *_runs({"impala": ("impala", env, {"runtime.kind": "async"})}, queued),
    ]


def _vectors() -> list[Case]:
    ways = {
        "cpu fp32": CPU_WAY,
        "local fp32": _way("local", "fp32"),
        "device fp32": _way("device", "fp32"),
    }
    runs = {
        "ppo HalfCheetah": ("ppo", "HalfCheetah-v4", SERIAL),
        "ppo CartPole": ("ppo", "CartPole-v1", SERIAL),
    }
    return _runs(runs, ways)


def _cartpole() -> list[Case]:
    options = {
        **SERIAL,
        "env.num_streams": 4096,
        "unroll_steps": 32,
        "minibatch_steps": 32768,
        "num_epochs": 2,
    }
    ways: dict[str, Options] = {
        "fp32 eager": {"runtime.compile": "off"},
        "fp32": {"runtime.compile": "graph"},
    }
    own: Options = {**SERIAL, "env.num_streams": 4096}
    return [
        Case("random actions", partial(random_steps, num_streams=4096)),
        Case("random actions as a graph", partial(random_steps, num_streams=4096, as_graph=True)),
        *_runs({"ppo": ("ppo", "torch/CartPole-v1", options)}, ways),
        *_runs({"ppo preset": ("ppo", "torch/CartPole-v1", own)}, {"fp32": ways["fp32"]}),
    ]


PARTS: Mapping[str, Callable[[], list[Case]]] = {
    "environment": lambda: [Case("environment", environment)],
    "compiled": _compiled,
    "equality": _equality,
    "exactness": _exactness,
    "turns": _turns,
    "peers": _peers,
    "pong": lambda: _games("Pong-v5", short=False),
    "cartpole": _cartpole,
    "steps": _steps,
    "breakout": lambda: _games("Breakout-v5", short=True),
    "vectors": _vectors,
}
"""The parts, in the order in which they run: the first ones matter most if time runs out."""

TOGETHER = ("equality", "exactness", "compiled")
"""Parts that measure no time, which run at the same time."""


def main() -> None:
    parser = argparse.ArgumentParser(description="the cases of one part of gpu.py")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=6, help="of a speed measurement")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--only", nargs="*", help="names of cases; none: all")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    asked = Asked(args.device, args.seconds, args.peers)
    with args.to.open("a") as rows:

        def write(**row: Any) -> None:
            print(json.dumps(row), file=rows, flush=True)

        for case in PARTS[args.part]():
            if args.only is not None and case.name not in args.only:
                continue
            write(begin=case.name)
            print(f"-- {args.part}: {case.name}", flush=True)
            told = outcome(case, asked)
            write(end=case.name, **told)
            if "CUDA error" in told.get("error", ""):  # which every later call would meet again
                sys.exit(1)


def outcome(case: Case, asked: Asked) -> Result:
    """The result of a case, or its error in words."""
    try:
        return {"result": case.call(asked)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:900]}


if __name__ == "__main__":
    main()
