"""The optimizers of learners, and their memory."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from quintet.ops import rmsprop


class Optimizer(NamedTuple):
    """The rule that turns a gradient into a step.

    kind: rmsprop_tf: TensorFlow's form, see `quintet.ops.rmsprop`.
    momentum: whether RMSProp keeps a velocity.
    """

    kind: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    momentum: bool = False


ADAM = Optimizer()


def initial_memory(optimizer: Optimizer, theta: Tensor) -> dict[str, Tensor]:
    """The optimizer's memory at the start, by name."""
    if optimizer.kind == "adam":
        return {"exp_avg": torch.zeros_like(theta), "exp_avg_sq": torch.zeros_like(theta)}
    inside = optimizer.kind == "rmsprop_tf"
    memory = {"mean_sq": rmsprop.initial_mean_sq(theta, epsilon_inside_sqrt=inside)}
    if optimizer.momentum:
        memory["velocity"] = torch.zeros_like(theta)
    return memory
