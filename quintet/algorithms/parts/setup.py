"""What every learner must know of the run that it is part of."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from quintet.models.precision import Precision
from quintet.protocols import Ranks
from quintet.types import Rollout


@dataclass(frozen=True)
class Compute:
    """How a learner or its actors compute.

    precision: of encoders.
    compile: whether an act, and the whole update, is one compiled graph.
    act_on: where actors are.
    records_entropy: whether actors that have a distribution record its entropy with every act,
        which evaluation reports and learning has no use for.
    records_value: whether actors whose network has a value record it with every act, also where
        their learner has no use for it.
    """

    precision: Precision = "fp32"
    compile: bool = False
    act_on: str = "cpu"
    records_entropy: bool = False
    records_value: bool = False


PLAIN = Compute()
"""In float32 and eagerly."""


@final
class Alone:
    """The `Ranks` of a learner that has every batch to itself."""

    size, index = 1, 0

    def whole(self, batch: Rollout) -> Rollout:
        return batch

    def shard(self, batch: Rollout) -> Rollout:
        return batch

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0)

    def broadcast(self, tensors: Iterable[Tensor]) -> None: ...


ALONE = Alone()


@dataclass(frozen=True)
class Setup:
    """Facts of a run that are no options of a learner.

    seeds: two independent 63-bit numbers, for the weights and for the order of minibatches.
    device: where it computes; of several learners, where this one does.
    ranks: the learners that share every batch, of which this is one.
    """

    num_streams: int
    total_env_steps: int
    seeds: tuple[int, int]
    device: torch.device
    compute: Compute = PLAIN
    ranks: Ranks = ALONE
