"""Processes of a population that are killed: its lineage stays what it would have been (slow).

Learners of a population take turns in the run's own process, so a policy can't die alone.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes_helpers import processes_of
from test_population import TOTAL, events, same, train

pytestmark = pytest.mark.slow

WORKERS = {"runtime__lag": 0, "runtime__num_workers": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("population") / "whole"
    train(folder)
    return folder


class KillsAWorker:
    """Once, in the middle of a run."""

    def __init__(self) -> None:
        self.killed = 0

    def __call__(self, report: dict[str, float]) -> None:
        if not self.killed and report["env_steps"] > TOTAL / 2:
            worker = processes_of()[0]
            worker.kill()
            self.killed = worker.pid


def test_lockstep_goes_back_to_the_same_lineage(whole: Path, tmp_path: Path) -> None:
    kills = KillsAWorker()
    train(tmp_path / "run", runtime__kind="lockstep", on_report=kills, **WORKERS)
    assert kills.killed
    assert f"pid {kills.killed}" in (tmp_path / "run" / "log.txt").read_text()
    assert events(tmp_path / "run") == events(whole)
    assert same(tmp_path / "run", whole)


def test_async_replaces_the_worker_and_trains_every_policy(tmp_path: Path) -> None:
    kills, folder = KillsAWorker(), tmp_path / "run"
    result = train(
        folder, total=2 * TOTAL, on_report=kills, runtime__kind="async", runtime__num_workers=2
    )
    assert result.status == "finished"
    assert kills.killed
    assert result.metrics["data/worker_restarts"] == 1
    assert result.metrics["env_steps"] == 2 * TOTAL
    own = [result.metrics[f"policy_{policy}/env_steps"] for policy in range(3)]
    assert sum(own) == 2 * TOTAL
    assert min(own) > 0
    assert len(events(folder)) > 3


def until_killed(folder: str) -> None:
    """Trains in a process of its own, until it kills itself."""

    def report(metrics: dict[str, float]) -> None:
        if metrics["env_steps"] > TOTAL / 2:
            os.kill(os.getpid(), signal.SIGKILL)

    train(Path(folder), on_report=report)


def test_a_killed_run_goes_on_with_the_same_lineage(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = f"import test_population_faults as t; t.until_killed({str(folder)!r})"
    path = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, timeout=120
    )
    assert process.returncode == -signal.SIGKILL
    assert len(events(folder)) < len(events(whole))
    train(folder, resume="exact")
    assert events(folder) == events(whole)
    assert same(folder, whole)
