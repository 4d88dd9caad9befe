"""A pool's steps as the arrays that its C++ takes and gives.

EnvPool's own ``send`` and ``recv`` look up its options, name every array and build a tree of them
in each step, which takes about as long as the C++ step of a cheap environment.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class _Places(NamedTuple):
    """Positions of the arrays in a step's result; entries of `info` that are one array, by name."""

    obs: Any
    reward: int
    done: int
    truncated: int
    info: Mapping[str, int]


@final
class PoolArrays:
    """A synchronous pool of environments with one agent each."""

    def __init__(self, pool: Any):
        """pool: of ``envpool.make(..., env_type="gymnasium")``."""
        self._send, self._recv, self._reset = pool._send, pool._recv, pool._reset
        self._action_dtype = pool.spec._action_spec[-1][0]
        self._ids = np.arange(len(pool), dtype=np.int32)
        # Before the action stand the numbers of the environments, and of their agents.
        self._given: list[Array] = [self._ids] * (len(pool.spec._action_keys) - 1)
        keys = list(pool._state_keys)
        # EnvPool's own conversion says where each is, given numbers in place of arrays.
        obs, reward, _, truncated, info = pool._to(list(range(len(keys))), False, True)
        plain = {name: place for name, place in info.items() if isinstance(place, int)}
        self.at = _Places(obs, reward, keys.index("done"), truncated, plain)

    def reset(self) -> list[Array]:
        self._reset(self._ids)
        return self.recv()

    def send(self, action: Array) -> None:
        """Begins a step; the action is copied."""
        self._send([*self._given, action.astype(self._action_dtype, order="C")])

    def recv(self) -> list[Array]:
        """Waits for the step; arrays of their own memory, see `at`."""
        arrays: list[Array] = self._recv()
        return arrays
