"""A schedule of the user's own: it runs, its faults are told, and a stranger's does not run."""

import json
from pathlib import Path
from typing import Any

import pytest

from quintet.commands import cli

CODE = """
def quarter(done):
    return 0.25 if done > 0 else 1.0

def negative(done):
    return 0.5 - done

def raises(done):
    raise RuntimeError("no rate")

number = 3
"""
SMALL = (
    *("--env", "CartPole-v1", "--env.backend", "gymnasium", "--env.num-streams", "2"),
    *("--unroll-steps", "16", "--replay-start-steps-per-stream", "0", "--eval.episodes", "0"),
    *("--replay-capacity-steps-per-stream", "64", "--preset", "none"),
)


@pytest.fixture(autouse=True)
def own_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rates.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def train(*options: str) -> int:
    return cli.main(["train", "acer", *SMALL, "--run-dir", "run", *options])


def last_rate() -> Any:
    return json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["optim/learning_rate"]


def test_it_runs_and_is_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--lr-schedule", "own_rates:quarter", "--learning-rate", "8e-3")
    assert train(*own, "--total-steps", "128") == 0
    assert last_rate() == 2e-3
    assert cli.main(["train", "acer", "--run-dir", "run", "--total-steps", "192"]) == 0

    for file in Path("run/checkpoints").glob("*/manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"signature": "v1:0"}))
    more = ("--total-steps", "256")
    capsys.readouterr()
    assert cli.main(["train", "acer", "--run-dir", "run", *more]) == 2
    said = capsys.readouterr().err
    assert "would import 'own_rates:quarter' as lr_schedule" in said
    assert said.endswith("or name the same by --lr-schedule\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("linaer", "must be constant, linear, double_linear_con"),
        ("own_rates:missing", "must name a class or function 'missing' in module 'own_rates'"),
        ("own_rates:number", "must name a function, got 3"),
        ("own_rates:negative", "at least 0, got -0.5 at 1"),
        ("own_rates:raises", "at 0 it raised RuntimeError: no rate"),
        ("no_such_rates:quarter", "which can't be imported"),
    ],
)
def test_faults_are_told_before_anything_is_collected(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--total-steps", "128", "--lr-schedule", name) == 2
    assert said in capsys.readouterr().err
    assert not Path("run").exists()
