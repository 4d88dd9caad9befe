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
_MOST_WIDE = 1_024  # numbers of a leaf that is looked at number by number
_MOST_ENDS, _MOST_SHOWN = 256, 0.8  # ends that are looked at; part of them that is shown
_MOST_OTHERS, _MOST_SUMMED = 2_048, 128  # other steps; numbers of which sums are looked at

Array = NDArray[Any]


@final
class Ends:
    """Whether an observation shows that the step from it is the episode's last, as days left or a
    share of the time that is over do: it then lies beyond the range of all other steps.

    Single numbers are looked at, and weighted sums of them, such as a count of all actions.
    """

    def __init__(self, observation: spaces.Space) -> None:  # type: ignore[type-arg]
        self._names = [
            name
            for name, leaf in observation_leaves(observation).items()
            if not isinstance(leaf, spaces.Text)
            and name.split("/")[0] != LAST_ACTION
            and int(np.prod(leaf.shape or ())) <= _MOST_WIDE
        ]
        self._range: tuple[Array, Array] | None = None  # least and greatest, without last steps
        self._last, self._others = list[Array](), list[Array]()
        self._every, self._passed = 1, 0

    def add(self, obs: Mapping[str, Array], last: NDArray[np.bool_]) -> None:
        """Adds leaves ``[N, ...]``, and whether an episode's last step follows each ``[N]``."""
        if not self._names or not len(last):
            return
        rows = [obs[name].reshape(len(last), -1).astype(np.float64) for name in self._names]
        table = np.concatenate(rows, 1)
        self._last += [*table[last][: _MOST_ENDS - len(self._last)]]
        others = table[~last]
        if not len(others):
            return
        low, high = others.min(0), others.max(0)
        if self._range is not None:
            low, high = np.fmin(low, self._range[0]), np.fmax(high, self._range[1])
        self._range = low, high
        self._others += [*others[-self._passed % self._every :: self._every]]
        self._passed += len(others)
        while len(self._others) > _MOST_OTHERS:  # spread over all that passed
            self._others, self._every = self._others[::2], 2 * self._every

    @property
    def shown(self) -> bool:
        """Whether most of the ends are shown; some episodes may end before."""
        if self._range is None or not self._last:
            return False
        last, others = np.stack(self._last), np.stack(self._others)
        if _beyond(last, *self._range):
            return True
        fitted, tested = last[::2], last[1::2]
        if others.shape[1] > _MOST_SUMMED or len(tested) < 2:
            return False
        # The weights of a sum that is the same at all ends, and differs most from the others.
        scale = np.maximum(others.std(0), 1e-12)
        distance = (fitted.mean(0) - others.mean(0)) / scale
        spread = np.cov((fitted / scale).T, bias=True).reshape(len(scale), -1)
        weight = np.linalg.solve(spread + 1e-9 * np.eye(len(scale)), distance) / scale
        sums = others @ weight
        return _beyond((tested @ weight)[:, None], sums.min(), sums.max())


def _beyond(last: Array, low: Any, high: Any) -> bool:
    """Whether most rows of a column are beyond its range."""
    below, above = np.mean(last < low, 0), np.mean(last > high, 0)
    return bool((np.maximum(below, above) >= _MOST_SHOWN).any())


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
    ends: whether observations show the end of an episode beforehand.
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
    ends: Ends = field(init=False)

    def __post_init__(self) -> None:
        self.ends = Ends(self.observation)
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
            # einsum converts in blocks: a float64 copy of large leaves would fill the memory.
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
        self._before: dict[str, Array] | None = None
        self._returns = np.zeros(streams)

    def add(self, row: StepRow) -> None:
        """Adds a row of every stream."""
        reward = row.raw_reward
        self.evidence.add(row.obs, reward, row.valid)
        if self._before is not None:
            own, last = row.valid, row.terminated | row.truncated
            self.evidence.ends.add({k: x[own] for k, x in self._before.items()}, last[own])
        self._before = {name: np.array(x) for name, x in row.obs.items()}
        self._lengths += row.valid
        self._returns += reward
        for i in np.flatnonzero(row.terminated | row.truncated):
            length, return_ = int(self._lengths[i]), float(self._returns[i])
            self.evidence.ended(length, return_, bool(row.terminated[i]), float(reward[i]))
            self.returns.append(return_)
            self._lengths[i], self._returns[i] = 0, 0.0
