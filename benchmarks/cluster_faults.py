"""Kills at random moments of runs on a Ray cluster whose nodes are all on this machine.

    python benchmarks/cluster_faults.py [--kills 60] [--seed 0] [--record FILE]

Each trial trains with two nodes beside the head, `appo` in async or `ppo` in lockstep, and once it
has begun kills or stops a node's actor, a raylet, a worker on a node, the head or the learner.  A
run must reach its end, after the same command if its learner or head was killed; its counters must
add up; and a lockstep run must have the bytes of an undisturbed serial run.  Prints a line for each
trial; ends with status 1 if one failed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from children import WITH_PARENT

import quintet
from quintet.checkpoints import checkpoint

STEPS = 6_400
FAULTS = ("actor", "stopped actor", "raylet", "worker", "learner", "head")
WEIGHTS = (4, 2, 3, 4, 3, 2)
MARK = "CLUSTER_FAULTS"
"""In the environment of processes that this one has begun, with its number."""

COMMON: dict[str, Any] = {
    "preset": "none",
    "env.num_streams": 8,
    "env.streams_per_group": 2,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 2,
    "runtime.actor_threads": 1,
    "runtime.compile": "off",
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
}
OF_KIND: dict[str, dict[str, Any]] = {
    "serial": {},
    "lockstep": {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 4},
    "async": {"runtime.kind": "async", "runtime.num_workers": 4},
}


class Drifting(gymnasium.Env):
    """A walk whose episodes end both ways, when depends on the seed."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=3), 0
        return self.place.clip(-10, 10), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        self.steps += 1
        self.place = 0.9 * self.place + 0.3 * self.np_random.normal(size=3) + 0.2 * (action - 1)
        over = bool(self.place.sum() > 3.0)
        return self.place.clip(-10, 10), -abs(self.place[0]), over, self.steps >= 40, {}


def train(kind: str, folder: str, address: str) -> None:
    """One run, in a process of its own."""
    clustered = {} if kind == "serial" else {"cluster.wait_s": 120, "cluster.node_timeout_s": 5}
    quintet.train(
        "appo" if kind == "async" else "ppo",
        Drifting,
        STEPS,
        seed=7,
        run_dir=folder,
        config=COMMON | OF_KIND[kind] | clustered,
        cluster=address or None,
        trust=True,
    )


class Nodes:
    """A head without cores, and two nodes beside it, made anew where they were killed."""

    def __init__(self) -> None:
        self.cluster: Any = None

    def whole(self) -> str:
        """The address of a cluster of two nodes."""
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ[MARK] = str(os.getpid())
        if self.cluster is None or not lives(self.cluster.head_node, "gcs_server"):
            self.end()
            self.cluster = Cluster()
            self.cluster.add_node(num_cpus=0, include_dashboard=False)
        for node in list(self.cluster.worker_nodes):
            if not lives(node, "raylet"):
                self.cluster.remove_node(node, allow_graceful=False)
        while len(self.cluster.worker_nodes) < 2:
            self.cluster.add_node(num_cpus=2)
        return str(self.cluster.address)

    def end(self) -> None:
        if self.cluster is not None:
            with suppress(Exception):  # of Ray, for a cluster whose head is gone
                self.cluster.shutdown()
        self.cluster = None


def lives(node: Any, kind: str) -> bool:
    """Whether a node's process of a kind has neither ended nor been killed here."""
    processes = node.all_processes.get(kind, ())
    return bool(processes) and all(each.process.poll() is None for each in processes)


def actors() -> list[psutil.Process]:
    """The processes of nodes in the clusters of this process."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.environ().get(MARK) == str(os.getpid())
            if ours and process.cmdline()[:1] == ["ray::_Served.serve"]:
                found.append(process)
    return found


def hit(fault: str, learner: subprocess.Popen[bytes], nodes: Nodes, draw: random.Random) -> bool:
    """Does it to one of the processes that there are; returns whether there was one."""
    if learner.poll() is not None:
        return False
    if fault == "learner":
        learner.kill()
    elif fault == "head":
        nodes.cluster.head_node.kill_gcs_server(check_alive=False)
        nodes.cluster.head_node.kill_raylet(check_alive=False)
        learner.kill()  # Ray would end it within a minute
    elif fault == "raylet":
        draw.choice(sorted(nodes.cluster.worker_nodes, key=id)).kill_raylet(check_alive=False)
    else:
        found = actors()
        if fault == "worker":
            children = [each for actor in found for each in actor.children(recursive=True)]
            found = [each for each in children if each.name().split()[:1] == ["worker"]]
        if not found:
            return False
        number = signal.SIGSTOP if fault == "stopped actor" else signal.SIGKILL
        draw.choice(found).send_signal(number)
    return True


def begin(kind: str, folder: Path, address: str, log: Any) -> subprocess.Popen[bytes]:
    words = [*WITH_PARENT, sys.executable, __file__, "--train", kind, str(folder), address]
    return subprocess.Popen(words, stdout=log, stderr=log)


def trial(kind: str, fault: str, folder: Path, nodes: Nodes, draw: random.Random) -> dict[str, Any]:
    """One run and its fault; what came of it."""
    begin_s = time.monotonic()
    with open(f"{folder}.txt", "ab") as log:
        learner = begin(kind, folder, nodes.whole(), log)
        while learner.poll() is None and not (folder / "checkpoints").is_dir():
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 4.0))
        begun = hit(fault, learner, nodes, draw)
        status = wait(learner)
        if fault in ("learner", "head"):
            wait_for_actors()
            status = wait(begin(kind, folder, nodes.whole(), log))
        for actor in actors():  # one that was stopped goes on, to its end
            with suppress(psutil.Error):
                actor.send_signal(signal.SIGCONT)
    last: dict[str, float] = {}
    with suppress(Exception):  # told below
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            last |= json.loads(line)
    executed, discarded = (last.get(f"data/{n}_env_steps", -1) for n in ("executed", "discarded"))
    return {
        "kind": kind,
        "fault": fault,
        "in_time": begun,
        "status": status,
        "seconds": round(time.monotonic() - begin_s, 1),
        "counters": last.get("env_steps") == STEPS and executed == STEPS + discarded,
    }


def wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(400)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1000


def wait_for_actors() -> None:
    """Until those of a learner that is gone have ended."""
    deadline = time.monotonic() + 60
    while actors() and time.monotonic() < deadline:
        time.sleep(0.2)


def hashes(folder: Path) -> dict[str, str]:
    found = checkpoint.latest(folder / "checkpoints", warn=print)
    return {} if found is None else checkpoint.tensor_hashes(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(*args.train)
        return 0
    draw, nodes, failed, missed = random.Random(args.seed), Nodes(), 0, 0
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "serial"
        train("serial", str(whole), "")
        wanted = hashes(whole)
        try:
            for number in range(args.kills):
                kind = draw.choice(("async", "lockstep"))
                fault = draw.choices(FAULTS, WEIGHTS)[0]
                folder = Path(place) / str(number)
                told = trial(kind, fault, folder, nodes, draw)
                missed += not told["in_time"]
                told["bytes"] = kind == "async" or hashes(folder) == wanted
                if told["status"] or not told["counters"] or not told["bytes"]:
                    failed += 1
                    print(Path(f"{folder}.txt").read_text()[-3_000:])
                print(json.dumps({"trial": number} | told), flush=True)
                if args.record:
                    with args.record.open("a") as record:
                        record.write(json.dumps({"trial": number} | told) + "\n")
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            nodes.end()
    print(
        f"{args.kills - failed} of {args.kills} trials were as they must be; {missed} hit nothing"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
