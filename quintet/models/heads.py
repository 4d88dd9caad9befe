"""Heads: the distribution of an action space, and the layer that computes its parameters."""

import math
from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn
from torch.nn import functional

from quintet.errors import ConfigError
from quintet.models.config import ActionBounds, ActionStd
from quintet.ops import discrete, distributions
from quintet.ops.gaussian import DiagGaussian
from quintet.spaces import action_leaves


def action_family(
    space: gym_spaces.Space,  # type: ignore[type-arg]
    bounds: ActionBounds,
) -> distributions.Family:
    """The distribution family of an action space, over packed actions (`spaces.action_spec`).

    Box actions are in normalised units, where [-1, 1] are the bounds of the space.  Tuples and
    Dicts, nested or not, have one family per leaf.

    Raises:
        ConfigError: a leaf is not a Box (of floats), Discrete, MultiDiscrete or MultiBinary, or has
            too many values to be packed with floats.
    """
    if not isinstance(space, gym_spaces.Tuple | gym_spaces.Dict):
        return _leaf_family(space, bounds)
    families = tuple(_leaf_family(leaf, bounds) for leaf in action_leaves(space))
    try:
        return distributions.TupleFamily(families)
    except ValueError as error:
        raise ConfigError(f"{error}; the action space is {space}") from error


def _leaf_family(
    space: gym_spaces.Space,  # type: ignore[type-arg]
    bounds: ActionBounds,
) -> distributions.Family:
    """The distribution of a leaf of the action space; raises ConfigError."""
    if isinstance(space, gym_spaces.Discrete):
        return discrete.Categorical(int(space.n))
    if isinstance(space, gym_spaces.MultiDiscrete):
        return distributions.multi_categorical(space.nvec.ravel().tolist())
    if isinstance(space, gym_spaces.MultiBinary):
        return discrete.Bernoulli(math.prod(space.shape))
    if isinstance(space, gym_spaces.Box) and space.dtype.kind == "f":
        low = tuple(float(x) for x in space.low.ravel())
        high = tuple(float(x) for x in space.high.ravel())
        if (space.low >= space.high).any():
            raise ConfigError(
                f"low must be below high in every dimension of an action, got {space}: leave "
                "out fixed dimensions in a wrapper of the environment"
            )
        finite = np.isfinite(space.low).all() and np.isfinite(space.high).all()
        if bounds != "clip" and not finite:
            raise ConfigError(
                f"model.action_bounds={bounds} must have finite action bounds, got {space}; use "
                "--model.action-bounds clip"
            )
        squash: Literal["none", "mean", "action"] = "none"
        if bounds != "clip":
            squash = "action" if bounds == "squash" else "mean"
        return DiagGaussian(len(low), low, high, squash)
    raise ConfigError(
        "an action space must be Box (floats), Discrete, MultiDiscrete or MultiBinary, or a Tuple "
        f"or Dict of these, got {space}; wrap the environment so that it has one"
    )


@final
class PolicyHead(nn.Module):
    """Maps features to the flat parameters of a distribution family.

    One linear layer gives all logits and means.  The standard deviation of Gaussians, also of those
    in a `TupleFamily`, starts at `std_init` (normalised units).  It is a free log
    ("state_independent"), a free number through softplus ("softplus", as in TF-Agents), or a second
    linear output ("state_dependent", its log kept in [-20, 2]).
    """

    def __init__(
        self, family: distributions.Family, feature_size: int, std: ActionStd, std_init: float
    ):
        super().__init__()
        self.std = std
        # Leaves in order: outputs of the linear layer; standard deviations (0: no Gaussian).
        leaves = distributions.leaf_families(family)
        self.std_sizes = [leaf.size if isinstance(leaf, DiagGaussian) else 0 for leaf in leaves]
        self.sizes = [n or leaf.param_size for n, leaf in zip(self.std_sizes, leaves, strict=True)]
        size = sum(self.std_sizes)
        self.gaussian = size > 0
        self.linear = nn.Linear(feature_size, sum(self.sizes))
        if not self.gaussian:
            return
        if std == "state_dependent":
            self.std_linear = nn.Linear(feature_size, size)
            self.std_start = math.log(std_init)
        else:
            start = math.log(std_init)
            if std != "state_independent":  # softplus of a large number is the number
                start = std_init if std_init > 30.0 else math.log(math.expm1(std_init))
            self.std_param = nn.Parameter(torch.full((size,), start))

    def forward(self, features: Tensor) -> Tensor:
        """``[N, param_size]`` from ``[N, features]``."""
        outputs: Tensor = self.linear(features)
        if not self.gaussian:
            return outputs
        if self.std == "state_dependent":
            log_std = (self.std_linear(features) + self.std_start).clamp(-20.0, 2.0)
        elif self.std == "softplus":
            log_std = functional.softplus(self.std_param).log()
        else:
            log_std = self.std_param
        log_std = log_std.expand(*outputs.shape[:-1], -1)
        if len(self.sizes) == 1:
            return torch.cat((outputs, log_std), -1)
        split = torch.split(outputs, self.sizes, -1), torch.split(log_std, self.std_sizes, -1)
        return torch.cat([x for pair in zip(*split, strict=True) for x in pair], -1)
