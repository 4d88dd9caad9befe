"""Seconds until training reaches a return, beside Stable-Baselines3 with its zoo's settings.

    python benchmarks/time_to_threshold.py --peer-python PATH [TASK ...] [--repeats 3]

Both sides in turns, each run a process of its own; the clock starts when the process does, so
imports and compilation count.  Reached is a return when the mean of the last 100 training episodes
(DDPG: 10, as it plays one at a time) is at least that; a run that got to the end of its budget, or
of --give-up-s, did not reach it.  Each side has its own environments: quintet EnvPool's, in C++,
the peer Gymnasium's in one process.

The peer's Python needs rl_zoo3 and what its environments need (benchmarks/peer_sb3_zoo.py).
Results go to benchmarks/results/time-to-threshold.json.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from one_seed import commit
from records import write_whole

HERE = Path(__file__).parent


class Task(NamedTuple):
    """env: quintet's id, trained with its preset; threshold: return to reach, by the mean of the
    newest `episodes`.
    """

    env: str
    threshold: float
    algo: str = "ppo"
    episodes: int = 100


TASKS = {
    "CartPole": Task("CartPole-v1", 475),
    "LunarLander": Task("LunarLander-v3", 200),
    "HalfCheetah": Task("HalfCheetah-v4", 3000),
    "Pong": Task("Pong-v5", 0),
    "HalfCheetah-DDPG": Task("HalfCheetah-v4", 5000, "ddpg", 10),
}


def train(task: Task, seed: int, give_up_at: float) -> None:
    """Trains until the threshold, or the time, and says when that was."""
    import quintet

    episodes: deque[tuple[int, float]] = deque()
    reached_at: list[float] = []

    def reached(report: dict[str, float]) -> bool:
        if "episode/count" in report:
            episodes.append((int(report["episode/count"]), report["episode/return_mean"]))
        while (
            sum(count for count, _ in episodes) - episodes[0][0] >= task.episodes
            if episodes
            else False
        ):
            episodes.popleft()
        count = sum(count for count, _ in episodes)
        mean = sum(count * mean for count, mean in episodes) / max(count, 1)
        if count >= task.episodes and mean >= task.threshold:
            reached_at.append(time.time())  # the checkpoint that follows is no training
        return bool(reached_at) or time.time() > give_up_at

    with TemporaryDirectory() as folder:
        result = quintet.train(
            task.algo,
            task.env,
            seed=seed,
            run_dir=Path(folder) / "run",
            config={
                "eval.episodes": 0,
                "report.interval_s": 0.25,
                "report.progress": False,
                "report.sinks": ["jsonl"],
            },
            on_report=reached,
        )
    said = {"reached": bool(reached_at), "at": reached_at[-1] if reached_at else time.time()}
    print(json.dumps(said | {"env_steps": int(result.metrics["env_steps"])}))


def measure(command: list[str | Path], give_up_s: float) -> dict[str, Any]:
    """Seconds from the start of the process to the threshold (or the end, where it was not
    reached), and env_steps until then.
    """
    begin = time.time()
    command = [*command, str(begin + give_up_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "reached": said["reached"],
        "seconds": round(said["at"] - begin, 1),
        "env_steps": said["env_steps"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--peer-python", type=Path, help="that has stable-baselines3")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--give-up-s", type=float, default=math.inf, help="seconds of one run")
    parser.add_argument("--one", nargs=2, metavar=("SEED", "TIME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.tasks) - TASKS.keys():
        parser.error(f"TASK must be of {', '.join(TASKS)}; got {', '.join(sorted(unknown))}")
    if args.one is not None:
        train(TASKS[args.tasks[0]], int(args.one[0]), float(args.one[1]))
        return
    if args.peer_python is None or not args.peer_python.exists():
        parser.error(f"--peer-python must be a Python's path; got {args.peer_python}")
    out = HERE / "results" / "time-to-threshold.json"
    results = json.loads(out.read_text()) if out.exists() else {}
    for name in args.tasks or TASKS:
        threshold = TASKS[name].threshold
        sides: dict[str, list[dict[str, Any]]] = {"quintet": [], "sb3": []}
        record: dict[str, Any] = {"threshold": threshold, "commit": commit(), **sides}
        if math.isfinite(args.give_up_s):
            record["give_up_s"] = args.give_up_s
        for seed in range(1, args.repeats + 1):
            mine = [sys.executable, __file__, name, "--one", str(seed)]
            peer = HERE / "peer_sb3_zoo.py"
            task = TASKS[name]
            values = (task.algo, task.env, threshold, task.episodes, seed)
            theirs = [args.peer_python, peer, "threshold", *map(str, values)]
            for side, command in (("quintet", mine), ("sb3", theirs)):
                sides[side].append(measure(command, args.give_up_s))
                print(name, side, seed, sides[side][-1], flush=True)
            # after every pair, which may have taken an hour
            results[name] = record | {"load": os.getloadavg()}
            write_whole(out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
