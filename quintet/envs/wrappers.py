"""What can be laid around any vector environment: frame stacks and clipped rewards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.envs.config import RewardClip
from quintet.envs.vector import (
    Array,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    VectorEnv,
    allocate_obs,
)
from quintet.spaces import Space, map_leaves, observation_leaves
from quintet.types import ACTION_MASK, Spaces


@final
class FrameStack:
    """Gives the newest `k` observations, oldest first, on a new leading axis: ``[B, k, ...]``.

    Box leaves are stacked, except an action mask, which speaks of the present only. The first
    observation of an episode fills its whole stack, so no stack spans two episodes.
    """

    def __init__(self, env: VectorEnv, k: int) -> None:
        assert k >= 1
        self._env = env
        inner = env.spaces.observation
        self._stacked = [
            path
            for path, leaf in observation_leaves(inner).items()
            if isinstance(leaf, spaces.Box) and path != ACTION_MASK
        ]

        def stacked(path: str, leaf: Space) -> Space:
            if not isinstance(leaf, spaces.Box) or path not in self._stacked:
                return leaf
            low, high = np.stack([leaf.low] * k), np.stack([leaf.high] * k)
            return spaces.Box(low, high, dtype=leaf.dtype)

        self._spaces = Spaces(map_leaves(inner, stacked), env.spaces.action)
        self._newest = allocate_obs(inner, (env.num_streams,))
        # Kept here: the rows handed in belong to someone who may write over them.
        history = allocate_obs(self._spaces.observation, (env.num_streams,))
        self._history = {path: history[path] for path in self._stacked}

    @property
    def num_streams(self) -> int:
        return self._env.num_streams

    @property
    def spaces(self) -> Spaces:
        return self._spaces

    @property
    def description(self) -> EnvDescription:
        return self._env.description

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        inner = {**out, **{path: self._newest[path] for path in self._stacked}}
        self._env.restart(seeds, inner)
        for path in self._stacked:
            self._history[path][:] = self._newest[path][:, None]
            out[path][:] = self._history[path]

    def send(self, action: Array) -> None:
        self._env.send(action)

    def recv(self, out: StepRow) -> None:
        inner = {**out.obs, **{path: self._newest[path] for path in self._stacked}}
        self._env.recv(replace(out, obs=inner))
        first = ~out.valid  # a reset led here
        for path in self._stacked:
            history, newest = self._history[path], self._newest[path]
            history[:, :-1] = history[:, 1:]
            history[:, -1] = newest
            if first.any():
                history[first] = newest[first][:, None]
            out.obs[path][:] = history

    def render(self, stream: int) -> Rendered:
        return self._env.render(stream)

    def close(self) -> None:
        self._env.close()


@final
class ClipReward:
    """Clips what learning sees of rewards, in place; `raw_reward` stays as it is."""

    def __init__(self, env: VectorEnv, kind: RewardClip) -> None:
        self._env = env
        self._kind = kind

    @property
    def num_streams(self) -> int:
        return self._env.num_streams

    @property
    def spaces(self) -> Spaces:
        return self._env.spaces

    @property
    def description(self) -> EnvDescription:
        return self._env.description

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        self._env.restart(seeds, out)

    def send(self, action: Array) -> None:
        self._env.send(action)

    def recv(self, out: StepRow) -> None:
        self._env.recv(out)
        clip_reward(out.reward, self._kind)

    def render(self, stream: int) -> Rendered:
        return self._env.render(stream)

    def close(self) -> None:
        self._env.close()


def clip_reward(reward: NDArray[np.floating], kind: RewardClip) -> None:
    """Clips `reward` in place.

    ``abs_one``: ``clamp(r, -1, 1)``. ``soft_asymmetric``: ``5 tanh(r / 5)``, times 0.3 where r < 0.
    """
    if kind == "abs_one":
        np.clip(reward, -1.0, 1.0, out=reward)
    elif kind == "soft_asymmetric":
        negative = reward < 0
        np.divide(reward, 5.0, out=reward)
        np.tanh(reward, out=reward)
        np.multiply(reward, 5.0, out=reward)
        np.multiply(reward, 0.3, out=reward, where=negative)
