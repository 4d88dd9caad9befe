"""Counts the files through which a row passes from its environment to the loss.

    python benchmarks/row_path.py [ppo appo ddpg]

Trains for a few iterations, eagerly, under a profiler hook: PPO and DDPG in the serial runtime,
APPO in the asynchronous one with a worker process.  Between an environment's last step and the loss
that follows, every call from one file of quintet to another that hands rows over, as an argument or
as a result, is noted.  A file counts if rows can come to it from the environment and go on from it
to the loss.  So files that only look at rows (checks, statistics), or return an argument as it is,
do not count; nor do networks and their maths, the files that turn observations into actions, and
copies between devices, of which the CPU has none.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import torch

import quintet
from quintet.envs.vector import StepRow
from quintet.runtime.processes.messages import Full
from quintet.runtime.slots import Slot

HOME = str(Path(quintet.__file__).parent) + os.sep
ENV, STEP = "envs/gymnasium.py", ("envs/gymnasium.py", "recv")
WORKER, PARENT = "runtime/processes/worker.py", "runtime/processes/process.py"
ASYNC = "runtime/asynchronous.py"

Place = tuple[str, str]
"""A file and a function in it, or two files."""

ALONE = {"env.num_processes": 1}  # the hook makes steps slow, so that other processes would step
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 600, {"unroll_steps": 32, "minibatch_steps": 64, **ALONE}),
    "appo": ("CartPole-v1", 1_000, {"runtime.kind": "async", "runtime.num_workers": 1}),
    "ddpg": (
        "Pendulum-v1",
        160,
        {"replay_start_steps": 40, "batch_size": 32, "replay_capacity_steps": 4_000, **ALONE},
    ),
}
OF_ALL: dict[str, Any] = {
    "env.backend": "gymnasium",
    "env.num_streams": 4,
    "runtime.compile": "off",
    "eval.episodes": 0,
    "report.progress": False,
    "report.sinks": ["jsonl"],
}


def holds_rows(x: Any, depth: int = 6) -> bool:
    """Whether rows are in `x`: arrays with a dimension, slots, and what holds some."""
    if isinstance(x, torch.Tensor | np.ndarray):
        return x.ndim > 0
    if isinstance(x, Slot | Full):  # `Full` names slots, which hold the rows
        return True
    inside: Iterable[Any] = ()
    if isinstance(x, dict):
        inside = x.values()
    elif isinstance(x, list | tuple):
        inside = x
    elif is_dataclass(x) and not isinstance(x, type):
        inside = (getattr(x, field.name, None) for field in fields(x))
    return depth > 0 and any(holds_rows(each, depth - 1) for each in inside)


def written_in_place(x: Any) -> bool:
    """Whether who is given `x` may have rows written into it."""
    return isinstance(x, Slot | StepRow) or (isinstance(x, list) and any(map(written_in_place, x)))


def is_aside(file: str) -> bool:
    """Whether a file does not count: networks, their maths, records of tensors and spaces, and
    copies between devices.
    """
    aside = ("models/", "ops/", "types.py", "spaces.py", "options/bounds.py", "system/transfer.py")
    return file.startswith(aside) or file.endswith("/network.py")


def file_of(frame: FrameType) -> str | None:
    """The frame's file below quintet/; None: it is not one of quintet's."""
    name = frame.f_code.co_filename
    return name[len(HOME) :] if name.startswith(HOME) else None


def arguments(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (frame.f_locals[name] for name in names if name in frame.f_locals)


class Tracer:
    """A profiler hook that notes between which files rows are handed over.

    In each thread it notes from a call in `begins` until one in `ends`, a return of one in
    `returns`, or an act.

    now, found: the handovers since the last `clears`; the newest that reached an end.
    """

    def __init__(self, begins: set[Place], ends: set[Place], returns: set[Place], clears: bool):
        """clears: whether each begin forgets what was noted before."""
        self.begins, self.ends, self.returns, self.clears = begins, ends, returns, clears
        self.thread = threading.local()
        self.now: set[Place] = set()
        self.found: set[Place] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        file = file_of(frame)
        if file is None or event not in ("call", "return"):
            return
        place = (file, frame.f_code.co_name)
        if event == "call" and place in self.begins:
            self.thread.on = True
            if self.clears:
                self.now = set()
            for each in callers(frame):  # which have called each other before
                self._note_call(each)
        elif not getattr(self.thread, "on", False):
            return
        elif event == "return":
            caller = next(callers(frame.f_back), None)
            same = any(result is x for x in arguments(frame))
            if caller is not None and not same and holds_rows(result):
                self.now.add((file, str(file_of(caller))))
            if place in self.returns:
                self._end()
        else:
            self._note_call(frame)
            if place in self.ends:
                self._end()
            elif place[1] == "act":
                self.thread.on = False

    def _note_call(self, frame: FrameType) -> None:
        caller, file = next(callers(frame.f_back), None), str(file_of(frame))
        if caller is None:
            return
        before = str(file_of(caller))
        for x in arguments(frame):
            if holds_rows(x):
                self.now.add((before, file))
            if written_in_place(x):
                self.now.add((file, before))

    def _end(self) -> None:
        self.thread.on = False
        self.found = set(self.now)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, if they are quintet's, the newest first."""
    while frame is not None:
        if file_of(frame) is not None:
            yield frame
        frame = frame.f_back


