"""An environment that changes the working folder changes nothing about its run."""

import json
import os
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet.commands import cli
from quintet.system import provenance

SMALL = {"preset": "none", "unroll_steps": 16, "minibatch_steps": None, "env.num_streams": 2}
SMALL |= {"eval.episodes": 1, "report.progress": False}


class Moves(gymnasium.Env):
    observation_space = spaces.Box(1.6e9, 1.8e9, (1,), np.float64)
    action_space = spaces.Discrete(2)
    when, place = "", ""

    def __init__(self):
        self._move("init")

    def _move(self, when):
        if when == self.when:
            os.chdir(self.place)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._move("reset")
        return np.array([1.7e9]), {}

    def step(self, action):
        self._move("step")
        return np.array([1.7e9 + 1]), 1.0, True, False, {}


@pytest.fixture(params=["init", "reset", "step"])
def moves(request, tmp_path, monkeypatch) -> type[Moves]:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return type("Mine", (Moves,), {"when": request.param, "place": tmp_path / "there"})


def test_the_folder_of_a_run_stays_where_it_was(moves, tmp_path):
    result = quintet.train("ppo", moves, 64, run_dir="runs/mine", config=SMALL)
    assert result.status == "finished"
    assert result.run_dir == tmp_path / "here/runs/mine"
    assert any((result.run_dir / "checkpoints").iterdir())
    assert not any((tmp_path / "there").iterdir())
    assert str(tmp_path / "here") in sys.path  # in place of "", as modules may be imported later
    os.chdir(tmp_path / "here")
    quintet.evaluate(quintet.load("runs/mine"), moves, episodes=1)


def test_the_default_folder_is_found_again(moves, tmp_path):
    first = quintet.train("ppo", moves, 64, config=SMALL)
    os.chdir(tmp_path / "here")
    again = quintet.train("ppo", moves, 64, config=SMALL)
    assert again.run_dir == first.run_dir
    assert first.run_dir.parent == tmp_path / "here/runs"


def test_the_revision_is_that_of_the_folder_in_which_the_run_began(moves, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "revision", str)
    result = quintet.train("ppo", moves, 64, config=SMALL)
    record = json.loads((result.run_dir / "run.json").read_text())
    assert record["revision"] == str(tmp_path / "here")


class Leaves(Moves):
    """Goes to a folder that it removes."""

    def _move(self, when):
        if when == "init":
            gone = Path(tempfile.mkdtemp())
            os.chdir(gone)
            gone.rmdir()


def test_the_working_folder_may_be_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = quintet.train("ppo", Leaves, 64, run_dir="run", config=SMALL)
    assert result.run_dir == tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        os.getcwd()


def test_a_command_says_that_the_working_folder_is_gone(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["config", "ppo", "--env", "CartPole-v1"]) == 1
    assert "the working folder was removed: cd to" in capsys.readouterr().err
