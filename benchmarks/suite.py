"""Trains the cells of the suite (task x learner x seed) and records curves and final scores.

    python benchmarks/suite.py --stale --list
    python benchmarks/suite.py --stale --minutes 60 [--only 'ppo-*'] [--jobs 2]
    python benchmarks/suite.py --stale [--most-minutes-per-seed 10] [--jobs 2]
    python benchmarks/suite.py ppo CartPole-v1 [--seeds 11 12 13] [--jobs 2]
    python benchmarks/suite.py ppo quintet.envs.toy:cartpole_without_velocities \
        --label feed-forward --set model.core=none
    python benchmarks/suite.py --random

suite.toml has the tasks and their cells.  --stale trains the cells whose record is missing, of
other seeds, or of another configuration than the same command has today, shortest first, by the
recorded or estimated time; --minutes begins those alone that fit, and stops at its end what still
runs.  --list only lists them.  Killed at any moment, the same command goes on: finished seeds are
kept in --folder, and half-done runs go on from their checkpoints there.

Each seed is a process of its own.  The score is that of 100 greedy episodes of the final policy on
environment seeds from 10,000 on.  A record goes to benchmarks/results/ALGO-ENV.json, or
ALGO-ENV-LABEL.json where options differ from the preset's; run folders and logs stay in --folder.
No record mixes configurations: one of older options stays until all of its seeds are there again.
A seed that fails stands in the record with the last line of its log, and is tried again.

Cells of "sb3-..." are trained by Stable-Baselines3 with its zoo's settings, in a virtual
environment that is made in --folder, or by --peer-python.  --until ends runs before their budget,
with the schedules of the whole.  --random records what uniformly random actions score where a
record lacks it.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from one_seed import STOPPED, Task
from records import (
    ROOT,
    counts,
    differences,
    path_of,
    record_of,
    seconds_per_seed,
    standing,
    write_whole,
)
from rows import ROWS, SEEDS, Row

HERE = Path(__file__).parent

PEER_PACKAGES = (
    *("stable-baselines3>=2.9,<3", "rl_zoo3>=2.9,<3", "gymnasium[box2d,mujoco]", "minigrid"),
    *("minatar", "ale-py", "opencv-python-headless"),
)


def say(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


class Cell(NamedTuple):
    """A seed of a row that is to be trained; `cost_s` is None where nothing is known of it."""

    row: Row
    seed: int
    cost_s: float | None


class Session(NamedTuple):
    """Where and how cells are trained.

    ends: time.monotonic() at which what still runs is stopped.
    """

    folder: Path
    jobs: int = 1
    peer_python: Path | None = None
    ends: float = float("inf")


def run_seed(task: Task, session: Session) -> bool:
    """Trains and evaluates one seed, unless that is done; says how it went."""
    who = f"{task.row.name} seed {task.seed}"
    if kept(task) is not None:
        say(f"{who}: finished before, kept")
        return True
    say(f"{who}: {'goes on' if task.begun.exists() else 'begins'}, log {task.log}")
    task.folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [sys.executable, HERE / "one_seed.py", task.text()]
    if task.row.is_peers:
        command = [peer_python(session), HERE / "peer_sb3_zoo.py", task.text()]
    with task.log.open("a") as log, busy_processes(task.row.busy):
        # Standard input is never written to: it closes with this process, which the child sees.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
        left_s = session.ends - time.monotonic()
        try:
            status = child.wait(None if math.isinf(left_s) else max(left_s, 0.0))
        except subprocess.TimeoutExpired:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
            status = STOPPED
    if status == 0:
        part = json.loads(task.part.read_text())
        score = part.get(task.row.score, part["return_mean"])
        say(f"{who}: {task.row.score} {score}, {part['train_s']:.0f} s of training")
        task.failed.unlink(missing_ok=True)
    elif status == STOPPED:
        say(f"{who}: stopped, the same command goes on with it")
    else:
        said = last_line(task.log)
        write_whole(task.failed, json.dumps({"seed": task.seed, "status": status, "said": said}))
        say(f"{who}: ended with status {status}: {said}; more in {task.log}")
    return status == 0


def last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    return ([line for line in lines if line] or ["nothing was said"])[-1][:200]


PEER_PYTHON = threading.Lock()


def peer_python(session: Session) -> Path:
    """The Python that has Stable-Baselines3; a virtual environment in the folder, made once."""
    if session.peer_python is not None:
        return session.peer_python
    place = session.folder / "stable-baselines3"
    python, made = place / "bin" / "python", place / ".made"
    with PEER_PYTHON:
        if made.exists():
            return python
        say(f"making {place} for Stable-Baselines3")
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
        # PyTorch first, of the tested version: the newest build may bring gigabytes for a GPU.
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", "torch", "setuptools"], check=True)
        subprocess.run([*pip, *PEER_PACKAGES], check=True)
        made.touch()
    return python


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


def run_row(row: Row, seeds: Sequence[int], session: Session) -> bool:
    """Trains seeds of one row and records them; False where one is not finished."""
    return run_cells([Cell(row, seed, 0.0) for seed in seeds], session)


def run_cells(cells: Iterable[Cell], session: Session) -> bool:
    """Trains cells, those in front first, and writes records; False where one is not finished.

    With an end, only cells that should be finished by then begin.
    """
    writing = threading.Lock()

    def run(cell: Cell) -> bool:
        left_s = session.ends - time.monotonic()
        if not math.isinf(left_s) and (cell.cost_s is None or cell.cost_s > left_s):
            return False
        task = Task(cell.row, cell.seed, session.folder, session.jobs)
        done = run_seed(task, session)
        with writing:
            write_record(cell.row, session)
        return done

    with ThreadPoolExecutor(session.jobs) as pool:
        return all(list(pool.map(run, cells)))


def write_record(row: Row, session: Session) -> bool:
    """Writes the row's record of the seeds that are finished or have failed, unless an older
    one has seeds that are not there again, or more seeds.
    """
    tasks = [Task(row, seed, session.folder, session.jobs) for seed in row.seeds]
    new = {task.seed: part for task in tasks if (part := kept(task)) is not None}
    failed = [json.loads(task.failed.read_text()) for task in tasks if task.failed.exists()]
    if not new and not failed:
        return False
    parts = fresh_parts(row) | new
    recorded = {run["seed"] for run in (record_of(row) or {"runs": []})["runs"]}
    if (recorded & {*row.seeds}) - parts.keys() or len(parts) < len(recorded):
        say(f"{row.name}: its record is of older options or seeds and stays until more are run")
        return False
    path = path_of(row)
    write_whole(path, json.dumps(joined(row, parts, failed), indent=1) + "\n")
    for task in tasks:  # recorded: the next time begins anew
        if task.seed in new:
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


def joined(
    row: Row, parts: dict[int, dict[str, Any]], failed: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The record; `config` is the first seed's, a seed has beside it what differs (the machine)."""
    runs = [dict(parts[seed]) for seed in sorted(parts)]
    config: dict[str, Any] = runs[0]["config"] if runs else {}
    for run in runs:
        other = {k: v for k, v in run.pop("config").items() if config.get(k) != v}
        if other:
            run["config"] = other
    before = record_of(row) or {}
    then, now = (
        {name: x for name, x in of.items() if name.startswith("env.") and counts(name, row)}
        for of in (before.get("config", config), config)
    )
    chance = before.get("random") if then == now else None
    has_chance = bool(runs) and not row.is_peers
    return {
        "algo": row.algo,
        "env": row.env,
        "episodes": 100,
        **({} if row.until is None else {"until": row.until}),
        **({"random": chance or random_score(config)} if has_chance else {}),
        "config": config,
        "runs": runs,
        **({"failed": [*failed]} if failed else {}),
    }


