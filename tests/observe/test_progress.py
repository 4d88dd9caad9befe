"""Progress: a bar in a terminal, plain lines in a pipe, and silence when nobody listens."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quintet.observe import progress
from quintet.observe.progress import LineProgress, Progress, TerminalProgress, make_progress

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_terminal(width: int, action: Callable[[Progress], None]) -> str:
    """What a terminal of `width` columns receives while `action` uses the progress."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    received: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                data = os.read(mine, 4096)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            received.append(data)

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        shown = make_progress(100_000, "ppo on CartPole-v1", stream)
        assert isinstance(shown, TerminalProgress)
        action(shown)
        shown.close()
        shown.close()
    listener.join(timeout=10)
    os.close(mine)
    return b"".join(received).decode()


def three_reports(shown: Progress) -> None:
    shown.update({"env_steps": 20_000}, None)
    shown.say("a [bold]message[/bold]")
    shown.update({"env_steps": 50_000, "eval/return_mean": 321.5}, 123.25)
    shown.update({"env_steps": 99_999}, 234.5)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_terminal_shows_bar_figures_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    raw = in_terminal(100, three_reports)
    text = ESCAPES.sub("", raw)
    assert "ppo on CartPole-v1" in text
    assert "50,000/100,000 env steps" in text
    assert "steps/s" in text
    assert "left" in text
    assert "return 123.2" in text
    assert "evaluation 321.5" in text
    assert "a [bold]message[/bold]" in text
    assert "99%" in text
    assert "100%" not in text, "100% means done"
    last = text[text.rindex("99,999") :]
    assert "return 234.5" in last
    assert "evaluation 321.5" in last, "the last evaluation stays"
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 1, "the cursor is given back"


def test_colours_are_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    assert coloured.search(in_terminal(80, three_reports))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(in_terminal(80, three_reports))


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    def only_bars(shown: Progress) -> None:
        shown.update({"env_steps": 50_000, "eval/return_mean": 321.5}, 123.25)

    text = ESCAPES.sub("", in_terminal(width, only_bars))
    assert max(len(line) for line in re.split(r"[\r\n]+", text)) <= width


def test_prints_go_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    shown = make_progress(10, "title")
    print("from an environment")
    shown.update({"env_steps": 5})
    shown.close()
    assert sys.stdout is stream, "standard output is given back"
    lines = ESCAPES.sub("", stream.getvalue()).splitlines()
    assert "from an environment" in lines
    assert lines.index("from an environment") < len(lines) - 2


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(10, "title", Terminal()), LineProgress)


def test_pipe_gets_a_line_every_ten_seconds_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(1000, "title", stream, start_env_steps=100)
    for second in range(1, 26):
        now = float(second)
        report = {"env_steps": 100 + 10 * second}
        if second == 3:
            report["eval/return_mean"] = 7.0
        shown.update(report, float(second))
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


def test_speed_is_that_of_the_last_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = 0.0, 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(10**6, "title", stream)
    for second in range(1, 200):
        now = float(second)
        steps += 10 if second < 100 else 1000
        shown.update({"env_steps": steps})
    shown.close()
    assert "1,000 steps/s" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (65.4, "1:05"), (3600, "1:00:00"), (86_400, "24:00:00"), (259_300, "3 days")],
)
def test_clock(seconds: float, text: str) -> None:
    assert progress._clock(seconds) == text


TRAINING = """
import sys, time
from pathlib import Path
from quintet.observe.progress import make_progress
shown = make_progress(100, "title")
time.sleep(0.3)
for step in range(100):
    shown.say(f"message {step}")
    shown.update({"env_steps": step + 1}, 1.0)
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
        shown = make_progress(100, "title", stream)
        shown.update({"env_steps": 1})
        os.close(mine)
        shown.update({"env_steps": 2})
        shown.say("nobody listens")
        shown.close()


def test_closed_stream_and_narrow_encoding_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        shown = make_progress(10, "Übung", stream)
        shown.say("→")
        shown.update({"env_steps": 1})
        shown.close()
    assert path.read_text().startswith("\\xdcbung\n\\u2192\n")
    shown.say("after the end")
    shown.update({"env_steps": 2})
    shown.close()
