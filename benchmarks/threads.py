"""What a second thread of PyTorch is worth, and what it costs where others want the cores.

    python benchmarks/threads.py [--seconds 20] [--networks small wide grid picture]
        [--beside nothing one two run] [--spins 4000 ...]

Trains in the serial runtime with 1 and 2 threads beside nothing, one or two processes that only
compute, or a run like it, and tells the median of the reported env_steps per second, without the
first half of each run.  A run is watched until it has made two reports, five times as long as asked
at most.  Idle threads spin for GOMP_SPINCOUNT rounds before they sleep: 4000 is quintet's choice, 0
is OMP_WAIT_POLICY=PASSIVE.  Nothing else may run meanwhile.  Results go to
benchmarks/results/threads.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from children import WITH_PARENT
from one_seed import commit
from records import write_whole

HERE = Path(__file__).parent
NETWORKS = {
    "small": ["ppo", "--env", "CartPole-v1"],
    # Layers of 256 x 256.
    "wide": ["ddpg", "--env", "HalfCheetah-v4", "--replay-start-steps", "100"],
    "grid": ["ppo", "--env", "BabyAI-GoToRedBall-v0"],
    "picture": ["ppo", "--env", "Pong-v5"],
}
BESIDE = {"nothing": 0, "one": 1, "two": 2, "run": 0}
"""Busy processes beside the run; `run`: a second run."""


def begin(stack: ExitStack, command: list[str], **options: object) -> "subprocess.Popen[bytes]":
    """A process in a session of its own, as another user's is, until the stack or this one ends."""
    process = stack.enter_context(
        subprocess.Popen(
            [*WITH_PARENT, *command],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **options,  # type: ignore[call-overload]
        )
    )
    stack.callback(process.kill)
    return process


def rate(network: str, threads: int, beside: str, spins: int, seconds: float) -> float:
    """env_steps per second of the first run; 0 where it made no report."""
    with ExitStack() as stack:
        for _ in range(BESIDE[beside]):
            begin(stack, [sys.executable, "-c", "while True: pass"])
        folder = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        told, runs = [], []
        for name in ("a", "b") if beside == "run" else ("a",):
            words = ["train", *NETWORKS[network], "--run-dir", str(folder / name), "--seed", "1"]
            words += ["--total-steps", "100000000", "--runtime.kind", "serial"]
            words += ["--runtime.threads", str(threads), "--runtime.compile", "off"]
            words += ["--eval.episodes", "0", "--report.sinks", "jsonl"]
            command = [sys.executable, "-m", "quintet", *words, "--report.interval-s", "0"]
            variables = {**os.environ, "GOMP_SPINCOUNT": str(spins)}
            runs.append(begin(stack, command, env=variables))
            told.append(folder / name / "metrics.jsonl")
        while not all(path.exists() and path.read_bytes().count(b"\n") > 1 for path in told):
            assert all(run.poll() is None for run in runs), "a run has ended"
            time.sleep(0.5)
        begun, since = told[0].read_bytes().count(b"\n"), time.monotonic()
        while (past := time.monotonic() - since) < 5 * seconds and (
            past < seconds or told[0].read_bytes().count(b"\n") < begun + 2
        ):
            time.sleep(0.5)
        text = told[0].read_text()
        lines = text[: text.rfind("\n")].splitlines()[begun:]  # the last may be half written
    rates = [json.loads(line)["throughput/env_steps_per_s"] for line in lines]
    return round(statistics.median(rates[len(rates) // 2 :] or [0.0]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--beside", nargs="+", choices=BESIDE, default=list(BESIDE))
    parser.add_argument("--spins", nargs="+", type=int, default=[4000], help="with 2 threads")
    args = parser.parse_args()
    out = HERE / "results" / "threads.json"
    found = json.loads(out.read_text()) if out.exists() else {}
    for network in args.networks:
        for beside in args.beside:
            for threads in (1, 2):
                for spins in args.spins if threads > 1 else [4000]:
                    steps = rate(network, threads, beside, spins, args.seconds)
                    name = f"{network}, {threads}, {beside}, {spins}"
                    found |= {name: steps, "commit": commit()}
                    print(name, steps, flush=True)
                    write_whole(out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
