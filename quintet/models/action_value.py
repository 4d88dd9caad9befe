"""Critics of learners whose actions are one Box: values of an observation and an action."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.build import Trunk, make_encoder
from quintet.models.config import ModelConfig
from quintet.models.encoders import LEAST_UNITS, layers
from quintet.models.heads import action_family
from quintet.models.precision import Precision, autocast
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Obs, Spaces


def action_box(algo: str, spaces: Spaces, *, squash: bool = False) -> DiagGaussian:
    """The action space of a learner, whose bounds are mapped to [-1, 1].

    squash: whether actions are those before a tanh.

    Raises:
        ConfigError: it is not a Box of floats, or has an infinite bound.
    """
    family = action_family(spaces.action, "clip")
    if not isinstance(family, DiagGaussian):
        raise ConfigError(f"{algo} must have one Box of floats as actions, got {spaces.action}")
    low, high = torch.tensor((family.low, family.high))
    if not (high - low).isfinite().all():  # the widest bounds of float32 are too wide as well
        raise ConfigError(
            f"{algo} must have finite bounds of actions, got {spaces.action}; give it bounds, as "
            "by gymnasium.wrappers.TransformAction(env, lambda a: a, Box(-10, 10, ...))"
        )
    return replace(family, squash="action") if squash else family


@final
class ActionValue(nn.Module):
    """Observations and actions to values."""

    def __init__(
        self, spaces: Spaces, action_size: int, model: ModelConfig, action_layer: int,
        generator: torch.Generator, precision: Precision,
    ):  # fmt: skip
        """action_layer: number of the hidden layer that reads the action, from 1; after a user's
        encoder the first.  If there is none after it, a single one is added, as wide as the
        features and at least LEAST_UNITS.
        """
        super().__init__()
        hidden = model.value_hidden
        if model.custom:
            action_layer, hidden = 1, hidden or None
        early = None if hidden is None else hidden[: action_layer - 1]
        with torch.random.fork_rng(devices=[]):
            encoder = make_encoder(spaces, model, early, generator)
            self.trunk = Trunk("value", encoder, None, precision)
            self.encoder = encoder
            features = self.trunk.feature_size
            late = (max(features, LEAST_UNITS),) if hidden is None else hidden[action_layer - 1 :]
            size = features + action_size
            activation = model.activation or "relu"
            self.layers = layers((size, *late), activation, model.layer_norm)
            self.head = nn.Linear(late[-1], 1)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Values ``[N]`` of actions ``[N, A]`` in [-1, 1]."""
        features = torch.cat((self.trunk(obs)[0], action), -1)
        with autocast(self.trunk.precision, features.device):
            features = self.layers(features)
        value: Tensor = self.head(features.float()).squeeze(-1)
        return value
