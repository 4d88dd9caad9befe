"""The dashboard: what it shows in which terminal, and that it never stands in training's way."""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from facts_helpers import FACTS
from rich.console import Console
from rich.segment import SegmentLines

from quintet.observe import dashboard, progress
from quintet.observe.dashboard import TerminalProgress, layout
from quintet.observe.metrics import METRICS
from quintet.observe.pace import Pace, Score
from quintet.observe.progress import Progress, make_progress
from quintet.observe.view import View

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
REPORT = {
    "wall_s": 83.0,
    "iterations": 24.0,
    "time/stepping_frac": 0.71,
    "time/acting_frac": 0.2,
    "time/learning_frac": 0.09,
    "loss/policy": -0.0123,
    "loss/kl": 0.0,
    "loss/policy_last_epoch": 99.0,
    "policy/entropy": 0.62,
    "policy/approx_kl": 0.09,
    "value/explained_variance": 0.93,
    "optim/learning_rate": 3e-4,
    "normalizer/reward_std": 12.5,
}


def a_view(reports: int = 3) -> View:
    view = View("ppo on CartPole-v1", Pace(100_000, 0), "runs/a", FACTS)
    for number in range(1, reports + 1):
        steps = {"env_steps": 15_000.0 * number, "wall_s": 28.0 * number}
        view.add(REPORT | steps, Score(100.0 * number))
    return view


def lines_of(view: View, width: int = 100, height: int = 40) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(layout(view, console, height))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_everything_is_there() -> None:
    view = a_view()
    view.add({"eval/return_mean": 500.0}, Score(300.0))
    view.add({"eval/return_mean": 431.5}, Score(300.0))
    text = "\n".join(lines_of(view))
    for part in (
        "ppo on CartPole-v1",
        "runs/a",
        " 45%",
        "1:24 elapsed",
        "45,000 of 100,000",
        "per second",
        "300.0 training, last 100 episodes",
        "431.5 evaluation  500.0 best",
        "█ stepping 71%",
        "Environments limit the speed: 71% of the time goes into stepping CartPole-v1 (gymnasium).",
        "policy -0.0123",
        "entropy 0.62",
        "explained_variance 0.93",
        "learning_rate 0.0003",
        "reward_std 12.5",
    ):
        assert part in text
    assert "last_epoch" not in text
    assert not re.search(r"\bkl 0(?!\.)", text), "a term that is switched off is left out"
    assert sum("\u2800" <= letter <= "\u28ff" for letter in text) > 200, "there is a curve"


def test_doubts_are_shown_as_soon_as_they_are_said() -> None:
    """The run adds to the lists that it gave; what others named commands no terminal."""
    choices, marks = ["the first"], list[str]()
    view = replace(a_view(), choices=choices, marks=marks)
    choices.append("one of \x1b[2Jothers")
    marks.append("entropy is gone")
    text = "\n".join(lines_of(view))
    for said in ("choice: the first", "choice: one of", "doctor: entropy is gone"):
        assert said in text
    assert "\x1b" not in text


def test_success_rates_have_a_line_where_there_are_any() -> None:
    view = a_view()
    assert not any(line.startswith("success") for line in lines_of(view))
    view.add({}, Score(0.5, 0.62))
    assert "success    62% training, last 100 episodes" in lines_of(view)
    view.add({"eval/return_mean": 0.9, "eval/success_rate": 0.95}, Score(0.5, 0.62))
    view.add({}, Score(0.5, 0.625))
    assert "success    62.5% training, last 100 episodes  95% evaluation" in lines_of(view)


def test_names_are_shown_letter_by_letter() -> None:
    """Whatever rich would take for its markup, or for a picture."""
    facts = replace(FACTS, env="my.envs[/b]:smile:make")
    view = View("ppo on [red]X[/]", Pace(100_000, 0), "runs/[/a]:smile:", facts)
    view.add(REPORT | {"env_steps": 10.0}, Score())
    view.stage = "[/x]"
    text = "\n".join(lines_of(view, 120))
    for part in ("ppo on [red]X[/]", "runs/[/a]:smile:", "my.envs[/b]:smile:make", "[/x]"):
        assert part in text


