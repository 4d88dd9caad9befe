"""Scores that a broken learner does not reach: mean of three seeds, greedy, final policy.

Not of the seeds that results are reported on, which must not be seen at every change.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.policies.evaluation import Scores

pytestmark = pytest.mark.slow

# fmt: off
MEMORY = "quintet.envs.toy:cartpole_without_velocities"
# In lockstep the layout, which else follows the machine's cores, decides about the bytes.
TWO_WORKERS: dict[str, Any] = {"runtime.num_workers": 2, "env.streams_per_group": 8}
FLOORS: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "cartpole": ("ppo", "CartPole-v1", 100_000, 475.0, {}),
    "cartpole-kl-penalty": ("ppo", "CartPole-v1", 200_000, 450.0, {"preset": "kl_penalty"}),
    "acrobot": ("ppo", "Acrobot-v1", 500_000, -100.0, {}),
    "pendulum": ("ppo", "Pendulum-v1", 300_000, -250.0, {}),
    "inverted-pendulum": ("ppo", "InvertedPendulum-v4", 1_000_000, 950.0, {}),
    "cartpole-memory": ("ppo", MEMORY, 200_000, 450.0, {"model.core": "lstm"}),
    "lunar-lander": ("ppo", "LunarLander-v3", 1_000_000, 200.0, {}),
    "impala-cartpole": ("impala", "CartPole-v1", 300_000, 450.0, {}),
    "impala-cartpole-serial": ("impala", "CartPole-v1", 300_000, 450.0, {"runtime.kind": "serial"}),
    "impala-cartpole-memory": ("impala", MEMORY, 500_000, 450.0, TWO_WORKERS),
    "appo-cartpole": ("appo", "CartPole-v1", 500_000, 475.0, {}),
    "appo-cartpole-memory": ("appo", MEMORY, 500_000, 450.0, {}),
    "ddpg-pendulum": ("ddpg", "Pendulum-v1", 20_000, -200.0, {}),
    "ddpg-target": ("ddpg", "quintet.envs.toy:Target", 30_000, -0.2, {}),
    "ddpg-inverted-pendulum": ("ddpg", "InvertedPendulum-v4", 300_000, 950.0, {}),
    "ddpg-mountain-car": ("ddpg", "MountainCarContinuous-v0", 100_000, 90.0, {}),
    "ddpg-pictures": ("ddpg", "quintet.envs.toy:DotToTarget", 30_000, -2.5, {}),
    "acer-cartpole": ("acer", "CartPole-v1", 300_000, 475.0, {}),
    "acer-acrobot": ("acer", "Acrobot-v1", 500_000, -100.0, {}),
    "acer-lunar-lander": ("acer", "LunarLander-v3", 1_000_000, 150.0, {}),
    "acer-cartpole-memory": ("acer", MEMORY, 300_000, 450.0, {}),
    "acer-pendulum": ("acer", "Pendulum-v1", 300_000, -250.0, {}),
    "impala-inverted-pendulum": ("impala", "InvertedPendulum-v4", 1_000_000, 950.0, {}),
}
# fmt: on


@pytest.mark.parametrize("task", FLOORS)
def test_the_mean_over_three_seeds_reaches_the_floor(task: str, tmp_path: Path) -> None:
    algo, env, steps, floor, options = FLOORS[task]
    means = [trained(algo, env, steps, seed, tmp_path, options).mean for seed in (1, 2, 3)]
    print(task, means)
    assert sum(means) / 3 >= floor, means


def test_a_red_ball_is_gone_to(tmp_path: Path) -> None:
    """One seed, which takes minutes."""
    scores = trained("impala", "BabyAI-GoToRedBall-v0", 1_000_000, 1, tmp_path, {})
    print(scores.success_rate)
    assert scores.success_rate is not None
    assert scores.success_rate >= 0.9


def test_missions_are_followed(tmp_path: Path) -> None:
    """One seed, ended early: with schedules of 3M steps the rate fell before all was learned, and
    the mode of the policy won half of its episodes.  After 3.5M steps it wins 0.84 to 0.92 of them,
    after 4.5M nearly all.  Blind to the mission, success is 0.8 after 4.5M.
    """
    given = {"env": "BabyAI-GoToLocal-v0", "total_steps": 10_000_000, "seed": 1}
    program = (
        "import quintet; "
        f"quintet.train('impala', **{given}, run_dir={str(tmp_path)!r}, "
        "on_report=lambda report: report['env_steps'] >= 4_500_000)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    scores = quintet.evaluate(quintet.load(tmp_path), episodes=100)
    print(scores.success_rate)
    assert scores.success_rate is not None
    assert scores.success_rate >= 0.9


def trained(
    algo: str, env: str, steps: int, seed: int, folder: Path, options: dict[str, Any]
) -> Scores:
    """100 greedy episodes after training in a process of its own, as the checks of shapes in here
    keep graphs from compiling.
    """
    run_dir = folder / str(seed)
    given = {
        "env": env, "total-steps": steps, "seed": seed, "run-dir": run_dir,
        "report.sinks": "jsonl", "eval.episodes": 0, **options,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "quintet", "train", algo, *words], check=True)
    return quintet.evaluate(quintet.load(run_dir), episodes=100)
