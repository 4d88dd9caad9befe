"""Python commands in forks of a process that has imported PyTorch and a run, which takes a new
interpreter two seconds of a core.  For tests of what happens in the middle of a command; those of
its begin have interpreters.
"""

import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from quintet.algorithms import registry
from quintet.jobs import child_process
from quintet.runtime.processes import process

PRELOAD = (
    *process.PRELOAD,
    *(f"quintet.algorithms.{name}.learner" for name in registry.LEARNERS.own),
    "quintet.run.launch",
    "quintet.search.trial",
    "quintet.commands.cli",
    "pytest",
    *(["envpool"] if find_spec("envpool") else []),
    *(["quintet.search.pruning"] if find_spec("optuna") else []),
)
"""Modules that forks need, of all tests, which so have one server: without it each fork would take
more than a second of a core for PyTorch, EnvPool, and what the test that made it imports.
"""


def forks(preload: Sequence[str]) -> Any:
    """`Child` of jobs that name no modules to import, with these."""

    def made(*given: Any, **others: Any) -> child_process.Child:
        return child_process.Child(*given, preload=others.get("preload") or preload)

    return made


class Quick:
    """Used as a `subprocess.Popen` of ``python WORDS``, with pipes, in a process group of its own.

    Standard error is a part of standard output.
    """

    def __init__(self, words: Sequence[object], env: Mapping[str, str] | None = None) -> None:
        """words: ``-m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``."""
        asked = json.dumps([str(word) for word in words])
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", **process.ENVIRON, **(env or {})}
        # Another PYTHONPATH would have another server.
        path = environ.pop("PYTHONPATH", "")
        self._fork = child_process.Forked(PRELOAD, ["quick", __name__, asked, path], (), environ)
        self.stdin, self.stdout = self._fork.stdin, io.TextIOWrapper(self._fork.stdout)
        self.wait, self.poll, self.terminate = (
            self._fork.wait, self._fork.poll, self._fork.terminate,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._fork.pid

    @property
    def returncode(self) -> int | None:
        return self._fork.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        said = self.stdout.read()
        self.wait(timeout)
        return said, None

    def __enter__(self) -> "Quick":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stdin.close()
        self.wait()


def begin(words: Sequence[object], env: Mapping[str, str] | None = None) -> Any:
    """The command as a `Quick`, or as a process of its own where there is no fork server."""
    if child_process.AVAILABLE:
        return Quick(words, env)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def main() -> int:
    """What Python does with its arguments, in the fork."""
    words, path = json.loads(sys.argv[1]), sys.argv[2]
    sys.path[:0] = filter(None, path.split(os.pathsep))
    if path:
        os.environ["PYTHONPATH"] = path
    match words:
        case "-m", name, *rest:
            sys.argv = [name, *rest]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case "-c", code, *rest:
            sys.argv = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case script, *rest:
            sys.argv = [script, *rest]
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")
    return 0
