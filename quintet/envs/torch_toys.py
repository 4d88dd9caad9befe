"""Environments in PyTorch, for any device: CartPole, Pendulum and a grid.

Their tensors stay on the device, so training on a GPU never waits for a step.  Episodes depend on
the seed and on actions alone.  All wait for the next step to reset (NEXT_STEP), so no step is lost.
"""

import math
from typing import final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from quintet.envs.tensor import TensorStep
from quintet.envs.vector import EnvDescription
from quintet.errors import ConfigError
from quintet.spaces import stored_spaces
from quintet.types import ACTION_MASK, Obs


@final
class _Streams:
    """Parts that the toys share: random numbers on the device, the time limit, and streams that
    wait for their reset.  State changes in place, so that a step can be captured as a CUDA graph.

    generator: of all random numbers.
    steps: steps of each stream's episode.
    over: streams that ended, which the next step resets.
    """

    def __init__(self, num_streams: int, device: str | torch.device, max_steps: int) -> None:
        if max_steps < 1:
            raise ConfigError(
                f"max_episode_steps must be at least 1, got {max_steps}: raise it in env.kwargs"
            )
        self.device = torch.device(device)
        self.num_streams, self._max_steps = num_streams, max_steps
        self.generator = torch.Generator(self.device)
        self.steps = torch.zeros(num_streams, dtype=torch.int64, device=self.device)
        self.over = torch.zeros(num_streams, dtype=torch.bool, device=self.device)

    def restart(self, seed: int) -> None:
        self.generator.manual_seed(seed)
        self.steps.zero_()
        self.over.zero_()

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1) ``[B, *shape]``."""
        return torch.rand((self.num_streams, *shape), generator=self.generator, device=self.device)

    def close(self) -> None:
        """Does nothing."""

    def ends(self, reward: Tensor, terminated: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Counts a step; returns reward and flags, 0 and false for streams that were reset."""
        goes = ~self.over
        self.steps.add_(1).mul_(goes)
        terminated = terminated & goes
        truncated = (self.steps >= self._max_steps) & goes & ~terminated
        self.over.copy_(terminated | truncated)
        return torch.where(goes, reward, 0.0), terminated, truncated


def _described(name: str, max_steps: int) -> EnvDescription:
    return EnvDescription(name, "pytorch", max_steps=max_steps, one_seed=True)


@final
class CartPole:
    """Gymnasium's CartPole-v1 in float32: a reward of 1 per step, until the pole or the cart is out
    of bounds, or after `max_episode_steps`.

    Without `velocities` the observation has only the two positions, a task for memory.
    """

    autoreset, restarts = AutoresetMode.NEXT_STEP, True

    def __init__(
        self,
        num_streams: int,
        device: str | torch.device = "cpu",
        max_episode_steps: int = 500,
        velocities: bool = True,
    ) -> None:
        self._streams = _Streams(num_streams, device, max_episode_steps)
        self.num_streams, self.device = num_streams, self._streams.device
        self.generators, self.close = (self._streams.generator,), self._streams.close
        bound = np.array([4.8, np.inf, 24 * math.pi / 180, np.inf], np.float32)
        self._seen = slice(None) if velocities else slice(None, None, 2)
        shown = spaces.Box(-bound[self._seen], bound[self._seen], dtype=np.float32)
        name = "torch/CartPole-v1"
        self.spaces = stored_spaces(shown, spaces.Discrete(2), name)
        self.description = _described(name, max_episode_steps)
        self._state = torch.zeros(num_streams, 4, device=self.device)

    def restart(self, seed: int) -> Obs:
        self._streams.restart(seed)
        self._state.copy_(self._new_state())
        return self._obs()

    def _new_state(self) -> Tensor:
        return self._streams.uniform(4) * 0.1 - 0.05

    def _obs(self) -> Obs:
        return {"obs": self._state[:, self._seen]}

    def step(self, action: Tensor) -> TensorStep:
        place, speed, angle, turn = self._state.unbind(1)
        cosine, sine = angle.cos(), angle.sin()
        force = action.float() * 20.0 - 10.0
        part = (force + 0.05 * turn.square() * sine) / 1.1
        turns = (9.8 * sine - cosine * part) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
        moves = part - 0.05 * turns * cosine / 1.1
        change = torch.stack((speed, moves, turn, turns), 1)
        after = self._state + 0.02 * change
        self._state.copy_(torch.where(self._streams.over.unsqueeze(1), self._new_state(), after))
        place, angle = self._state[:, 0], self._state[:, 2]
        out = (place.abs() > 2.4) | (angle.abs() > 12 * 2 * math.pi / 360)
        return TensorStep(self._obs(), *self._streams.ends(torch.ones_like(place), out))


