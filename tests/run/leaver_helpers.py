"""An environment and an encoder that leave in every way there is."""

import asyncio
import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import nn


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Own(BaseException):
    """A user's own way out."""


def leave(how: str) -> None:
    if how == "exit":
        sys.exit(0)
    if how == "fork":
        os.fork()
        return
    if how == "fork and exit":
        if os.fork() == 0:
            sys.exit(0)
        return
    if how == "close all files":
        os.closerange(3, 4096)
        import time

        time.sleep(60.0)
    raise {
        "generator": GeneratorExit,
        "cancelled": asyncio.CancelledError,
        "own": Own,
        "mute": Mute,
    }[how]()


class Leaver(gymnasium.Env):
    """Leaves at its tenth call of `where`."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how: str, where: str = "step", once: str | None = None) -> None:
        self.render_mode = "rgb_array"
        self.how, self.where, self.once = how, where, once
        self.calls = 0
        self.step_of_episode = 0
        self._at("make", 1)

    def _at(self, where: str, number: int = 10) -> None:
        self.calls += where == self.where
        if where != self.where or self.calls != number:
            return
        if self.once is not None:  # the first environment of all processes to come here
            try:
                os.close(os.open(Path(self.once), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        leave(self.how)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.step_of_episode = 0
        self._at("reset", 2)
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.step_of_episode += 1
        self._at("step")
        return np.ones(1, np.float32), 1.0, False, self.step_of_episode >= 5, {}

    def render(self):
        self._at("render", 2)
        return np.zeros((8, 8, 3), np.uint8)

    def close(self):
        self._at("close", 1)


class LeavingEncoder(nn.Module):
    """Leaves after its trial, as it acts or learns."""

    feature_size = 4

    def __init__(self, leaves, most: int) -> None:
        super().__init__()
        self.first, self.most, self.calls = nn.Linear(1, 4), most, 0

    def forward(self, obs):
        self.calls += 1
        if self.calls > self.most:
            sys.exit()
        (x,) = obs.values()
        return self.first(x)
