"""Sinks of installed packages: what they get, and that none of them stops a run."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event

import installed_helpers
import numpy as np
import pytest

from quintet.observe import package_sink
from quintet.observe.package_sink import ThreadedSink, bars
from quintet.observe.report_files import Kept
from quintet.observe.sinks import PackageSink, SinkRun

PACKAGE = """
import time
from quintet.observe.sinks import PackageSink

def fail(*given):
    raise RuntimeError("the server is away")

def hang(*given):
    while True:
        time.sleep(1)

def note(state, *given):
    pass

raising = PackageSink(open=lambda run: 1, write=fail, text=note, picture=note, close=fail)
hanging = PackageSink(open=lambda run: 1, write=note, text=note, picture=note, close=hang)
"""
POINTS = "[quintet.sinks]\nraising = odd_sinks:raising\nhanging = odd_sinks:hanging\n"


def recording(calls, **others):
    """A sink that notes its calls, or does something else."""

    def noting(name, *given):
        calls.append((name, *given))
        return "connection"

    names = ("open", "write", "text", "picture", "close")
    return PackageSink(**{name: others.get(name, partial(noting, name)) for name in names})


def threaded(sink, folder, said):
    made = ThreadedSink("mine", sink, partial(SinkRun, folder, {"seed": 1}), said.append)
    made.begin(Kept([], -1))
    return made


def test_a_sink_gets_everything_in_order(tmp_path):
    calls, said = [], []
    (tmp_path / "log.txt").write_text("health: good")
    sink = threaded(recording(calls), tmp_path, said)
    sink.write({"env_steps": 8, "loss/policy": 0.5})
    sink.write_histograms(8, {"ratio": np.arange(5.0)})
    sink.close()
    assert calls[0] == ("open", SinkRun(tmp_path, {"seed": 1}, -1))
    assert calls[1] == ("write", "connection", {"env_steps": 8, "loss/policy": 0.5})
    assert calls[2][:4] == ("picture", "connection", "ratio", 8)
    assert calls[3:] == [
        ("text", "connection", "log.txt", "health: good"),
        ("close", "connection"),
    ]
    assert not said


def test_a_histogram_is_a_picture():
    picture = bars(np.array([0.0, 0.0, 1.0]))
    assert (picture.shape, picture.dtype) == ((60, 120, 3), np.uint8)
    assert (picture[:, :4] == 0).all()  # the most frequent value has the whole height
    assert (picture[:, 4:116] == 255).all()
    assert (picture[:, 116:] == 0).mean() == 0.5


def wait_for(met):
    end = time.monotonic() + 60
    while not met() and time.monotonic() < end:
        time.sleep(0.01)
    assert met()


def fail(*_):
    raise SystemExit("the server is away")


@pytest.mark.parametrize("where", ["open", "write", "picture", "close"])
def test_a_sink_that_raises_is_left_out_and_told_once(tmp_path, where, capsys):
    calls, said = [], []
    sink = threaded(recording(calls, **{where: fail}), tmp_path, said)
    sink.write({"env_steps": 1})
    sink.write_histograms(1, {"ratio": np.arange(5.0)})
    if where != "close":
        wait_for(lambda: not sink._thread.is_alive())
    for steps in (2, 3):
        sink.write({"env_steps": steps})
    sink.close()
    told = "\n".join(said) + capsys.readouterr().err
    assert told.count("the sink mine is left out from now on") == 1
    assert "the server is away" in told


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_sink_that_hangs_is_left(tmp_path, where, monkeypatch, capsys):
    monkeypatch.setattr(package_sink, "END_S", 0.2)
    hung, said = Event(), []
    sink = threaded(recording([], **{where: lambda *_: hung.wait()}), tmp_path, said)
    begun = time.monotonic()
    for steps in range(1_500):
        sink.write({"env_steps": steps})
    sink.close()
    assert time.monotonic() - begun < 30
    assert "has not ended after" in capsys.readouterr().err
    if where == "open":
        assert said == ["the sink mine is slower than the run writes, so some reports are dropped; "
                        "the run goes on"]  # fmt: skip
    hung.set()


def started(folder: Path, steps: int) -> "subprocess.Popen[str]":
    installed_helpers.install(folder / "site", "odd-sinks", POINTS, {"odd_sinks.py": PACKAGE})
    command = ["train", "ppo", "--env", "CartPole-v1", "--env.backend", "gymnasium"]
    command += ["--total-steps", str(steps), "--run-dir", "run", "--runtime.compile", "off"]
    command += ["--report.sinks", "jsonl", "raising", "hanging", "--report.interval-s", "0"]
    command += ["--env.num-streams", "2", "--unroll-steps", "32", "--eval.episodes", "0"]
    environ = os.environ | {"PYTHONPATH": str(folder / "site")}
    return subprocess.Popen(
        [sys.executable, "-m", "quintet", *command],
        cwd=folder,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_a_run_ends_with_sinks_that_raise_and_hang(tmp_path):
    run = started(tmp_path, 256)
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 0, said
    assert "the sink raising is left out from now on" in said
    assert "the sink hanging has not ended after 10 s and is left" in said
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 4


def test_a_stopped_run_ends_although_a_sink_hangs(tmp_path):
    run = started(tmp_path, 10**8)
    lines = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: lines.exists() or run.poll() is not None)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=300)[0]
    assert "the sink hanging has not ended after 10 s and is left" in said
    assert any((tmp_path / "run" / "checkpoints").iterdir())
