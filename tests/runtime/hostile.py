"""Environments that hang or fail at one step, for runs in a process of their own:
``--env hostile:Hostile --env.kwargs '{"trouble": "sleep"}'``.
"""

import ctypes
import time

import gymnasium
import numpy as np


class Hostile(gymnasium.Env):
    """Says TROUBLE, then makes it, at one step of its life or in `reset`; or is slow to close, and
    to step.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, trouble: str = "none", at_step: int = 50) -> None:
        self.trouble, self.at_step, self.life = trouble, at_step, 0
        self.tried = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.tried = seed < 100  # by looks before the run, which have small seeds
        if self.trouble == "reset" and seed is not None and not self.tried:
            print("TROUBLE", flush=True)
            time.sleep(10_000)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.life += not self.tried
        if self.life == self.at_step:
            print("TROUBLE", flush=True)
            self.make_trouble()
        if self.trouble == "slow":
            time.sleep(0.02)
        return np.zeros(3, np.float32), 1.0, self.steps == 20, False, {}

    def close(self):
        if self.trouble in ("slow", "close"):
            time.sleep(3.0)

    def make_trouble(self) -> None:
        if self.trouble == "raise":
            raise ValueError("the floor gave way")
        if self.trouble == "sleep":
            time.sleep(10_000)
        if self.trouble == "swallow":  # as a loop does that tries again whatever happens
            while True:
                try:
                    time.sleep(10_000)
                except BaseException:
                    continue
        if self.trouble == "block":  # in C, without Python's lock
            library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        if self.trouble == "seize":  # in C, with Python's lock: no other thread can run
            sum(range(10**13))
