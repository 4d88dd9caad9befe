"""Facts from rows of an environment: sizes of numbers, rewards, endings, allowed actions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.envs.vector import StepRow
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, LAST_ACTION

_OBSERVED = 4_096  # rows whose observations are looked at

Array = NDArray[Any]


@final
@dataclass
class Evidence:
    """Sums over the rows that were executed, and over the episodes that ended.

    observed: number of rows whose observations were summed.
    squares: by leaf, the sums of the squares of its numbers, one for each number.
    allowed: for each place of the action mask, whether it was ever allowed; None without a mask.
    rewards: number of rewards that were not 0; reward_squares: the sum of their squares.
    lengths, terminated: of each ended episode, in env_steps, and whether it was terminated.
    paid_lengths: lengths of the episodes whose return was not 0; paid_ends: number of those whose
        last reward was not 0.
    """

    observation: spaces.Space  # type: ignore[type-arg]
    rows: int = 0
    observed: int = 0
    squares: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    allowed: NDArray[np.bool_] | None = None
    rewards: int = 0
    reward_squares: float = 0.0
    lengths: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    paid_lengths: list[int] = field(default_factory=list)
    paid_ends: int = 0

    def __post_init__(self) -> None:
        leaves = observation_leaves(self.observation)
        self._masked = leaves.pop(ACTION_MASK, None) is not None
        # Pictures are scaled, discrete values one-hot.
        self._numbers = [
            name
            for name, leaf in leaves.items()
            if isinstance(leaf, spaces.Box)
            and not (leaf.dtype in (np.uint8, np.bool_) and len(leaf.shape) > 1)
            and name.split("/")[0] != LAST_ACTION
        ]

    def add(self, obs: Mapping[str, Array], reward: Array, valid: Array) -> None:
        """Adds rows: leaves ``[N, ...]``, raw or clipped rewards ``[N]``, and whether each was
        executed ``[N]``."""
        count = int(valid.sum())
        self.rows += count
        paid = reward[valid]
        paid = paid[paid != 0.0].astype(np.float64)
        self.rewards += len(paid)
        self.reward_squares += float(np.square(paid).sum())
        if self._masked:
            allowed = (obs[ACTION_MASK][valid] != 0).any(0)
            self.allowed = allowed if self.allowed is None else self.allowed | allowed
        if self.observed >= _OBSERVED or not count:
            return
        looked = np.flatnonzero(valid)[: _OBSERVED - self.observed]
        self.observed += len(looked)
        for name in self._numbers:
            rows = obs[name][looked].reshape(len(looked), -1)
            # In blocks, since a float64 copy of large leaves would fill the memory.
            found = np.einsum("ij,ij->j", rows, rows, dtype=np.float64, casting="unsafe")
            self.squares[name] = self.squares.get(name, 0.0) + found

    def ended(self, length: int, return_: float, terminated: bool, last_reward: float) -> None:
        """Adds an episode."""
        self.lengths.append(length)
        self.terminated.append(terminated)
        if return_ != 0.0:
            self.paid_lengths.append(length)
            self.paid_ends += last_reward != 0.0

    @property
    def reward_size(self) -> float:
        """The root mean square of the rewards that were not 0; 0 without any."""
        return float((self.reward_squares / max(self.rewards, 1)) ** 0.5)

    def sizes(self, name: str) -> NDArray[np.float64]:
        """The root mean square of each number of a leaf."""
        return np.asarray(np.sqrt(self.squares[name] / max(self.observed, 1)))


@final
class RowsSeen:
    """Evidence from the rows of streams ``[B]``, each from its reset on.

    returns: of the episodes that ended, raw, in the order of `Evidence.lengths`.
    """

    def __init__(self, observation: spaces.Space, streams: int):  # type: ignore[type-arg]
        self.evidence = Evidence(observation)
        self.returns: list[float] = []
        self._lengths = np.zeros(streams, np.int64)
        self._returns = np.zeros(streams)

    def add(self, row: StepRow) -> None:
        """Adds a row of every stream."""
        reward = row.raw_reward
        self.evidence.add(row.obs, reward, row.valid)
        self._lengths += row.valid
        self._returns += reward
        for i in np.flatnonzero(row.terminated | row.truncated):
            length, return_ = int(self._lengths[i]), float(self._returns[i])
            self.evidence.ended(length, return_, bool(row.terminated[i]), float(reward[i]))
            self.returns.append(return_)
            self._lengths[i], self._returns[i] = 0, 0.0