def test_any_learners_numbers_are_shown() -> None:
    view = View("title", Pace(100, 0), "folder", None)
    names = [name for name in METRICS if name.split("/")[0] in dashboard._LINES]
    for name in names:
        view.report = {name: 1.5}
        shown = "\n".join(lines_of(view))
        assert (f"{name.split('/')[1]} 1.5" in shown) != name.endswith("_last_epoch"), name
    view.report = dict.fromkeys(METRICS, 1.5)
    assert len(lines_of(view)) <= 40


def test_a_space_stands_between_the_name_of_a_line_and_its_numbers() -> None:
    view = View("title", Pace(100, 0), "folder", None)
    view.report = {f"{name}/other": 1.5 for name in dashboard._LINES}
    shown = lines_of(view)
    for name in dashboard._LINES:
        assert any(re.match(rf"{name} +other 1\.5$", line) for line in shown), name


@pytest.mark.parametrize(
    ("before", "scores", "best"),
    [
        (None, (-3.0, -1.0, -2.0), -1.0),
        (None, (0.0, -5.0), 0.0),
        (None, (-5.0, 0.0, -1.0), 0.0),
        (0.0, (-5.0,), 0.0),
        (7.0, (3.0,), 7.0),
        (7.0, (9.0, 8.0), 9.0),
    ],
)
def test_best_is_the_highest_evaluation(
    before: float | None, scores: tuple[float, ...], best: float
) -> None:
    view = View("title", Pace(100, 0), "folder", None, best=before)
    for score in scores:
        view.add({"eval/return_mean": score}, Score())
    assert view.best == best
    assert f"{scores[-1]:g} evaluation  {best:g} best" in "\n".join(lines_of(view))


def test_a_resumed_run_brings_its_best() -> None:
    text = ESCAPES.sub("", in_terminal((24, 100), lambda _: None, done=40_000, best=321.5))
    assert "40,000 of 100,000" in text
    assert "321.5 best" in text


def require_fits(view: View) -> None:
    for width in (1, 10, 20, 33, 49, 50, 60, 61, 69, 70, 80, 120, 200):
        for height in (1, 2, 3, 5, 8, 12, 23, 60):
            shown = lines_of(view, width, height)
            assert len(shown) <= height
            assert max(map(len, shown), default=0) <= width


@pytest.mark.parametrize("reports", [0, 1, 3])
def test_fits_every_terminal(reports: int) -> None:
    view = a_view(reports)
    require_fits(view)
    view.stage = "compiling acts (up to a minute), then collecting"
    require_fits(view)


def test_what_matters_most_stays_longest() -> None:
    tall, low, lowest = (" ".join(lines_of(a_view(), 80, height)) for height in (40, 10, 6))
    for part in ("45%", "Environments limit the speed"):
        assert part in tall
        assert part in low
        assert part in lowest
    assert "stepping 71%" in low
    assert "learning_rate" in tall
    assert "learning_rate" not in low


def test_options_are_not_broken() -> None:
    for width in range(60, 120):
        assert "--env.backend" in " ".join(lines_of(a_view(), width))


def test_items_are_whole_or_left_out() -> None:
    for width in range(60, 120):
        row = next(line for line in lines_of(a_view(), width) if line.startswith("policy "))
        assert re.fullmatch(r"policy {5}(\w+ [-\d.e]+ ?)( ?\w+ [-\d.e]+ ?)*", row), row


def test_shares_sum_to_the_whole_bar() -> None:
    for width in range(60, 90):
        bar = next(line for line in lines_of(a_view(), width) if "████" in line)
        assert len(bar) == width
        assert len(set(bar.strip())) == 3


def test_stage_stands_until_the_next_report() -> None:
    view = a_view()
    view.stage = "evaluating"
    assert "evaluating" in " ".join(lines_of(view))
    view.add({"env_steps": 50_000.0}, Score())
    assert "evaluating" not in " ".join(lines_of(view))


