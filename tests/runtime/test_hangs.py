"""An environment that hangs in this process is named, and Ctrl-C ends the run."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import quick_helpers
from processes_helpers import runs

from quintet.commands import cli
from quintet.system import signals
from quintet.system.signals import StopRequest, stop_on_signals

HERE = Path(__file__).parent
WAIT_S = 60.0
STEP = r"step 10 of its episode, seed \d+"
PLACE = r"\(at .*hostile.py:\d+"
slow = pytest.mark.slow


class Run:
    """``quintet train`` on a hostile environment, and what it has printed so far."""

    def __init__(self, folder: Path, trouble: str, *options: str) -> None:
        command = ["-m", "quintet", "train", "ppo", "--env", "hostile:Hostile"]
        command += ["--env.kwargs", json.dumps({"trouble": trouble}), "--run-dir", str(folder)]
        command += ["--total-steps", "4096", "--eval.episodes", "0", "--runtime.compile", "off"]
        command += ["--runtime.worker-timeout-s", "1", *options]
        self.process = quick_helpers.begin(command, {"PYTHONPATH": str(HERE)})
        self.said = ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def wait_for(self, pattern: str) -> str:
        end = time.monotonic() + WAIT_S
        while not (found := re.search(pattern, self.said)):
            assert time.monotonic() < end, f"waited in vain for {pattern!r} in {self.said}"
            assert self.process.poll() is None or not self.reader.is_alive(), self.said
            time.sleep(0.02)
        return found[0]

    def ended(self, timeout_s: float) -> int:
        status = self.process.wait(timeout_s)
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextmanager
def running(folder: Path, trouble: str, *options: str) -> Iterator[Run]:
    run = Run(folder, trouble, *options)
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            run.process.kill()
        run.ended(WAIT_S)


@pytest.mark.parametrize(
    ("trouble", "where", "seconds"),
    [
        # Its main thread hears neither Ctrl-C.
        ("block", f"{STEP} {PLACE} in make_trouble\\)", 10.0),
        pytest.param("sleep", f"{STEP} {PLACE} in make_trouble\\)", 8.0, marks=slow),
        pytest.param("reset", f"reset, seed \\d+ {PLACE} in reset\\)", 8.0, marks=slow),
        # It hears the second Ctrl-C and goes on.
        pytest.param("swallow", STEP, 15.0, marks=slow),
    ],
)
def test_a_hang_is_told_and_ctrl_c_says_how_to_end_it(
    trouble: str, where: str, seconds: float, tmp_path: Path
) -> None:
    with running(tmp_path, trouble) as run:
        run.wait_for(
            rf"waiting for [12] s: hostile:Hostile \(gymnasium\), stream 0, {where}.* has not come"
        )
        run.process.send_signal(signal.SIGINT)
        run.wait_for(rf"stopping after hostile:Hostile \(gymnasium\), stream 0, {where}.* a second")
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.ended(seconds) == 130
        assert run.said.endswith("interrupted\n")
        assert "has not come back" in (tmp_path / "log.txt").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_the_second_ctrl_c_ends_a_run_in_which_no_thread_can_run(tmp_path: Path) -> None:
    with running(tmp_path, "seize") as run:
        run.wait_for("TROUBLE")
        run.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(1.0)
        run.process.send_signal(signal.SIGINT)
        assert run.ended(2.0) == -signal.SIGINT


@slow
def test_a_run_that_goes_well_stops_without_a_word_more(tmp_path: Path) -> None:
    with running(tmp_path, "none", "--total-steps", "10_000_000") as run:
        run.wait_for(r"\d+/10,000,000 env steps")
        run.process.send_signal(signal.SIGINT)
        assert run.ended(WAIT_S) == 130
        assert "stopped at" in run.said
        assert "waiting for" not in run.said


def test_ctrl_c_is_answered_where_no_progress_is_shown(tmp_path: Path) -> None:
    options = ["--report.progress", "false", "--total-steps", "10_000_000"]
    with running(tmp_path, "none", *options) as run:
        while not (tmp_path / "metrics.jsonl").exists():
            assert run.process.poll() is None
            time.sleep(0.05)
        run.process.send_signal(signal.SIGINT)
        assert run.ended(WAIT_S) == 130
        assert "stopped at" in run.said
        assert "env steps" not in run.said


KINDS = ("lockstep", "serial", "steppers", "async", "learners")


def of_kind(kind: str) -> list[str]:
    if kind == "learners":
        return ["--runtime.num-learners", "2"]
    if kind in ("serial", "steppers"):  # of slow environments, which others step by themselves
        return ["--env.num-processes", "1" if kind == "serial" else "2"]
    return ["--runtime.kind", kind, "--runtime.num-workers", "2"]


@slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_ctrl_c_ends_a_run_at_once_and_leaves_no_traceback(
    kind: str, tmp_path: Path
) -> None:
    """In the middle of an iteration, though environments take three seconds to close."""
    with running(tmp_path, "slow", *of_kind(kind), "--env.num-streams", "2") as run:
        run.wait_for("TROUBLE")
        began = psutil.Process(run.process.pid).children(recursive=True)
        assert bool(began) == (kind != "serial")
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        assert run.ended(WAIT_S) == 130
        # Less than 1 s on a machine that does nothing else.
        assert time.monotonic() - pressed < 2.0
        end = time.monotonic() + 1.0
        while any(map(runs, began)):
            assert time.monotonic() < end
            time.sleep(0.02)
    log = (tmp_path / "log.txt").read_text()
    assert log.endswith("the run was interrupted\n")
    assert "Traceback" not in log + run.said
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["state"], record["error"]) == ("stopped", "KeyboardInterrupt")


def test_a_command_that_ctrl_c_breaks_off_is_ended_without_pythons_own_tidying_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's takes a second."""

    def interrupted(_arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "envs", interrupted)
    left: list[int] = []
    assert cli.main(["envs"], left.append) == 130
    assert left == [130]
    code = "import atexit, quintet.commands.cli as cli, quintet.commands.start as start\n"
    code += "atexit.register(print, 'tidied up')\n"
    code += "cli.COMMANDS['envs'] = lambda _: (print('begun'), (_ for _ in ()).throw("
    code += "KeyboardInterrupt))\nraise SystemExit(start.main())"
    ended = subprocess.run([sys.executable, "-c", code, "envs"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "begun\n", "interrupted\n")


@slow
def test_what_a_stop_waits_for_is_told_in_the_order_in_which_it_happens(tmp_path: Path) -> None:
    """After the stop only the environments are waited for, which take three seconds to close."""
    steps = ["--total-steps", "10_000_000", "--unroll-steps", "32", "--env.num-streams", "2"]
    with running(tmp_path, "close", *of_kind("lockstep"), *steps) as run:
        run.wait_for(r"\d+/10,000,000 env steps")
        run.process.send_signal(signal.SIGINT)
        assert run.ended(WAIT_S) == 130
    end = run.said[run.said.index("stopped at") :]
    assert "waiting for the environments to close; a second Ctrl-C ends at once" in end
    assert "stopping after" not in end


def test_signals_of_a_forked_child_are_not_taken_for_ours() -> None:
    told: list[str] = []
    stop = StopRequest(lambda: told.append("stopping"))
    with stop_on_signals(stop):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(signals._TOLD_AFTER_S + 0.5)
        assert not stop.made
        assert not told


def test_signals_reach_who_listened_before_and_everything_is_put_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stop = StopRequest(lambda: None)
    try:
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            assert select.select([reader], [], [], WAIT_S)[0]
            assert os.read(reader, 1) == bytes([signal.SIGTERM])
            assert stop.made
    finally:
        assert signal.set_wakeup_fd(before) == writer
        os.close(reader)
        os.close(writer)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_ctrl_c_can_be_pressed_any_number_of_times_where_python_handles_it() -> None:
    """Though the system would end the process by the next one."""
    # A shell's background job is begun with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press_twice() -> None:
        stop = StopRequest(lambda: None)
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.made
            os.kill(os.getpid(), signal.SIGINT)

    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                press_twice()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
