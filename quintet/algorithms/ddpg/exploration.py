"""Exploration of DDPG: the grammar of the option, and the arithmetic of the noises."""

from __future__ import annotations  # annotations need no PyTorch at run time

import math
from typing import TYPE_CHECKING, NamedTuple

from quintet.options.bounds import LARGEST

if TYPE_CHECKING:
    from torch import Tensor

GRAMMAR = "none, normal_S, ou_S, adaptive-param_S, with a number S > 0, separated by commas"


class Exploration(NamedTuple):
    """Sizes of the noises of one actor; 0 for a noise that it lacks.

    normal: standard deviation of Gaussian action noise.
    ou: size of the Ornstein-Uhlenbeck process.
    param: standard deviation of parameter noise at the start, and the distance by which it shall
    move actions. All are in units of actions, where [-1, 1] are the bounds.
    """

    normal: float = 0.0
    ou: float = 0.0
    param: float = 0.0


MOST_MOVED = 1.0
"""Largest distance by which parameter noise shall move actions in [-1, 1].  Two policies are at
most 2 apart, and less on average; if the desired distance could not be reached, the noise would
grow without bound.
"""

_FIELDS = {"normal": "normal", "ou": "ou", "adaptive-param": "param"}


def parse(text: str) -> Exploration:
    """The noises in a list of names; spaces are ignored.

    Raises:
        ValueError: names the entry that is wrong, and the grammar.
    """
    sizes: dict[str, float] = {}
    entries = [entry.strip().replace(" ", "") for entry in text.split(",")]
    for entry in entries:
        if entry == "none" and len(entries) == 1:
            return Exploration()
        name, _, number = entry.rpartition("_")
        try:
            size = float(number)
        except ValueError:
            size = math.nan
        if entry == "none":
            fault = "the word 'none' must stand alone"
        elif name not in _FIELDS or not 0.0 < size <= LARGEST:
            fault = f"the word {entry!r} is none of these"
        elif name == "adaptive-param" and size > MOST_MOVED:
            fault = f"the word {entry!r} would move actions by more than {MOST_MOVED:g}"
        elif _FIELDS[name] in sizes:
            fault = f"{name} may stand in it once"
        else:
            sizes[_FIELDS[name]] = size
            continue
        raise ValueError(f"must be a list of {GRAMMAR}; {fault}")
    return Exploration(**sizes)


def ou_step(x: Tensor, z: Tensor, size: float, theta: float, dt: float) -> Tensor:
    """``x + theta * (0 - x) * dt + size * sqrt(dt) * z``, with z standard normal.

    Source: Uhlenbeck and Ornstein (1930), by the Euler-Maruyama rule.
    """
    return x - theta * dt * x + size * math.sqrt(dt) * z


def perturbation(num_weights: int, seed: int) -> Tensor:
    """Standard normal numbers ``[P]`` that follow from the seed alone, on the CPU."""
    import torch

    return torch.randn(num_weights, generator=torch.Generator().manual_seed(seed))


def adapted(scale: Tensor, distance: Tensor, desired: float, factor: float) -> Tensor:
    """The standard deviation of parameter noise, adapted to the distance by which it moves actions.

    Source: Plappert et al., arXiv 1706.01905, equation 8.
    """
    import torch

    return torch.where(distance > desired, scale / factor, scale * factor)