@final
class Pendulum:
    """Gymnasium's Pendulum-v1 in float32: swing a pole up and hold it, with a torque in -2 .. 2."""

    autoreset, restarts = AutoresetMode.NEXT_STEP, True

    def __init__(
        self, num_streams: int, device: str | torch.device = "cpu", max_episode_steps: int = 200
    ) -> None:
        self._streams = _Streams(num_streams, device, max_episode_steps)
        self.num_streams, self.device = num_streams, self._streams.device
        self.generators, self.close = (self._streams.generator,), self._streams.close
        bound = np.array([1.0, 1.0, 8.0], np.float32)
        torque = spaces.Box(-2.0, 2.0, (1,), np.float32)
        name = "torch/Pendulum-v1"
        self.spaces = stored_spaces(spaces.Box(-bound, bound, dtype=np.float32), torque, name)
        self.description = _described(name, max_episode_steps)
        self._state = torch.zeros(num_streams, 2, device=self.device)
        self._range = torch.tensor([math.pi, 1.0], device=self.device)
        self._never = torch.zeros_like(self._streams.over)

    def restart(self, seed: int) -> Obs:
        self._streams.restart(seed)
        self._state.copy_(self._new_state())
        return self._obs()

    def _new_state(self) -> Tensor:
        return (self._streams.uniform(2) * 2.0 - 1.0) * self._range

    def _obs(self) -> Obs:
        angle, speed = self._state.unbind(1)
        return {"obs": torch.stack((angle.cos(), angle.sin(), speed), 1)}

    def step(self, action: Tensor) -> TensorStep:
        angle, speed = self._state.unbind(1)
        torque = action[:, 0].clamp(-2.0, 2.0)
        from_top = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = from_top.square() + 0.1 * speed.square() + 0.001 * torque.square()
        faster = (speed + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        after = torch.stack((angle + 0.05 * faster, faster), 1)
        self._state.copy_(torch.where(self._streams.over.unsqueeze(1), self._new_state(), after))
        return TensorStep(self._obs(), *self._streams.ends(-cost, self._never))


@final
class Grid:
    """A walk to a goal in a square grid: reward 1 at the goal, where the episode ends, and
    truncation after `max_episode_steps`.

    The observation is a picture ``[2, size, size]``, 255 where the walker and the goal are. Actions
    are up, down, left and right; a step against the wall changes nothing, and is forbidden by an
    action mask with `masked`.  Walker and goal begin in two random cells.
    """

    autoreset, restarts = AutoresetMode.NEXT_STEP, True

    def __init__(
        self,
        num_streams: int,
        device: str | torch.device = "cpu",
        size: int = 6,
        max_episode_steps: int = 50,
        masked: bool = False,
    ) -> None:
        if not 5 <= size <= 64:
            raise ConfigError(f"size must be in 5 .. 64, got {size}: change it in env.kwargs")
        self._streams = _Streams(num_streams, device, max_episode_steps)
        self.num_streams, self.device = num_streams, self._streams.device
        self.generators, self.close = (self._streams.generator,), self._streams.close
        picture: spaces.Space[object] = spaces.Box(0, 255, (2, size, size), np.uint8)
        if masked:
            mask = spaces.MultiBinary(4)
            picture = spaces.Dict({"picture": picture, ACTION_MASK: mask})
        name = "torch/Grid-v0"
        self.spaces = stored_spaces(picture, spaces.Discrete(4), name)
        self.description = _described(name, max_episode_steps)
        self._size, self._masked = size, masked
        self._moves = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]], device=self.device)
        self._cells = torch.arange(size * size, device=self.device)
        # Row and column of the walker, then of the goal.
        self._state = torch.zeros(num_streams, 2, 2, dtype=torch.int64, device=self.device)

    def restart(self, seed: int) -> Obs:
        self._streams.restart(seed)
        self._state.copy_(self._new_state())
        return self._obs()

    def _new_state(self) -> Tensor:
        """Rows and columns ``[B, 2, 2]`` of new walkers and of goals in other cells."""
        cells, drawn = self._size**2, self._streams.uniform(2)
        walker = (drawn[:, 0] * cells).long()
        goal = (walker + 1 + (drawn[:, 1] * (cells - 1)).long()) % cells
        both = torch.stack((walker, goal), 1)
        return torch.stack((both // self._size, both % self._size), 2)

    def _obs(self) -> Obs:
        cell = self._state[..., 0] * self._size + self._state[..., 1]
        shown = (cell.unsqueeze(2) == self._cells).to(torch.uint8) * 255
        picture = shown.view(-1, 2, self._size, self._size)
        if not self._masked:
            return {"obs": picture}
        targets = self._state[:, :1] + self._moves
        allowed = ((targets >= 0) & (targets < self._size)).all(2)
        return {"picture": picture, ACTION_MASK: allowed.to(torch.int8)}

    def step(self, action: Tensor) -> TensorStep:
        walker = (self._state[:, 0] + self._moves[action]).clamp(0, self._size - 1)
        after = torch.stack((walker, self._state[:, 1]), 1)
        over = self._streams.over.view(-1, 1, 1)
        self._state.copy_(torch.where(over, self._new_state(), after))
        at_goal = (self._state[:, 0] == self._state[:, 1]).all(1)
        return TensorStep(self._obs(), *self._streams.ends(at_goal.float(), at_goal))
