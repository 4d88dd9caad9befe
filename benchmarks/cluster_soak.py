"""A long run on a Ray cluster, of which a node is killed and another one joins again and again.

    python benchmarks/cluster_soak.py [--minutes 120] [--every 2] [--seed 0] [--record FILE]

`appo` trains on two nodes of this machine beside the head, with slow environments.  Every two
minutes one node is killed, its raylet or all at once, and a new one is added.  Each row has the
memory that the learner's process shares with nobody, its open files and threads, and the counts of
nodes; the last one the means over quarters of the time, and what was left over after the run had
been ended by SIGTERM.  Ends with status 1 if the run did not survive, its memory grew by more than
5% from the second quarter to the last, or something was left.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from children import WITH_PARENT
from cluster_faults import COMMON, Drifting, Nodes, actors, wait, wait_for_actors

import quintet

OPTIONS = COMMON | {
    "runtime.kind": "async",
    "runtime.num_workers": 4,
    "runtime.max_restarts": 1_000,
    "report.interval_s": 10.0,
    "checkpoint.interval_iterations": 500,
    "cluster.wait_s": 120,
    "cluster.node_timeout_s": 5,
}


class Slow(Drifting):
    """Steps of 20 ms, so that the machine is mostly idle."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.02)
        return super().step(action)


def row_of(learner: psutil.Process, metrics: Path) -> dict[str, float]:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    return {
        "memory_mb": learner.memory_full_info().uss / 1e6,
        "files": float(learner.num_fds()),
        "threads": float(learner.num_threads()),
        "env_steps": last.get("env_steps", 0),
        "nodes": last.get("data/nodes", 0),
        "lost_nodes": last.get("data/lost_nodes", 0),
    }


def change(nodes: Nodes, draw: random.Random) -> str:
    """Kills a node and adds another one; returns what was killed of it first."""
    victim = draw.choice(sorted(nodes.cluster.worker_nodes, key=id))
    what = draw.choice(("raylet", "all"))
    if what == "raylet":
        victim.kill_raylet(check_alive=False)
        time.sleep(5.0)
    nodes.cluster.remove_node(victim, allow_graceful=False)
    nodes.cluster.add_node(num_cpus=2)
    return what


def left_over(nodes: Nodes) -> dict[str, int]:
    """Counts of what may be left of a run that has ended."""
    wait_for_actors()
    workers = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "worker"]
    nodes.end()
    return {"actors": len(actors()), "workers": len(workers)}


def soak(minutes: float, every: float, draw: random.Random, record: Any) -> bool:
    """Whether it went as it must."""
    nodes = Nodes()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = [*WITH_PARENT, sys.executable, __file__, "--train", str(folder), nodes.whole()]
        with open(f"{folder}.txt", "wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        learner, rows = psutil.Process(process.pid), []
        begin_s = changed_s = time.monotonic()
        while process.poll() is None and time.monotonic() - begin_s < 60 * minutes:
            time.sleep(15.0)
            passed_s = time.monotonic() - begin_s
            row: dict[str, Any] = {"minute": round(passed_s / 60, 2)}
            if time.monotonic() - changed_s >= 60 * every:
                changed_s = time.monotonic()
                row["killed"] = change(nodes, draw)
            rows.append(row | row_of(learner, folder / "metrics.jsonl"))
            print(json.dumps(rows[-1]), file=record, flush=True)
        survived = process.poll() is None
        process.send_signal(signal.SIGTERM)
        status = wait(process)
        if not survived or status:
            print(Path(f"{folder}.txt").read_text()[-5_000:])
        size, left = len(rows) // 4, left_over(nodes)
        quarters = [
            {
                name: sum(row[name] for row in part) / size
                for name in ("memory_mb", "files", "threads")
            }
            for part in (rows[k * size : (k + 1) * size] for k in range(4))
        ]
        growth = quarters[3]["memory_mb"] / quarters[1]["memory_mb"] - 1.0
        found = {"survived": survived, "status": status, "quarters": quarters, "left": left}
        print(json.dumps(found | {"growth_2_to_4": growth}), file=record, flush=True)
        return survived and growth < 0.05 and not any(left.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=float, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=argparse.FileType("w"), default=sys.stdout)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        folder, address = args.train
        quintet.train("appo", Slow, 10**9, 7, folder, OPTIONS, cluster=address, trust=True)
        return 0
    return 0 if soak(args.minutes, args.every, random.Random(args.seed), args.record) else 1


if __name__ == "__main__":
    sys.exit(main())
