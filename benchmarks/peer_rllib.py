"""IMPALA on CartPole on two nodes: quintet beside RLlib, on the same cluster, in turns.

    pip install 'ray[rllib]==2.60.0' torch==2.13.0 -e .         # RLlib is no extra of the project
    python benchmarks/peer_rllib.py [--seconds 40] [--repeats 3] [--backend gymnasium]

Both train with 4 sampler processes of 8 streams on two nodes of this machine, the same environment
of Gymnasium, unrolls of 20 steps, batches of 640, two networks of 64 x 64 (tanh) and the learner in
the process of the command, as fast as they can.  Speed is in env_steps that were learned from,
after the first third of the time.  Prints each run's speed and the ratio of every pair.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS, STREAMS, UNROLL, BATCH = 4, 8, 20, 640


def ours(address: str, seconds: float, backend: str) -> float:
    import quintet

    rows: list[tuple[float, float]] = []

    def look(report: Any) -> bool:
        rows.append((time.monotonic(), report["env_steps"]))
        return rows[-1][0] - rows[0][0] > seconds

    config = {
        "preset": "none",
        "env.backend": backend,
        "env.num_streams": WORKERS * STREAMS,
        "env.streams_per_group": STREAMS,
        "unroll_steps": UNROLL,
        "batch_unrolls": BATCH // UNROLL,
        "model.policy_hidden": [64, 64],
        "model.value_hidden": [64, 64],
        "model.activation": "tanh",
        "runtime.num_workers": WORKERS,
        "eval.episodes": 0,
        "report.interval_s": 1.0,
        "report.progress": False,
        "cluster.nodes_min": 2,
        "cluster.wait_s": 300,
    }
    with tempfile.TemporaryDirectory() as folder:
        quintet.train(
            "impala",
            "CartPole-v1",
            10**9,
            0,
            Path(folder) / "run",
            config,
            cluster=address,
            on_report=look,
        )
    return speed(rows)


def rllib(address: str, seconds: float, backend: str) -> float:
    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    assert backend == "gymnasium"
    ray.init(address, log_to_driver=False, logging_level="error")
    model = DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
    )
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=WORKERS,
            num_envs_per_env_runner=STREAMS,
            rollout_fragment_length=UNROLL,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=BATCH, grad_clip=0.5, lr=6e-4)
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm, rows = config.build_algo(), []
    while not rows or rows[-1][0] - rows[0][0] < seconds:
        learned = algorithm.train().get("learners", {}).get("__all_modules__", {})
        if "num_env_steps_trained_lifetime" in learned:
            rows.append((time.monotonic(), learned["num_env_steps_trained_lifetime"]))
    algorithm.stop()
    return speed(rows)


def speed(rows: list[tuple[float, float]]) -> float:
    """Steps per second after the first third of the time."""
    third_s = rows[0][0] + (rows[-1][0] - rows[0][0]) / 3
    rows = [row for row in rows if row[0] >= third_s]
    return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])


def run(who: str, address: str, args: argparse.Namespace) -> float:
    """One of them, in a process of its own."""
    words = ["--who", who, address, "--seconds", str(args.seconds), "--backend", args.backend]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True)
    found: float = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="gymnasium", help="of quintet's side alone")
    parser.add_argument("--who", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:
        who, address = args.who
        side = ours if who == "quintet" else rllib
        print(json.dumps(side(address, args.seconds, args.backend)))
        return 0
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster, ratios = Cluster(), []
    try:
        for cores in (1, WORKERS // 2, WORKERS // 2):  # the head has a core for RLlib's own actors
            cluster.add_node(num_cpus=cores, include_dashboard=False)
        for _ in range(args.repeats):
            pair = {}
            for who, backend in (("quintet", args.backend), ("rllib", "gymnasium")):
                turn = argparse.Namespace(seconds=args.seconds, backend=backend)
                pair[who] = run(who, cluster.address, turn)
            ratios.append(pair["quintet"] / pair["rllib"])
            print(
                json.dumps({k: round(x) for k, x in pair.items()} | {"ratio": ratios[-1]}),
                flush=True,
            )
    finally:
        cluster.shutdown()
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
