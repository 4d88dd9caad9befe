"""The rows of a replay: rings of them, one per stream, and an index of where draws may begin."""

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quintet.runtime.replay_files import (
    Array,
    Numbers,
    Rings,
    as_array,
    empty_folder,
    require_room,
)
from quintet.runtime.replay_frames import FrameStacks
from quintet.runtime.replay_layout import Layout
from quintet.types import Rollout

TERMINATED, TRUNCATED, VALID, FIRST, BUDGET, START, GAP = (1 << bit for bit in range(7))
"""Bits of a row's flags: those of a `Rollout`; a draw may begin here; see `RowStore`."""

Columns = slice | Numbers


@final
class RowStore:
    """Rows in the order in which each stream made them, each observation once: row T of an unroll
    is row 0 of the next.

    Where a stream breaks off (a restart, columns that never came) one row more marks the gap: it
    keeps the observation that was reached and, as its action and reward, what the next unroll's
    actor saw as the last ones.  A stream's first row is a gap, and so is its newest one until the
    stream goes on.

    Rows are numbered per stream, for ever; the newest ``layout.rows_per_stream`` before the last
    are live, gaps included.

    head: number of each stream's newest row.
    index: numbers of rows, by stream; entry ``n`` is at ``n % index.shape[1]``.
    first, last: the oldest entry of each stream and the one after its newest.
    size, stored: valid rows that are live, and all that were ever stored.
    """

    def __init__(self, layout: Layout, stacks: Mapping[str, int], fresh: bool):
        """Takes the memory; `fresh`: files that are there are an old run's."""
        self.layout = layout
        if fresh and layout.folder is not None:
            empty_folder(layout.folder)
        require_room(layout.folder, layout.nbytes(stacks))
        count = layout.num_streams
        length, entries = layout.length(stacks), layout.entries(stacks)
        self.rows = Rings(layout.file("rows"), layout.fields(stacks), count, length, layout.segment)
        self.unrolls = (
            Rings(layout.file("states"), layout.states, count, entries, 1)
            if layout.states
            else None
        )
        self.stacks = {
            name: FrameStacks(
                self.rows, name, layout.leaves[name], slices, layout.file(f"frames-{index}")
            )
            for index, (name, slices) in enumerate(stacks.items())
        }
        self.flags = self.rows.fields["flags"]
        reached = ("obs/", "flags", "episode_id")
        self._taken = [name for name in self.rows.fields if not name.startswith(reached)]
        if fresh:
            self.flags[::length] = GAP
            for stack in self.stacks.values():
                stack.recover(0, np.zeros(count * length, np.bool_))
        self.head = np.zeros(count, np.int64)
        self.going_on = np.zeros(count, np.bool_)
        self.group = np.zeros(count, np.int64)
        self.index = np.zeros((count, entries), np.int64)
        self.first = np.zeros(count, np.int64)
        self.last = np.zeros(count, np.int64)
        self.size = 0
        self.stored = 0

    @property
    def nbytes(self) -> int:
        """Bytes of everything."""
        states = self.unrolls.nbytes if self.unrolls is not None else 0
        pools = sum(stack.nbytes for stack in self.stacks.values())
        return self.rows.nbytes + states + self.index.nbytes + pools

    def read_obs(self, name: str, stream: Numbers, number: Numbers) -> Tensor:
        """A leaf, by its field, of rows (stream, number); the shapes broadcast."""
        if name in self.stacks:
            return self.stacks[name].read(np.broadcast_to(stream, number.shape), number)
        return self.rows.read(name, self.rows.at(stream, number))

    def kept_whole(self, rows: slice) -> list[Array]:
        """What the pools hold of these rows of the rings."""
        return [stack.whole(rows) for stack in self.stacks.values()]

    def clear_taken(self, place: Numbers) -> None:
        """Zeroes what rows that are only reached don't have, whatever an older row left there."""
        for name in self._taken:
            self.rows.fields[name][place] = 0

    def cut(self) -> None:
        """What is stored next doesn't follow on what was last."""
        self.going_on[:] = False

    def store(self, batch: Rollout) -> None:
        """Stores the columns that have a valid row; a stream's own are in order."""
        valid = as_array(batch.valid)
        streams = as_array(batch.stream_id)
        for columns in _once_each(streams):
            kept = valid[:, columns].any(0)
            self.going_on[streams[columns][~kept]] = False
            if kept.all():
                self._store(batch, columns)
            elif kept.any():
                self._store(batch, np.arange(len(streams))[columns][kept])

    def _store(self, batch: Rollout, columns: Columns) -> None:
        """Stores columns of different streams."""
        rows = {name: as_array(x)[:, columns] for name, x in self._by_row(batch).items()}
        obs = {name: as_array(batch.obs[name[4:]])[:, columns] for name in self.layout.leaves}
        stream = as_array(batch.stream_id)[columns]
        first = as_array(batch.is_first)[:, columns]
        episode = as_array(batch.episode_id)[columns] + np.cumsum(first, 0) - first[0]
        last = {
            "action": as_array(batch.last_action)[columns],
            "reward": as_array(batch.last_reward)[columns],
        }
        begin = {name: values[0] for name, values in obs.items()}
        follows = self._follows(stream, begin, first[0], episode[0], last)
        if not follows.all():
            self._begin(stream, begin, last, ~follows)

        steps = len(first) - 1
        start = self.head[stream] + ~follows
        number = start + np.arange(steps + 1)[:, None]
        self._retire(stream, start + steps)
        place = self.rows.at(stream, number)
        flags = self._as_flags(batch, columns)
        self.rows.write("flags", place, flags)
        self.rows.write("episode_id", place, episode)
        for name, values in rows.items():
            self.rows.write(name, place[:-1], values)
        self.clear_taken(place[-1])
        for name, values in obs.items():
            if name in self.stacks:
                self.stacks[name].follow(place[1:], place[0], values)
            else:
                self.rows.write(name, place[1:], values[1:])
        states = {name: as_array(batch.state[name])[:, columns] for name in self.layout.states}
        self._enter(stream, number[:-1], (flags[:-1] & START) > 0, states)
        valid = int(((flags & VALID) > 0).sum())
        self.size += valid
        self.stored += valid
        self.head[stream] = start + steps
        self.going_on[stream] = True
        self.group[stream] = as_array(batch.group_id)[columns]

    def _by_row(self, batch: Rollout) -> dict[str, Tensor]:
        """What has T rows, by field."""
        values = {
            "action": batch.action,
            "reward": batch.reward,
            "version": batch.version,
            "policy_id": batch.policy_id,
            **{f"record/{name}": batch.record[name] for name in self.layout.records},
        }
        if self.layout.has_return_carry:
            assert batch.return_carry is not None
            values["return_carry"] = batch.return_carry
        return values

    def _as_flags(self, batch: Rollout, columns: Columns) -> Array:
        """Rows 0..T; the last is a gap until the stream goes on."""

        def bits(x: Tensor, flag: int) -> Array:
            taken: Array = as_array(x)[:, columns].view(np.uint8) * np.uint8(flag)
            return taken

        flags = bits(batch.is_first, FIRST)
        flags[-1] |= GAP
        rows = flags[:-1]
        rows |= bits(batch.terminated, TERMINATED)
        rows |= bits(batch.truncated, TRUNCATED)
        rows |= bits(batch.valid, VALID)
        if batch.budget_cut is not None:
            rows |= bits(batch.budget_cut, BUDGET)
        if self.layout.kind == "windows":
            rows |= bits(batch.valid, START)
        else:
            rows[0] |= START
        return flags

    def _follows(
        self,
        stream: Numbers,
        obs: Mapping[str, Array],
        first: Array,
        episode: Array,
        last: Mapping[str, Array],
    ) -> NDArray[np.bool_]:
        """Whether each stream goes on where it stopped.

        Columns between may not have come, so that is seen by the observation, the episode and the
        last action and reward: all are the bytes that are stored.
        """
        going_on = self.going_on[stream]
        if not going_on.any():
            return going_on
        head = self.head[stream]
        newest, before = self.rows.at(stream, head), self.rows.at(stream, head - 1)
        going_on &= ((self.flags[newest] & FIRST) > 0) == first
        going_on &= self.rows.fields["episode_id"][newest] == episode
        for name, values in last.items():
            going_on &= _equal(self.rows.fields[name][before], values)
        for name, values in obs.items():
            going_on &= _equal(as_array(self.read_obs(name, stream, head)), values)
        return going_on

    def _begin(
        self, stream: Numbers, obs: Mapping[str, Array], last: Mapping[str, Array], which: Array
    ) -> None:
        """Leaves a gap behind the newest rows of some streams; their row 0 comes after it."""
        stream = stream[which]
        head = self.head[stream]
        gap, start = self.rows.at(stream, head), self.rows.at(stream, head + 1)
        for name, values in last.items():
            self.rows.write(name, gap, values[which])
        for name, values in obs.items():
            if name in self.stacks:
                self.stacks[name].begin(start, values[which])
            else:
                self.rows.write(name, start, values[which])

    def _retire(self, stream: Numbers, head: Numbers) -> None:
        """Takes rows out of the index that are no longer live with the new heads."""
        before = np.maximum(self.head[stream] - self.layout.rows_per_stream, 0)
        after = np.maximum(head - self.layout.rows_per_stream, 0)
        most = int((after - before).max())
        if most == 0:
            return
        number = before + np.arange(most)[:, None]
        flags = np.where(number < after, self.flags[self.rows.at(stream, number)], 0)
        self.first[stream] += ((flags & START) > 0).sum(0)
        self.size -= int(((flags & VALID) > 0).sum())

    def _enter(
        self, stream: Numbers, number: Numbers, starts: Array, states: Mapping[str, Array]
    ) -> None:
        """Puts rows ``[T, B]`` into the index where `starts`."""
        entries = self.index.shape[1]
        entry = self.last[stream] + np.cumsum(starts, 0) - starts
        place = stream * entries + entry % entries
        self.index.reshape(-1)[place[starts]] = number[starts]
        for name, values in states.items():
            assert self.unrolls is not None
            self.unrolls.write(name, place[0], values.swapaxes(0, 1))
        self.last[stream] += starts.sum(0)


def _equal(a: Array, b: Array) -> Array:
    """``[B]``: rows whose bytes are equal."""
    count = len(a)

    def flat(x: Array) -> Array:
        return np.ascontiguousarray(x).reshape(count, int(np.prod(x.shape[1:]))).view(np.uint8)

    same: Array = (flat(a) == flat(b)).all(1)
    return same


def _once_each(stream: Numbers) -> list[Columns]:
    """The columns in parts without a stream twice, each stream's in order."""
    if len(stream) == 1 or (np.diff(stream) > 0).all():
        return [slice(None)]
    order = np.argsort(stream, kind="stable")
    ordered = stream[order]
    rank = np.arange(len(stream)) - np.searchsorted(ordered, ordered, "left")
    return [np.sort(order[rank == k]) for k in range(int(rank.max()) + 1)]
