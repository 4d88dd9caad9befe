"""Environments of tensors that count, in either autoreset mode."""

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from quintet.envs.tensor import TensorStep
from quintet.envs.vector import EnvDescription
from quintet.spaces import stored_spaces


class Counting:
    """Stream i's episodes have ``least + i`` steps; it observes the stream, the number of the
    episode and of the step, and is paid the step's number plus 10 for the action 1.  The last
    stream's episodes are truncated, the others' terminated.  Episodes begin at a number that the
    seed gives.
    """

    restarts, generators = True, None

    def __init__(
        self, num_streams=3, mode=AutoresetMode.SAME_STEP, final=True, success=None, least=2,
        device="cpu",
    ):  # fmt: skip
        self.num_streams, self.autoreset, self.final = num_streams, mode, final
        self.least = least
        self.device = torch.device(device)
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.spaces = stored_spaces(box, spaces.Discrete(2), "counting")
        self.description = EnvDescription("counting", "test", success=success)
        self.actions: list[Tensor] = []

    def restart(self, seed: int):
        with self.device:
            self.stream = torch.arange(self.num_streams)
            self.episode = torch.full((self.num_streams,), seed % 1000)
            self.step_number = torch.zeros(self.num_streams, dtype=torch.int64)
            self.over = torch.zeros(self.num_streams, dtype=torch.bool)
        return self.obs()

    def obs(self):
        return {"obs": torch.stack((self.stream, self.episode, self.step_number), 1).float()}

    def begin(self, which: Tensor) -> None:
        self.episode[which] += 1
        self.step_number[which] = 0

    def step(self, action: Tensor) -> TensorStep:
        self.actions.append(action.clone())
        goes = ~self.over
        self.step_number += goes
        if self.autoreset == AutoresetMode.NEXT_STEP:
            self.begin(self.over)
        reward = (self.step_number + 10 * action) * goes
        ends = goes & (self.step_number >= self.least + self.stream)
        last = self.stream == self.num_streams - 1
        final = None
        if self.autoreset == AutoresetMode.NEXT_STEP:
            self.over = ends
        else:
            final = self.obs() if self.final else None
            self.begin(ends)
        won = action == 1
        return TensorStep(self.obs(), reward.float(), ends & ~last, ends & last, final, won)

    def close(self) -> None:
        self.closed = True
