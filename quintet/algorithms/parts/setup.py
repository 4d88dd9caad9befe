"""Facts of a run that each of its learners must know."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar, final

import torch
from torch import Tensor

from quintet.models.compiled import Graph
from quintet.models.cuda_graphs import GraphedMethod
from quintet.models.precision import Precision
from quintet.protocols import Ranks
from quintet.types import Rollout

P = ParamSpec("P")
R = TypeVar("R")

Recorded = Literal["logp_mu", "params_mu", "value", "entropy"]
"""Log-probability of the action; parameters of the (masked) distribution; the value; the entropy
of the (masked) distribution, in nats.
"""


@dataclass(frozen=True)
class Compute:
    """Precision, compilation and device of a learner or its actors.

    precision: of encoders.
    compile: whether an act, and the whole update, is one compiled graph.
    graph: whether on a GPU they are CUDA graphs of the eager operations.
    act_on: device of the actors.
    records: names of what actors record with every act; None: what their learner uses.
    """

    precision: Precision = "fp32"
    compile: bool = False
    act_on: str = "cpu"
    records: tuple[Recorded, ...] | None = None
    graph: bool = False

    def prepared(self, method: Callable[P, R]) -> Callable[P, R]:
        """A bound method that changes nothing, as it is or as a compiled or CUDA graph."""
        if self.compile:
            return Graph(method)
        return GraphedMethod(method) if self.graph else method


PLAIN = Compute()
"""Float32, eager."""


@final
class Alone:
    """The `Ranks` of a single learner, which has every batch to itself."""

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
    """Facts of a run that are not options of a learner.

    seeds: two independent 63-bit numbers, for the weights and for the order of minibatches.
    device: device of this learner.
    ranks: the learners that share every batch, of which this is one.
    """

    num_streams: int
    total_env_steps: int
    seeds: tuple[int, int]
    device: torch.device
    compute: Compute = PLAIN
    ranks: Ranks = ALONE