def test_each_policy_of_a_population_has_a_line() -> None:
    view = a_view()
    report = {"env_steps": 60_000.0}
    for k in range(2):
        own = {"env_steps": 3e4, "hyperparameter/learning_rate": 1e-3 * (k + 1)}
        own |= {"population/objective": 100.0 + k, "population/copies": float(k)}
        report |= {f"policy_{k}/{name}": x for name, x in own.items()}
    view.add(report | {"policy_1/episode/return_mean": 90.0}, Score())
    shown = lines_of(view)
    assert "policy 0   objective 100.0  learning_rate 0.001" in shown
    assert "policy 1   objective 101.0  return 90.0  copied 1x  learning_rate 0.002" in shown
    del report["policy_1/population/objective"]  # it became a copy
    view.add(report, Score())
    assert any(line.startswith("policy 1   not ranked  return 90.0") for line in lines_of(view))
    assert not any(line.startswith("policy") and line[7:8].isdigit() for line in lines_of(a_view()))


def a_view_of_workers(number: int, server: bool = False, **changes: float) -> View:
    """Worker k steps for 40 + k percent of its time."""
    facts = replace(FACTS, kind="async", num_workers=number, num_groups=number)
    view = View("impala on CartPole-v1", Pace(100_000, 0), "runs/a", facts)
    report = {name: value for name, value in REPORT.items() if not name.startswith("time/")}
    report |= {"time/waiting_frac": 0.62, "time/learning_frac": 0.38, "data/valid_frac": 0.75}
    for k in range(number):
        report |= {f"worker/{k}/stepping_frac": 0.4 + k / 100, f"worker/{k}/acting_frac": 0.3}
        report |= {f"worker/{k}/waiting_frac": 0.3 - k / 100}
    if server:
        report |= {"server/acting_frac": 0.25, "server/waiting_frac": 0.75}
    report |= {"policy_lag/min": 9.0, "policy_lag/mean": 1.8, "policy_lag/max": 4.0}
    report |= {"data/discarded_columns": 1300.0, "data/discarded_env_steps": 77.0}
    report |= {"data/waiting_batches": 1.0, "data/worker_restarts": 0.0}
    for k in (1, 2):
        view.add(
            report | changes | {"env_steps": 15_000.0 * k, "wall_s": 28.0 * k}, Score(100.0 * k)
        )
    return view


def test_each_process_has_a_line() -> None:
    lines = lines_of(a_view_of_workers(2, server=True))
    begin = next(k for k, line in enumerate(lines) if line.startswith("learner"))
    #           11 columns of names, a quarter of the rest for bars
    assert lines[begin : begin + 3] == [
        "learner    " + "▒" * 8 + "░" * 14 + " ░ waiting 62%  ▒ learning 38%",
        "worker 0   "
        + "█" * 9
        + "▓" * 6
        + "░" * 7
        + " █ stepping 40%  ▓ acting 30%  ░ waiting 30%",
        "worker 1   "
        + "█" * 9
        + "▓" * 7
        + "░" * 6
        + " █ stepping 41%  ▓ acting 30%  ░ waiting 29%",
    ]
    server = lines[begin + 3]
    assert server.startswith("server     ")
    assert server.endswith("░ waiting 75%  ▓ acting 25%")
    assert lines[begin + 4].startswith(
        "limit      Environments limit the speed: the update waits 62%"
    )


def test_many_workers_are_told_together() -> None:
    four, five = (lines_of(a_view_of_workers(number)) for number in (4, 5))
    assert sum("worker " in line for line in four) == 4
    assert not any("worker 0" in line for line in five)
    begin = next(k for k, line in enumerate(five) if "5 workers" in line)
    assert five[begin].endswith("█ stepping 42%  ▓ acting 30%  ░ waiting 28%")
    assert five[begin + 1].strip() == "stepping 40 to 44%  acting 30 to 30%  waiting 26 to 30%"
    assert five[begin + 2].startswith("limit")


