"""A fresh batch as the arrays that a replay stores, and the bits of its rows' flags."""

from typing import NamedTuple, Self

import numpy as np

from quintet.runtime.replay.layout import Layout
from quintet.runtime.replay.rings import Array, Numbers, as_array
from quintet.types import Rollout

TERMINATED, TRUNCATED, VALID, FIRST, CUT, START, GAP = (1 << bit for bit in range(7))
"""Bits of a row's flags: those of a `Rollout`; a draw may begin here; no row of its own, but the
gap behind the newest one (see `RowStore`)."""

Columns = slice | Numbers

Begin = tuple[bytes, ...]
"""All that row 0 of a batch says of where its streams are."""


class Fresh(NamedTuple):
    """A batch of T rows and B columns, all as numpy arrays, by the names of the rings' fields.

    obs: by field ``[T + 1, B, ...]``; rows: ``[T, B, ...]``, all else that a row has but its ends;
    states: ``[S, B, ...]``; last: of the row before row 0, ``[B, ...]``.
    cut: `Rollout.trace_cut`, None where no row is cut.
    starts_at_valid: draws begin at every valid row, else at row 0.
    """

    stream: Numbers
    group: Numbers
    episode: Numbers
    first: Array
    valid: Array
    terminated: Array
    truncated: Array
    cut: Array | None
    obs: dict[str, Array]
    rows: dict[str, Array]
    states: dict[str, Array]
    last: dict[str, Array]
    starts_at_valid: bool

    @classmethod
    def of(cls, batch: Rollout, layout: Layout) -> Self:
        """Views of the batch's memory."""
        rows = {
            "action": as_array(batch.action),
            "reward": as_array(batch.reward),
            "version": as_array(batch.version),
            "policy_id": as_array(batch.policy_id),
        }
        for name in layout.records:
            rows[f"record/{name}"] = as_array(batch.record[name])
        if layout.has_return_carry:
            assert batch.return_carry is not None
            rows["return_carry"] = as_array(batch.return_carry)
        return cls(
            stream=as_array(batch.stream_id),
            group=as_array(batch.group_id),
            episode=as_array(batch.episode_id),
            first=as_array(batch.is_first),
            valid=as_array(batch.valid),
            terminated=as_array(batch.terminated),
            truncated=as_array(batch.truncated),
            cut=None if batch.trace_cut is None else as_array(batch.trace_cut),
            obs={name: as_array(batch.obs[name[4:]]) for name in layout.leaves},
            rows=rows,
            states={name: as_array(batch.state[name]) for name in layout.states},
            last={
                "action": as_array(batch.last_action),
                "reward": as_array(batch.last_reward),
            },
            starts_at_valid=layout.kind == "windows",
        )

    def columns(self, which: Columns) -> Self:
        """Some of the columns."""

        def each(arrays: dict[str, Array]) -> dict[str, Array]:
            return {name: x[:, which] for name, x in arrays.items()}

        return self._replace(
            stream=self.stream[which],
            group=self.group[which],
            episode=self.episode[which],
            first=self.first[:, which],
            valid=self.valid[:, which],
            terminated=self.terminated[:, which],
            truncated=self.truncated[:, which],
            cut=None if self.cut is None else self.cut[:, which],
            obs=each(self.obs),
            rows=each(self.rows),
            states=each(self.states),
            last={name: x[which] for name, x in self.last.items()},
        )

    def begin(self) -> Begin:
        """Where the streams are at row 0; that of the batch that follows on this one is `end`."""
        obs = [x[0].tobytes() for x in self.obs.values()]
        last = [x.tobytes() for x in self.last.values()]
        who = (self.stream.tobytes(), self.group.tobytes(), self.episode.tobytes())
        return (*who, self.first[0].tobytes(), *last, *obs)

    def end(self, episode: Numbers) -> Begin:
        """Where the streams are at row T, which belongs to these episodes."""
        obs = [x[-1].tobytes() for x in self.obs.values()]
        last = [self.rows[name][-1].tobytes() for name in self.last]
        who = (self.stream.tobytes(), self.group.tobytes(), episode.tobytes())
        return (*who, self.first[-1].tobytes(), *last, *obs)

    def episodes(self) -> Numbers:
        """``[T + 1, B]``: the episode that each row belongs to."""
        later: Numbers = self.first.cumsum(0)
        later += self.episode - self.first[0]
        return later

    def flags(self) -> tuple[Array, Array]:
        """Flags of rows 0..T, the last of which is a gap until the stream goes on; and at which
        rows ``[T, B]`` a draw may begin.
        """
        starts = self.valid
        if not self.starts_at_valid:
            starts = np.zeros_like(self.valid)
            starts[0] = True
        bits = np.zeros((8, *self.first.shape), np.bool_)
        rows = bits[:, :-1]
        rows[0], rows[1], rows[2], bits[3] = self.terminated, self.truncated, self.valid, self.first
        if self.cut is not None:
            rows[4] = self.cut
        rows[5], bits[6, -1] = starts, True
        flags: Array = np.packbits(bits, 0, "little")[0]
        return flags, starts
