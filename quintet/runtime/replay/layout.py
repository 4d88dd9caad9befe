"""The fields and lengths of a replay's rings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from quintet.errors import ConfigError
from quintet.protocols import DataPlan
from quintet.runtime.replay.frames import may_stack, pool_bytes, possible_slices, stack_fields
from quintet.runtime.replay.ring_files import Numbers, array_dtype, require_room, rings_bytes
from quintet.runtime.slots import RowSpecs
from quintet.spaces import leaf_spec, observation_leaves
from quintet.system import memory
from quintet.types import TensorSpec

_SEGMENT = 1024  # rows under one checksum, at most
_PACKED_BYTES = 1024  # largest field that lies in a row's record

_FIXED = {
    "reward": TensorSpec((), torch.float32),
    "flags": TensorSpec((), torch.uint8),
    "version": TensorSpec((), torch.int64),
    "policy_id": TensorSpec((), torch.int64),
    "episode_id": TensorSpec((), torch.int64),
}


@final
class Layout:
    """Fields and lengths of the rings.

    stacks: slices of the leading axis that make one frame, of each leaf that is a stack of frames.
        It is set once rows or files show it; until then it is the smallest frame of each leaf that
        may be a stack, so that lengths and bytes are the least possible.
    numbers: numbers of the streams in the run, one per ring; None: 0, 1, 2, ...
    rows_per_stream: largest number of live rows of a ring.
    leaves: leaves of the observation, by field.
    states: fields of the recorded states, one per unroll; none for windows.
    """

    def __init__(
        self,
        plan: DataPlan,
        rows: RowSpecs,
        num_streams: int,
        folder: Path,
        slack_steps: int,
        numbers: Sequence[int] | None = None,
    ):
        replay = plan.replay
        assert replay is not None
        if replay.column_source == "per_stream" and replay.columns % num_streams:
            raise AssertionError(
                f"{replay.columns} columns, equally many from each of {num_streams} streams"
            )
        if replay.kind == "sequences" and replay.steps != plan.unroll_steps:
            raise AssertionError(f"sequences of {replay.steps} from unrolls of {plan.unroll_steps}")
        self.num_streams, self.unroll_steps, self.folder = num_streams, plan.unroll_steps, folder
        self.numbers = None if numbers is None else np.array(numbers, np.int64)
        self.kind = replay.kind
        self.rows_per_stream = replay.capacity_steps // num_streams
        if self.kind == "sequences":
            self.rows_per_stream -= self.rows_per_stream % plan.unroll_steps
        if self.rows_per_stream < plan.unroll_steps:
            raise ConfigError(
                f"the replay capacity must be at least {num_streams * plan.unroll_steps:,} steps, "
                f"an unroll of {plan.unroll_steps} steps of each of {num_streams} streams, got "
                f"{replay.capacity_steps:,}; raise it, or use fewer streams or shorter unrolls"
            )
        # Each unroll of the slack may follow on a gap, see slack_unrolls.
        self.slack = slack_steps + slack_steps // plan.unroll_steps + 2 if slack_steps else 0
        self.segment = max(1, min(_SEGMENT, self.rows_per_stream // 16))
        self.leaves = {
            f"obs/{name}": leaf_spec(leaf)
            for name, leaf in observation_leaves(rows.spaces.observation).items()
        }
        self.stacks = {name: slices[0] for name, slices in self.slices_of_stacks().items()}
        self._by_row = {"action": rows.action, **_FIXED}
        self._by_row |= {f"record/{name}": spec for name, spec in rows.record.items()}
        if plan.return_discount is not None:
            self._by_row["return_carry"] = TensorSpec((), torch.float64)
        self.records = list(rows.record)
        self.has_return_carry = plan.return_discount is not None
        states = plan.unroll_steps // plan.state_every + 1
        self.states = {
            name: TensorSpec((states, *spec.shape), spec.dtype)
            for name, spec in (rows.state if self.kind == "sequences" else {}).items()
        }

    def rings_of(self, streams: Numbers) -> Numbers:
        """The rings of streams, from their numbers in the run."""
        if self.numbers is None:
            return streams
        rings: Numbers = self.numbers.searchsorted(streams)
        assert (self.numbers[rings] == streams).all(), "a stream that has no ring"
        return rings

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def slices_of_stacks(self) -> dict[str, list[int]]:
        """The possible numbers of slices per frame of each leaf that may be a stack."""
        return {
            name: possible_slices(spec.shape[0])
            for name, spec in self.leaves.items()
            if may_stack(spec)
        }

    def packed(self) -> dict[str, TensorSpec]:
        """The fields of a row's record."""
        whole = {name: spec for name, spec in self.leaves.items() if name not in self.stacks}
        return {
            name: spec
            for name, spec in (self._by_row | whole).items()
            if name in _FIXED or spec.nbytes <= _PACKED_BYTES
        }

    def apart(self) -> dict[str, TensorSpec]:
        """Fields with separate memory: large ones, and stacks of frames."""
        packed, fields, stacks = self.packed(), dict(self._by_row), self.stacks
        for name, spec in self.leaves.items():
            fields |= stack_fields(name, spec, stacks[name]) if name in stacks else {name: spec}
        return {name: spec for name, spec in fields.items() if name not in packed}

    @property
    def needed_rows(self) -> int:
        """Largest number of rows of a stream that a draw can need: live rows, and rows before the
        oldest one, for its last action and older frames.
        """
        frames = (self.leaves[name].shape[0] // slices for name, slices in self.stacks.items())
        return self.rows_per_stream + max(frames, default=1)

    def _least_length(self) -> int:
        return self.needed_rows + 2 * self.segment + 2  # a whole segment at each end

    def length(self) -> int:
        """Rows of a ring."""
        return -(-(self._least_length() + self.slack) // self.segment) * self.segment

    def keep(self, stacks: Mapping[str, int], ring_rows: int) -> None:
        """Takes the stacks of existing rings of `ring_rows` rows, and their slack."""
        self.stacks = dict(stacks)
        self.slack = ring_rows - self._least_length()

    @property
    def slack_unrolls(self) -> int:
        """Number of unrolls that fit into the slack, each after a gap."""
        return max(self.slack - 2, 0) // (self.unroll_steps + 1)

    def entries(self) -> int:
        """Number of entries of a stream's index.  A sequence's entry is also the place of its
        states, which are kept as long as its rows.
        """
        if self.kind == "windows":
            return self.rows_per_stream + self.unroll_steps + 1
        return self.length() // self.unroll_steps + 2

    def column_bytes(self, steps: int) -> int:
        """Bytes of a drawn column with this many rows, including the rows before and after it."""
        row = sum(spec.nbytes for spec in (self._by_row | self.leaves).values())
        return (steps + 2) * row + sum(spec.nbytes for spec in self.states.values())

    def rings_bytes(self) -> dict[str, int]:
        """Bytes of the rings by their file's name."""
        rows = self.num_streams * self.length()
        sizes = {"rows": rings_bytes(self.packed(), self.apart(), rows)}
        if self.states:
            sizes["states"] = rings_bytes({}, self.states, self.num_streams * self.entries())
        return sizes

    def require_room(self) -> None:
        """Raises ConfigError if the replay does not fit on the disk or in memory."""
        index = 8 * self.num_streams * self.entries()  # the part in memory
        require_room(self.folder, self.nbytes() - index)
        memory.require(index, "the index of a replay", "lower the replay capacity")

    def nbytes(self) -> int:
        """Bytes of all rings, the index and the pools at their initial size."""
        rows = self.num_streams * self.length()
        pools = (pool_bytes(self.leaves[name], n, rows) for name, n in self.stacks.items())
        index = 8 * self.num_streams * self.entries()
        return sum(self.rings_bytes().values()) + index + sum(pools)

    def to_json(self) -> dict[str, Any]:
        """The properties that files and layout must share."""
        fields = self.packed() | self.apart()
        fields |= {f"state/{name}": s for name, s in self.states.items()}
        return {
            "kind": self.kind,
            "streams": self.num_streams,
            "unroll_steps": self.unroll_steps,
            "rows_per_stream": self.rows_per_stream,
            "ring_rows": self.length(),
            "fields": {k: [list(s.shape), str(array_dtype(s.dtype))] for k, s in fields.items()},
            "stacks": dict(self.stacks),
        }
