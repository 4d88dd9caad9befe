"""DDPG's networks: a deterministic policy, and a value of observation and action."""

from typing import final

import torch
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.build import Branch, Trunk, check_observation, draw_weights, make_encoder
from quintet.models.config import ModelConfig
from quintet.models.encoders import LEAST_UNITS, layers
from quintet.models.heads import action_family
from quintet.models.precision import Precision, autocast
from quintet.models.weights import kernels
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Obs, Spaces


def action_box(spaces: Spaces) -> DiagGaussian:
    """The action space, whose bounds are mapped to [-1, 1].

    Raises:
        ConfigError: it is not a Box of floats, or has an infinite bound.
    """
    family = action_family(spaces.action, "clip")
    if not isinstance(family, DiagGaussian):
        raise ConfigError(f"ddpg must have one Box of floats as actions, got {spaces.action}")
    low, high = torch.tensor((family.low, family.high))
    if not (high - low).isfinite().all():  # the widest bounds of float32 are too wide as well
        raise ConfigError(
            f"ddpg must have finite bounds of actions, got {spaces.action}; give it bounds, as "
            "by gymnasium.wrappers.TransformAction(env, lambda a: a, Box(-10, 10, ...))"
        )
    return family


@final
class Policy(nn.Module):
    """Observations to actions in [-1, 1]."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, generator: torch.Generator | None,
        precision: Precision,
    ):  # fmt: skip
        """Weights of quintet's own layers are undefined until they are drawn or loaded."""
        super().__init__()
        box = action_box(spaces)
        check_observation(spaces, box)
        with torch.random.fork_rng(devices=[]):
            encoder = make_encoder(spaces, model, model.policy_hidden, generator)
            self.trunk = Trunk("policy", encoder, None, precision)
            self.encoder = encoder
            self.head = nn.Linear(self.trunk.feature_size, box.size)

    def forward(self, obs: Obs) -> Tensor:
        """Actions ``[N, A]`` of normalised observations ``[N, ...]``."""
        action: Tensor = self.head(self.trunk(obs)[0]).tanh()
        return action


@final
class ActionValue(nn.Module):
    """Observations and actions to values."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, action_layer: int, generator: torch.Generator,
        precision: Precision,
    ):  # fmt: skip
        """action_layer: number of the hidden layer that reads the action, from 1; a user's encoder
        is followed by a single hidden layer, as wide as the features and at least LEAST_UNITS.
        """
        super().__init__()
        hidden = model.value_hidden
        early = None if hidden is None else hidden[: action_layer - 1]
        with torch.random.fork_rng(devices=[]):
            encoder = make_encoder(spaces, model, early, generator)
            self.trunk = Trunk("value", encoder, None, precision)
            self.encoder = encoder
            features = self.trunk.feature_size
            late = (max(features, LEAST_UNITS),) if hidden is None else hidden[action_layer - 1 :]
            size = features + action_box(spaces).size
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


@final
class Networks(nn.Module):
    """The policy and the value of its actions, which share no weights."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, action_layer: int, output_init: float,
        generator: torch.Generator, precision: Precision = "fp32",
    ):  # fmt: skip
        """output_init: weights of both last layers are drawn uniformly from [-output_init,
        output_init]."""
        super().__init__()
        self.actor = Policy(spaces, model, generator, precision)
        self.critic = ActionValue(spaces, model, action_layer, generator, precision)
        policy = Branch(self.actor.trunk, self.actor.head, "policy")
        value = Branch(self.critic.trunk, self.critic.layers, "hidden")
        draw_weights((policy, value), model.init, generator)
        with torch.no_grad():
            for head in (self.actor.head, self.critic.head):
                head.weight.uniform_(-output_init, output_init, generator=generator)
                head.bias.zero_()

    def penalised(self) -> list[str]:
        """Names of the critic's kernels, except the last layer's."""
        inner = [*self.critic.trunk.modules(), *self.critic.layers.modules()]
        return kernels(self, inner)


NORMALIZING = (
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.SyncBatchNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""PyTorch's layers that normalise and have weights."""


def perturbable(policy: nn.Module) -> dict[str, bool]:
    """Whether parameter noise changes a parameter, by name; weights of normalising layers are not
    changed."""
    norms = {
        parameter
        for module in policy.modules()
        if isinstance(module, NORMALIZING)
        for parameter in module.parameters()
    }
    return {name: parameter not in norms for name, parameter in policy.named_parameters()}
