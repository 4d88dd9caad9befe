"""Progress where there is no terminal: plain lines in a pipe, silence when nobody listens."""

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from facts_helpers import FACTS

from quintet.observe import progress
from quintet.observe.pace import Pace, Score
from quintet.observe.progress import LineProgress, make_progress
from quintet.observe.view import View


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(View("title", Pace(10, 0)), Terminal()), LineProgress)


def test_pipe_gets_a_line_every_ten_seconds_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(1000, 100)), stream)
    for second in range(1, 26):
        now = float(second)
        report = {"env_steps": 100 + 10 * second}
        if second == 3:
            report["eval/return_mean"] = 7.0
        shown.update(report, Score(float(second)))
    shown.say("a message")
    shown.close()
    shown.close()
    assert stream.getvalue().splitlines() == [
        "title",
        " 11%  110/1,000 env steps  10 steps/s  1:29 left  return 1.0",
        " 21%  210/1,000 env steps  10 steps/s  1:19 left  return 11.0  evaluation 7.0",
        " 31%  310/1,000 env steps  10 steps/s  1:09 left  return 21.0  evaluation 7.0",
        "a message",
        " 35%  350/1,000 env steps  10 steps/s  1:05 left  return 25.0  evaluation 7.0",
    ]


def test_success_rates_are_shown_where_there_are_any() -> None:
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(1000, 0)), stream)
    shown.update({"env_steps": 10}, Score(0.5, 0.075))
    shown.update(
        {"env_steps": 20, "eval/return_mean": 0.7, "eval/success_rate": 1.0}, Score(0.5, 0.62)
    )
    shown.close()
    first, last = stream.getvalue().splitlines()[1:]
    assert first.endswith("  return 0.5 (7.5% won)")
    assert last.endswith("  return 0.5 (62% won)  evaluation 0.7 (100% won)")


def test_pipe_hears_once_what_limits_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    def lines(last: str, others: float = 0.0) -> list[str]:
        nonlocal now
        stream = io.StringIO()
        now = 0.0
        shown = make_progress(View("title", Pace(1000, 0), folder="runs/a", facts=FACTS), stream)
        for second in range(1, 90):
            now = float(second)
            phase = "learning" if second < 40 else last
            shares = {f"time/{phase}_frac": 0.9, "time/acting_frac": 0.1}
            taken = others if second >= 40 else 0.0
            cores = {"machine/cores_used_by_others": taken, "machine/cores_waited_for": taken}
            shown.update({"env_steps": second, "wall_s": now, **shares, **cores})
            shown.stage("evaluating")
        shown.close()
        shown.close()
        assert stream.getvalue().startswith("title -> runs/a\n")
        assert "evaluating" not in stream.getvalue()
        return [line for line in stream.getvalue().splitlines() if "the speed" in line]

    once = lines("learning")
    assert len(once) == 1
    assert once[0].startswith("The update limits the speed: 90%")
    assert len(lines("waiting")) == 2, "said again when it has changed"
    crowded = lines("learning", others=FACTS.cores)
    assert len(crowded) == 2
    assert crowded[1].startswith("Other processes limit the speed")


def test_pipe_hears_at_once_that_others_take_the_cores() -> None:
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(1000, 0), facts=FACTS), stream)
    shares = {"time/learning_frac": 1.0, "machine/cores_used_by_others": FACTS.cores}
    shares |= {"machine/cores_waited_for": 1.0}
    shown.update({"env_steps": 1, "wall_s": 1.0, **shares})
    assert "Other processes limit the speed" in stream.getvalue()


def test_pipe_hears_ever_more_rarely_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(1000, 0)), stream)
    shown.update({"env_steps": 1})
    shown.update({"env_steps": 2})
    for second in range(10, 3000, 10):
        now = float(second)
        shown.waiting(f"waiting for {second} s")
    lines = stream.getvalue().splitlines()
    assert lines[2].startswith("  0%  2/1,000 env steps"), "all that is known stands before it"
    said = [int(line.split()[2]) for line in lines[3:]]
    assert said == [10, 20, 40, 80, 160, 320, 640, 1240, 1840, 2440]


