"""Memory for one unroll of one group: allocated once, written in place, read as tensors."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.envs.vector import StepRow
from quintet.protocols import Actor, DataPlan
from quintet.spaces import leaf_dtype, observation_leaves
from quintet.types import Obs, Rollout, Spaces, State, TensorSpec

WHO_ACTED = ("policy_id", "version")
"""Records that belong to the slot itself: an actor of several policies says them row by row."""


def _zeros(spec: TensorSpec, *leading: int) -> Tensor:
    return torch.zeros(*leading, *spec.shape, dtype=spec.dtype)


def _leaves(specs: Mapping[str, TensorSpec], *leading: int) -> dict[str, Tensor]:
    return {name: _zeros(spec, *leading) for name, spec in specs.items()}


@final
class Slot:
    """Rows 0..T of observations and 0..T-1 of the rest, for the B streams of a group.

    Environments write through `step_rows` (numpy), actors read `obs_rows` and write `action` and
    `record` (torch); both are views of the same memory, made once.
    """

    def __init__(
        self, spaces: Spaces, actor: Actor, plan: DataPlan, num_streams: int, first_stream: int,
        group: int,
    ):  # fmt: skip
        self.steps, self.num_streams, self.state_every = (
            plan.unroll_steps,
            num_streams,
            plan.state_every,
        )
        t, b = self.steps, num_streams
        arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((t + 1, b, *(leaf.shape or ())), leaf_dtype(leaf))
            for name, leaf in observation_leaves(spaces.observation).items()
        }
        self.obs: dict[str, Tensor] = {name: torch.from_numpy(x) for name, x in arrays.items()}
        self.action = _zeros(actor.action_spec, t, b)
        self.last_action = _zeros(actor.action_spec, b)
        self.policy_id = torch.zeros(t, b, dtype=torch.int64)
        self.version = torch.zeros(t, b, dtype=torch.int64)
        specs = actor.record_specs
        self.record = _leaves({k: s for k, s in specs.items() if k not in WHO_ACTED}, t, b)
        self.state = _leaves(actor.state_specs, t // plan.state_every + 1, b)
        self.reward = np.zeros((t, b), np.float32)
        self.last_reward = np.zeros(b, np.float32)
        self.raw_reward = np.zeros((t, b), np.float32)
        self.terminated = np.zeros((t, b), np.bool_)
        self.truncated = np.zeros((t, b), np.bool_)
        self.valid = np.zeros((t, b), np.bool_)
        self.success = np.zeros((t, b), np.bool_)
        self.is_first = np.zeros((t + 1, b), np.bool_)
        self.episode_id = np.zeros(b, np.int64)
        self.return_carry = None if plan.return_discount is None else np.zeros((t, b), np.float64)
        self.stream_id = torch.arange(first_stream, first_stream + b)
        self.group_id = torch.full((b,), group)
        self.first_obs_arrays = {name: x[0] for name, x in arrays.items()}

        # Views of every row, so that the hot loop slices and builds nothing.
        self.obs_rows: list[Obs] = [
            {name: x[row] for name, x in self.obs.items()} for row in range(t + 1)
        ]
        self.is_first_rows = [torch.from_numpy(self.is_first[row]) for row in range(t + 1)]
        self.action_rows = list(self.action.unbind(0))
        said = self.record | {name: getattr(self, name) for name in WHO_ACTED if name in specs}
        self.record_rows = [{name: x[row] for name, x in said.items()} for row in range(t)]
        self.step_rows = [
            StepRow(
                obs={name: x[row + 1] for name, x in arrays.items()},
                reward=self.reward[row],
                raw_reward=self.raw_reward[row],
                terminated=self.terminated[row],
                truncated=self.truncated[row],
                valid=self.valid[row],
                success=self.success[row],
            )
            for row in range(t)
        ]

    def begin_anew(self) -> None:
        """Row 0 is the first of every stream: nothing came before it."""
        self.is_first[0] = True
        self.episode_id[:] = 0
        self.last_action.zero_()
        self.last_reward[:] = 0.0

    def carry_over(self) -> None:
        """Row T of the last unroll becomes row 0 of the next."""
        for x in self.obs.values():
            x[0].copy_(x[-1])
        self.episode_id += self.is_first[1:].sum(0)
        self.is_first[0] = self.is_first[-1]
        self.last_action.copy_(self.action[-1])
        self.last_reward[:] = self.reward[-1]

    def store_state(self, row: int, state: State) -> None:
        """Keeps the recurrent state before the act of `row`, or T, if it is one to be kept."""
        if row % self.state_every == 0:
            for name, x in self.state.items():
                x[row // self.state_every].copy_(state[name])

    def rollout(self) -> Rollout:
        """The unroll as views of this memory."""
        carry = self.return_carry
        return Rollout(
            obs=self.obs,
            action=self.action,
            reward=torch.from_numpy(self.reward),
            terminated=torch.from_numpy(self.terminated),
            truncated=torch.from_numpy(self.truncated),
            valid=torch.from_numpy(self.valid),
            is_first=torch.from_numpy(self.is_first),
            record=self.record,
            version=self.version,
            policy_id=self.policy_id,
            stream_id=self.stream_id,
            group_id=self.group_id,
            episode_id=torch.from_numpy(self.episode_id),
            last_action=self.last_action,
            last_reward=torch.from_numpy(self.last_reward),
            state=self.state,
            return_carry=None if carry is None else torch.from_numpy(carry),
        )