def between(handovers: set[Place], source: str, target: str) -> set[str]:
    """The files on all ways from `source` to `target`."""
    plain = {pair for pair in handovers if not any(map(is_aside, pair))}

    def reached(begin: str, pairs: set[Place]) -> set[str]:
        seen, newest = {begin}, {begin}
        while newest:
            newest = {b for a, b in pairs if a in newest} - seen
            seen |= newest
        return seen

    return reached(source, plain) & reached(target, {(b, a) for a, b in plain})


def make_traced(env_id: str, parent: int, out: Path) -> gymnasium.Env[Any, Any]:
    """The environment; in a worker process the rows of its unrolls are traced to `out`."""
    if os.getpid() != parent and sys.getprofile() is None:
        tracer = Tracer({STEP}, set(), {(WORKER, "fill")}, clears=True)

        def trace(frame: FrameType, event: str, result: Any) -> None:
            tracer(frame, event, result)
            if tracer.found:
                out.write_text(json.dumps(sorted(tracer.found)))
                tracer.found = set()

        sys.setprofile(trace)
    return gymnasium.make(env_id)


def files_of(algo: str, folder: Path) -> list[str]:
    """The files through which the rows of a run pass, in alphabetical order."""
    env_id, env_steps, config = RUNS[algo]
    loss, out = f"algorithms/{algo}/learner.py", folder / "worker.json"
    begins = {(ASYNC, "collect"), (ASYNC, "_assemble")} if algo == "appo" else {STEP}
    tracer = Tracer(begins, {(loss, "_loss"), (loss, "loss")}, set(), clears=algo != "appo")
    env: Any = partial(make_traced, env_id, os.getpid(), out) if algo == "appo" else env_id
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        quintet.train(algo, env, env_steps, seed=1, run_dir=folder / "run", config=OF_ALL | config)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if algo != "appo":
        return sorted(between(tracer.found, ENV, loss))
    in_worker = {(a, b) for a, b in json.loads(out.read_text())}
    return sorted(between(in_worker, ENV, WORKER) | between(tracer.found, PARENT, loss))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("algos", nargs="*", metavar="|".join(RUNS), help="all by default")
    algos = parser.parse_args().algos
    if not set(algos) <= RUNS.keys():
        parser.error(f"learners must be some of {', '.join(RUNS)}, got {' '.join(algos)}")
    for algo in algos or RUNS:
        with TemporaryDirectory() as folder:
            files = files_of(algo, Path(folder))
        print(f"{algo}: {len(files)} files: {', '.join(files)}")


if __name__ == "__main__":
    main()
