"""Tests of this folder run on the stand-in for a GPU, each in another process than pytest's: one
that has the stand-in in its PyTorch, and serves the tests one after the other.

They take parameters and `tmp_path`, which are sent there, and no other fixtures.  `gpus(N)` marks a
test that has N GPUs.
"""

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import standin_helpers

MOST_S = 600.0
BUILT_WITH = (2, 13)  # older headers were not tried
# Where `cases` finds the learners, and `test_replay_draws` its streams.
sys.path += [str(standin_helpers.HERE.parent / name) for name in ("algorithms", "runtime/replay")]


def why_not() -> str | None:
    """Why there can be no stand-in here."""
    if sys.platform != "linux":
        return "the stand-in for a GPU is for Linux"
    if _built_for_cuda():
        return "the stand-in for a GPU goes into PyTorch's build for CPUs"
    installed = metadata.version("torch")
    if tuple(map(int, installed.split(".")[:2])) < BUILT_WITH:
        return f"the stand-in for a GPU is for PyTorch 2.13 and later, got {installed}"
    if standin_helpers.compiler() is None:
        return "the stand-in for a GPU must have a C++ compiler: install g++, or name yours in CXX"
    return None


def _built_for_cuda() -> bool:
    import torch

    return torch.version.cuda is not None


class Served:
    """A process with GPUs, which runs functions of test files."""

    def __init__(self, gpus: int) -> None:
        self._pipe, theirs = Pipe()
        self._said = TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(standin_helpers.HERE / "child" / "serve.py"),
                str(theirs.fileno()),
            ],
            env=standin_helpers.environment(gpus, {"OMP_NUM_THREADS": "1"}),
            pass_fds=[theirs.fileno()],
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        theirs.close()

    def run(self, file: Path, name: str, given: dict[str, Any]) -> None:
        """Runs a function of the file, and raises what it raises."""
        self._pipe.send((str(file), name, given))
        if not self._pipe.poll(MOST_S):
            self.end()
            pytest.fail(f"the test was not over after {MOST_S:.0f} s\n{self._words()}")
        try:
            kind, said = self._pipe.recv()
        except EOFError:
            self._process.wait()
            pytest.fail(f"the process with the GPU ended\n{self._words()}")
        if kind == "skipped":
            pytest.skip(said)
        if kind == "failed":
            pytest.fail(f"{said}\n{self._words()}", pytrace=False)

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read()[-8000:]

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def _served() -> Iterator[dict[int, Served]]:
    found: dict[int, Served] = {}
    yield found
    for each in found.values():
        each.end()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(n): the test has n GPUs")


@pytest.fixture(autouse=True)
def _elsewhere(request: pytest.FixtureRequest, _served: dict[int, Served]) -> None:
    """The test's function is replaced by one that has it run there."""
    fault = why_not()
    if fault is not None:
        pytest.skip(fault)
    item = request.node
    mark = item.get_closest_marker("gpus")
    gpus = int(mark.args[0]) if mark else 1

    def elsewhere(**given: Any) -> None:
        if gpus not in _served or not _served[gpus].lives:
            _served[gpus] = Served(gpus)
        _served[gpus].run(item.path, item.originalname, given)

    item.obj = elsewhere
