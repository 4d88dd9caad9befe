"""How fast environments in Python are stepped, by one process and by several.

    python benchmarks/stepping.py [--seconds 2] [--repeats 3] [--record FILE]

Rows of 8 and 16 streams whose step sleeps or computes for so long, by this process alone and as a
run does it by itself, in turns; medians.  Then what messages cost (processes that have nothing to
do), and how long processes take to begin.  On a quiet machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from one_seed import commit
from records import write_whole

from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.vector import VectorEnv, allocate_obs, allocate_row
from quintet.runtime.processes.stepped import SteppedEnv
from quintet.runtime.spread import SpreadEnv, Spreading, make_streams

WAITS, COMPUTES = "sleeps", "computes"
CASES = (
    (WAITS, 50.0), (WAITS, 5.0), (WAITS, 0.5),
    (COMPUTES, 5.0), (COMPUTES, 0.5), (COMPUTES, 0.1), (COMPUTES, 0.01),
)  # fmt: skip
"""What a step does, and for how many milliseconds."""


class Paced(gymnasium.Env[Any, Any]):
    """A step takes `ms` milliseconds."""

    observation_space = spaces.Box(0.0, 1.0, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, what: str, ms: float) -> None:
        self.what, self.seconds = what, ms / 1000

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        if self.what == WAITS:
            time.sleep(self.seconds)
        else:
            end = time.thread_time() + self.seconds
            while time.thread_time() < end:
                pass
        return np.zeros(8, np.float32), 1.0, False, False, {}


def resolved(what: str, ms: float, streams: int) -> ResolvedEnv:
    config = EnvConfig(id="paced", num_streams=streams)
    return resolve_env(config, partial(Paced, what, ms))


def row_s(env: VectorEnv, seconds: float) -> float:
    """Seconds for a row, of those that fit into `seconds`, after a few."""
    row = allocate_row(env.spaces.observation, env.num_streams)
    action = np.zeros(env.num_streams, np.int64)
    count, begin = -5, 0.0
    while count <= 0 or time.perf_counter() - begin < seconds:
        if count == 0:
            begin = time.perf_counter()
        env.send(action)
        env.recv(row)
        count += 1
    return (time.perf_counter() - begin) / count


def restart(env: VectorEnv) -> float:
    obs = allocate_obs(env.spaces.observation, (env.num_streams,))
    begin = time.perf_counter()
    env.restart(list(range(env.num_streams)), obs)
    return time.perf_counter() - begin


def compare(what: str, ms: float, streams: int, seconds: float, repeats: int) -> dict[str, Any]:
    env = resolved(what, ms, streams)
    alone, several = [], []
    with (
        closing(make_group_env(env, streams)) as one,
        closing(make_streams(env, streams, Spreading())) as many,
    ):
        assert isinstance(many, SpreadEnv)
        restart(one)
        restart(many)
        for _ in range(repeats):
            alone.append(streams / row_s(one, seconds))
            several.append(streams / row_s(many, seconds))
        count = many.num_processes
    return {
        "step": f"{what} {ms:g} ms", "streams": streams, "processes": count,
        "alone_env_steps_per_s": round(statistics.median(alone), 1),
        "several_env_steps_per_s": round(statistics.median(several), 1),
    }  # fmt: skip


def messages_us(processes: int, seconds: float) -> float:
    """Of a row of environments that do next to nothing, one for each process."""
    env = resolved(COMPUTES, 0.0, processes)
    made = make_group_env(env, processes)
    with closing(SteppedEnv(env, made, processes, first_stream=0, timeout_s=60.0)) as there:
        restart(there)
        return 1e6 * row_s(there, seconds)


def start_s(processes: int) -> float:
    """Of processes that this one begins first of all."""
    code = (
        "import stepping; env = stepping.resolved(stepping.COMPUTES, 0.0, 8); "
        "made = stepping.make_group_env(env, 8); "
        f"there = stepping.SteppedEnv(env, made, {processes}, first_stream=0, timeout_s=60.0); "
        "print(stepping.restart(there)); there.close()"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, check=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, help="JSON file for all numbers")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for streams in (8, 16):
        for what, ms in CASES:
            rows.append(compare(what, ms, streams, given.seconds, given.repeats))
            print(rows[-1], flush=True)
    messages = {n: round(messages_us(n, given.seconds)) for n in (1, 2, 8)}
    begin = {n: round(start_s(n), 1) for n in (2, 8)}
    found = {
        "rows": rows, "messages_us": messages, "start_s": begin, "load_before": round(load, 1),
        "commit": commit(),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if given.record:
        write_whole(given.record, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
