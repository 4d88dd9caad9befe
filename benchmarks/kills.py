"""Kills and interrupts at random moments of every kind of job on this machine.

    python benchmarks/kills.py [--kills 200] [--seed 0] [--only KIND] [--record FILE]

Each trial starts a command (seeds, a sweep, a race, workers, an inference server, further learners,
steppers, a population, replay, the doctor), and at a random moment kills its process, one of the
processes that it has begun, or interrupts it.  Then no process may be left after the seconds that
orphans have to stop, and no shared memory; the same command must end with status 0; and what an
exact kind has learned must have the bytes of an undisturbed run.  A command of which another
process was killed must end well by itself or by an error; it may be given again.  Bytes are not
compared where nothing exact was there to go back to: where a folder has checkpoints of which none
is exact, and where the run says that it goes back to such a one; their number is printed.  Prints a
line for each trial; ends with status 1 if one failed.  benchmarks/cluster_faults.py does so on a
cluster.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from children import WITH_PARENT

from quintet.checkpoints import checkpoint
from quintet.search.pruning import resumes_exactly

MARK = "QUINTET_KILLS"
"""In the environment of processes that this one has begun, with its number and that of the trial.
"""

ENVIRONMENT = """
import time, gymnasium, numpy as np


class Drifting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float64)

    def __init__(self, box=False):
        self.action_space = gymnasium.spaces.Discrete(3)
        if box:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=3), 0
        return self.place.clip(-10, 10), {}

    def step(self, action):
        time.sleep(0.001)
        self.steps += 1
        push = 0.2 * (float(np.sum(action)) - 1)
        self.place = 0.9 * self.place + 0.3 * self.np_random.normal(size=3) + push
        over = bool(self.place.sum() > 3.0)
        return self.place.clip(-10, 10), -abs(self.place[0]), over, self.steps >= 20, {}
"""

SMALL = (
    "--env killed:Drifting --preset none --env.num-streams 8 --env.streams-per-group 4 "
    "--runtime.compile off --runtime.actor-threads 1 --runtime.threads 1 --eval.episodes 0 "
    "--report.interval-s 0 --report.sinks jsonl --report.progress false"
)
ON_POLICY = f"{SMALL} --unroll-steps 16 --minibatch-steps 32 --num-epochs 2 --total-steps 6400"
REPLAY = f"{SMALL} --env.kwargs '{{\"box\": true}}' --total-steps 1600 --replay-start-steps 200"

KINDS: dict[str, tuple[str, bool, int]] = {
    # Command, whether its bytes are those of an undisturbed one, weight.
    "seeds": (f"train ppo {ON_POLICY} --seeds 1,2,3 --jobs 2", True, 3),
    "sweep": (
        f"sweep ppo {ON_POLICY} --search learning_rate --trials 3 --jobs 2 --best 1 "
        "--seeds-of-best 1 --metric episode/return_mean", True, 3),
    "race": (
        "train auto --env killed:Drifting --minutes 0.4 --jobs 2 --runtime.compile off", False, 1),
    "async": (f"train appo {ON_POLICY} --runtime.kind async --runtime.num-workers 2", False, 2),
    "lockstep": (f"train ppo {ON_POLICY} --runtime.kind lockstep --runtime.num-workers 2", True, 2),
    "server": (
        f"train ppo {ON_POLICY} --runtime.kind lockstep --runtime.num-workers 2 "
        "--runtime.inference server", True, 2),
    "learners": (f"train ppo {ON_POLICY} --runtime.num-learners 2", True, 2),
    "steppers": (f"train ppo {ON_POLICY} --env.num-processes 2", True, 2),
    "population": (
        f"train ppo {ON_POLICY} --runtime.kind async --runtime.num-workers 2 --population.size 2",
        False, 1),
    "replay": (f"train ddpg {REPLAY}", True, 2),
    "doctor": ("doctor killed:Drifting --most-s 20", False, 1),
}  # fmt: skip

HOW = {"kill": 3, "kill a child": 3, "interrupt": 2}

_INEXACT = "going back to the last checkpoint"
"""Said by a run of which a process died, where it has no exact checkpoint to go back to."""

_LEFT_S = 75.0  # an orphan has 60 s to stop
_MOST_S = 300.0


def words(kind: str, folder: Path, how: str) -> list[str]:
    command = shlex.split(KINDS[kind][0])
    own = [] if kind == "doctor" else ["--run-dir", str(folder)]
    # An interrupted run goes on from where it stopped, which is no exact checkpoint.
    compared = how != "interrupt" and kind in ("seeds", *_alone())
    exact = ["--resume", "exact"] if compared and exact_at(kind, folder) else []
    return [*WITH_PARENT, sys.executable, "-m", "quintet", *command, *own, *exact]


def exact_at(kind: str, folder: Path) -> bool:
    """Whether every run of a folder begins, or goes on from an exact checkpoint."""
    return all(resumes_exactly(each / "checkpoints") for each in runs_of(kind, folder))


def runs_of(kind: str, folder: Path) -> list[Path]:
    return [folder / f"s{k}" for k in (1, 2, 3)] if kind == "seeds" else [folder]


def _alone() -> list[str]:
    """Kinds that are one run whose bytes are compared."""
    return [name for name, (_, exact, _) in KINDS.items() if exact and name not in _GROUPS]


_GROUPS = ("seeds", "sweep")


def begin(kind: str, how: str, folder: Path, mark: str, log: Any) -> subprocess.Popen[bytes]:
    place = folder.parent
    environ = os.environ | {MARK: mark, "PYTHONPATH": str(place)}
    return subprocess.Popen(
        words(kind, folder, how), stdout=log, stderr=log, cwd=place, env=environ
    )


def marked(mark: str) -> list[psutil.Process]:
    """The processes of a trial."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp")}


