"""A run and its folder: lineage of checkpoints, the best policy, times, what a kill leaves."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet import checkpoint, trainer
from quintet.errors import CheckpointError, EnvironmentFault
from quintet.evaluation import Scores
from quintet.launch import Result
from quintet.observe.sinks import read_metrics

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "checkpoint.interval_updates": 5,
    "checkpoint.keep": 100,
}
# Its episodes never end here, so every iteration has 64 env_steps.
ENV = "quintet.envs.toy:EndlessPay"
TOTAL = 64 * 20


def run(folder: Path, total: int = TOTAL, **config: Any) -> Result:
    options = {name.replace("__", "."): value for name, value in config.items()}
    return quintet.train(
        "ppo", ENV, total, 3, folder, SMALL | {"env.kwargs": {"n": 10_000}} | options
    )


def stopped(folder: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs until iteration `at` and asks for a stop there, as Ctrl-C does."""
    whole = trainer.Trainer.after_iteration

    def asking(self: trainer.Trainer, metrics: Any, episodes: Any) -> bool:
        if self.counters.iteration == at:
            self.request_stop()
        return whole(self, metrics, episodes)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "after_iteration", asking)
        assert run(folder).status == "stopped"


def newest(folder: Path, **choice: Any) -> checkpoint.Checkpoint:
    found = checkpoint.latest(folder / "checkpoints", warn=print, **choice)
    assert found is not None
    return found


def test_after_a_stop_off_the_schedule_nothing_is_on_the_path_again(tmp_path, monkeypatch):
    run(tmp_path / "whole")
    stopped(tmp_path / "a", 7, monkeypatch)
    stopped(tmp_path / "a", 13, monkeypatch)
    # Iteration 10 was due while the run was off the path: it can't be resumed from exactly.
    assert newest(tmp_path / "a", scheduled_only=True).meta["iteration"] == 5
    run(tmp_path / "a", resume="exact")
    assert checkpoint.tensor_hashes(newest(tmp_path / "a")) == checkpoint.tensor_hashes(
        newest(tmp_path / "whole")
    )
    left = [checkpoint.read(p).meta for p in (tmp_path / "a/checkpoints").iterdir()]
    assert sorted(meta["iteration"] for meta in left) == [5, 10, 15, 20]
    assert all(meta["scheduled"] for meta in left)


def test_the_last_exact_checkpoint_is_never_pruned(tmp_path, monkeypatch):
    monkeypatch.setitem(SMALL, "checkpoint.keep", 1)
    stopped(tmp_path, 7, monkeypatch)
    stopped(tmp_path, 18, monkeypatch)
    assert newest(tmp_path).meta["iteration"] == 18
    assert newest(tmp_path, scheduled_only=True).meta["iteration"] == 5


def test_exact_needs_a_scheduled_checkpoint(tmp_path, monkeypatch):
    stopped(tmp_path, 3, monkeypatch)
    with pytest.raises(CheckpointError, match="requires a scheduled checkpoint"):
        run(tmp_path, resume="exact")
    assert newest(tmp_path).meta["iteration"] == 3


def test_a_run_that_was_killed_at_its_very_start_begins_anew(tmp_path):
    for name in (".lock", "log.txt", ".config.yaml.tmp"):
        (tmp_path / name).touch()
    assert run(tmp_path).status == "finished"


def test_another_budget_is_another_path(tmp_path):
    run(tmp_path)
    assert newest(tmp_path).meta["scheduled"] is True
    run(tmp_path, total=2 * TOTAL)
    assert newest(tmp_path).meta["scheduled"] is False


def test_the_final_policy_is_made_good_and_renewed(tmp_path):
    run(tmp_path)
    first = checkpoint.read(tmp_path / "policy").meta["version"]
    shutil.rmtree(tmp_path / "policy")  # as if a kill had come just before it
    assert run(tmp_path).status == "finished"
    assert checkpoint.read(tmp_path / "policy").meta["version"] == first
    run(tmp_path, total=2 * TOTAL)
    assert checkpoint.read(tmp_path / "policy").meta["version"] == 2 * first


def test_best_is_the_highest_score_also_over_a_resume(tmp_path, monkeypatch):
    scores = iter([3.0, 5.0, 4.0, 4.5, 1.0, 2.0, 4.9])
    seeds = []

    def evaluate(policy, env, episodes, seed, **_: Any) -> Scores:
        seeds.append(seed)
        returns = np.full(episodes, next(scores))
        return Scores(returns, np.ones(episodes, np.int64), None)

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    given = {"eval__episodes": 2, "eval__interval": 64 * 5}
    versions = []
    for total in (TOTAL, TOTAL + 64 * 15):
        run(tmp_path, total=total, **given)
        versions.append(checkpoint.read(tmp_path / "best").meta["version"])
    # Scores 3, 5, 4, 4.5 at iterations 5, 10, 15, 20; then 1, 2, 4.9 at 25, 30, 35.
    assert versions == [10, 10]
    assert newest(tmp_path).meta["best"] == 5.0
    # Reported results are played on seeds from 10,000 on; training must not choose by those.
    assert all(seed >= 20_000 for seed in seeds)


class NothingAllowed(gymnasium.Env):
    """Its mask allows nothing from step 20 on."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(-1.0, 1.0, (2,)), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), 1.0, False, False, {}

    def _obs(self):
        mask = np.full(3, self.steps < 20, np.int8)
        return {"x": np.zeros(2, np.float32), "action_mask": mask}


def test_a_mask_that_allows_nothing_is_a_fault(tmp_path):
    says = r"at least one action.*stream 0, step 20: it allows none"
    with pytest.raises(EnvironmentFault, match=says):
        quintet.train("ppo", NothingAllowed, TOTAL, 1, tmp_path, SMALL)


def test_evaluation_stays_with_the_backend_of_the_training(tmp_path):
    config = {k: v for k, v in SMALL.items() if k != "env.kwargs"} | {"env.backend": "gymnasium"}
    policy = quintet.train("ppo", "CartPole-v1", 256, 1, tmp_path, config).policy
    assert quintet.evaluate(policy, env="CartPole-v1", episodes=2).env.backend == "gymnasium"
    assert quintet.evaluate(policy, env="CartPole-v0", episodes=2).env.backend == "envpool"


def test_wall_time_goes_on_over_a_resume(tmp_path, monkeypatch):
    stopped(tmp_path, 10, monkeypatch)
    before = newest(tmp_path).meta["wall_s"]
    run(tmp_path)
    times = [report["wall_s"] for report in read_metrics(tmp_path)]
    assert times == sorted(times)
    assert newest(tmp_path).meta["wall_s"] > before
