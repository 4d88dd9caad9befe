"""What V-trace is for: to learn from actions which much older weights chose."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from torch import Tensor

import quintet
from quintet.algorithms.impala import learner as impala
from quintet.ops.vtrace import vtrace


class AimAtSine(gymnasium.Env):
    """Shows x and pays minus the square of the action's distance from sin(x), sixteen times."""

    observation_space = gymnasium.spaces.Box(-3.0, 3.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = -float((action[0] - np.sin(self.x)) ** 2)
        return self._next(), reward, self.steps >= 16, False, {}

    def _next(self) -> Any:
        self.x = float(self.np_random.uniform(-3.0, 3.0))
        return np.array([self.x], np.float32)


def uncorrected(v_tm1: Tensor, v_t: Tensor, reward: Tensor, *given: Any, **clips: Any) -> Any:
    """V-trace told that the new policy is the one that acted."""
    *others, rho = given
    return vtrace(v_tm1, v_t, reward, *others, rho.new_ones(rho.shape), **clips)


def greedy_return(seed: int, publish_interval_iterations: int, folder: Path) -> float:
    """After 470 updates by weights that are 0 to `publish_interval_iterations - 1` of them old."""
    config = {
        "env.num_streams": 8, "unroll_steps": 16, "batch_unrolls": 8, "gamma": 0.0,
        "optimizer": "adam", "learning_rate": 3e-3, "lr_schedule": "constant", "reduction": "mean",
        "entropy_coef": 0.0, "runtime.kind": "serial", "runtime.compile": "off",
        "runtime.threads": 1, "runtime.publish_interval_iterations": publish_interval_iterations,
        "eval.episodes": 0, "report.progress": False, "report.sinks": [],
        # The preset's actions begin too narrow for such weights.
        "model.action_std_init": 1.0, "reward_normalizer": "none",
        "checkpoint.interval_iterations": 1000,  # at exact ones weights are published too
    }  # fmt: skip
    policy = quintet.train("impala", AimAtSine, 60_000, seed, folder, config).policy
    return quintet.evaluate(policy, episodes=50).mean


@pytest.mark.slow
def test_it_beats_no_correction_where_weights_lag_20_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a policy would not act in any more push it away from them without end, unless they
    count for as much less as it would choose them less.  The best is 0, the action 0 has -8.4.
    """
    seeds = (1, 2, 3)
    corrected = [greedy_return(seed, 40, tmp_path / f"a{seed}") for seed in seeds]
    monkeypatch.setattr(impala, "vtrace", uncorrected)
    plain = [greedy_return(seed, 40, tmp_path / f"b{seed}") for seed in seeds]
    without_lag = [greedy_return(seed, 1, tmp_path / f"c{seed}") for seed in seeds]
    print(corrected, plain, without_lag)
    assert min(corrected) > -2.0
    assert max(plain) < -16.0
    assert min(without_lag) > -2.0  # the lag it was, and nothing else
