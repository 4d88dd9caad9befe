"""The engine of many runs: what their ends mean, and when it goes on."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from quintet.checkpoints.lock import run_lock
from quintet.errors import CheckpointError, QuintetError
from quintet.jobs import group
from quintet.jobs.job import Job, Outcome
from quintet.search.engine import Engine, Stopped, fault_of, is_blameless, was_killed

JOBS = [Job(name, "module", b"") for name in ("0001", "0002")]
DONE = Outcome(0, {"status": "finished"})
FULL = Outcome(1, {"error": "no room", "blameless": True})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with run_lock(tmp_path / "a") as held:
        yield Engine(held, 2, print, print)


def ends(monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome, stops: bool = False) -> None:
    def run_all(*_: Any, stop: Any) -> list[Outcome]:
        stop.made = stops
        return list(outcomes)

    monkeypatch.setattr(group, "run_all", run_all)


@pytest.mark.parametrize(
    ("how", "fault", "killed"),
    [
        (DONE, "", False),
        (Outcome(130, {"status": "stopped"}), "", False),
        (Outcome(None, None), "", False),  # not started, since the user had stopped the others
        (Outcome(-15, None), "", False),
        (Outcome(2, {"error": "gamma is wrong"}), "gamma is wrong", False),
        (Outcome(3, None), "its process ended with status 3", True),
        (Outcome(-9, None), "its process was ended by SIGKILL", True),
        (Outcome(0, {}), "its process ended with status 0", False),
    ],
)
def test_why_a_trial_failed(how: Outcome, fault: str, killed: bool) -> None:
    assert fault_of(how).startswith(fault)
    assert bool(fault_of(how)) == bool(fault)
    assert was_killed(how) == killed
    assert not is_blameless(how)


@pytest.mark.parametrize(
    ("outcomes", "stops", "error"),
    [
        ((DONE, DONE), False, None),
        ((DONE, Outcome(1, {"error": "why"})), False, None),
        ((DONE, Outcome(130, None)), False, Stopped),
        ((DONE, DONE), True, Stopped),  # though all had ended by then
        ((DONE, FULL), False, QuintetError),
        ((FULL, DONE), True, QuintetError),
    ],
)
def test_ends_are_taken_before_the_engine_refuses_to_go_on(
    outcomes: tuple[Outcome, ...],
    stops: bool,
    error: type[Exception] | None,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends(monkeypatch, *outcomes, stops=stops)
    taken: list[Outcome] = []
    what = r"\[000[12]\] no room" if error is QuintetError else None
    with pytest.raises(error, match=what) if error else nullcontext(), engine.run(JOBS) as ended:
        taken += ended
    assert taken == [*outcomes]


@pytest.mark.parametrize("during", [False, True])
def test_nothing_runs_or_is_taken_where_the_folder_is_gone(
    during: bool, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_all(jobs: Any, *_: Any, **__: Any) -> list[Outcome]:
        ran.extend(each.name for each in jobs)
        if during:
            (tmp_path / "a").rename(tmp_path / "b")
        return [DONE, DONE]

    monkeypatch.setattr(group, "run_all", run_all)
    if not during:
        (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(CheckpointError, match="was moved or removed"), engine.run(JOBS):
        pytest.fail("the ends were taken")
    assert ran == (["0001", "0002"] if during else [])
