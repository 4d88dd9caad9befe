"""Scores that a broken learner does not reach: mean of seeds 1, 2, 3, greedy, final policy."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quintet

pytestmark = pytest.mark.slow

# fmt: off
MEMORY = "quintet.envs.toy:cartpole_without_velocities"
FLOORS: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "cartpole": ("ppo", "CartPole-v1", 100_000, 475.0, {}),
    "cartpole-kl-penalty": ("ppo", "CartPole-v1", 200_000, 450.0, {"preset": "kl_penalty"}),
    "acrobot": ("ppo", "Acrobot-v1", 500_000, -100.0, {}),
    "pendulum": ("ppo", "Pendulum-v1", 300_000, -250.0, {"gamma": 0.9}),
    "cartpole-memory": ("ppo", MEMORY, 200_000, 450.0, {"model.core": "gru"}),
    "lunar-lander": ("ppo", "LunarLander-v3", 1_000_000, 200.0, {}),
    "impala-cartpole": ("impala", "CartPole-v1", 300_000, 450.0, {}),
    "impala-cartpole-serial": ("impala", "CartPole-v1", 300_000, 450.0, {"runtime.kind": "serial"}),
    "impala-cartpole-memory": ("impala", MEMORY, 500_000, 400.0, {}),
}
# fmt: on


@pytest.mark.parametrize("task", FLOORS)
def test_the_mean_over_three_seeds_reaches_the_floor(task: str, tmp_path: Path) -> None:
    """In processes of their own, as the checks of shapes in here keep graphs from compiling."""
    algo, env, steps, floor, options = FLOORS[task]
    command = [sys.executable, "-m", "quintet", "train", algo, "--env", env]
    command += ["--total-steps", str(steps), "--report.sinks", "jsonl", "--eval.episodes", "0"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    means = []
    for seed in (1, 2, 3):
        folder = tmp_path / str(seed)
        subprocess.run([*command, "--seed", str(seed), "--run-dir", str(folder)], check=True)
        means.append(quintet.evaluate(quintet.load(folder), episodes=100).mean)
    print(task, means)
    assert sum(means) / 3 >= floor, means
