"""Long waits are told: how long, for whom, and how far it is."""

import re
import time
from pathlib import Path

import pytest
from troubles_helpers import SMALL, Drifting

import quintet
from quintet.envs import repeating
from quintet.observe.progress import LineProgress
from quintet.runtime.processes import process
from quintet.runtime.processes.process import MAKING, WaitNotice
from quintet.runtime.processes.workers import whereabouts


def test_a_wait_is_told_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(process.time, "monotonic", lambda: now)
    told: list[tuple[float, str]] = []
    waiting = WaitNotice(lambda text: told.append((now, text)), lambda: f"somebody at {now:g}")
    for _ in range(60):
        now += 0.5
        waiting.look()
    assert told == [
        (110.0, "waiting for 10 s: somebody at 110"),
        (120.0, "waiting for 20 s: somebody at 120"),
        (130.0, "waiting for 30 s: somebody at 130"),
    ]


def test_the_slowest_is_named() -> None:
    assert whereabouts({}, 80) == "no worker has anything to do"
    assert whereabouts({"worker 3": (7, "")}, 80) == "worker 3 is at row 7 of 80"
    rows = {"worker 0": (12, ""), "worker 1": (3, ""), "worker 2": (9, "")}
    assert whereabouts(rows, 80) == "worker 1 is at row 3 of 80, the slowest of 3"
    rows["worker 0"] = (MAKING, "making it")
    assert whereabouts(rows, 80) == "worker 0 is making it, the slowest of 3"


class Slow(Drifting):
    def __init__(self):
        time.sleep(0.5)
        super().__init__()

    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


@pytest.mark.parametrize(
    ("kind", "options", "starting"),
    [
        ("lockstep", {"num_workers": 2}, "starting 2 workers"),
        pytest.param("async", {"num_workers": 1}, "starting 1 worker", marks=pytest.mark.slow),
    ],
)
def test_a_run_says_what_it_waits_for(
    kind: str,
    options: dict[str, object],
    starting: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages: list[str] = []
    waits: list[str] = []
    monkeypatch.setattr(process, "_TOLD_EVERY_S", 0.1)
    monkeypatch.setattr(repeating, "unrepeatable", lambda *_: "")  # its steps are slow, too
    monkeypatch.setattr(LineProgress, "stage", lambda _, text: stages.append(text))
    monkeypatch.setattr(LineProgress, "waiting", lambda _, text: waits.append(text))
    runtime = {f"runtime.{name}": value for name, value in ({"kind": kind} | options).items()}
    quintet.train("ppo", Slow, 64, 7, tmp_path, SMALL | runtime)
    assert stages == [starting, "collecting the first 64", "first update"]
    assert re.fullmatch(r"waiting for \d+ s: worker 0 is (importing|making) .*", waits[0])
    row = r"waiting for \d+ s: worker [01] is at row 1?\d of 16(, the slowest of 2)?"
    # While the last rows of the budget are joined no worker has anything to do.
    at_work = [each for each in waits if "no worker has anything to do" not in each]
    assert re.fullmatch(row, at_work[-1])
