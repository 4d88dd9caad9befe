"""A run on the nodes of a Ray cluster, all of them on this machine: how does it scale?

    python benchmarks/cluster_speed.py scaling [--algo appo] [--nodes 1,2,4,8] [--seconds 30]
    python benchmarks/cluster_speed.py unrolls [--unrolls 2000]

`scaling`: env_steps per second of an asynchronous run whose environments sleep 5 ms in each step,
with 4 workers of 4 streams on every node, as a share of as many times the speed of one node, and of
the speed of as many workers without a cluster.
`unrolls`: processor time of the learner's process for each unroll of 20 rows of 4 numbers, and of 4
x 84 x 84 bytes, from workers of this machine and from those of a node; nobody learns meanwhile.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import quintet
from quintet.observe.timing import PhaseTimer
from quintet.options.layers import Layer
from quintet.options.resolve import compose, resolve
from quintet.run.learners import make_learner
from quintet.run.sampling import make_sampling, open_source
from quintet.runtime.processes.grants import Died, Filled

WORKERS, STREAMS = 4, 16
"""Of each node."""

SLEEP_S, UNROLL = 0.005, 20


class Sleeper(gymnasium.Env):
    """Sleeps in every step, as an environment does that waits for its simulator."""

    observation_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SLEEP_S)
        self.steps += 1
        return self.observation_space.low, float(action), self.steps == 200, False, {}


class Sleepless(Sleeper):
    """Four numbers, at no cost."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.low, float(action), self.steps == 200, False, {}


class Pixels(Sleepless):
    """Four grey frames, at no cost."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)


@contextmanager
def cluster_of(nodes: int, cores: int) -> Iterator[str]:
    """The address of a cluster of so many nodes of this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cores, include_dashboard=False)
        yield cluster.address
    finally:
        cluster.shutdown()


def measured(algo: str, nodes: int, seconds: float, folder: Path, here: bool) -> dict[str, float]:
    """Means over the last two thirds of a run: env_steps per second, seconds of learning per
    iteration, iterations per second, the share of their time in which workers waited for the
    learner, cores in use on this machine, and bytes per second of a node; `here`: with the workers
    of as many nodes on this machine.
    """
    total = int(nodes * WORKERS / SLEEP_S * seconds)
    config = {
        "env.num_streams": nodes * STREAMS,
        "env.streams_per_group": STREAMS // WORKERS,
        "unroll_steps": UNROLL,
        "runtime.kind": "async",
        "runtime.num_workers": nodes * WORKERS,
        "runtime.compile": "off",
        "preset": "none",
        "eval.episodes": 0,
        "report.interval_s": 1.0,
        "report.progress": False,
    }
    if here:
        quintet.train(algo, Sleeper, total, 0, folder, config)
    else:
        with cluster_of(nodes, WORKERS) as address:
            more = {"cluster.nodes_min": nodes}
            quintet.train(algo, Sleeper, total, 0, folder, config | more, cluster=address)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["env_steps"] > total / 3]
    first, last = rows[0], rows[-1]
    passed_s = last["wall_s"] - first["wall_s"]
    iterations = last["iterations"] - first["iterations"]

    def mean(pattern: str) -> float:
        name = re.compile(pattern)
        found = [share for row in rows for key, share in row.items() if name.fullmatch(key)]
        return sum(found) / max(1, len(found))

    return {
        "env_steps_per_s": (last["env_steps"] - first["env_steps"]) / passed_s,
        "iterations_per_s": iterations / passed_s,
        "learning_s": mean("time/learning_frac") * passed_s / iterations,
        "waiting_frac": mean(r"worker/\d+/waiting_frac"),
        "cores": mean("machine/cores_used") + mean("machine/cores_used_by_others"),
        "in_bytes_per_s": mean(r"node/\d+/in_bytes_per_s"),
        "out_bytes_per_s": mean(r"node/\d+/out_bytes_per_s"),
    }


def scaling(algo: str, counts: list[int], seconds: float) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for nodes in counts:
            place = Path(folder) / str(nodes)
            row = {"nodes": nodes} | measured(algo, nodes, seconds, place, here=False)
            local = measured(algo, nodes, seconds, place.with_suffix(".here"), here=True)
            speed, one = row["env_steps_per_s"] / nodes, found[0] if found else row
            row["of_ideal"] = speed * one["nodes"] / one["env_steps_per_s"]
            row["of_here"] = row["env_steps_per_s"] / local["env_steps_per_s"]
            found.append(row)
            print(json.dumps({"algo": algo} | row), flush=True)
    return found


def core_ms(count: int, address: str | None, env: Any) -> float:
    """Processor time in milliseconds of this process for an unroll of one stream, over `count`."""
    options = {
        "env.num_streams": 2,
        "env.streams_per_group": 1,
        "unroll_steps": UNROLL,
        "model.encoder": "mlp",
        "model.policy_hidden": [8],
        "runtime.kind": "async",
        "runtime.num_workers": 1,
        "runtime.compile": "off",
        "cluster.address": address,
        "preset": "none",
        "eval.episodes": 0,
    }
    loaded = compose("appo", [Layer("here", {"env.id": "own", **options})], env)
    source = open_source(loaded.config, loaded.env)
    config = resolve(loaded, source.spaces).config
    learner = make_learner(config, source.spaces)
    sampling = make_sampling(config, source, [learner], PhaseTimer(), print, print, print)
    pool: Any = sampling.workers  # type: ignore[attr-defined]
    pool.grants.on_free = lambda _: None
    try:
        pool.publish(learner.publication())
        pool.start()
        pool.grants.restart(0, 0)
        took = partial(_take, pool)
        took(count // 10)
        begin_s = time.process_time()
        took(count)
        return 1e3 * (time.process_time() - begin_s) / (2 * count)
    finally:
        sampling.close()
        source.close()


def _take(pool: Any, count: int) -> None:
    """Receives so many unrolls of each of the worker's two groups, and frees their slots."""
    taken = 0
    while taken < count:
        while pool.grants.grant(0, None, UNROLL):
            pass
        for event in pool.events(1.0):
            assert not isinstance(event, Died), event
            if isinstance(event, Filled):
                taken += 1
                for unroll in event.unrolls:
                    unroll.block.release()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("scaling", "unrolls"))
    parser.add_argument("--algo", default="appo")
    parser.add_argument("--nodes", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--unrolls", type=int, default=2_000)
    args = parser.parse_args()
    if args.what == "scaling":
        scaling(args.algo, [int(count) for count in args.nodes.split(",")], args.seconds)
        return 0
    for env in (Sleepless, Pixels):
        local = core_ms(args.unrolls, None, env)
        with cluster_of(1, 1) as address:
            remote = core_ms(args.unrolls, address, env)
        told = {"env": env.__name__, "local_ms": local, "node_ms": remote}
        print(json.dumps(told | {"more_ms": remote - local}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
