"""Episodes that are long for a run: they are finished, and learned from, and a run says what that
costs."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import quintet
from quintet.checkpoints import checkpoint
from quintet.observe.report_files import read_metrics
from quintet.run.saving import LongEpisodes
from quintet.runtime.loop import Counters

QUIET = {"report.progress": False, "report.sinks": ["jsonl"], "report.interval_s": 0.0}


class LatePay(gymnasium.Env):
    """Episodes of `steps`; in the last 100 action 1 pays 1, before that nothing pays."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps: int = 2_500) -> None:
        self.steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.done = 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.done / self.steps, self.late], np.float32)

    @property
    def late(self) -> bool:
        return self.done >= self.steps - 100

    def step(self, action):
        pay = float(self.late and action == 1)
        self.done += 1
        return self.observe(), pay, self.done >= self.steps, False, {}


class Short(gymnasium.Env):
    """Episodes of 20 steps on average."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        over = bool(self.np_random.random() < 0.05)
        return np.zeros(1, np.float32), 1.0, over, False, {}


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def train(folder: Path, env: Any, total: int, **more: Any) -> dict[str, float]:
    options = {name.replace("__", "."): value for name, value in more.items()}
    return quintet.train("ppo", env, total, 100, folder, QUIET | options).metrics


@pytest.mark.slow
def test_long_episodes_are_finished(tmp_path: Path) -> None:
    """Their ends lie beyond every point at which a checkpoint is due."""
    few = {"unroll_steps": 32, "num_epochs": 1, "eval__episodes": 0, "env__num_streams": 4}
    last = train(tmp_path, LatePay, 9_600, env__kwargs={"steps": 600}, **few)
    reports = read_metrics(tmp_path)
    returns = [r["episode/return_mean"] for r in reports if "episode/return_mean" in r]
    assert len(returns) == 3  # 2,400 steps of each of four streams
    assert min(returns) > 20  # of 100, of which half are paid by chance
    assert last["episode/cut_frac"] <= 0.05
    assert "no episode has ended in the first" in log(tmp_path)
    found = list((tmp_path / "checkpoints").iterdir())
    assert len(found) >= 3


@pytest.mark.slow
def test_what_is_paid_late_is_learned_with_default_options(tmp_path: Path) -> None:
    """Where streams began anew every 2,048 steps, no row that pays was ever seen.

    Nine batches of ten hold no pay; their advantages, noise that is brought to variance 1, make the
    sampled actions random again from time to time, so the last return says little.
    """
    # But for compilation, which the tests' checks of shapes stand in the way of.
    last = train(tmp_path, LatePay, 262_144, runtime__compile="off")
    reports = read_metrics(tmp_path)
    returns = [r["episode/return_mean"] for r in reports if "episode/return_mean" in r]
    assert 30 < returns[0] < 80  # near chance: 50
    in_a_row = [min(returns[k : k + 3]) for k in range(len(returns) - 2)]
    assert max(in_a_row) > 90  # 24 episodes of 100 paying steps: chance gives 50 +- 1
    assert last["eval/return_mean"] == 100


@pytest.mark.slow
def test_short_episodes_leave_room_for_many_exact_checkpoints(tmp_path: Path) -> None:
    few = {"unroll_steps": 64, "num_epochs": 1, "eval__episodes": 0}
    last = train(tmp_path, Short, 40_000, checkpoint__keep=100, **few)
    folders = sorted((tmp_path / "checkpoints").iterdir())
    assert sum(checkpoint.read(folder).meta["exact"] for folder in folders) >= 10
    assert 0 < last["episode/cut_frac"] <= 0.05


def test_exactness_is_told_by_the_resume_and_not_by_a_first_run(tmp_path: Path, capsys) -> None:
    few = {"unroll_steps": 16, "num_epochs": 1, "eval__episodes": 0, "env__num_streams": 2}
    few |= {"report__progress": True, "runtime__compile": "off", "env__kwargs": {"steps": 300}}
    train(tmp_path, LatePay, 1_024, **few)
    said = capsys.readouterr()
    assert "exact checkpoint" not in said.out + said.err
    assert "a resume is not exact so far: an exact checkpoint would cut" in log(tmp_path)
    train(tmp_path, LatePay, 1_280, **few)
    assert "; results will differ from the uninterrupted run's" in capsys.readouterr().out


def test_each_notice_is_given_once_and_only_where_it_is_true() -> None:
    long = LongEpisodes(total_env_steps=1_000, interval=5, max_cut_frac=0.05)
    assert long.notices(Counters(iteration=1, env_steps=50, running_env_steps=50)) == {}
    (endless,) = long.notices(Counters(iteration=2, env_steps=100, running_env_steps=100)).values()
    assert "no episode has ended in the first 100 env_steps of 1,000" in endless
    (inexact,) = long.notices(Counters(iteration=5, env_steps=250, running_env_steps=250)).values()
    assert "cut all running episodes, which have 250 env_steps" in inexact
    assert "checkpoint.max_cut_frac=0.05 allows 50 of 1,000" in inexact
    assert long.notices(Counters(iteration=10, env_steps=500, running_env_steps=500)) == {}

    fine = LongEpisodes(total_env_steps=1_000, interval=5, max_cut_frac=0.05)
    counters = Counters(iteration=5, env_steps=250, running_env_steps=20, ended_episodes=10)
    assert fine.notices(counters) == {}
    # A run without exact checkpoints promises none.
    free = LongEpisodes(total_env_steps=1_000, interval=5, max_cut_frac=None)
    assert free.notices(Counters(iteration=5, env_steps=50, running_env_steps=250)) == {}


def test_replay_reaches_back_so_far() -> None:
    long = LongEpisodes(1_000, interval=5, max_cut_frac=0.05, replay_holds=lambda n: n <= 5)
    at = Counters(iteration=12, env_steps=1, exact_iteration=7)
    assert long.goes_back_exactly(at)
    assert long.notices(at) == {}
    at.iteration = 13
    assert not long.goes_back_exactly(at)
    (said,) = long.notices(at).values()
    assert "the last exact checkpoint is 6 iterations old: replay no longer holds its rows" in said
    assert not long.goes_back_exactly(Counters(iteration=3))