def test_what_limits_the_speed_is_said_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    facts = replace(FACTS, kind="async", num_workers=2)
    shown = make_progress(View("title", Pace(1000, 0), facts=facts), stream)
    for second in range(1, 200):
        now = float(second)
        phase = "stepping" if second < 60 else "acting"
        shares = {"time/waiting_frac": 0.9, "time/learning_frac": 0.1}
        shares |= {f"worker/{k}/{phase}_frac": 1.0 for k in range(2)}
        shown.update({"env_steps": second, "wall_s": now, **shares})
    shown.close()
    told = [line for line in stream.getvalue().splitlines() if "the speed" in line]
    assert [line.split(" limit")[0] for line in told] == ["Environments", "Choosing actions"]


def test_speed_is_that_of_the_last_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = 0.0, 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(10**6, 0)), stream)
    for second in range(1, 200):
        now = float(second)
        steps += 10 if second < 100 else 1000
        shown.update({"env_steps": steps})
    shown.close()
    assert "1,000 steps/s" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize("compiles", [False, True])
def test_compiling_is_said_and_is_no_part_of_the_speed(
    compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    facts, stream = replace(FACTS, compiles=compiles), io.StringIO()
    shown = make_progress(View("title", Pace(1000, 0), facts=facts), stream)
    shown.stage(progress.stage_of("acting", facts) or "")
    shown.stage(progress.stage_of("learning", facts) or "")
    now = 10.0
    shown.update({"env_steps": 20})
    now = 20.0
    shown.update({"env_steps": 520})
    shown.close()
    said = stream.getvalue().splitlines()[1:]
    assert said[:-2] == compiles * [
        "compiling acts (up to a minute), then collecting",
        "first update, which compiles it: up to a minute",
    ]
    speed = "" if compiles else "  2 steps/s  8:10 left"
    assert said[-2] == f"  2%  20/1,000 env steps{speed}"
    assert said[-1].endswith("50 steps/s  0:10 left" if compiles else "26 steps/s  0:18 left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (65.4, "1:05"), (3600, "1:00:00"), (86_400, "24:00:00"), (259_300, "3 days")],
)
def test_clock(seconds: float, text: str) -> None:
    assert progress.clock(seconds) == text


TRAINING = """
import sys, time
from pathlib import Path
from quintet.observe.pace import Pace, Score
from quintet.observe.progress import make_progress
from quintet.observe.view import View
shown = make_progress(View("title", Pace(100, 0)))
time.sleep(0.3)
for step in range(100):
    shown.say(f"message {step}")
    shown.update({"env_steps": step + 1}, Score(1.0))
shown.close()
print("print works on too")
Path(sys.argv[1]).write_text("trained to the end")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    proof = tmp_path / "proof"
    command = [sys.executable, "-c", TRAINING, str(proof)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "title\n"
        process.stdout.close()
        complaints = process.stderr.read()
        assert process.wait(timeout=20) == 0
    assert proof.read_text() == "trained to the end"
    assert complaints == ""


def test_closed_terminal_does_not_stop_training() -> None:
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        shown = make_progress(View("title", Pace(100, 0)), stream)
        shown.update({"env_steps": 1})
        os.close(mine)
        shown.update({"env_steps": 2})
        shown.say("nobody listens")
        shown.close()


def test_closed_stream_and_narrow_encoding_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        shown = make_progress(View("Übung", Pace(10, 0)), stream)
        shown.say("→")
        shown.update({"env_steps": 1})
        shown.close()
    assert path.read_text().startswith("\\xdcbung\n\\u2192\n")
    shown.say("after the end")
    shown.update({"env_steps": 2})
    shown.close()
