"""Trains with the presets on the reported seeds and records curves and final scores.

    python benchmarks/learning.py --stale --list
    python benchmarks/learning.py --stale [--most-minutes-per-seed 10] [--jobs 2]
    python benchmarks/learning.py ppo CartPole-v1 [--seeds 11 12 13] [--jobs 2]
    python benchmarks/learning.py ppo quintet.envs.toy:cartpole_without_velocities \
        --label feed-forward --set model.core=none
    python benchmarks/learning.py --random

--stale runs the rows of the tables whose record is of other seeds or of another configuration than
the same command has today, cheapest first by the recorded time; --list only lists them.  A row's
record and the tables are written when all of its seeds are there, so that no row mixes old and new
ones.  Killed at any moment, the same command goes on: finished seeds are kept in --folder, and
half-done runs go on from their checkpoints there.

Each seed is a process of its own.  The score is that of 100 greedy episodes of the final policy on
environment seeds from 10,000 on.  The record goes to benchmarks/results/ALGO-ENV.json, or
ALGO-ENV-LABEL.json where options differ from the preset's; run folders and logs stay in --folder.
--until ends runs before their budget, with the schedules of the whole.  --random records what
uniformly random actions score where a record lacks it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from one_seed import STOPPED, Task
from records import (
    differences,
    path_of,
    record_of,
    seconds_per_seed,
    standing,
    write_whole,
)
from rows import ROWS, SEEDS, Row

HERE = Path(__file__).parent


def say(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


def run_seed(task: Task) -> bool:
    """Trains and evaluates one seed, unless that is done; says how it went."""
    who = f"{task.row.name} seed {task.seed}"
    if kept(task) is not None:
        say(f"{who}: finished before, kept")
        return True
    say(f"{who}: {'goes on' if task.begun.exists() else 'begins'}, log {task.log}")
    task.folder.mkdir(parents=True, exist_ok=True)
    with task.log.open("a") as log, busy_processes(task.row.busy):
        # Standard input is never written to: it closes with this process, which the child sees.
        child = subprocess.Popen(
            [sys.executable, HERE / "one_seed.py", task.text()],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        status = child.wait()
    if status == 0:
        part = json.loads(task.part.read_text())
        score = part.get(task.row.score, part["return_mean"])
        say(f"{who}: {task.row.score} {score}, {part['train_s']:.0f} s of training")
    elif status == STOPPED:
        say(f"{who}: stopped, the same command goes on with it")
    else:
        say(f"{who}: ended with status {status}; the reason is at the end of {task.log}")
    return status == 0


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that each keep a core busy meanwhile; they end with this one."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def kept(task: Task) -> dict[str, Any] | None:
    """The part of the record of a seed that was finished by today's configuration."""
    if not task.part.exists():
        return None
    part: dict[str, Any] = json.loads(task.part.read_text())
    return None if differences(task.row, part["config"]) else part


def run_row(row: Row, seeds: Sequence[int], folder: Path, jobs: int) -> bool:
    """Runs the seeds, and writes the row's record once those that it had are there."""
    tasks = [Task(row, seed, folder, jobs) for seed in seeds]
    with ThreadPoolExecutor(jobs) as pool:
        if not all(list(pool.map(run_seed, tasks))):
            return False
    parts = {task.seed: json.loads(task.part.read_text()) for task in tasks}
    parts = fresh_parts(row) | parts
    recorded = {run["seed"] for run in (record_of(row) or {"runs": []})["runs"]}
    if lacking := sorted((recorded & {*row.seeds}) - parts.keys()):
        say(f"{row.name}: its record is of older options and stays, until seeds {lacking} are run")
        return False
    path = path_of(row)
    write_whole(path, json.dumps(joined(row, parts), indent=1) + "\n")
    for task in tasks:  # recorded: the next time begins anew
        task.part.unlink()
        task.begun.unlink(missing_ok=True)
    say(f"{row.name}: recorded in {path}")
    return True


def fresh_parts(row: Row) -> dict[int, dict[str, Any]]:
    """What a new record takes over of the one there is: its seeds, where they are of those that are
    reported and of today's configuration.
    """
    record, how = record_of(row), standing(row)
    if record is None or how.differences or how.other_seeds:
        return {}
    facts = {name: record[name] for name in ("commit", "jobs", "cores") if name in record}
    return {
        run["seed"]: {**facts, **run, "config": {**record["config"], **run.get("config", {})}}
        for run in record["runs"]
    }


