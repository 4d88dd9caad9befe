"""An environment that changes the working folder changes nothing about its run."""

import os
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet

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


def test_the_folder_of_a_run_stays_where_it_was(moves, tmp_path, capsys):
    result = quintet.train("ppo", moves, 64, run_dir="runs/mine", config=SMALL)
    assert result.status == "finished"
    assert result.run_dir == tmp_path / "here/runs/mine"
    assert any((result.run_dir / "checkpoints").iterdir())
    assert not any((tmp_path / "there").iterdir())
    assert str(tmp_path / "here") in sys.path  # in place of "", as modules may be imported later
    os.chdir(tmp_path / "here")
    quintet.evaluate(quintet.load("runs/mine"), moves, episodes=1)
    # Beside: what float32 loses of such observations is said in the run.
    assert (
        "observation 'obs'[0] is around 1.7e+09"
        in capsys.readouterr().err + (result.run_dir / "log.txt").read_text()
    )


def test_the_default_folder_is_found_again(moves, tmp_path):
    first = quintet.train("ppo", moves, 64, config=SMALL)
    os.chdir(tmp_path / "here")
    again = quintet.train("ppo", moves, 64, config=SMALL)
    assert again.run_dir == first.run_dir
    assert first.run_dir.parent == tmp_path / "here/runs"