def test_how_old_and_how_many_batches_are() -> None:
    view = a_view_of_workers(2, **{"data/worker_restarts": 1.0})
    lines = lines_of(view)
    assert "policy_lag mean 1.8  max 4  min 9" in lines
    assert any(
        line.startswith("data       discarded_columns 1,300  waiting_batches 1  worker_restarts 1")
        for line in lines
    )


def test_one_process_is_shown_as_ever() -> None:
    view = a_view()
    view.report |= {"policy_lag/max": 2.0, "data/discarded_columns": 3.0}
    shown = lines_of(view)
    assert "policy_lag max 2" in shown
    assert "data       discarded_columns 3" in shown
    bar = shown[next(k for k, line in enumerate(shown) if line.startswith("time")) + 1]
    assert bar == " " * 11 + "█" * 63 + "▓" * 18 + "▒" * 8


@pytest.mark.parametrize("number", [1, 4, 5, 64])
def test_processes_fit_every_terminal(number: int) -> None:
    view = a_view_of_workers(number, server=True)
    require_fits(view)
    low = " ".join(lines_of(view, 80, 10))
    assert "Environments limit the speed" in low
    assert "learner" in low


def test_what_is_waited_for_is_shown_whole() -> None:
    view = a_view_of_workers(2)
    view.stage = "waiting for 20 s: worker 1 is at row 3 of 80, the slowest of 12"
    for width in (74, 80, 100):
        assert view.stage in " ".join(lines_of(view, width))
    assert "30,000 of 100,000" in " ".join(lines_of(view, 100))


def in_terminal(
    size: tuple[int, int],
    action: Callable[[Progress], None],
    encoding: str = "utf-8",
    done: int = 0,
    best: float | None = None,
) -> str:
    """What a terminal of (rows, columns) receives while `action` uses the progress."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
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
    with os.fdopen(theirs, "w", encoding=encoding) as stream:
        pace = Pace(100_000, done)
        shown = make_progress(View("ppo on CartPole-v1", pace, "runs/a", FACTS, best), stream)
        assert isinstance(shown, TerminalProgress) == (encoding == "utf-8")
        action(shown)
        shown.close()
        shown.close()
    listener.join(timeout=10)
    os.close(mine)
    return b"".join(received).decode()


def three_reports(shown: Progress) -> None:
    shown.stage("collecting the first 2,048")
    shown.waiting("waiting for 10 s: worker 1 is starting")
    shown.update(REPORT | {"env_steps": 20_000}, Score())
    shown.say("a [bold]message[/bold]")
    shown.update({"env_steps": 50_000, "eval/return_mean": 321.5}, Score(123.25))
    shown.update({"env_steps": 99_999}, Score(234.5))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_terminal_shows_the_first_and_the_last_state() -> None:
    raw = in_terminal((24, 100), three_reports)
    text = ESCAPES.sub("", raw)
    assert "collecting the first 2,048" in text
    assert "waiting for 10 s: worker 1 is starting" in text
    assert "a [bold]message[/bold]" in text
    assert "100%" not in text, "100% means done"
    last = text[text.rindex("ppo on CartPole-v1") :]
    assert "99%" in last
    assert "99,999 of 100,000" in last
    assert "234.5 training" in last
    assert "321.5 evaluation" in last, "the last evaluation stays"
    assert "Environments limit the speed" in last
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 1, "the cursor is given back"


def test_colours_are_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    assert coloured.search(in_terminal((24, 80), three_reports))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(in_terminal((24, 80), three_reports))


def test_terminal_without_utf8_gets_plain_lines() -> None:
    for encoding in ("ascii", "latin-1"):
        raw = in_terminal((24, 80), three_reports, encoding)
        assert raw.isascii()
        assert not ESCAPES.search(raw)
        assert "20,000/100,000 env steps" in raw


def test_narrowed_terminal_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(dashboard, "_MOST_OF_TIME", 1e9)

    def narrowed(shown: Progress) -> None:
        for columns in ("100", "60", "90"):
            monkeypatch.setenv("COLUMNS", columns)
            shown.update(REPORT | {"env_steps": 20_000}, Score())

    raw = in_terminal((24, 100), narrowed)
    assert raw.count("\x1b[2J") == 1, "cleared once, when it became narrower"
    after = ESCAPES.sub("", raw.split("\x1b[2J")[1])
    frames = after.split("ppo on CartPole-v1")
    assert max(len(line) for line in re.split(r"[\r\n]+", frames[1])) <= 60
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h")


def test_drawing_takes_little_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report of a fast run counts, but not every one is drawn."""
    now, drawn = 0.0, 0
    monkeypatch.setattr(dashboard.time, "monotonic", lambda: now)

    def slow(*_: object) -> SegmentLines:
        nonlocal now, drawn
        drawn += 1
        now += 0.01
        return SegmentLines([])

    monkeypatch.setattr(dashboard, "layout", slow)
    shown = TerminalProgress(View("title", Pace(10_000, 0), "", None), io.StringIO())
    for step in range(10_000):
        now += 0.001
        shown.update({"env_steps": step + 1}, Score(1.0))
    before = drawn
    assert 0.01 * before <= 0.021 * now
    shown.close()
    assert drawn == before + 1, "the last state is always drawn"
    assert shown._view.pace.done == 10_000


