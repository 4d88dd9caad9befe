"""What every learner must know of the run that it is part of."""

from dataclasses import dataclass

import torch

from quintet.models.precision import Precision


@dataclass(frozen=True)
class Compute:
    """How a learner and its actors compute.

    precision: of encoders.
    compile: whether an act, and the whole update, is one compiled graph.
    act_on: where actors are.
    """

    precision: Precision = "fp32"
    compile: bool = False
    act_on: str = "cpu"


PLAIN = Compute()
"""In float32 and eagerly."""


@dataclass(frozen=True)
class Setup:
    """Facts of a run that are no options of a learner.

    seeds: two independent 63-bit numbers, for the weights and for the order of minibatches.
    """

    num_streams: int
    total_env_steps: int
    seeds: tuple[int, int]
    device: torch.device
    compute: Compute = PLAIN
