"""Sampling alone: random actions through worker processes and their slots, beside bare loops.

    python benchmarks/sampling.py [--seconds 10] [--repeats 3] [--record FILE]

Nothing is learned: unrolls are taken and given back.  Beside it the same environments in plain
loops: EnvPool's pools (the better of one pool with all cores and one for each core in processes of
its own) and Gymnasium's CartPole, one and two processes.  In turns, each in processes of its own.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from quintet.envs.envpool import load_opengl
from quintet.envs.public import make_vector_env
from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.processes.messages import Place, WorkerSpec
from quintet.runtime.processes.workers import Workers
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec

STREAMS, STEPS = 64, 32
POOLS = ("Pong-v5", "HalfCheetah-v4")


class RandomActor:
    """Uniform actions, nothing recorded."""

    def __init__(self, space: gymnasium.Space[Any]):
        self.record_specs: dict[str, TensorSpec] = {}
        self.state_specs: dict[str, TensorSpec] = {}
        self.discrete = isinstance(space, gymnasium.spaces.Discrete)
        self.choices = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        shape = () if self.discrete else tuple(space.shape or ())
        self.action_spec = TensorSpec(shape, torch.int64 if self.discrete else torch.float32)

    def load(self, publication: Publication) -> None:
        """There are no weights."""

    def initial_state(self, num_streams: int) -> State:  # noqa: ARG002
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        if self.discrete:
            return torch.randint(self.choices, (steps, num_streams), generator=generator)
        return 2 * torch.rand(steps, num_streams, *self.action_spec.shape, generator=generator) - 1

    def act(
        self,
        obs: Obs,  # noqa: ARG002
        state: State,  # noqa: ARG002
        is_first: Tensor,  # noqa: ARG002
        noise: Tensor | None,
    ) -> ActOutput:
        assert noise is not None
        return ActOutput(noise, noise, {}, {})


def make_place(env: str, backend: Any, place: Place) -> VectorEnv:
    return make_vector_env(env, place.num_streams, backend=backend)


def through_slots(env: str, backend: str, workers: int, seconds: float) -> float:
    """Rows per second."""
    probe = make_place(env, backend, Place(0, 0, 1))
    spaces = probe.spaces
    probe.close()
    size = STREAMS // workers
    spec = WorkerSpec(
        make_env=partial(make_place, env, backend),
        make_actor=partial(RandomActor, spaces.action),
        spaces=spaces,
        plan=DataPlan(STEPS, size),
        seed=0,
        places=tuple(Place(g, g * size, size) for g in range(workers)),
        num_workers=workers,
        num_slots=2,
    )
    nothing = Publication(0, {"none": torch.zeros(1)})
    sampling = AsyncSampling(Workers(spec, [nothing]), PhaseTimer())
    sampling.publish(nothing)
    sampling.restart(0)
    try:
        return _rate(lambda: sampling.collect(10**12).rollout.valid.numel(), seconds)
    finally:
        sampling.close()


def bare_pool(env: str, streams: int, threads: int, seconds: float) -> float:
    load_opengl()
    import envpool

    pool = envpool.make_gymnasium(env, num_envs=streams, num_threads=threads)
    actions = np.array([pool.action_space.sample() for _ in range(streams)])
    if actions.dtype.kind == "i":
        actions = actions.astype(np.int32)
    pool.reset()

    def step() -> int:
        pool.step(actions)
        return streams

    return _rate(step, seconds)


def bare_python(seconds: float) -> float:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(64)]

    def step() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    return _rate(step, seconds)


def _rate(step: Callable[[], int], seconds: float) -> float:
    """Rows per second, after a second for warming up."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < 1.0:
        step()
    begin, rows = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        rows += step()
    return rows / passed


def in_processes(count: int, function: Callable[..., float], *arguments: Any) -> float:
    """The sum over so many processes at once."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        return sum(f.result() for f in [pool.submit(function, *arguments) for _ in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    cores, s = len(os.sched_getaffinity(0)), args.seconds
    rates: dict[str, list[float]] = {}

    def measure(name: str, count: int, function: Callable[..., float], *arguments: Any) -> None:
        rates.setdefault(name, []).append(in_processes(count, function, *arguments, s))

    for _ in range(args.repeats):
        for env in POOLS:
            measure(f"{env} through slots", 1, through_slots, env, "envpool", cores)
            measure(f"{env} one bare pool", 1, bare_pool, env, STREAMS, cores)
            measure(f"{env} bare pools", cores, bare_pool, env, STREAMS // cores, 1)
        for workers in (1, cores):
            slots = (through_slots, "CartPole-v1", "gymnasium", workers)
            measure(f"python CartPole through slots, {workers}", 1, *slots)
            measure(f"python CartPole bare, {workers}", workers, bare_python)
    middle = {name: median(each) for name, each in rates.items()}
    for name, value in middle.items():
        print(f"{name:40} {value:12,.0f} rows/s")
    ratios = {
        f"{env} of bare": middle[f"{env} through slots"]
        / max(middle[f"{env} one bare pool"], middle[f"{env} bare pools"])
        for env in POOLS
    }
    ours, bare = "python CartPole through slots", "python CartPole bare"
    ratios["python CartPole of bare"] = middle[f"{ours}, 1"] / middle[f"{bare}, 1"]
    gain = middle[f"{ours}, {cores}"] / middle[f"{ours}, 1"]
    ratios["gain of workers of that of bare processes"] = gain / (
        middle[f"{bare}, {cores}"] / middle[f"{bare}, 1"]
    )
    for name, value in ratios.items():
        print(f"{name:44} {value:.2f}")
    if args.record:
        record = {"cores": cores, "rates": rates, "ratios": ratios, "load": os.getloadavg()}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
