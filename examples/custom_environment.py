"""Trains on an environment of one's own: any callable that makes one Gymnasium environment will do.

    python examples/custom_environment.py

The same from the command line, in the folder of this file:

    quintet train ppo --env custom_environment:Corridor --total-steps 20000
"""

import gymnasium
import numpy as np

import quintet


class Corridor(gymnasium.Env):
    """Walk right to the end of a corridor; each step costs 0.1, the end pays 1."""

    def __init__(self, length: int = 8):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        return np.array([self.place / self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(0, self.length // 2))
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.place = max(0, self.place + (1 if action == 1 else -1))
        arrived = self.place >= self.length
        return self._observation(), 1.0 if arrived else -0.1, arrived, self.steps >= 50, {}


if __name__ == "__main__":
    result = quintet.train(
        "ppo",
        Corridor,
        total_steps=20_000,
        seed=1,
        config={"unroll_steps": 64, "env.num_streams": 8},
    )
    scores = quintet.evaluate(result.policy, env=Corridor, episodes=100)
    print(f"return {scores.mean:.2f} +- {scores.std:.2f}, in {result.run_dir}")
