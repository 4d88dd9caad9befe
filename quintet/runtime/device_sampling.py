"""Sampling on a device: environments and actors compute there, and batches never leave it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from quintet.envs.own_state import States
from quintet.envs.tensors_as_arrays import NextStep
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import Episode, join, narrow, select
from quintet.runtime.delivery import Batch, Delivery, RestartsAfter, never, rows_for
from quintet.runtime.device_rows import DeviceRows
from quintet.runtime.seed_tree import group_seeds
from quintet.runtime.torch_settings import OwnTorch, torch_threads
from quintet.system.transfer import all_to_device, to_device
from quintet.types import Publication, Rollout

Whole = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Known(NamedTuple):
    """Facts of columns that the host knows.

    valid, terminated, truncated: of the rows, bool ``[T, B]``.
    streams: number of each stream; versions: version of the weights that acted, ``[B]``.
    """

    valid: Bools
    terminated: Bools
    truncated: Bools
    streams: Whole
    versions: Whole

    @property
    def counts(self) -> Whole:
        """Number of valid rows of each column."""
        return np.asarray(self.valid.sum(0), np.int64)

    @property
    def cuts(self) -> Bools:
        """`Rollout.trace_cut`: whether the next row is invalid although the episode continues."""
        found = np.zeros_like(self.valid)
        found[:-1] = ~(self.valid[1:] | self.terminated[:-1] | self.truncated[:-1])
        return found

    def at(self, columns: "Whole | slice") -> "Known":
        return Known._make(x[..., columns] for x in self)


@final
@dataclass(frozen=True)
class Columns:
    """Columns on the device, and what the host knows of them.

    own: whether the next unroll does not overwrite them.
    lacks: whether rows may be invalid although their episode continues.
    """

    rollout: Rollout
    known: Known
    episodes: list[Episode]
    own: bool = False
    lacks: bool = False

    def __len__(self) -> int:
        return len(self.known.streams)

    @property
    def env_steps(self) -> int:
        return int(self.known.counts.sum())

    def split(self, first: int) -> tuple["Columns", "Columns"]:
        """The first columns and the rest, as views."""
        head = [e for e in self.episodes if e.column < first]
        tail = [replace(e, column=e.column - first) for e in self.episodes if e.column >= first]
        rest, known = len(self) - first, self.known
        return (
            replace(
                self,
                rollout=narrow(self.rollout, 0, first),
                known=known.at(slice(first)),
                episodes=head,
            ),
            replace(
                self,
                rollout=narrow(self.rollout, first, rest),
                known=known.at(slice(first, None)),
                episodes=tail,
            ),
        )

    def copy(self, order: Whole | None = None) -> "Columns":
        """A copy, with the columns in this order."""
        order = np.arange(len(self)) if order is None else order
        place = {column: index for index, column in enumerate(order.tolist())}
        episodes = [replace(each, column=place[each.column]) for each in self.episodes]
        return Columns(self._select(order), self.known.at(order), episodes, True, self.lacks)

    def with_invalid(self, count: int) -> "Columns":
        """The columns and `count` others without a valid row."""
        first = np.zeros(count, np.int64)
        none = self._select(first)
        none.valid.zero_()
        known = self.known.at(first)
        known = known._replace(valid=np.zeros_like(known.valid))
        return joined([self, Columns(none, known, [], lacks=True)])

    def _select(self, indices: Whole) -> Rollout:
        return select(
            self.rollout, to_device(torch.from_numpy(indices), self.rollout.reward.device)
        )


def joined(parts: list[Columns]) -> Columns:
    """All columns of all parts, by stream if no stream is in two of them; a single part is returned
    without a copy.
    """
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: int(part.known.streams[0]))
    ends = [part.known.streams[[0, -1]].tolist() for part in ordered]
    parts = ordered if all(a[1] < b[0] for a, b in pairwise(ends)) else parts
    episodes: list[Episode] = []
    first = 0
    for part in parts:
        episodes += [replace(e, column=e.column + first) for e in part.episodes]
        first += len(part)
    every = zip(*(part.known for part in parts), strict=True)
    known = Known._make(np.concatenate(x, -1) for x in every)
    lacks = any(part.lacks for part in parts)
    return Columns(join([part.rollout for part in parts]), known, episodes, True, lacks)


@final
@dataclass(frozen=True)
class DeviceOptions:
    """Options of `DeviceSampling`, as those of `SerialOptions`.

    graph: whether unrolls are CUDA graphs, which `may_record` allows.
    """

    threads: int | None = None
    may_lag: bool = False
    graph: bool = False


_DEFAULT = DeviceOptions()


@final
class DeviceSampling:
    """All streams of a `TensorVectorEnv`, one unroll after another.

    Batches are as `SerialSampling` makes them of one group, and on the CPU have the same bytes.
    The host decides by flags of the rows, which come with every unroll, and looks at no tensor.

    restarts: whether streams restart at exact checkpoints.
    """

    def __init__(
        self,
        rows: NextStep,
        make_actor: Callable[[], Actor],
        plan: DataPlan,
        seed: int,
        timer: PhaseTimer,
        options: DeviceOptions = _DEFAULT,
    ):
        """make_actor: makes an actor on the environments' device."""
        self.restarts = rows.env.restarts
        self.actor, self.plan, self.seed, self.timer = make_actor(), plan, seed, timer
        self.rows = DeviceRows(rows, self.actor, plan, timer, options.graph)
        self.threads = options.threads
        self.num_streams = rows.env.num_streams
        self.delivery = Delivery(plan, self.num_streams, may_lag=options.may_lag)
        self._queue = self.delivery.queues[0]
        self._waiting: list[Columns] = []
        self._version = -1

    @OwnTorch()
    def publish(self, publication: Publication) -> None:
        """Loads the weights that act from the next unroll on."""
        self.delivery.publish(publication)
        self.actor.load(publication)
        self._version = publication.version

    @OwnTorch()
    def restart(self, iteration: int) -> None:
        """Seeds the streams by (seed, iteration); running episodes are abandoned."""
        self.timer.switch("making")
        assert not self._waiting
        self.delivery.restart(iteration)
        env_seeds, noise_seed = group_seeds(self.seed, 0, iteration, 1)
        self.rows.restart(env_seeds[0], noise_seed)

    def collect(self, env_steps_left: int, restarts_after: RestartsAfter = never) -> Batch:
        """The next batch; samples if too few columns wait, no more rows than the budget needs."""
        while (taken := self._take(env_steps_left)) is None:
            self._waiting = [each if each.own else each.copy() for each in self._waiting]
            self._unroll(env_steps_left - self._waiting_steps)
        return self._batch(taken, env_steps_left, restarts_after)

    def save_environments(self) -> States:
        """Nothing: environments of tensors offer no state."""
        return {}

    def load_environments(self, states: States) -> None:
        """Does nothing."""

    @property
    def _waiting_steps(self) -> int:
        return sum(columns.env_steps for columns in self._waiting)

    def _unroll(self, wanted: int) -> None:
        """Collects one unroll, which ends once `wanted` env_steps were executed."""

        def more(rows: int) -> int:
            executed = self.rows.executed(rows) if rows else 0
            return rows_for(wanted - executed, self.num_streams)

        with torch_threads(self.threads):
            told = self.rows.collect(self._version, more)
        delivery = self.delivery
        streams = np.arange(self.num_streams)
        flags = told.valid, told.terminated, told.truncated
        known = Known(*flags, streams, np.full_like(streams, self._version))
        delivery.executed += int(told.valid.sum())
        delivery.running[0] = told.running
        short = told.rows < self.plan.unroll_steps
        new = Columns(self.rows.rollout, known, told.episodes, lacks=short)
        first = delivery.first_stream  # each stream is first in turn
        if first:
            late, new = new.split(first)
            self._waiting += [new, late]
        else:
            self._waiting.append(new)
        delivery.first_stream = (first + self.plan.columns_per_batch) % self.num_streams

    def _take(self, env_steps_left: int) -> Columns | None:
        """The columns of a batch; None if too few wait and they do not hold the rest of the
        budget."""
        self._drop_old()
        missing = self.plan.columns_per_batch
        enough = sum(map(len, self._waiting)) >= missing
        if not self._waiting or not (enough or self._waiting_steps >= env_steps_left):
            return None
        parts: list[Columns] = []
        while missing and self._waiting:
            columns = self._waiting.pop(0)
            if len(columns) > missing:
                columns, rest = columns.split(missing)
                self._waiting.insert(0, rest)
            parts.append(columns)
            missing -= len(columns)
        whole = joined(parts)
        if missing:
            whole = whole.with_invalid(missing)
        streams = whole.known.streams
        if (streams[1:] < streams[:-1]).any():
            whole = whole.copy(streams.argsort(kind="stable"))
        return whole

    def _drop_old(self) -> None:
        """Drops columns of weights that are too old."""
        least, most = self._queue.least_version, self.plan.max_policy_lag
        if most is not None:
            least = max(least, self._queue.learned - most)
        self._drop([each for each in self._waiting if each.known.versions[0] < least])

    def _drop(self, dropped: list[Columns]) -> None:
        """Counts these waiting columns as dropped, and keeps the episodes that ended in them."""
        queue = self._queue
        for columns in dropped:
            queue.dropped_columns += int(np.count_nonzero(columns.known.counts))
            queue.dropped_steps += columns.env_steps
            queue.ended += [replace(each, row=-1, column=-1) for each in columns.episodes]
        self._waiting = [x for x in self._waiting if not any(x is each for each in dropped)]

    def _batch(self, columns: Columns, left: int, restarts_after: RestartsAfter) -> Batch:
        """Makes a batch as `Delivery.batch` does."""
        delivery, queue, known = self.delivery, self._queue, columns.known
        env_steps, episodes, executed = columns.env_steps, columns.episodes, columns.env_steps
        if executed > left:
            order = known.valid.cumsum().reshape(known.valid.shape)
            known = known._replace(valid=known.valid & (order <= left))
            episodes = [each for each in episodes if known.valid[each.row, each.column]]
            delivery.past_budget += executed - left
            env_steps = left
        cut = columns.lacks or executed > left
        rollout = _with_known(columns.rollout, known, cut)
        delivery.counted += env_steps
        episodes = queue.pop_ended() + sorted(episodes, key=lambda each: (each.row, each.column))
        if delivery.may_lag:
            lag = np.repeat(queue.learned - known.versions, known.counts)
            queue.lag.add(torch.from_numpy(lag))
        batch = Batch(rollout, 0, env_steps, episodes, delivery.steps())
        if env_steps < left and not restarts_after(batch):
            return batch
        self._drop(self._waiting)
        now = delivery.steps()
        discarded = batch.steps.discarded + now.discarded
        steps = replace(batch.steps, discarded=discarded, waiting=now.waiting)
        return replace(batch, episodes=episodes + queue.pop_ended(), steps=steps)

    def report(self) -> dict[str, float]:
        return self.delivery.report()

    def kill(self) -> None:
        """Does nothing: there are no processes."""

    def close(self) -> None:
        """The environments belong to the caller."""


def _with_known(rollout: Rollout, known: Known, cut: bool) -> Rollout:
    """The rollout, with what the host knows of it as its `source`; `cut`: also with its valid rows
    and `Rollout.trace_cut`.
    """
    device = rollout.reward.device
    valid, terminated, truncated = (
        torch.from_numpy(x) for x in (known.valid, known.terminated, known.truncated)
    )
    if cut:
        mask, cuts = all_to_device([valid, torch.from_numpy(known.cuts)], device)
        # A single row has no earlier row to cut.
        trace_cut = cuts if known.cuts.any() else rollout.trace_cut
        rollout = replace(rollout, valid=mask, trace_cut=trace_cut)
    if device.type == "cpu":
        return rollout
    version = torch.from_numpy(known.versions).expand(known.valid.shape)
    source = replace(
        rollout, valid=valid, terminated=terminated, truncated=truncated, version=version
    )
    return replace(rollout, source=source)