def random_score(config: dict[str, Any]) -> dict[str, float]:
    """What uniformly random actions score on the episodes of the evaluation."""
    from quintet.envs.config import EnvConfig
    from quintet.envs.random_play import UniformActor
    from quintet.envs.resolved import resolve_env
    from quintet.policies.episodes import How, play
    from quintet.policies.evaluation import MAX_STREAMS
    from quintet.runtime.spread import Spreading, make_streams

    known = EnvConfig.model_fields
    values = {name: config[f"env.{name}"] for name in known if f"env.{name}" in config}
    env = resolve_env(EnvConfig(**values)).with_options({"reward_clip": "none"})
    with closing(make_streams(env, env.streams_of(MAX_STREAMS), Spreading())) as vector:
        how = How(UniformActor(vector.spaces.action, 10_000), 100, 10_000, True, None)
        played, wins = play(vector, how, env.num_agents).played, vector.description.success
    returns = [each.return_ for each in played]
    rate = {} if wins is None else {"success_rate": fmean(each.success for each in played)}
    return {
        "return_mean": round(fmean(returns), 3),
        "return_std": round(pstdev(returns), 3),
        **rate,
    }


def add_random_scores() -> None:
    for row in ROWS:
        record = record_of(row)
        if record is None or "random" in record or row.is_peers or not record["runs"]:
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


def stale_cells(only: str = "*") -> list[Cell]:
    """Cells to train of rows whose name fits, shortest first; those of unknown cost last."""
    cells = [
        Cell(row, seed, seconds_per_seed(row))
        for row in ROWS
        if fnmatchcase(row.name, only)
        for seed in standing(row).missing
    ]
    return sorted(cells, key=lambda cell: math.inf if cell.cost_s is None else cell.cost_s)


def list_stale(cells: Sequence[Cell], most_s: float, folder: Path) -> None:
    for row, seeds in rows_of(cells).items():
        how, each = standing(row), seconds_per_seed(row)
        done = [s for s in seeds if kept(Task(row, s, folder, 1)) is not None]
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


def rows_of(cells: Sequence[Cell]) -> dict[Row, list[int]]:
    found: dict[Row, list[int]] = {}
    for cell in cells:
        found.setdefault(cell.row, []).append(cell.seed)
    return found


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
    parser.add_argument("--minutes", type=float, metavar="M", help="with --stale: what fits")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="with --stale: of records")
    parser.add_argument("--most-minutes-per-seed", type=float, metavar="M", help="10 by default")
    parser.add_argument("--peer-python", type=Path, help="that has rl_zoo3")
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
    if (args.list or args.minutes is not None or args.only != "*") and not args.stale:
        parser.error("--list, --minutes and --only belong to --stale")
    if args.random:
        add_random_scores()
        return 0
    ends = math.inf if args.minutes is None else time.monotonic() + 60 * args.minutes
    session = Session(args.folder, args.jobs, args.peer_python, ends)
    if args.stale:
        most = args.most_minutes_per_seed or args.minutes or 10.0
        cells = stale_cells(args.only)
        if args.list:
            list_stale(cells, 60 * most, args.folder)
            return 0
        cells = [each for each in cells if each.cost_s is not None and each.cost_s <= 60 * most]
        done = run_cells(cells, session)
        regenerate()
        return int(not done)
    if args.env is None:
        parser.error("ALGO and ENV are required, or --stale, or --random")
    row = row_of(args, parser)
    done = run_row(row, args.seeds or row.seeds, session)
    if done:
        regenerate()
    return int(not done)


if __name__ == "__main__":
    sys.exit(main())
