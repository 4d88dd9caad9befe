"""Trains with the presets on seeds 1, 2, 3 and records curves and final scores.

    python benchmarks/learning.py ppo CartPole-v1 --jobs 2
    python benchmarks/learning.py ppo quintet.envs.toy:cartpole_without_velocities \
        --label ff --set model.core=none

Each seed is a process of its own.  The score is that of 100 greedy episodes of the final policy on
environment seeds from 10,000 on.  The record goes to benchmarks/results/ALGO-ENV.json, or
ALGO-ENV-LABEL.json where options differ from the preset; the run folders (under --folder) are not
kept with the project.  --until ends runs before their budget, with the schedules of the whole.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
POINTS = 100  # of a recorded curve
LEAVE_OUT = ("seed", "run_dir", "resume", "report.", "eval.", "checkpoint.")


def train_one(
    algo: str, env: str, seed: int, run_dir: Path, options_set: list[str], until: int | None
) -> dict[str, Any]:
    """One seed: trains, evaluates, and gives its part of the record."""
    import quintet
    from quintet.config.load import flatten, options, read_file
    from quintet.observe.sinks import read_metrics

    begin = time.monotonic()
    # never: what an earlier commit left in the folder must not be recorded under this one
    config: dict[str, Any] = {"report.sinks": ["jsonl"], "resume": "never"}
    for option in options_set:
        name, _, value = option.partition("=")
        config[name] = json.loads(value) if value[:1] in '0123456789-[{"' else value
    result = quintet.train(
        algo, env, seed=seed, run_dir=run_dir, config=config,
        on_report=lambda report: until is not None and report["env_steps"] >= until,
    )  # fmt: skip
    if result.status != "finished" and result.metrics.get("env_steps", 0) < (until or math.inf):
        sys.exit(f"stopped at {result.metrics.get('env_steps', 0):,.0f} env_steps: no record")
    train_s = time.monotonic() - begin
    scores = quintet.evaluate(result.policy, episodes=100, seed=10_000)
    resolved = flatten(read_file(run_dir / "config.yaml"), options(algo))
    reports = read_metrics(run_dir)
    evals = [
        [int(r["env_steps"]), round(r["eval/return_mean"], 3)]
        for r in reports
        if "eval/return_mean" in r
    ]
    return {
        "seed": seed,
        "return_mean": round(scores.mean, 3),
        "return_std": round(scores.std, 3),
        **({} if scores.success_rate is None else {"success_rate": scores.success_rate}),
        "length_mean": round(float(scores.lengths.mean()), 1),
        "train_s": round(train_s, 1),
        "config": {k: v for k, v in resolved.items() if not k.startswith(LEAVE_OUT)},
        "curve": curve_of(reports),
        "evaluations": evals,
    }


def curve_of(reports: list[dict[str, float]]) -> list[dict[str, float]]:
    """Mean return, and success rate where it is defined, of the training episodes of every 1/100 of
    the run, by its last report.
    """
    curve = []
    size = max(1, len(reports) // POINTS)
    for part in (reports[i : i + size] for i in range(0, len(reports), size)):
        row = {name: round(part[-1][name], 3) for name in ("env_steps", "wall_s")}
        ended = [r for r in part if "episode/count" in r]
        for name in ("episode/return_mean", "episode/success_rate"):
            if ended and name in ended[-1]:
                total = sum(r[name] * r["episode/count"] for r in ended)
                row[name] = round(total / sum(r["episode/count"] for r in ended), 3)
        curve.append(row)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algo")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="seeds that train side by side")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--label", help="of a record with other options than the preset's")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", dest="options")
    parser.add_argument("--until", type=int, metavar="ENV_STEPS", help="end there")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if bool(args.label) != bool(args.options):
        parser.error("--label and --set go together: a record says by its name what it is of")
    name = "-".join(filter(None, [args.algo, args.env.replace(":", "."), args.label]))
    if args.one is not None:
        run_dir = args.folder / f"{name}-s{args.one}"
        run = train_one(args.algo, args.env, args.one, run_dir, args.options, args.until)
        print("RECORD " + json.dumps(run))
        return

    describe = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()

    def spawn(seed: int) -> dict[str, Any]:
        command = [sys.executable, __file__, args.algo, args.env, "--one", str(seed)]
        command += ["--folder", str(args.folder)]
        if args.until is not None:
            command += ["--until", str(args.until)]
        if args.label:
            command += ["--label", args.label, "--set", *args.options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = next(x for x in done.stdout.splitlines() if x.startswith("RECORD "))
        return json.loads(line.removeprefix("RECORD "))

    with ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(spawn, args.seeds))
    configs = [run.pop("config") for run in runs]
    assert all(config == configs[0] for config in configs)
    record = {
        "algo": args.algo,
        "env": args.env,
        "commit": commit,
        "jobs": args.jobs,
        "cores": os.cpu_count(),
        "episodes": 100,
        **({} if args.until is None else {"until": args.until}),
        "config": configs[0],
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path, [run["return_mean"] for run in runs])


if __name__ == "__main__":
    main()
