"""How many env_steps/s a population makes beside one policy, on the work of pong-appo.

    python benchmarks/population_speed.py [WORKLOAD] [--size 4] [--repeats 3] [--record FILE]

One policy and the population take turns, each run by `quintet.train` in a process of its own with
64 streams and worker processes; the env_steps of all policies count, from the first report after
the warm-up on.  Other work must not run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from one_seed import commit
from records import write_whole

WARM_UP_S, MEASURED_S = 30.0, 60.0


def speed(workload: str, size: int) -> float:
    """env_steps/s of all policies."""
    from fixed_work import workloads

    import quintet

    work = workloads.read(workload)
    options = work.options()
    env, steps = options.pop("env.id"), options.pop("total_env_steps")
    options |= {"report.interval_s": 1.0, "report.progress": False, "eval.episodes": 0}
    if size > 1:
        options["population.size"] = size
    marks: list[tuple[float, float]] = []

    def after_report(report: Mapping[str, float]) -> bool:
        if report["wall_s"] >= WARM_UP_S:
            marks.append((report["wall_s"], report["env_steps"]))
        return bool(marks) and marks[-1][0] - marks[0][0] >= MEASURED_S

    with TemporaryDirectory() as folder:
        quintet.train(work.algo, env, steps, run_dir=folder, config=options, on_report=after_report)
    (begin_s, begin), (end_s, end) = marks[0], marks[-1]
    return (end - begin) / (end_s - begin_s)


def measured(workload: str, size: int) -> float:
    """By a process of its own."""
    command = [sys.executable, __file__, workload, "--size", str(size), "--one"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="?", default="pong-appo")
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--one", action="store_true", help="only one run of the size, here")
    args = parser.parse_args()
    if args.one:
        print(speed(args.workload, args.size))
        return
    runs: dict[int, list[float]] = {1: [], args.size: []}
    for _ in range(args.repeats):
        for size, speeds in runs.items():
            speeds.append(round(measured(args.workload, size)))
            print(f"{size} policies: {speeds[-1]:,.0f} env_steps/s", flush=True)
    of_one = [b / a for a, b in zip(runs[1], runs[args.size], strict=True)]
    print(f"of one policy: {median(of_one):.2f} ({min(of_one):.2f} to {max(of_one):.2f})")
    if args.record:
        record = {
            "workload": args.workload,
            "size": args.size,
            "one_env_steps_per_s": runs[1],
            "population_env_steps_per_s": runs[args.size],
            "load_average": os.getloadavg(),
            "commit": commit(),
        }
        write_whole(args.record, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
