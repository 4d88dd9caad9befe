"""Runs whose environments close files that are not theirs end with a plain error."""

import json
import sys
from pathlib import Path

import pytest
from quick_helpers import begin

OPTIONS = {
    "serial": [],
    "steppers": ["--env.num-processes", "2"],
    "lockstep": ["--runtime.kind", "lockstep", "--runtime.num-workers", "1"],
}
STANDARD, OTHERS = {"first": 0, "end": 3}, {"first": 3, "end": 256}
FAULT = "closing_helpers:Closing must close only what it has opened, but its code closed "
ALL = "standard input and standard output and standard error of this process"
SLOW = pytest.mark.slow
WORK, STEP = {"process": "worker"}, {"process": "stepper"}


@pytest.mark.skipif(sys.platform != "linux", reason="names of processes are read from /proc")
@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("serial", STANDARD, FAULT + ALL),
        ("serial", OTHERS, FAULT + "files of quintet"),
        ("serial", OTHERS | {"made": True}, "closed a file that it had not opened"),
        pytest.param("lockstep", STANDARD | WORK, FAULT + ALL, marks=SLOW),
        pytest.param("lockstep", OTHERS | WORK, FAULT + "files of quintet", marks=SLOW),
        pytest.param("lockstep", OTHERS, FAULT + "files of quintet", marks=SLOW),
        pytest.param("steppers", STANDARD | STEP, FAULT + ALL, marks=SLOW),
        pytest.param("steppers", OTHERS | STEP, FAULT + "files of quintet", marks=SLOW),
    ],
)
def test_an_environment_that_closes_files(kind, given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    command = [
        "-m", "quintet", "train", "ppo", "--env", "closing_helpers:Closing",
        "--env.kwargs", json.dumps(given), "--run-dir", str(tmp_path / "run"),
        "--total-steps", "2048", "--env.num-streams", "4", "--unroll-steps", "64",
        "--runtime.compile", "off", "--eval.episodes", "0", *OPTIONS[kind],
    ]  # fmt: skip
    with begin(command) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1, printed
    assert words in printed
    assert "Traceback" not in printed
