"""A fresh batch as the arrays that a replay stores, and the bits of a row's flags."""

from typing import Any, NamedTuple, Self

import numpy as np
import optree
import torch
from torch import Tensor

from quintet.runtime.batch import column_dim
from quintet.runtime.replay.layout import Layout
from quintet.runtime.replay.ring_files import Array, Numbers
from quintet.types import Rollout

TERMINATED, TRUNCATED, VALID, FIRST, CUT, START, GAP = (1 << bit for bit in range(7))
"""Bits of a row's flags.  START: a draw may begin here.  GAP: the row only marks a gap (see
`RowStore`).  The other bits are fields of a `Rollout`."""

Columns = slice | Numbers

Begin = tuple[bytes, ...]
"""Row 0 of a batch as bytes, which show whether the batch follows the last one."""

_WITHOUT_TIME = ("stream", "group", "episode", "last")


def as_array(x: Tensor) -> Array:
    """The tensor as a numpy array; bfloat16, which numpy lacks, as int16."""
    if x.dtype is torch.bfloat16:
        x = x.view(torch.int16)
    return x.numpy(force=True)


def as_tensor(x: Array, dtype: torch.dtype) -> Tensor:
    """The inverse of `as_array`."""
    tensor = torch.from_numpy(x)
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor


def split(rollout: Rollout, columns: int) -> list[Rollout]:
    """Parts of this many columns each, as views; a single part is the rollout itself."""
    count = rollout.stream_id.numel() // columns
    if count == 1:
        return [rollout]
    fields: Any = vars(rollout)
    paths, leaves, tree = optree.tree_flatten_with_path(fields)
    each = [
        x.chunk(count, column_dim(path)) if isinstance(x, Tensor) else (x,) * count
        for path, x in zip(paths, leaves, strict=True)
    ]
    return [Rollout(**tree.unflatten(part)) for part in zip(*each, strict=True)]


class Fresh(NamedTuple):
    """A batch of T rows and B columns as numpy arrays, by the names of the rings' fields.

    obs: ``[T + 1, B, ...]``.
    rows: ``[T, B, ...]``, the other fields of a row, without its flags.
    states: ``[S, B, ...]``.
    last: ``[B, ...]``, action and reward before row 0.
    cut: `Rollout.trace_cut`; None if no row is cut.
    starts_at_valid: whether draws may begin at every valid row, else only at row 0.
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
            last={"action": as_array(batch.last_action), "reward": as_array(batch.last_reward)},
            starts_at_valid=layout.kind == "windows",
        )

    def columns(self, selected: Columns) -> Self:
        def chosen(path: tuple[Any, ...], x: Any) -> Any:
            if not isinstance(x, np.ndarray):
                return x
            return x[selected] if path[0] in _WITHOUT_TIME else x[:, selected]

        fields: Any = self._asdict()
        return type(self)(**optree.tree_map_with_path(chosen, fields))

    def begin(self) -> Begin:
        """The streams' place at row 0, which equals `end` of the preceding batch."""
        obs = [x[0].tobytes() for x in self.obs.values()]
        last = [x.tobytes() for x in self.last.values()]
        who = (self.stream.tobytes(), self.group.tobytes(), self.episode.tobytes())
        return (*who, self.first[0].tobytes(), *last, *obs)

    def end(self, episode: Numbers) -> Begin:
        """The streams' place at row T, which belongs to these episodes."""
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
        """Flags of rows 0..T, the last of which is a gap until the stream continues, and the rows
        ``[T, B]`` at which a draw may begin.
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
