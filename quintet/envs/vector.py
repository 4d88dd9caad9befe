"""The one interface between the runtime and any vector environment.

The layout is next-step autoreset.  ``recv`` after the step that ended an episode gives the true
final observation with the last reward and the flags; the next ``send`` ignores that stream's action
and resets it: ``recv`` then gives the first observation of the new episode with reward 0, no flag,
``valid`` False.

Discrete and MultiDiscrete values of observations and actions count from 0, whatever the ``start``
of the environment's space. A stream's actions, also of a Tuple or Dict space, are packed in one
array, see `quintet.spaces.action_spec`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import Space, float64_leaves, leaf_dtype, observation_leaves
from quintet.types import Spaces

Array = NDArray[Any]

ObsArrays = dict[str, Array]
"""Observation leaves ``[B, ...]`` by path; a plain space has the single leaf ``"obs"``."""


@dataclass(frozen=True)
class StepRow:
    """The memory of a step: views of a row of preallocated arrays, all ``[B, ...]``.

    obs: the observations after the step (of the row after the action's).
    reward: after clipping; raw_reward: as the environment returned it.
    terminated, truncated: never both True; termination wins.
    valid: False in reset rows.
    success: whether the episode that ended here was won; undefined in other rows, or if
        `EnvDescription.success` is None.
    metrics: ``[B, M]``, of the episode that ended here, NaN where it has no number; undefined in
        other rows; None: nobody wants them.
    """

    obs: ObsArrays
    reward: NDArray[np.float32]
    raw_reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    success: NDArray[np.bool_]
    metrics: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class EnvDescription:
    """The identity of a task, published with every score.

    success: the rule by which an episode is won, as in ``env.success``; None: no rule.
    max_steps: the time limit of its episodes, in steps; None: no limit, or unknown.
    agents: agents of a game in order, each of which is a stream; empty: each stream has its own
        environment.
    remarks: remarks about its spaces for the user, one sentence each.
    notes: what was chosen about it, for the user, one sentence each.
    turns: the agents act in turn.  A row is valid for the agent that acts in it.  The outcome of a
        decision is given when it is complete, in that row or a later one whose step gives the
        agent's next observation: the sum of its rewards since then, and whether its episode ended.
        Until then the agent's observation stays the same.
    one_seed: all streams follow from the first stream's seed.
    statistics: names of Gymnasium's wrappers in it that normalise by statistics of their own, which
        begin anew in every evaluation.
    metrics: names of the M numbers of its own that each episode has, see ``env.metrics``.
    curriculum: what its episodes are of a curriculum in evaluations, as the end of a sentence.
    """

    id: str
    backend: str
    action_repeat: int = 1
    success: str | None = None
    agents: tuple[str, ...] = ()
    max_steps: int | None = None
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    turns: bool = False
    one_seed: bool = False
    statistics: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    curriculum: str = ""


class InfoReader:
    """Reads the infos of B streams' steps, in the process that steps them."""

    def clear(self) -> None:
        """Forgets the running episodes."""

    def add(self, stream: int, info: Any, *, ended: bool, agent: str = "") -> None:
        """Takes the info of a stream's step, perhaps again; ended: whether its episode ended there;
        agent: of a game, as the end of a name.
        """
        raise NotImplementedError

    def write(self, out: StepRow) -> None:
        """Writes the rows of the streams that ended in what was taken since the last call."""

    def step(self, infos: Any, valid: Array, ended: Array, out: StepRow, final: Any = None) -> None:
        """Takes a vector environment's infos of a step, and writes the rows of the streams that
        `ended` ``[B]``, a part of the `valid` ones.

        infos: arrays ``[B]`` by key, perhaps with a mask at ``"_" + key``, nested or not; or for
            each stream a dict or None.
        final: infos of the streams that ended, where theirs stand apart.
        """
        self.take(infos, valid & ~ended, ended=False)
        if ended.any():
            self.take(infos if final is None else final, ended, ended=True)
        self.write(out)

    def take(self, infos: Any, rows: Array, *, ended: bool) -> None:
        """Takes the infos of some streams of a vector environment."""
        for stream in np.flatnonzero(rows).tolist():
            whole = infos is None or isinstance(infos, Mapping)
            info = _of_stream(infos or {}, stream) if whole else infos[stream]
            self.add(stream, info, ended=ended)


def _of_stream(infos: Mapping[str, Any], stream: int) -> dict[str, Any]:
    """The info of a stream in arrays of all streams by key, with masks at ``"_" + key``."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        given = infos.get(f"_{key}")
        if isinstance(value, Mapping):
            found[key] = _of_stream(value, stream)
        elif (given is None or given[stream]) and np.ndim(value):
            found[key] = value[stream]
    return found


class Rendered(NamedTuple):
    """An environment's picture of itself.

    picture: as the environment returned it, unchecked; should be ``[H, W, 3]`` uint8.
    steps_per_s: steps per second at the right speed; None: unknown.
    """

    picture: Any
    steps_per_s: float | None


class CannotRender(Exception):
    """An environment can't draw; the message continues after its name and a colon."""


class VectorEnv(Protocol):
    """B environments that step together."""

    @property
    def num_streams(self) -> int: ...

    @property
    def spaces(self) -> Spaces:
        """Spaces of one stream: float64 boxes as float32 (but see `EnvConfig.observation_dtype`),
        discrete spaces with ``start`` 0.
        """
        ...

    @property
    def description(self) -> EnvDescription: ...

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Seeds every stream, begins new episodes and writes their first observations."""
        ...

    def send(self, action: Array) -> None:
        """Starts a step; `action`, packed ``[B, ...]``, must not change before `recv`."""
        ...

    def recv(self, out: StepRow) -> None:
        """Waits for the step that `send` started and writes it."""
        ...

    def render(self, stream: int) -> Rendered:
        """A picture of `stream` after the last `restart` or `recv`.  Raises CannotRender if it
        can't be drawn; the environment's code may raise other errors.
        """
        ...

    def close(self) -> None: ...


def place_of_frame(frame: FrameType) -> str:
    """The stream that a running frame steps or resets, with its step and seed; "" if the frame is
    not of a single stream.

    It asks the frame's `self` by ``place_of(stream)``, a method of vector environments that step
    one stream or game after another, for the stream that the frame holds as `stream`.
    """
    held = frame.f_locals
    place_of = getattr(type(held.get("self")), "place_of", None)
    if place_of is None or "stream" not in held:
        return ""
    return str(place_of(held["self"], held["stream"]))


def allocate_obs(space: Space, leading: tuple[int, ...]) -> ObsArrays:
    """Zeroed leaves ``[*leading, ...]`` of a stored observation space."""
    return {
        path: np.zeros((*leading, *(leaf.shape or ())), leaf_dtype(leaf))
        for path, leaf in observation_leaves(space).items()
    }


def allocate_row(space: Space, num_streams: int, metrics: int = 0) -> StepRow:
    """A newly allocated, zeroed row ``[num_streams]`` for a stored observation space, with this
    number of metrics."""
    return StepRow(
        obs=allocate_obs(space, (num_streams,)),
        reward=np.zeros(num_streams, np.float32),
        raw_reward=np.zeros(num_streams, np.float32),
        terminated=np.zeros(num_streams, np.bool_),
        truncated=np.zeros(num_streams, np.bool_),
        valid=np.zeros(num_streams, np.bool_),
        success=np.zeros(num_streams, np.bool_),
        metrics=np.zeros((num_streams, metrics), np.float32) if metrics else None,
    )


def check_seeds(seeds: Sequence[int], num_streams: int) -> list[int]:
    """One seed per stream as Python ints; raises ConfigError if their number or range is wrong."""
    checked = [int(seed) for seed in seeds]
    if len(checked) != num_streams or not all(0 <= seed < 2**31 for seed in checked):
        raise ConfigError(
            f"restart needs {num_streams} seeds, one per stream, each in 0 .. 2**31 - 1; "
            f"got {checked}"
        )
    return checked


def check_finite(
    obs_leaves: ObsArrays,
    reward: NDArray[np.floating],
    first_stream: int,
    seeds: Sequence[int],
    description: EnvDescription,
    first_step: int,
) -> None:
    """Refuses NaN and infinity in a whole unroll, since a check per step would be expensive.

    Args:
        obs_leaves: leaves ``[T, B, ...]`` or ``[T + 1, B, ...]``; row t is seen before step t.
        reward: ``[T, B]``, raw, since clipping would hide infinity.
        first_stream: number of column 0 in the run.
        seeds: seeds of the streams' last restart; a game has the seed of its first agent's stream.
        first_step: step of row 0, counted over episodes since the stream's last restart.

    Raises:
        EnvironmentFault: names the earliest bad step, its stream and the value.
    """
    worst: tuple[int, int, str] | None = None
    for name, values in (*obs_leaves.items(), ("reward", reward)):
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        row, column, *index = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        where = "reward" if values is reward else f"observation {name!r}{index or ''}"
        if worst is None or row < worst[0]:
            worst = (row, column, f"{where} is {values[(row, column, *index)]}")
    if worst is not None:
        row, column, what = worst
        size = len(description.agents) or 1
        agent = column % size
        who = f" (agent {description.agents[agent]!r})" if description.agents else ""
        raise EnvironmentFault(
            f"observations and rewards must be finite; {description.id} ({description.backend}), "
            f"stream {first_stream + column}{who}, step {first_step + row} after its reset with "
            f"seed {seeds[column - agent]}: {what}; mend the environment, or replace the value in "
            "a wrapper of your own"
        )


def coarse(name: str, low: Array, high: Array, of: Spaces, *, normalized: bool) -> str | None:
    """A remark if a leaf's differences are lost in float32, in which networks compute; None if
    little is lost.

    Args:
        low, high: its least and greatest observed values, ``[*shape]``, in the stored dtype.
        of: the environment's spaces.
        normalized: whether leaves of floats are normalised.
    """
    dtype, wide = low.dtype, low.dtype == np.float64
    if (dtype.kind not in "fiu" or dtype.itemsize < 4) or (wide and normalized):
        return None
    least, most = low.astype(np.float64), high.astype(np.float64)
    size = np.maximum(np.abs(least), np.abs(most))
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32
        step = np.spacing(size.astype(np.float32)).astype(np.float64)
    span = most - least
    # A number that never changed is only doubtful where float32 skips whole numbers.
    lost = (size >= OFFSET) & (span < _FEWEST_STEPS * step) & ((span > 0) | (step > 1))
    if not lost.any():
        return None
    index = tuple(int(i) for i in np.argwhere(lost)[0])
    where = f"{name!r}{list(index) if index else ''}"
    cures = [] if normalized else ["normalize_observations=true"]
    cures += [] if wide else ["env.observation_dtype=float64"]
    declared = wide or name in float64_leaves((of.own or of).observation)
    how = "so that the mean is subtracted in float64"
    cure = f"use {' and '.join(cures)}, {how}, or " if declared else ""
    return (
        f"observation {where} is around {size[index]:.6g} and was seen to change by "
        f"{span[index]:.6g}: float32, in which networks compute, has numbers {step[index]:.6g} "
        f"apart there, so smaller differences are lost; {cure}subtract a fixed offset "
        "in the environment, or in a wrapper of your own, while they are float64 or integers"
    )


OFFSET = 2.0**16
"""Smallest number that counts as an offset."""

_FEWEST_STEPS = 64
"""Least number of float32 values in the range of a leaf; with fewer, learning sees steps."""
