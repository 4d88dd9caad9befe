"""Doubtful choices of a run: said once, kept in its folder, shown with its health."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console
from run_helpers import run
from test_trainer import SMALL

import quintet
from quintet.checkpoints import run_record
from quintet.commands import cli
from quintet.observe.dashboard import layout
from quintet.observe.pace import Pace
from quintet.observe.view import View


class Inventory(gymnasium.Env):
    """Large numbers everywhere, and a time limit that ends as termination."""

    observation_space = spaces.Dict(
        {
            "stock": spaces.Box(0, 10_000, (2,), np.int32),
            "shelf": spaces.Box(0, 255, (6, 6), np.uint8),
        }
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        return self.obs(), -2e4, self.steps == 25, False, {}

    def obs(self):
        return {
            "stock": self.np_random.integers(3_000, 9_000, 2).astype(np.int32),
            "shelf": np.zeros((6, 6), np.uint8),
        }


def choices(text: str) -> list[str]:
    """The lines about choices, without the time in front that a log has."""
    return [said for line in text.splitlines() if (said := line.partition("choice: ")[2])]


EXPECTED = (
    "observation 'shelf' (6 x 6, uint8) may be a picture",
    "observation 'stock' reaches the network in numbers of size",
    "rewards have a size of 20,000",
    "episodes were terminated after exactly 25 steps",
)


def test_what_the_user_knows_is_not_said(tmp_path: Path):
    """Also not on a resume of a run that has said it, nor in what the dashboard shows."""
    folder = tmp_path / "run"
    options = {**SMALL, "reward_normalizer": "none"}
    for total, known in ((2_560, ["time-limit"]), (5_120, ["time-limit", "encoder"])):
        own = {**options, "doctor.known": known}
        quintet.train("ppo", Inventory, total, run_dir=folder, config=own)
    said = choices((folder / "log.txt").read_text())
    assert len(said) == 3
    assert not any("terminated" in each for each in said)


def test_each_is_said_once_and_kept(tmp_path: Path):
    folder = tmp_path / "run"
    options = {**SMALL, "reward_normalizer": "none"}
    for total in (2_560, 5_120):
        quintet.train("ppo", Inventory, total, run_dir=folder, config=options)
        said = choices((folder / "log.txt").read_text())
        assert len(said) == len(EXPECTED)
        for line, expected in zip(said, EXPECTED, strict=True):
            assert expected in line
    record = run_record.read(folder)
    assert record is not None
    assert record.state == "finished"
    assert [f"{each.said}: {each.option}" for each in record.choices] == said
    assert [each.choice for each in record.choices] == [
        "encoder", "observation_scale", "reward_size", "time_limit"
    ]  # fmt: skip
    assert record.choices[0].env_steps == 0 < record.choices[1].env_steps


def test_a_sound_run_says_nothing(tmp_path: Path):
    run(tmp_path, steps=2_048)
    assert choices((tmp_path / "log.txt").read_text()) == []
    record = run_record.read(tmp_path)
    assert record is not None
    assert record.choices == []


def test_they_are_shown_with_the_health():
    console = Console(width=100, height=40, record=True)
    view = View("ppo", Pace(10, 0), choices=["a [bold]doubt[/]: --option"])
    console.print(layout(view, console, 30))
    assert "choice: a [bold]doubt[/]: --option" in console.export_text()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.usefixtures("importable")
def test_check_env_says_them(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["check-env", f"{__name__}:Inventory", "--steps", "300"]) == 0
    said = choices(capsys.readouterr().out)
    assert len(said) == len(EXPECTED)
    for line, expected in zip(said, EXPECTED, strict=True):
        assert expected in line
    assert cli.main(["check-env", f"{__name__}:Inventory", "--steps", "300", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["choices"]
    assert [f"{each['said']}: {each['option']}" for each in told] == said
    assert cli.main(["check-env", "CartPole-v1", "--steps", "300"]) == 0
    assert choices(capsys.readouterr().out) == []
