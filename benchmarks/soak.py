"""A long run of a benchmark's workload: does it keep its speed, and does memory grow?

    python benchmarks/soak.py pong-appo --minutes 30 [--record FILE]

Prints, minute by minute, the speed and the memory of each process that is its own (without what it
shares), and at the end the speed of the last half as a share of the first minute after the start,
and each process's slope of memory in MB per minute from minute 5 on.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from quintet.bench import measure, workloads

WARM_UP_MINUTES = 5


def own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--record", type=Path)
    args, rest = parser.parse_known_args()
    work = workloads.read(args.workload)
    work = work.model_copy(update={"seconds": 60.0 * args.minutes})
    rows: list[dict[str, Any]] = []
    since = time.monotonic()
    steps_before = 0

    def watched(self: measure.Stopwatch, *_: object) -> bool:
        nonlocal since, steps_before
        over = after_iteration(self)
        now = time.monotonic()
        if self.begin is not None and now - since >= 60.0:
            me = psutil.Process()
            plan = self.learner.plan
            steps = self.counters.iteration * plan.columns_per_batch * plan.unroll_steps
            memory = {"learner": own_bytes(me)}
            for number, child in enumerate(me.children()):
                memory[f"process {number}"] = own_bytes(child)
            rows.append(
                {
                    "minute": round((now - self.begin.seconds) / 60, 2),
                    "env_steps_per_s": round((steps - steps_before) / (now - since)),
                    "own_bytes": memory,
                }
            )
            print(rows[-1], flush=True)
            since, steps_before = now, steps
        return over

    after_iteration = measure.Stopwatch.after_iteration
    measure.Stopwatch.after_iteration = watched  # type: ignore[method-assign]
    _, _, record = measure.train(work, workloads.scheduling(rest))
    speeds = [row["env_steps_per_s"] for row in rows[1:]]
    late = [row for row in rows if row["minute"] >= WARM_UP_MINUTES]
    slopes = {}
    if len(late) > 1:
        minutes = [row["minute"] for row in late]
        slopes = {
            name: float(np.polyfit(minutes, [row["own_bytes"][name] / 1e6 for row in late], 1)[0])
            for name in late[0]["own_bytes"]
        }
    half = speeds[len(speeds) // 2 :]
    told = {
        "env_steps_per_s": record["env_steps_per_s"],
        "last_half_of_first_minute": round(float(np.mean(half)) / speeds[0], 3) if speeds else None,
        "mb_per_minute": {name: round(slope, 3) for name, slope in slopes.items()},
    }
    print(json.dumps(told))
    if args.record:
        args.record.write_text(json.dumps(told | {"minutes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
