"""Memory for one unroll of one group: allocated once, written in place, read as tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from quintet.envs.vector import StepRow
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import ColumnBlock, Episode, Lease, Unroll
from quintet.spaces import leaf_spec, observation_leaves
from quintet.types import Obs, Rollout, Spaces, State, TensorSpec

PLAYER, VERSION = WHO_ACTED = ("policy_id", "version")
"""Records in the slot's own fields, which an actor of several policies writes row by row."""

_OF_ROW = {
    "policy_id": torch.int64,
    "version": torch.int64,
    "reward": torch.float32,
    "raw_reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "valid": torch.bool,
    "success": torch.bool,
    "episode_return": torch.float64,
    "episode_length": torch.int64,
    "episode_success": torch.int8,
    "episode_version": torch.int64,
}


UNDEFINED = -1
"""Value of an episode's success if the environment defines none."""

_SUCCESS = {UNDEFINED: None, 0: False, 1: True}

OF_EPISODE = ("episode_return", "episode_length", "episode_success", "episode_version")
"""Fields of the row in which an episode ended, in the order of an `Episode`; in other rows they
hold any number."""

OF_STEP = tuple(field.name for field in fields(StepRow) if field.name != "obs")
"""Fields of a `StepRow` other than the observation."""

_OF_ROLLOUT = (
    *("action", "reward", "terminated", "truncated", "valid", "is_first", "version", "policy_id"),
    *("stream_id", "group_id", "episode_id", "last_action", "last_reward"),
)
"""Fields of a `Rollout` that are in the memory under the same names."""


def rollout_of(memory: Mapping[str, Tensor]) -> Rollout:
    """The unroll in a memory, as views."""
    fields: dict[str, Any] = {name: memory[name] for name in _OF_ROLLOUT}
    return Rollout(
        obs=below(memory, "obs/"),
        record=below(memory, "record/"),
        state=below(memory, "state/"),
        return_carry=memory.get("return_carry"),
        **fields,
    )


@final
@dataclass(frozen=True)
class RowSpecs:
    """The fields of a row that depend on spaces and actor; `state`: specs of one recorded state;
    `metrics`: number of the environment's own numbers of an episode.
    """

    spaces: Spaces
    action: TensorSpec
    record: Mapping[str, TensorSpec]
    state: Mapping[str, TensorSpec]
    metrics: int = 0

    @classmethod
    def of(cls, spaces: Spaces, actor: Actor, metrics: int = 0) -> "RowSpecs":
        """The fields of the rows that an actor makes in environments with these spaces."""
        return cls(spaces, actor.action_spec, actor.record_specs, actor.state_specs, metrics)


