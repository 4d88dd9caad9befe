"""What a second thread of PyTorch is worth, and what it costs where others want the cores.

    python benchmarks/threads.py [--seconds 20] [--networks small grid picture]

Trains PPO in the serial runtime with 1 and 2 threads beside 0, 1 and 2 busy processes, with 2
threads by OpenMP's default waiting and by passive waiting (OMP_WAIT_POLICY), and tells the median
of the reported env_steps per second, without the first half of each run.  Nothing else may run
meanwhile.  Results go to benchmarks/results/threads.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from one_seed import commit
from records import write_whole

HERE = Path(__file__).parent
NETWORKS = {"small": "CartPole-v1", "grid": "BabyAI-GoToRedBall-v0", "picture": "Pong-v5"}
WAITING = ("default", "passive")


def rate(env: str, threads: int, neighbours: int, waiting: str, seconds: float) -> float:
    """env_steps per second."""
    busy = [
        # Of sessions of their own, as another person's processes are.
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(neighbours)
    ]
    variables = dict(os.environ)
    if waiting == "passive":
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        with TemporaryDirectory() as folder:
            words = ["train", "ppo", "--env", env, "--run-dir", f"{folder}/run", "--seed", "1"]
            words += ["--total-steps", "100000000", "--runtime.kind", "serial"]
            words += ["--runtime.threads", str(threads), "--runtime.compile", "off"]
            words += ["--eval.episodes", "0", "--report.sinks", "jsonl"]
            command = [sys.executable, "-m", "quintet", *words, "--report.interval-s", "0"]
            running = subprocess.Popen(
                command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            told = Path(folder) / "run" / "metrics.jsonl"
            while not told.exists() or len(told.read_text().splitlines()) < 2:  # it starts
                assert running.poll() is None, "the run has ended"
                time.sleep(0.5)
            time.sleep(seconds)
            running.kill()
            running.wait()
            lines = told.read_text().splitlines()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    rates = [json.loads(line)["throughput/env_steps_per_s"] for line in lines]
    return round(statistics.median(rates[len(rates) // 2 :]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    args = parser.parse_args()
    out = HERE / "results" / "threads.json"
    found = json.loads(out.read_text()) if out.exists() else {}
    for network in args.networks:
        for neighbours in (0, 1, 2):
            for threads in (1, 2):
                for waiting in WAITING if threads > 1 else WAITING[:1]:
                    steps = rate(NETWORKS[network], threads, neighbours, waiting, args.seconds)
                    case = {"network": network, "threads": threads, "waiting": waiting}
                    record = {**case, "neighbours": neighbours, "env_steps_per_s": steps}
                    found[", ".join(str(x) for x in (*case.values(), neighbours))] = record
                    print(record, flush=True)
                    write_whole(out, json.dumps({**found, "commit": commit()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