def test_a_drawing_is_quick() -> None:
    view, console = a_view(200), Console(width=200, file=io.StringIO())
    begin = time.process_time()
    for _ in range(20):
        layout(view, console, 60)
    assert (time.process_time() - begin) / 20 < 0.05


def test_prints_go_above_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    shown = make_progress(View("title", Pace(10, 0)))
    print("from an environment")
    shown.update({"env_steps": 5})
    shown.close()
    assert sys.stdout is stream, "standard output is given back"
    lines = ESCAPES.sub("", stream.getvalue()).splitlines()
    assert "from an environment" in lines
    assert lines.index("from an environment") < len(lines) - 3


def test_closed_terminal_does_not_stop_training() -> None:
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        shown = make_progress(View("title", Pace(100, 0)), stream)
        assert not isinstance(shown, progress.LineProgress)
        shown.update({"env_steps": 1})
        os.close(mine)
        shown.update({"env_steps": 2})
        shown.stage("evaluating")
        shown.say("nobody listens")
        shown.close()


def a_cluster(waits: list[float], first: int = 0) -> dict[str, float]:
    node = {"workers": 4.0, "env_steps_per_s": 1_234.0, "weights_age_s": 0.25}
    node |= {"in_bytes_per_s": 2.5e6, "out_bytes_per_s": 4e5}
    own = {
        f"node/{k}/{name}": x
        for k, wait in enumerate(waits, first)
        for name, x in {**node, "waiting_frac": wait}.items()
    }
    return {"data/nodes": float(len(waits)), **own}


def test_each_node_of_a_cluster_has_a_line_and_one_that_is_lost_has_none() -> None:
    view = a_view()
    view.add(a_cluster([0.5, 0.05]), Score(300.0))
    lines = lines_of(view)
    (line,) = [line for line in lines if line.startswith("node 1 ")]
    for part in ("4 workers", "1,234 steps/s", "2.5 MB/s in", "0.4 MB/s out", "waits 5%"):
        assert part in line
    assert "weights 0.25 s old" in line
    told = "node 1 is waited for: its workers wait 5% of their time, others up to 50%"
    assert any(told in line for line in lines)
    view.add(a_cluster([0.5], first=1), Score(300.0))
    assert sum(line.startswith("node ") for line in lines_of(view)) == 1
    assert not any("is waited for" in line for line in lines_of(view))


def test_many_nodes_of_a_cluster_have_one_line() -> None:
    view = a_view()
    view.add(a_cluster([0.1] * 5 + [0.7]), Score(300.0))
    lines = lines_of(view)
    (line,) = [line for line in lines if line.startswith("6 nodes")]
    for part in ("24 workers", "7,404 steps/s", "15 MB/s in", "2.4 MB/s out", "waits 20%"):
        assert part in line
    assert not any(line.startswith("node 0") for line in lines)
    assert any("node 0 is waited for" in line for line in lines)
