"""What every learner must know of the run that it is part of."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Setup:
    """Facts of a run that are no options of a learner.

    seeds: two independent 63-bit numbers, for the weights and for the order of minibatches.
    compile: whether the whole update becomes one compiled graph.
    """

    num_streams: int
    total_env_steps: int
    seeds: tuple[int, int]
    device: torch.device
    compile: bool = False
