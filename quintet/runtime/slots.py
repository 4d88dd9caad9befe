"""Memory for one unroll of one group: allocated once, written in place, read as tensors."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.envs.vector import StepRow
from quintet.spaces import leaf_dtype, observation_leaves
from quintet.types import Obs, Spaces, TensorSpec


def _zeros(spec: TensorSpec, *leading: int) -> Tensor:
    return torch.zeros(*leading, *spec.shape, dtype=spec.dtype)


@final
class Slot:
    """Rows 0..T of observations and 0..T-1 of the rest, for the B streams of a group.

    Environments write through `step_rows` (numpy), actors read `obs_rows` and write `action` and
    `record` (torch); both are views of the same memory, made once.
    """

    def __init__(
        self,
        spaces: Spaces,
        action: TensorSpec,
        record: Mapping[str, TensorSpec],
        steps: int,
        num_streams: int,
    ):
        self.steps, self.num_streams = steps, num_streams
        leaves = observation_leaves(spaces.observation)
        t, b = steps, num_streams
        arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((t + 1, b, *(leaf.shape or ())), leaf_dtype(leaf))
            for name, leaf in leaves.items()
        }
        self.obs: dict[str, Tensor] = {name: torch.from_numpy(x) for name, x in arrays.items()}
        self.action = _zeros(action, t, b)
        self.record = {name: _zeros(spec, t, b) for name, spec in record.items()}
        self.reward = np.zeros((t, b), np.float32)
        self.raw_reward = np.zeros((t, b), np.float32)
        self.terminated = np.zeros((t, b), np.bool_)
        self.truncated = np.zeros((t, b), np.bool_)
        self.valid = np.zeros((t, b), np.bool_)
        self.is_first = np.zeros((t + 1, b), np.bool_)
        self.return_carry = np.zeros((t, b), np.float64)
        self.version = np.zeros((t, b), np.int64)
        self.first_obs_arrays = {name: x[0] for name, x in arrays.items()}

        # Views of every row, so that the hot loop slices and builds nothing.
        self.obs_rows: list[Obs] = [
            {name: x[row] for name, x in self.obs.items()} for row in range(t + 1)
        ]
        self.is_first_rows = [torch.from_numpy(self.is_first[row]) for row in range(t + 1)]
        self.action_rows = list(self.action.unbind(0))
        self.record_rows = [{name: x[row] for name, x in self.record.items()} for row in range(t)]
        self.step_rows = [
            StepRow(
                obs={name: x[row + 1] for name, x in arrays.items()},
                reward=self.reward[row],
                raw_reward=self.raw_reward[row],
                terminated=self.terminated[row],
                truncated=self.truncated[row],
                valid=self.valid[row],
            )
            for row in range(t)
        ]

    def carry_over(self) -> None:
        """Row T of the last unroll becomes row 0 of the next."""
        for x in self.obs.values():
            x[0].copy_(x[-1])
        self.is_first[0] = self.is_first[-1]
