"""A learner that only adds up what it is given, alone or as one of several; and its batches."""

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from quintet.errors import NonFiniteError
from quintet.protocols import DataPlan, Ranks, ReplayPlan
from quintet.runtime.parallel.learners import Learners, LearnersSpec
from quintet.runtime.slots import RowSpecs, Slot, slot_specs, zeros
from quintet.types import LearnerState, Publication, Rollout, Spaces, TensorSpec

SPACES = Spaces(
    spaces.Dict(
        {
            "x": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "picture": spaces.Box(0, 255, (2, 2, 1), np.uint8),
        }
    ),
    spaces.Discrete(3),
)
ROWS = RowSpecs(
    SPACES,
    TensorSpec((), torch.int64),
    {"logp_mu": TensorSpec((), torch.float32)},
    {"core/h0": TensorSpec((5,), torch.float32)},
)
WINDOWS = ReplayPlan("windows", 1_000, steps=2, columns=24, draws="owed", rate=1.0)
PLAN = DataPlan(
    unroll_steps=6, columns_per_batch=12, return_discount=0.9, state_every=3, replay=WINDOWS
)


def make_batch(seed: int, cut: bool, replayed: bool = False) -> Rollout:
    """Something else in every tensor that a batch has."""
    plan = replace(PLAN, unroll_steps=2, columns_per_batch=24, state_every=2) if replayed else PLAN
    rows = replace(ROWS, state={}) if replayed else ROWS
    columns = plan.columns_per_batch
    batch = Slot(zeros(slot_specs(rows, plan, columns)), rows, plan).rollout
    batch = replace(batch, replayed=replayed)
    if cut:
        none = torch.zeros((plan.unroll_steps, columns), dtype=torch.bool)
        batch = replace(batch, trace_cut=none)
    g = torch.Generator().manual_seed(seed)
    for x in tensors_of(batch):
        x.copy_(torch.randint(0, 2 if x.dtype == torch.bool else 100, x.shape, generator=g))
    return batch


def tensors_of(batch: Rollout) -> list[Tensor]:
    found: list[Tensor] = []
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            found += [value[name] for name in sorted(value)]
        elif isinstance(value, Tensor):
            found.append(value)
    return found


def digest(batch: Rollout) -> Tensor:
    """The sum of every tensor of a batch, one behind the other; those of parts add up."""
    return torch.stack([x.double().sum() for x in tensors_of(batch)])


class Adder:
    """Its weights are the sum of all that any rank was given, from its rank's number on."""

    def __init__(self, ranks: Ranks, trouble: str = ""):
        self.ranks, self.trouble = ranks, trouble
        self.vector = torch.full((20,), float(ranks.index), dtype=torch.float64)
        self.half = torch.tensor(0.5)  # of another dtype, without dimensions
        self.seen_last = torch.zeros((), dtype=torch.float64)
        self.updates = self.version = 0
        if trouble == "unready" and ranks.index == 1:
            raise ValueError("not made for this")

    @property
    def plan(self) -> DataPlan:
        return PLAN

    def update(self, batch: Rollout, env_steps: int) -> None:
        self.updates = self.version = self.updates + 1
        if self.ranks.index == 1 and self.updates == 2:
            self.make_trouble()
        seen = self.ranks.sum(digest(self.ranks.shard(batch)))
        self.vector[: len(seen)] += seen
        self.vector[-1] += -env_steps if batch.replayed else env_steps
        who = self.ranks.gather(torch.tensor([float(self.ranks.index)]))
        self.told = {"ranks": float(len(who)), "last": who[-1].item()}
        if self.ranks.index == 1:
            self.dawdle()
        self.seen_last += digest(self.ranks.whole(batch)).sum()

    def metrics(self) -> dict[str, float]:
        return self.told

    def dawdle(self) -> None:
        """Reads the batch long after the last exchange."""
        if self.trouble in ("late", "never"):
            time.sleep(0.3 if self.trouble == "late" else 1_000)

    def make_trouble(self) -> None:
        match self.trouble:
            case "raise":
                raise ValueError("out of paint")
            case "nan":
                raise NonFiniteError("loss became nan")
            case "die":
                print("farewell", flush=True)
                os._exit(3)
            case "hang":
                time.sleep(1_000)
            case "crash":
                ctypes.string_at(0)
            case "drift":
                self.vector += 1e-9

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, {"weights": self.vector})

    def save(self) -> LearnerState:
        tensors = {"weights": self.vector, "half": self.half, "seen_last": self.seen_last}
        return LearnerState(tensors, {"updates": self.updates})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        self.vector.copy_(state.tensors["weights"])
        self.half.copy_(state.tensors["half"])
        self.seen_last.copy_(state.tensors["seen_last"])
        self.updates: Any = state.scalars["updates"]
        self.version = self.updates

    def weights(self) -> dict[str, Tensor]:
        return {"weights": self.vector}

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        self.vector.copy_(weights["weights"])


def adders(size: int, trouble: str = "", timeout_s: float = 60.0) -> Learners:
    make = partial(Adder, trouble=trouble)
    return Learners(LearnersSpec(make, ("cpu",) * size, ROWS, 1, timeout_s))
