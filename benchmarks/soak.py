"""A long run of a benchmark's workload: does it keep its speed, and does memory grow?

    python benchmarks/soak.py pong-appo [--minutes 30] [--record FILE]

First the workload as `speed.py` runs it, for its speed; then for so long.  Prints, minute by
minute, the speed and the memory of each process that is its own (without what it shares), and at
the end the speed of all the minutes, and of their last half, as shares of the bench's, and each
process's slope of memory in MB per minute from minute 5 on.  Ends with status 1 where the speed was
not above 90% of the bench's, or a slope not under 1 MB per minute.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil
from fixed_work import measure, workloads
from fixed_work.work import Work

from quintet.options.layers import Layer

WARM_UP_MINUTES = 5
LEAST_OF_BENCH = 0.9
MOST_MB_PER_MINUTE = 1.0


def own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def memory_now() -> dict[str, int]:
    """Of this process and those that it began, by what they are."""
    me = psutil.Process()
    found = {"learner": own_bytes(me)}
    for child in me.children(recursive=True):
        with suppress(psutil.Error):  # a helper that comes and goes
            if child.name().split()[0] in ("worker", "inference", "learner"):
                found[f"{child.name()}, pid {child.pid}"] = own_bytes(child)
    return found


def minutes_of(work: Work, options: Layer) -> list[dict[str, Any]]:
    """Trains for the workload's time; what there was to see in each minute."""
    rows: list[dict[str, Any]] = []
    since, steps_before = 0.0, 0

    def each_minute(seconds: float, env_steps: int) -> None:
        nonlocal since, steps_before
        if seconds - since < 60.0:
            return
        speed = (env_steps - steps_before) / (seconds - since)
        rows.append(
            {
                "minute": round(seconds / 60, 2),
                "env_steps_per_s": round(speed),
                "own_bytes": memory_now(),
            }
        )
        print(rows[-1], flush=True)
        since, steps_before = seconds, env_steps

    measure.train(work, options, each_minute)
    return rows


def judged(rows: Sequence[dict[str, Any]], bench: float) -> dict[str, Any]:
    """What the minutes come to beside the bench's env_steps/s."""
    speeds = [row["env_steps_per_s"] for row in rows]
    late = [row for row in rows if row["minute"] >= WARM_UP_MINUTES]
    names = set.intersection(*(set(row["own_bytes"]) for row in late)) if len(late) > 1 else set()
    minutes = [row["minute"] for row in late]
    slopes = {
        name: float(np.polyfit(minutes, [row["own_bytes"][name] / 1e6 for row in late], 1)[0])
        for name in sorted(names)
    }
    of_bench = mean(speeds) / bench
    return {
        "bench_env_steps_per_s": round(bench),
        "env_steps_per_s": round(mean(speeds)),
        "of_bench": round(of_bench, 3),
        "last_half_of_bench": round(mean(speeds[len(speeds) // 2 :]) / bench, 3),
        # Added, 0.0 makes a zero of minus zero.
        "mb_per_minute": {name: round(slope, 3) + 0.0 for name, slope in slopes.items()},
        "met": of_bench > LEAST_OF_BENCH
        and len(slopes) > 1
        and max(slopes.values()) < MOST_MB_PER_MINUTE,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--record", type=Path)
    args, rest = parser.parse_known_args()
    if args.minutes < WARM_UP_MINUTES + 2:
        parser.error(f"--minutes of at least {WARM_UP_MINUTES + 2} is required, for a slope")
    values = dict(zip((word.removeprefix("--") for word in rest[::2]), rest[1::2], strict=True))
    work, options = workloads.read(args.workload), workloads.scheduling(values)
    bench = measure.train(work, options)[2]["env_steps_per_s"]
    print(f"bench: {bench:,.0f} env_steps/s", flush=True)
    rows = minutes_of(work.model_copy(update={"seconds": 60.0 * args.minutes}), options)
    told = judged(rows, bench)
    print(json.dumps(told))
    if args.record:
        args.record.write_text(json.dumps(told | {"minutes": rows}, indent=1) + "\n")
    return 0 if told["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