def joined(row: Row, parts: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The record; `config` is the first seed's, a seed has beside it what differs (the machine)."""
    runs = [dict(parts[seed]) for seed in sorted(parts)]
    config = runs[0]["config"]
    for run in runs:
        other = {k: v for k, v in run.pop("config").items() if config.get(k) != v}
        if other:
            run["config"] = other
    before = record_of(row) or {}
    then, now = (
        {name: x for name, x in of.items() if name.startswith("env.")}
        for of in (before.get("config", config), config)
    )
    chance = before.get("random") if then == now else None
    return {
        "algo": row.algo,
        "env": row.env,
        "episodes": 100,
        **({} if row.until is None else {"until": row.until}),
        "random": chance or random_score(config),
        "config": config,
        "runs": runs,
    }


def random_score(config: dict[str, Any]) -> dict[str, float]:
    """What uniformly random actions score on the episodes of the evaluation."""
    from quintet.envs.config import EnvConfig
    from quintet.policies.evaluation import evaluate_random

    known = EnvConfig.model_fields
    values = {name: config[f"env.{name}"] for name in known if f"env.{name}" in config}
    scores = evaluate_random(EnvConfig(**values), 100, 10_000)
    rate = {} if scores.success_rate is None else {"success_rate": scores.success_rate}
    return {"return_mean": round(scores.mean, 3), "return_std": round(scores.std, 3), **rate}


def add_random_scores() -> None:
    for row in ROWS:
        record = record_of(row)
        if record is None or "random" in record:
            continue
        head = {name: x for name, x in record.items() if name not in ("config", "runs")}
        rest = {name: record[name] for name in ("config", "runs")}
        record = {**head, "random": random_score(record["config"]), **rest}
        write_whole(path_of(row), json.dumps(record, indent=1) + "\n")
        say(f"{row.name}: random actions have {record['random'][row.score]}")
    regenerate()


def regenerate() -> None:
    """Tables, and the pictures where matplotlib is there."""
    for script in ("tables.py", "pictures.py"):
        done = subprocess.run(
            [sys.executable, HERE / script], capture_output=True, text=True, check=False
        )  # fmt: skip
        if done.returncode:
            say(f"{script} failed: {(done.stdout + done.stderr).strip().splitlines()[-1]}")


def stale_rows() -> list[tuple[Row, tuple[int, ...], float | None]]:
    """Rows with seeds to run, cheapest first; those of unknown cost last."""
    found = [(row, standing(row).missing, seconds_per_seed(row)) for row in ROWS]
    order = [
        (float("inf") if each is None else each * len(seeds), index)
        for index, (_, seeds, each) in enumerate(found)
    ]
    return [found[index] for _, index in sorted(order) if found[index][1]]


def list_stale(most_s: float, folder: Path) -> None:
    for row, seeds, each in stale_rows():
        how, done = standing(row), [s for s in seeds if kept(Task(row, s, folder, 1)) is not None]
        why = []
        if record_of(row) is None:
            why.append("no record")
        if how.other_seeds:
            why.append(f"recorded on seeds {', '.join(map(str, how.other_seeds))}")
        why += [f"{x.option} is {x.today}, recorded {x.recorded}" for x in how.differences]
        cost = "unknown cost" if each is None else f"{each:,.0f} s a seed"
        taken = "" if each is not None and each <= most_s else "  (over --most-minutes-per-seed)"
        kept_ = f", finished: {', '.join(map(str, done))}" if done else ""
        print(
            f"{row.name}: seeds {', '.join(map(str, seeds))}{kept_}; {cost}{taken}; "
            f"{'; '.join(why) or 'seeds are missing'}"
        )


def run_stale(most_s: float, folder: Path, jobs: int) -> bool:
    """Runs what is stale and cheap enough; False where a row could not be finished."""
    fine = True
    for row, seeds, each in stale_rows():
        if each is None or each > most_s:
            continue
        done = run_row(row, seeds, folder, jobs)
        if done:
            regenerate()
        fine = fine and done
    return fine


def row_of(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Row:
    """The row of the tables that the arguments mean, or one of their own."""
    asked = Row(args.algo, args.env, label=args.label or "", options=tuple(args.options))
    asked = asked._replace(until=args.until)
    for row in ROWS:
        if row.name == asked.name:
            if asked.options not in ((), row.options) or asked.until not in (None, row.until):
                parser.error(f"{row.name} stands in the tables with other options: {row}")
            if args.seeds and not {*args.seeds} <= {*row.seeds}:
                parser.error(f"{row.name} is reported on seeds {row.seeds}, got {args.seeds}")
            return row
    if bool(args.label) != bool(args.options):
        parser.error("--label and --set go together: a record says by its name what it is of")
    return asked._replace(seeds=tuple(args.seeds or SEEDS))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo", nargs="?")
    parser.add_argument("env", nargs="?")
    parser.add_argument("--stale", action="store_true", help="the rows that are out of date")
    parser.add_argument("--list", action="store_true", help="with --stale: only say which")
    parser.add_argument("--most-minutes-per-seed", type=float, default=10.0, metavar="M")
    parser.add_argument("--random", action="store_true", help="scores of random actions")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="seeds that train side by side")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--label", help="of a record with other options than the preset's")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", dest="options")
    parser.add_argument("--until", type=int, metavar="ENV_STEPS", help="end there")
    args = parser.parse_args()
    if args.algo and (args.stale or args.random):
        parser.error("--stale and --random are for all rows: leave ALGO and ENV out")
    if args.list and not args.stale:
        parser.error("--list belongs to --stale")
    if args.random:
        add_random_scores()
        return 0
    if args.stale:
        most_s = 60 * args.most_minutes_per_seed
        if args.list:
            list_stale(most_s, args.folder)
            return 0
        return int(not run_stale(most_s, args.folder, args.jobs))
    if args.env is None:
        parser.error("ALGO and ENV are required, or --stale, or --random")
    row = row_of(args, parser)
    done = run_row(row, args.seeds or row.seeds, args.folder, args.jobs)
    if done:
        regenerate()
    return int(not done)


if __name__ == "__main__":
    sys.exit(main())
