"""Heads: which distribution an action space asks for, and the layer that gives its parameters."""

import math
from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn
from torch.nn import functional

from quintet.errors import ConfigError
from quintet.ops import distributions

ActionBounds = Literal["clip", "squash", "mean_tanh"]
ActionStd = Literal["state_independent", "softplus", "state_dependent"]


def action_family(
    space: gym_spaces.Space,  # type: ignore[type-arg]
    bounds: ActionBounds,
) -> distributions.Family:
    """The distribution family for an action space.

    Box actions live in normalised units, where [-1, 1] stands for the bounds of the space.

    Raises:
        ConfigError: the space is none of Box, Discrete, MultiDiscrete, MultiBinary.
    """
    if isinstance(space, gym_spaces.Discrete):
        return distributions.Categorical(int(space.n))
    if isinstance(space, gym_spaces.MultiDiscrete) and len(space.shape) == 1:
        return distributions.MultiCategorical(tuple(int(n) for n in space.nvec))
    if isinstance(space, gym_spaces.MultiBinary) and len(space.shape) == 1:
        return distributions.Bernoulli(int(space.shape[0]))
    if isinstance(space, gym_spaces.Box) and space.dtype.kind == "f" and len(space.shape) == 1:
        size = int(space.shape[0])
        low = tuple(float(x) for x in space.low)
        high = tuple(float(x) for x in space.high)
        if bounds == "squash":
            if not np.isfinite(space.low).all() or not np.isfinite(space.high).all():
                raise ConfigError(
                    "model.action_bounds=squash requires finite action bounds, the action space "
                    f"is {space}; use --model.action-bounds clip"
                )
            return distributions.TanhGaussian(size, low, high)
        return distributions.DiagGaussian(size, low, high, squash_mean=bounds == "mean_tanh")
    raise ConfigError(
        "an action space of Box (floats, one dimension), Discrete, MultiDiscrete or MultiBinary "
        f"(one dimension) is required, the environment has {space}; wrap the environment so that "
        "it has one"
    )


@final
class PolicyHead(nn.Module):
    """Features to the flat parameters of a distribution family.

    For Gaussians the standard deviation starts at `std_init` (normalised units): a free log
    ("state_independent"), a free number through softplus ("softplus", as TF-Agents), or a second
    linear output ("state_dependent", its log kept in [-20, 2]).
    """

    def __init__(
        self, family: distributions.Family, feature_size: int, std: ActionStd, std_init: float
    ):
        super().__init__()
        self.std = std
        self.gaussian = isinstance(family, distributions.DiagGaussian | distributions.TanhGaussian)
        size = family.param_size
        if not self.gaussian:
            self.linear = nn.Linear(feature_size, size)
        elif std == "state_dependent":
            self.linear = nn.Linear(feature_size, size // 2)
            self.std_linear = nn.Linear(feature_size, size // 2)
            self.std_start = math.log(std_init)
        else:
            start = (
                math.log(std_init) if std == "state_independent" else math.log(math.expm1(std_init))
            )
            self.linear = nn.Linear(feature_size, size // 2)
            self.std_param = nn.Parameter(torch.full((size // 2,), start))

    def forward(self, features: Tensor) -> Tensor:
        """``[N, param_size]`` from ``[N, features]``."""
        mean: Tensor = self.linear(features)
        if not self.gaussian:
            return mean
        if self.std == "state_dependent":
            log_std = (self.std_linear(features) + self.std_start).clamp(-20.0, 2.0)
        elif self.std == "softplus":
            log_std = functional.softplus(self.std_param).log().expand_as(mean)
        else:
            log_std = self.std_param.expand_as(mean)
        return torch.cat((mean, log_std), -1)
