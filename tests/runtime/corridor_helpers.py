"""A corridor whose length is an option of its resets, and curricula for it."""

import gymnasium
import numpy as np
import torch

LENGTHS = [{"length": n} for n in (1, 2, 3, 4)]
CURRICULA = {
    "stages": {"kind": "stages", "stages": LENGTHS, "bar": 0.5, "episodes": 10, "back": 0.1},
    "schedule": {"kind": "schedule", "values": {"length": {0: 1, 3000: 6}}},
    "levels": {"kind": "levels", "levels": LENGTHS},
    "own": {"kind": "corridor_helpers:Longer", "most": 5},
}


class Corridor(gymnasium.Env):
    """Its end is won; resets by no options have the length `default`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    slope = 0.0

    def __init__(self, default: int = 9) -> None:
        self.default, self.tasks = default, []

    def set_task(self, name, value):
        self.tasks.append((name, value))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = options["length"] if options else self.default
        self.at = self.steps = 0
        return self._see(), {}

    def _see(self):
        return np.array([self.at / 10, self.np_random.uniform(-1, 1)], np.float32)

    def step(self, action):
        self.steps += 1
        self.at = max(0, self.at + (1 if action == 1 else -1))
        won = self.at >= self.length
        reward = float(won) - self.slope * self.at
        return (
            self._see(),
            reward,
            won,
            self.steps >= 3 * self.length,
            {"won": won, "reached": self.at / self.length},
        )


class Longer:
    """One step longer after every ten episodes that were won; its state is a tensor."""

    def __init__(self, most: int = 5) -> None:
        self.most, self.won = most, torch.zeros((), dtype=torch.int64)

    def options(self, stream, rng):
        length = min(1 + int(self.won) // 10, self.most)
        return {"length": int(rng.integers(1, length + 1))}

    def ended(self, episode):
        assert 1 <= episode.options["length"] <= self.most
        self.won = self.won + int(bool(episode.success))

    def state(self):
        return {"won": self.won}

    def load(self, state):
        self.won = torch.as_tensor(state["won"])

    def metrics(self):
        return {"won": float(self.won)}
