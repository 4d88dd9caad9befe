"""An environment whose steps compute for 0.6 s."""

import time

import gymnasium
import numpy as np


class Burner(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        begin = time.thread_time()
        while time.thread_time() - begin < 0.6:
            pass
        return np.zeros(1, np.float32), 0.0, False, False, {}
