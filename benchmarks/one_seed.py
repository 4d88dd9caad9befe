"""One seed of a row in a process of its own: trains, evaluates, writes its part of the record.

`suite.py` begins it, with a `Task` as JSON on the command line.  It goes on with what a killed
one left, unless that was trained by another configuration; it ends with its parent.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from records import OF_THE_SESSION, ROOT, differences, given, write_whole
from rows import Row

if TYPE_CHECKING:
    from quintet import Policy

POINTS = 100  # of a recorded curve
GRACE_S = 60.0  # for a checkpoint, once the parent is gone
STOPPED = 3
"""Exit status of a seed that was asked to stop; the next one goes on with it."""


class Task(NamedTuple):
    """A seed of a row, where its files are, and how many are trained side by side."""

    row: Row
    seed: int
    folder: Path
    jobs: int

    @property
    def run_dir(self) -> Path:
        return self.folder / f"{self.row.name}-s{self.seed}"

    @property
    def begun(self) -> Path:
        """The commits that have trained in the run's folder; without it the folder is no work of
        ours in progress.
        """
        return self.folder / f"{self.row.name}-s{self.seed}.begun.json"

    @property
    def part(self) -> Path:
        """The finished seed's part of the record."""
        return self.folder / f"{self.row.name}-s{self.seed}.json"

    @property
    def failed(self) -> Path:
        """How the seed ended, if its last process failed."""
        return self.folder / f"{self.row.name}-s{self.seed}.failed.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.row.name}-s{self.seed}.log"

    @staticmethod
    def of(text: str) -> "Task":
        values = json.loads(text)
        row = Row.of(values["row"])
        return Task(row, values["seed"], Path(values["folder"]), values["jobs"])

    def text(self) -> str:
        return json.dumps({**self._asdict(), "row": self.row._asdict(), "folder": str(self.folder)})


def commit() -> str:
    """With -dirty where library, plugins or benchmarks are not as committed; records may differ."""
    head = _git("describe", "--always", "--exclude=*", "--abbrev=7")
    changed = _git("status", "--porcelain", "--", "quintet", "plugins", "benchmarks/*.py")
    return head + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stdout.strip()


def prepare(task: Task) -> list[str]:
    """Takes out what can't be gone on with; returns the commits that trained what remains."""
    from quintet.errors import ConfigError
    from quintet.options.saved import read_saved

    _wait_until_free(task.run_dir)
    commits = json.loads(task.begun.read_text()) if task.begun.exists() else []
    try:
        saved = read_saved(task.run_dir) if commits else None
    except ConfigError:  # killed while the folder was made
        saved = None
    if saved is None or differences(task.row, saved.values):
        if task.run_dir.exists():
            print(f"removing {task.run_dir}: it is of another run", flush=True)
            shutil.rmtree(task.run_dir)
        commits = []
    commits = [*commits, commit()]
    task.folder.mkdir(parents=True, exist_ok=True)
    write_whole(task.begun, json.dumps(commits))
    return commits


def _wait_until_free(run_dir: Path) -> None:
    """A process whose parent was killed may still be writing its last checkpoint."""
    from quintet.checkpoints.lock import run_lock
    from quintet.errors import CheckpointError

    until = time.monotonic() + GRACE_S + 10.0
    while run_dir.exists():
        try:
            with run_lock(run_dir):
                return
        except CheckpointError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def train(task: Task, resumed: bool) -> tuple["Policy", float]:
    """Trains to the row's end; the policy, and the seconds it took over all resumptions."""
    import quintet
    from quintet.observe.report_files import read_metrics

    begin = time.monotonic()
    until, reports = task.row.until, _reports(task.run_dir)
    if until is not None and reports and reports[-1]["env_steps"] >= until:
        return quintet.load(task.run_dir), reports[-1]["wall_s"]
    result = quintet.train(
        task.row.algo,
        task.row.env,
        seed=task.seed,
        run_dir=task.run_dir,
        config={"report.sinks": ["jsonl"], **given(task.row)},
        on_report=lambda report: until is not None and report["env_steps"] >= until,
    )
    train_s = time.monotonic() - begin
    reports = read_metrics(task.run_dir)
    if result.status != "finished" and (until is None or reports[-1]["env_steps"] < until):
        sys.exit(STOPPED)
    return result.policy, reports[-1]["wall_s"] if resumed else train_s


def _reports(run_dir: Path) -> list[dict[str, float]]:
    from quintet.errors import QuintetError
    from quintet.observe.report_files import read_metrics

    try:
        return read_metrics(run_dir)
    except QuintetError:  # it has not begun
        return []


def part_of(task: Task, policy: "Policy", commits: Sequence[str], train_s: float) -> dict[str, Any]:
    """What the record holds of the seed."""
    import quintet
    from quintet.options.saved import read_saved
    from quintet.system.cpus import usable_cores

    scores = quintet.evaluate(policy, episodes=100, seed=10_000)
    saved = read_saved(task.run_dir)
    assert saved is not None
    reports = _reports(task.run_dir)
    evaluated = [r for r in reports if "eval/return_mean" in r]
    times = {"resumed": len(commits) - 1} if len(commits) > 1 else {}
    return {
        "seed": task.seed,
        "return_mean": round(scores.mean, 3),
        "return_std": round(scores.std, 3),
        **({} if scores.success_rate is None else {"success_rate": scores.success_rate}),
        **({} if scores.entropy is None else {"entropy": round(scores.entropy, 4)}),
        "length_mean": round(float(scores.lengths.mean()), 1),
        "train_s": round(train_s, 1),
        "commit": " to ".join(dict.fromkeys(commits)),
        "jobs": task.jobs,
        "cores": usable_cores(),
        **times,
        "config": {k: v for k, v in saved.values.items() if not k.startswith(OF_THE_SESSION)},
        "curve": curve_of(reports),
        "evaluations": [
            [int(r["env_steps"]), round(r["eval/return_mean"], 3)] for r in evaluated
        ],
    }  # fmt: skip


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


def end_with_parent() -> None:
    """Standard input closes with the parent, however it goes: a checkpoint then, and the end."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    task = Task.of(sys.argv[1])
    end_with_parent()
    commits = prepare(task)
    policy, train_s = train(task, resumed=len(commits) > 1)
    write_whole(task.part, json.dumps(part_of(task, policy, commits, train_s)) + "\n")


if __name__ == "__main__":
    main()