def slot_specs(rows: RowSpecs, plan: DataPlan, num_streams: int) -> dict[str, TensorSpec]:
    """All tensors of a slot by name, with their leading dimensions."""
    t, b = plan.unroll_steps, num_streams

    def leading(specs: Mapping[str, TensorSpec], *sizes: int) -> dict[str, TensorSpec]:
        return {name: TensorSpec((*sizes, *s.shape), s.dtype) for name, s in specs.items()}

    leaves = observation_leaves(rows.spaces.observation)
    of_row = {name: TensorSpec((), dtype) for name, dtype in _OF_ROW.items()}
    if plan.return_discount is not None:
        of_row["return_carry"] = TensorSpec((), torch.float64)
    if rows.metrics:
        of_row["metrics"] = TensorSpec((rows.metrics,), torch.float32)
    of_row |= {f"record/{k}": s for k, s in rows.record.items() if k not in WHO_ACTED}
    next_too = {f"obs/{name}": leaf_spec(leaf) for name, leaf in leaves.items()}
    next_too["is_first"] = TensorSpec((), torch.bool)
    of_column = {
        "last_action": rows.action,
        "last_reward": TensorSpec((), torch.float32),
        "episode_id": TensorSpec((), torch.int64),
        "stream_id": TensorSpec((), torch.int64),
        "group_id": TensorSpec((), torch.int64),
        "running_length": TensorSpec((), torch.int64),
    }
    states = {f"state/{name}": spec for name, spec in rows.state.items()}
    return {
        "header": TensorSpec((2,), torch.int64),
        **leading(of_row | {"action": rows.action}, t, b),
        **leading(next_too, t + 1, b),
        **leading(of_column, b),
        **leading(states, t // plan.state_every + 1, b),
    }


def zeros(
    specs: Mapping[str, TensorSpec], page_locked: bool = False, device: str = "cpu"
) -> dict[str, Tensor]:
    """Zeroed memory of this process; from page-locked memory a GPU copies by itself."""
    return {
        name: torch.zeros(spec.shape, dtype=spec.dtype, pin_memory=page_locked, device=device)
        for name, spec in specs.items()
    }


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors named ``prefix...``, by the rest of the name."""
    return {k[len(prefix) :]: x for k, x in tensors.items() if k.startswith(prefix)}


_TORCH = Tensor.detach, torch.logical_not


@final
class Slot:
    """Rows 0..T of observations and 0..T-1 of the rest, for the B streams of a group.

    Its memory has the form of `slot_specs` and may be shared with other processes.  Environments
    write through `step_rows` (arrays), actors read `obs_rows` and write `action` and `record`
    (tensors); both are views of the same memory, made once.  Arrays are NumPy's, which are faster
    in the hot loop; on a GPU they are tensors, with which the same expressions launch kernels.

    on_cpu: whether the host reads this memory without a wait.
    as_array, logical_not: of the arrays' library.
    rollout: the unroll as views of this memory.
    header: number of the grant by which a worker filled it, and rows executed.
    options: of the resets of the unroll's `episodes`, in their order; empty without a curriculum.
    """

    def __init__(self, memory: Mapping[str, Tensor], rows: RowSpecs, plan: DataPlan):
        self.memory, self.steps, self.state_every = memory, plan.unroll_steps, plan.state_every
        self.rollout = rollout_of(memory)
        self.options: Sequence[Any] = ()
        self.device = memory["valid"].device
        self.on_cpu = self.device.type == "cpu"
        library: Any = (Tensor.numpy, np.logical_not) if self.on_cpu else _TORCH
        self.as_array, self.logical_not = array, _ = library
        self.obs, self.record = self.rollout.obs, self.rollout.record
        self.state = self.rollout.state
        self.action, self.last_action = memory["action"], memory["last_action"]
        self.version, self.header = memory["version"], array(memory["header"])
        self.num_streams = self.last_action.shape[0]
        self.reward = array(memory["reward"])
        self.last_reward = array(memory["last_reward"])
        self.raw_reward = array(memory["raw_reward"])
        self.terminated = array(memory["terminated"])
        self.truncated = array(memory["truncated"])
        self.valid = array(memory["valid"])
        self.policy_id = array(memory["policy_id"])
        self.success = array(memory["success"])
        self.is_first = array(memory["is_first"])
        self.episode_id = array(memory["episode_id"])
        self.episode_return = array(memory["episode_return"])
        self.episode_length = array(memory["episode_length"])
        self.episode_success = array(memory["episode_success"])
        self.episode_version = array(memory["episode_version"])
        self.running_length = array(memory["running_length"])
        own = memory.get("metrics")
        self.metrics = None if own is None else array(own)
        carry = memory.get("return_carry")
        self.return_carry = None if carry is None else array(carry)

        # Views of every row, so that the hot loop slices and builds nothing.
        t = self.steps
        self.obs_arrays = arrays = {name: array(x) for name, x in self.obs.items()}
        self.first_obs_arrays = {name: x[0] for name, x in arrays.items()}
        self.obs_rows: list[Obs] = [
            {name: x[row] for name, x in self.obs.items()} for row in range(t + 1)
        ]
        self.is_first_rows = list(memory["is_first"].unbind(0))
        self.is_first_arrays = list(map(array, self.is_first_rows))
        self.action_rows = list(self.action.unbind(0))
        recorded = self.record | {name: memory[name] for name in WHO_ACTED if name in rows.record}
        self._recorded = recorded
        self.record_rows = [{name: x[row] for name, x in recorded.items()} for row in range(t)]
        of_step = {name: array(memory[name]) for name in OF_STEP if name in memory}
        self.step_rows = [
            StepRow(
                obs={name: x[row + 1] for name, x in arrays.items()},
                **{name: x[row] for name, x in of_step.items()},
            )
            for row in range(t)
        ]

    def belongs_to(self, group: int, first_stream: int, policy: int) -> None:
        """Writes the ids of the slot's streams, and `policy` as the acting one unless records name
        another."""
        streams = torch.arange(first_stream, first_stream + self.num_streams)
        self.memory["stream_id"].copy_(streams)
        self.memory["group_id"].fill_(group)
        self.memory["policy_id"].fill_(policy)

    def begin_anew(self) -> None:
        """Makes row 0 the first row of every stream."""
        self.is_first[0] = True
        self.episode_id[:] = 0
        self.last_action.zero_()
        self.last_reward[:] = 0.0

    def begin_after(self, last: "Slot", rows: int) -> None:
        """Copies the state of the last unroll after `rows` rows, in any slot, to row 0."""
        for name, x in self.obs_rows[0].items():
            x.copy_(last.obs_rows[rows][name])
        begun = last.is_first[1] if rows == 1 else last.is_first[1 : rows + 1].sum(0)
        self.episode_id[:] = last.episode_id + begun
        self.is_first[0] = last.is_first[rows]
        if rows > 0:
            self.last_action.copy_(last.action_rows[rows - 1])
            self.last_reward[:] = last.reward[rows - 1]
        else:
            self.last_action.copy_(last.last_action)
            self.last_reward[:] = last.last_reward

    def fill_from(self, row: int) -> None:
        """Fills the rows from `row` on, which were not executed, with invalid copies of `row`,
        without reward or ending.
        """
        for x in (*self.obs.values(), self.action, *self._recorded.values()):
            x[row + 1 :] = x[row]
        self.is_first[row + 1 :] = False
        self.reward[row:] = self.raw_reward[row:] = 0.0
        for none in (self.terminated, self.truncated, self.valid, self.success):
            none[row:] = False
        if self.return_carry is not None:
            self.return_carry[row:] = 0.0

    @property
    def executed(self) -> int:
        """Number of env_steps in the unroll, or in the rows received so far; on the CPU only."""
        return int(np.count_nonzero(self.valid))

    def store_state(self, row: int, state: State) -> None:
        """Stores the recurrent state before the act of `row` (or T), every `state_every` rows."""
        if row % self.state_every == 0:
            for name, x in self.state.items():
                x[row // self.state_every].copy_(state[name])

    def unroll(self, lease: Lease) -> Unroll:
        """The unroll as views of this memory, which does not change until the lease ends; on the
        CPU only.
        """
        block = ColumnBlock(self.rollout, self.episodes(), lease)
        group, running = int(self.memory["group_id"][0]), int(self.running_length.sum())
        return Unroll(block, group, self.executed, running)

    def told_at(self, places: Tensor) -> list[Tensor]:
        """`OF_EPISODE` and the metrics of episodes that ended at these places among all T * B
        rows.
        """
        found = [self.memory[name].flatten()[places] for name in OF_EPISODE]
        if "metrics" in self.memory:
            found += self.memory["metrics"].flatten(0, 1)[places].unbind(1)
        return found

    def episodes(self) -> list[Episode]:
        """Episodes that ended in this unroll, ordered by (row, column); on the CPU only."""
        ended = (self.terminated | self.truncated) & self.valid
        if not ended.any():
            return []
        places = torch.from_numpy(np.flatnonzero(ended))
        found = episodes_of(places, self.told_at(places), self.num_streams)
        if not self.options:
            return found
        return [replace(x, options=own) for x, own in zip(found, self.options, strict=True)]


def episodes_of(places: Any, fields: Sequence[Any], num_streams: int) -> list[Episode]:
    """The episodes that ended at places (an array or tensor), by what `Slot.told_at` gives."""
    columns = zip(places.tolist(), *(x.tolist() for x in fields), strict=True)
    return [
        Episode(
            *divmod(int(place), num_streams),
            return_,
            int(length),
            _SUCCESS[int(success)],
            int(version),
            tuple(metrics),
        )
        for place, return_, length, success, version, *metrics in columns
    ]