def learned(kind: str, folder: Path) -> Any:
    """What two commands with the same bytes have in common."""
    if kind == "sweep":
        return (folder / "trials.csv").read_text()
    runs = [each / "checkpoints" for each in runs_of(kind, folder)]
    found = [checkpoint.latest(each, warn=print) for each in runs]
    return [None if each is None else checkpoint.tensor_hashes(each) for each in found]


def hit(how: str, main: subprocess.Popen[bytes], mark: str, draw: random.Random) -> str:
    """Kills or interrupts; returns the name of the process, "" if it had ended."""
    if main.poll() is not None:
        return ""
    if how == "kill a child":
        children = [each for each in marked(mark) if each.pid != main.pid]
        if not children:
            return ""
        child = draw.choice(sorted(children, key=lambda each: each.pid))
        with suppress(psutil.Error):
            name = child.name()
            child.kill()
            return name
        return ""
    main.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
    return "main"


def waited(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_MOST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1000


def none_left(mark: str) -> bool:
    deadline = time.monotonic() + _LEFT_S
    while marked(mark):
        if time.monotonic() > deadline:
            for each in marked(mark):
                each.kill()
            return False
        time.sleep(0.1)
    return True


def trial(
    kind: str, how: str, folder: Path, mark: str, most_s: float, draw: random.Random
) -> dict[str, Any]:
    """One command and its fault; what came of it."""
    before = memory()
    with open(f"{folder}.txt", "ab") as log:
        main = begin(kind, how, folder, mark, log)
        time.sleep(draw.uniform(0.5, most_s))
        name = hit(how, main, mark, draw)
        status = waited(main)
        left = not none_left(mark)
        again, exact = 0, True
        if status:
            exact = kind == "sweep" or exact_at(kind, folder)  # a sweep's trials begin again
            log.write(b"\n--- again\n")
            log.flush()
            again = waited(begin(kind, how, folder, mark, log))
            left |= not none_left(mark)
    exact &= _INEXACT not in Path(f"{folder}.txt").read_text()
    allowed = {"kill": (0, -9), "interrupt": (0, 130)}.get(how, (0, 1))
    return {
        "kind": kind,
        "how": how,
        "hit": name,
        "status": status,
        "again": again,
        "ends_well": status in allowed and again == 0,
        "exact": exact,
        "left": left,
        "memory": sorted(memory() - before),
    }


def undisturbed(kind: str, place: Path) -> tuple[Any, float]:
    """What a command learns, and its seconds."""
    folder = place / f"whole-{kind}"
    begin_s = time.monotonic()
    with open(f"{folder}.txt", "ab") as log:
        status = waited(begin(kind, "", folder, f"{os.getpid()}-whole", log))
    if status not in (0, 1 if kind == "doctor" else 0):
        raise RuntimeError(Path(f"{folder}.txt").read_text()[-3_000:])
    exact = KINDS[kind][1]
    return learned(kind, folder) if exact else None, time.monotonic() - begin_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    draw, failed, missed, inexact = random.Random(args.seed), 0, 0, 0
    wanted: dict[str, tuple[Any, float]] = {}
    weights = {name: weight for name, (*_, weight) in KINDS.items()}
    with tempfile.TemporaryDirectory() as where:
        place = Path(where)
        (place / "killed.py").write_text(ENVIRONMENT)
        for number in range(args.kills):
            kind = args.only or draw.choices(list(weights), list(weights.values()))[0]
            how = draw.choices(list(HOW), list(HOW.values()))[0]
            if kind not in wanted:
                wanted[kind] = undisturbed(kind, place)
            bytes_, seconds = wanted[kind]
            folder = place / str(number)
            told = trial(kind, how, folder, f"{os.getpid()}-{number}", seconds, draw)
            same: Callable[[], bool] = lambda: learned(kind, folder) == bytes_  # noqa: B023, E731
            compared = bytes_ is not None and how != "interrupt"
            told["bytes"] = not (compared and told["exact"]) or same()
            missed += not told["hit"]
            inexact += compared and not told["exact"]
            good = told["ends_well"] and told["bytes"] and not told["left"] and not told["memory"]
            if kind == "doctor" and told["status"] == 1:  # it has findings
                good = not told["left"] and not told["memory"]
            if not good:
                failed += 1
                print(Path(f"{folder}.txt").read_text()[-3_000:])
            line = json.dumps({"trial": number, "good": good} | told)
            print(line, flush=True)
            if args.record:
                with args.record.open("a") as record:
                    record.write(line + "\n")
            shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{args.kills - failed} of {args.kills} trials were as they must be; {missed} hit nothing; "
        f"{inexact} of an exact kind had nothing exact to go back to"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
