"""Rows of random play as tables of numbers, from which findings about an environment follow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, final

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from quintet.envs.evidence import Evidence, RowsSeen
from quintet.envs.random_play import Chooser, chosen_rows, uniform_chooser
from quintet.envs.vector import VectorEnv
from quintet.spaces import action_leaves, action_shape, mask_sizes, observation_leaves
from quintet.types import ACTION_MASK, LAST_ACTION, Obs

_MOST_NUMBERS = 48  # numbers of a leaf; larger leaves have as many random projections
_MOST_CHOICES = 32  # values of a discrete leaf that is shown one-hot
_MOST_ROWS = 65_536  # rows of the table of random numbers for a leaf with more values
_MOST_WIDE = 1_024  # numbers of a leaf that is too large for the table and is compared one by one
_HELD = 0.9  # probability that an action is repeated in held play

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Large:
    """A leaf of more numbers than the table has.

    still: which of its numbers ``[n]`` never changed.
    rows: its numbers ``[R, n]`` in some rows, one of each step; none of pictures, and of leaves of
        more than 1,024 numbers.
    """

    still: NDArray[np.bool_]
    rows: Floats


@final
@dataclass(frozen=True)
class Play:
    """Rows ``[T, B]`` of streams, and the observations before and after them.

    obs: numbers of the observations ``[T + 1, B, n]``: large leaves as random projections, choices,
        as networks read them, one-hot, or by a table of random numbers if there are many.
    numbers: leaf and place of each of the n, "" in front of projections.
    action: ``[T, B, m]``, choices one-hot.
    reward: raw.
    valid: rows whose action was executed.
    held: streams whose random actions were often repeated, so that they reach more.
    bad: first NaN or infinity, as text; the rows end before it.
    ended: whether an episode ended in these rows or in further steps; steps: number of steps of
        each stream until then.
    large: leaves that `obs` has as random projections.
    evidence: sums over the rows; None: there are no rows of an environment.
    one_choice: whether an action is one choice, of which `action` has a column for each value.
    """

    obs: Floats
    numbers: tuple[str, ...]
    action: Floats
    reward: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    held: NDArray[np.bool_]
    bad: str = ""
    ended: bool = True
    steps: int = 0
    large: Mapping[str, Large] = field(default_factory=dict)
    evidence: Evidence | None = None
    one_choice: bool = False

    @property
    def rows(self) -> int:
        return int(self.valid.sum())

    @property
    def rewards(self) -> Floats:
        """The rewards of the rows ``[rows]``."""
        return self.reward[self.valid]

    @property
    def episode(self) -> NDArray[np.int64]:
        """Number of the episode of each row ``[T, B]``, over all streams."""
        begins = np.zeros(self.valid.shape, np.int64)
        begins[1:] = ~self.valid[1:]
        own = begins.cumsum(0)
        every: NDArray[np.int64] = own + np.arange(own.shape[1]) * (own.max(initial=0) + 1)
        return every

    @property
    def steps_before(self) -> NDArray[np.int64]:
        """Number of steps of its episode before each row ``[T, B]``."""
        number = np.arange(len(self.valid))[:, None]
        first = np.where(self.valid, -1, number)  # a row that is not valid is a reset
        before: NDArray[np.int64] = number - 1 - np.maximum.accumulate(first, 0)
        return before

    def returns(self, held: bool) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
        """Returns, lengths and whether terminated of the whole episodes."""
        returns, lengths, terminated = [], [], []
        for b in np.flatnonzero(self.held == held):
            over = np.flatnonzero(self.terminated[:, b] | self.truncated[:, b])
            begin = 0
            for end in over:
                rows = slice(begin, int(end) + 1)
                returns.append(self.reward[rows, b][self.valid[rows, b]].sum())
                lengths.append(int(self.valid[rows, b].sum()))
                terminated.append(bool(self.terminated[end, b]))
                begin = int(end) + 1
        return np.array(returns, float), np.array(lengths, int), np.array(terminated, bool)


def play(env: VectorEnv, steps: int, seed: int, most_s: float, further: int = 0) -> Play:
    """Plays `steps` rows in all streams, or less in `most_s` seconds; half of the streams repeat
    their random actions, unless there is an action mask.

    further: steps that are played after them, without rows, until an episode ends.
    """
    reader = Reader(env)
    masked = ACTION_MASK in observation_leaves(env.spaces.observation)
    held = np.zeros(env.num_streams, np.bool_)
    if not masked:
        held[env.num_streams // 2 :] = True
    seeds = [seed + i for i in range(env.num_streams)]
    choose = _RepeatingChooser(uniform_chooser(env, seed), held, seed)
    obs: list[Floats] = []
    actions: list[Floats] = []
    rows: list[list[NDArray[Any]]] = []
    bad, ended, number = "", False, 0
    seen = RowsSeen(env.spaces.observation, env.num_streams)
    begin = perf_counter()
    for step in chosen_rows(env, steps + further, seeds, choose):
        row, number = step.row, step.number
        if number > steps:
            ended = bool((row.terminated | row.truncated).any())
            if ended or perf_counter() - begin > most_s:
                break
            continue
        numbers = reader.numbers(row.obs)
        if not (np.isfinite(numbers).all() and np.isfinite(row.raw_reward).all()):
            bad = _bad(row.obs, row.raw_reward, step.number)
            break
        obs.append(numbers)
        reader.look(row.obs, number)
        if number:
            seen.add(row)
            actions.append(reader.actions(choose.last))
            flags = row.terminated, row.truncated, row.valid
            rows.append([row.raw_reward.astype(np.float64), *(x.copy() for x in flags)])
            ended |= bool((row.terminated | row.truncated).any())
        if (number and perf_counter() - begin > most_s) or (ended and number == steps):
            break
    if not obs:  # the reset itself
        obs = [np.zeros((env.num_streams, len(reader.names)))]
    shape = (0, env.num_streams)
    terminated, truncated, valid = (
        np.stack([each[i] for each in rows]) if rows else np.zeros(shape, np.bool_)
        for i in (1, 2, 3)
    )
    return Play(
        np.stack(obs),
        reader.names,
        np.stack(actions) if actions else np.zeros((*shape, reader.action_size)),
        np.stack([each[0] for each in rows]) if rows else np.zeros(shape),
        terminated,
        truncated,
        valid,
        held,
        bad,
        ended,
        number,
        reader.large(),
        seen.evidence,
        reader.one_choice,
    )


def _bad(obs: Mapping[str, NDArray[Any]], reward: NDArray[Any], step: int) -> str:
    for name, x in (*obs.items(), ("reward", reward)):
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            what = "the reward" if x is reward else f"observation {name!r}"
            value = x[~np.isfinite(x)].flat[0]
            return f"{what} is {value} at step {step} of random play"
    return f"a number is too large at step {step} of random play"


@final
class _RepeatingChooser:
    """Chooses actions of another chooser and repeats them in some streams.

    last: the actions ``[B, ...]`` that were chosen.
    """

    def __init__(self, choose: Chooser, held: NDArray[np.bool_], seed: int) -> None:
        self.choose, self.held = choose, held
        self.generator = np.random.default_rng(seed)
        self.last: NDArray[Any] = np.zeros(0)

    def __call__(self, leaves: Obs) -> NDArray[Any]:
        new = self.choose(leaves).copy()
        if len(self.last):
            repeats = self.held & (self.generator.random(len(self.held)) < _HELD)
            new[repeats] = self.last[repeats]
        self.last = new
        return new


@final
class Reader:
    """Makes tables of numbers of an environment's observations and packed actions."""

    def __init__(self, env: VectorEnv) -> None:
        leaves = observation_leaves(env.spaces.observation)
        self.leaves = {
            name: leaf
            for name, leaf in leaves.items()
            if name != ACTION_MASK and name.split("/")[0] != LAST_ACTION
        }
        self.space = env.spaces.action
        self._projections: dict[str, Floats] = {}
        self._tables: dict[str, Floats] = {}
        self._first: dict[str, NDArray[Any]] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}
        self._wide: dict[str, list[NDArray[Any]]] = {}
        names: list[str] = []
        for name, leaf in self.leaves.items():
            size = math.prod(leaf.shape or ())
            if (choices := _choices(leaf)) is not None:
                where = "" if isinstance(leaf, gym.Discrete) else "[{}]"
                names += [
                    f"{name}{where.format(place)}={i}"
                    for place, count in enumerate(choices)
                    for i in range(count)
                ]
            elif isinstance(leaf, gym.Discrete):
                generator = np.random.default_rng(int(leaf.n) % 2**32)
                rows = min(int(leaf.n), _MOST_ROWS)
                self._tables[name] = generator.normal(size=(rows, _MOST_NUMBERS))
                names += [""] * _MOST_NUMBERS
            elif size <= _MOST_NUMBERS:
                shape = leaf.shape or ()
                places = [list(map(int, np.unravel_index(i, shape))) for i in range(size)]
                names += [f"{name}{place}" if shape else name for place in places]
            else:
                generator = np.random.default_rng(size)
                self._projections[name] = generator.normal(0, size**-0.5, (size, _MOST_NUMBERS))
                names += [""] * _MOST_NUMBERS
        self.names = tuple(names)
        chosen = action_leaves(self.space)
        self.one_choice = len(chosen) == 1 and isinstance(chosen[0], gym.Discrete)
        self.one_choice &= _choices(chosen[0]) is not None
        self.action_size = self.actions(np.zeros((1, *action_shape(self.space)))).shape[-1]

    def numbers(self, obs: Mapping[str, NDArray[Any]]) -> Floats:
        """The numbers of leaves ``[B, ...]``: ``[B, n]``."""
        parts: list[Floats] = []
        for name, leaf in self.leaves.items():
            x = obs[name].reshape(len(obs[name]), -1)
            if (choices := _choices(leaf)) is not None:
                parts += [
                    (x[:, place : place + 1] == np.arange(count)).astype(np.float64)
                    for place, count in enumerate(choices)
                ]
            elif name in self._tables:
                table = self._tables[name]
                parts.append(table[x[:, 0].astype(np.int64) % len(table)])
            elif name in self._projections:
                parts.append(x.astype(np.float64) @ self._projections[name])
            else:
                parts.append(x.astype(np.float64))
        return np.concatenate(parts, -1) if parts else np.zeros((len(next(iter(obs.values()))), 0))

    def look(self, obs: Mapping[str, NDArray[Any]], number: int) -> None:
        """Looks at the large leaves of a row, number by number."""
        for name in self._projections:
            x = obs[name].reshape(len(obs[name]), -1)
            first = self._first.setdefault(name, x[0].copy())
            changed = (x != first).any(0)
            self._changed[name] = self._changed.get(name, changed) | changed
            if len(self.leaves[name].shape or ()) == 1 and len(first) <= _MOST_WIDE:
                self._wide.setdefault(name, []).append(x[number % len(x)].copy())

    def large(self) -> dict[str, Large]:
        """The leaves that `look` has seen, by name."""
        return {
            name: Large(
                ~changed, np.array(self._wide.get(name, []), float).reshape(-1, changed.size)
            )
            for name, changed in self._changed.items()
        }

    def actions(self, packed: NDArray[Any]) -> Floats:
        """Packed actions ``[B, ...]`` as numbers ``[B, m]``, choices one-hot."""
        flat = packed.reshape(len(packed), -1).astype(np.float64)
        parts, place = [], 0
        for leaf in action_leaves(self.space):
            sizes = [] if isinstance(leaf, gym.MultiBinary) else mask_sizes(leaf)
            if not sizes:
                width = math.prod(leaf.shape or (1,))
                parts.append(flat[:, place : place + width])
                place += width
            for size in sizes:
                chosen = flat[:, place : place + 1]
                shown = size <= _MOST_CHOICES
                parts.append((chosen == np.arange(size)).astype(np.float64) if shown else chosen)
                place += 1
        return np.concatenate(parts, -1)


def _choices(leaf: gym.Space[Any]) -> list[int] | None:
    """The numbers of values of the choices of a leaf that is shown one-hot; None: it is not."""
    if isinstance(leaf, gym.Discrete):
        return [int(leaf.n)] if leaf.n <= _MOST_CHOICES else None
    if isinstance(leaf, gym.MultiDiscrete) and leaf.nvec.sum() <= _MOST_NUMBERS:
        return [int(n) for n in leaf.nvec.reshape(-1)]
    return None
