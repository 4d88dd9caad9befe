"""Counts the files of quintet that a minimal PPO run enters and loads.

    python benchmarks/entered_files.py [--by-function]

Runs `quintet train ppo --env CartPole-v1` for 4,096 steps, serial, eagerly, without evaluations, in
this process.  A file is entered if one of its functions is called while the run lasts, and loaded
if its module has been imported by the end; the bodies of modules and classes do not count as calls.
"""

import argparse
import inspect
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

HOME = str(Path(__file__).resolve().parent.parent / "quintet") + os.sep
WHERE_SLOW = {"findings/speed.py"}
"""Files that the run enters only where it seems slow, as on a busy machine; they do not count."""

COMMAND = (
    *("train", "ppo", "--env", "CartPole-v1", "--total-steps", "4096", "--seed", "1"),
    *("--env.backend", "gymnasium", "--env.num-processes", "1", "--runtime.compile", "off"),
    *("--eval.episodes", "0", "--report.progress", "false", "--report.interval-s", "600"),
)


def entered(arguments: list[str]) -> Counter[tuple[str, str]]:
    """How often a command calls each function of quintet, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        own = code.co_filename.startswith(HOME) and code.co_flags & inspect.CO_OPTIMIZED
        # Comprehensions of a module's body are no functions, and no frames from Python 3.12 on.
        if event == "call" and own and not code.co_qualname.startswith("<"):
            calls[code.co_filename.removeprefix(HOME), code.co_qualname] += 1

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        from quintet.commands.cli import main as command

        command(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def loaded() -> set[str]:
    """The files of quintet that have been imported, packages' empty ones left out."""
    files = {getattr(x, "__file__", None) or "" for x in list(sys.modules.values())}
    return {x.removeprefix(HOME) for x in files if x.startswith(HOME) and os.path.getsize(x) > 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--by-function", action="store_true", help="list what is called, and where")
    by_function = parser.parse_args().by_function
    with TemporaryDirectory() as folder:
        calls = entered([*COMMAND, "--run-dir", f"{folder}/run"])
    files, modules = {file for file, _ in calls}, loaded()
    counted = files - WHERE_SLOW
    for file in sorted(files | modules):
        names = sorted(f"{name} {n}" for (f, name), n in calls.items() if f == file)
        print(
            file if names else f"{file} (loaded only)", *(names if by_function else ()), sep="\n  "
        )
    print(f"{len(counted)} files entered, {len(modules)} loaded")


if __name__ == "__main__":
    main()
