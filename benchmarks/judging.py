"""Whether a run chooses the faster way to step its environments while others use the cores.

    python benchmarks/judging.py [--judgements 200] [--loads 0 2 4 8] [--record FILE]

Each judgement makes environments whose step takes 0.02 to 0.5 ms in 16 or 32 streams, lets a run's
`SpreadEnv` choose with so many busy processes beside it, and then times both ways in turns under
the same load, with a pause between rows as the policy makes it.  It prints the choices that are
slower than the other way by more than 10%.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from one_seed import commit
from records import write_whole
from stepping import COMPUTES, Paced, restart

from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import VectorEnv, allocate_row
from quintet.runtime.processes.stepped import SteppedEnv
from quintet.runtime.spread import SpreadEnv, Spreading, make_streams
from quintet.system.cpus import usable_cores

STEPS_MS = (0.02, 0.056, 0.1, 0.5)
PAUSE_S = 0.3e-3  # the policy's forward
JUDGED_S, TIMED_S, TURNS = 60.0, 0.4, 5


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute."""
    code = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def act() -> None:
    end = time.thread_time() + PAUSE_S
    while time.thread_time() < end:
        pass


def rows_s(env: VectorEnv, seconds: float, judged: bool = False) -> list[float]:
    """Seconds of each row's steps, with acts between; until it is judged, or for `seconds`."""
    row = allocate_row(env.spaces.observation, env.num_streams)
    action, found = np.zeros(env.num_streams, np.int64), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and not (judged and not env._judging):  # type: ignore[attr-defined]
        act()
        begin = time.perf_counter()
        env.send(action)
        env.recv(row)
        found.append(time.perf_counter() - begin)
    return found


def judge(ms: float, streams: int) -> dict[str, Any]:
    env = resolve_env(EnvConfig(id="paced", num_streams=streams), partial(Paced, COMPUTES, ms))
    load, begin = os.getloadavg()[0], time.perf_counter()
    with closing(make_streams(env, streams, Spreading())) as chosen:
        assert isinstance(chosen, SpreadEnv)
        restart(chosen)
        rows_s(chosen, JUDGED_S, judged=True)
        judged_s, count = time.perf_counter() - begin, chosen.num_processes
    seconds: dict[str, list[float]] = {"alone": [], "several": []}
    cores = usable_cores()
    with (
        closing(make_group_env(env, streams)) as alone,
        closing(SteppedEnv(env, alone, cores, first_stream=0, timeout_s=60.0)) as several,
    ):
        restart(alone)
        restart(several)
        for _ in range(TURNS):
            for name, way in (("alone", alone), ("several", several)):
                seconds[name].append(float(np.mean(rows_s(way, TIMED_S))))
    alone_s, several_s = (float(np.mean(seconds[name])) for name in ("alone", "several"))
    took, other = (several_s, alone_s) if count > 1 else (alone_s, several_s)
    return {
        "ms": ms, "streams": streams, "processes": count, "judged_s": round(judged_s, 2),
        "alone_ms": round(1e3 * alone_s, 3), "several_ms": round(1e3 * several_s, 3),
        "slower_by": round(took / other - 1, 3), "load_before": round(load, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--judgements", type=int, default=200)
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 4, 8])
    parser.add_argument("--record", type=Path, help="JSON file for all numbers")
    given = parser.parse_args()
    draw, rows = random.Random(0), []
    for index in range(given.judgements):
        beside = given.loads[index % len(given.loads)]
        with busy(beside):
            found = judge(draw.choice(STEPS_MS), draw.choice((16, 32)))
        rows.append({"busy": beside, **found})
        print(rows[-1], flush=True)
    wrong = [row for row in rows if row["slower_by"] > 0.1]
    print(f"{len(wrong)} of {len(rows)} choices are slower than the other way by more than 10%")
    for row in wrong:
        print(row)
    if given.record:
        found = {"rows": rows, "wrong": len(wrong), "commit": commit()}
        write_whole(given.record, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
