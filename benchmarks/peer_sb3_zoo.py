"""Stable-Baselines3's side of time_to_threshold.py, with the settings of its RL Zoo.

    python peer_sb3_zoo.py TASK THRESHOLD EPISODES SEED GIVE_UP_AT

Its Python needs stable-baselines3, gymnasium[box2d,mujoco], ale-py and opencv-python-headless.
"""

import json
import sys
import time
from collections import deque

import numpy as np
from stable_baselines3 import DDPG, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from torch import nn


def linear(start: float):
    return lambda left: left * start


def atari(env_id: str, count: int, seed: int) -> VecEnv:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env(env_id, n_envs=count, seed=seed), 4)


def normalized(env_id: str, count: int, seed: int, gamma: float) -> VecEnv:
    return VecNormalize(make_vec_env(env_id, count, seed=seed), gamma=gamma)


# hyperparams/ppo.yml of rl-baselines3-zoo
TASKS = {
    "CartPole": (
        lambda seed: make_vec_env("CartPole-v1", 8, seed=seed),
        "MlpPolicy",
        100_000,
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
         "ent_coef": 0.0, "learning_rate": linear(0.001), "clip_range": linear(0.2)},
    ),
    "LunarLander": (
        lambda seed: make_vec_env("LunarLander-v3", 16, seed=seed),
        "MlpPolicy",
        1_000_000,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
         "ent_coef": 0.01},
    ),
    "HalfCheetah": (
        lambda seed: normalized("HalfCheetah-v4", 1, seed, 0.98),
        "MlpPolicy",
        1_000_000,
        {"batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-05,
         "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92,
         "max_grad_norm": 0.8, "vf_coef": 0.58096,
         "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU,
                           "net_arch": {"pi": [256, 256], "vf": [256, 256]}}},
    ),
    "Pong": (
        lambda seed: atari("PongNoFrameskip-v4", 8, seed),
        "CnnPolicy",
        10_000_000,
        {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": linear(2.5e-4),
         "clip_range": linear(0.1), "vf_coef": 0.5, "ent_coef": 0.01},
    ),
    # hyperparams/ddpg.yml: of its HalfCheetah of PyBullet, the only one that it has
    "HalfCheetah-DDPG": (
        lambda seed: make_vec_env("HalfCheetah-v4", 1, seed=seed),
        "MlpPolicy",
        1_000_000,
        {"gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "gradient_steps": 1,
         "train_freq": 1, "learning_rate": 1e-3, "policy_kwargs": {"net_arch": [400, 300]},
         "action_noise": NormalActionNoise(np.zeros(6), 0.1 * np.ones(6))},
    ),
}  # fmt: skip


class Until(BaseCallback):
    """Stops when the last `episodes` of training have the return."""

    def __init__(self, threshold: float, episodes: int, give_up_at: float):
        super().__init__()
        self.threshold, self.give_up_at = threshold, give_up_at
        self.returns: deque[float] = deque(maxlen=episodes)
        self.reached = False

    def _on_step(self) -> bool:
        found = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns.extend(found)
        if found and len(self.returns) == self.returns.maxlen:
            self.reached = self.reached or np.mean(self.returns) >= self.threshold
        return not self.reached and time.time() < self.give_up_at


def main() -> None:
    name, threshold, episodes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    seed, give_up_at = int(sys.argv[4]), float(sys.argv[5])
    make, policy, budget, options = TASKS[name]
    learner = DDPG if name.endswith("DDPG") else PPO
    model = learner(policy, make(seed), seed=seed, device="cpu", **options)
    until = Until(threshold, episodes, give_up_at)
    model.learn(budget, callback=until)
    print(
        json.dumps(
            {"reached": bool(until.reached), "at": time.time(), "env_steps": model.num_timesteps}
        )
    )


if __name__ == "__main__":
    main()
