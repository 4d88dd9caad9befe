"""Evaluations while training: what is said of their scores, and what is chosen by them."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet import evaluation
from quintet.envs.vector import EnvDescription
from quintet.evaluation import Scores
from quintet.run.evaluations import far_apart

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "num_epochs": 1,
    "learning_rate": 1e-6,
    "model.policy_hidden": (8,),
    "report.sinks": ["jsonl"],
    "runtime.compile": "off",
}


class Variety(gymnasium.Env):
    """Pays 1 for another action than the last one: sampled actions get half of it."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.last, self.steps = -1, 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        paid, self.last = float(self.last not in (-1, action)), int(action)
        return np.ones(1, np.float32), 10.0 * paid, self.steps == 16, False, {}


def scores(returns: list[float]) -> Scores:
    about = EnvDescription("toy", "gymnasium")
    return Scores(np.array(returns), np.ones(len(returns), np.int64), about)


@pytest.mark.parametrize(
    ("greedy", "sampled", "far"),
    [
        ([-51e3] * 10, [140e3, 152e3, 164e3], True),
        ([0.0, 0.0, 0.0], [75.0, 80.0, 85.0], True),
        ([300.0, 500.0, 500.0], [75.0, 80.0, 85.0], False),  # greedy ones may be better
        ([90.0] * 5, [100.0] * 5, False),  # a tenth
        ([0.0, 100.0, 50.0], [20.0, 160.0, 90.0], False),  # within the spread
        ([-51e3] * 10, [140e3, 152e3], False),  # too few
        ([-51e3], [140e3, 152e3, 164e3], False),
    ],
)
def test_far_apart(greedy: list[float], sampled: list[float], far: bool) -> None:
    told = far_apart(scores(greedy), sampled)
    assert (told is not None) == far
    if told is not None:
        assert f"{np.mean(sampled):,.4g} in the last {len(sampled)} episodes" in told


def test_an_evaluation_that_was_stopped_has_no_scores(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluation.evaluate_in

    def stopped(*given: Any) -> Scores:
        return replace(whole(*given), complete=False)

    monkeypatch.setattr("quintet.evaluation.evaluate_in", stopped)
    result = quintet.train("ppo", Variety, 256, 1, tmp_path / "run", SMALL | {"eval.episodes": 5})
    assert "eval/return_mean" not in result.metrics
    assert not (result.run_dir / "best").exists()


def test_a_greedy_policy_that_is_far_worse_is_told_and_false_decides_by_samples(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**SMALL, "eval.episodes": 5, "eval.interval": 64}
    greedy = quintet.train("ppo", Variety, 256, 1, tmp_path / "a", config)
    said = capfd.readouterr().out
    assert said.count("greedy actions score 0 in evaluations, sampled ones ") == 1
    assert "--eval.greedy false" in said
    assert greedy.metrics["eval/return_mean"] == 0.0
    config |= {"eval.greedy": False}
    sampled = quintet.train("ppo", Variety, 256, 1, tmp_path / "b", config)
    assert "greedy actions score" not in capfd.readouterr().out
    assert sampled.metrics["eval/return_mean"] > 40.0
