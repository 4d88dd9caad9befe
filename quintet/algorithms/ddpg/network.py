"""DDPG's networks: a deterministic policy, and the critic of its actions."""

from typing import final

import torch
from torch import Tensor, nn

from quintet.models.action_value import ActionValue, action_box
from quintet.models.build import Branch, Trunk, check_observation, draw_weights, make_encoder
from quintet.models.config import ModelConfig, critic_leaves
from quintet.models.precision import Precision
from quintet.models.weights import kernels
from quintet.types import Obs, Spaces


@final
class Policy(nn.Module):
    """Observations to actions in [-1, 1]."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, generator: torch.Generator | None,
        precision: Precision,
    ):  # fmt: skip
        """Weights of quintet's own layers are undefined until they are drawn or loaded."""
        super().__init__()
        self.box = action_box("ddpg", spaces)
        check_observation(spaces, self.box)
        with torch.random.fork_rng(devices=[]):
            encoder = make_encoder(
                spaces, model, model.policy_hidden, generator, critic_leaves(model, spaces)
            )
            self.trunk = Trunk("policy", encoder, None, precision)
            self.encoder = encoder
            self.head = nn.Linear(self.trunk.feature_size, self.box.size)

    def forward(self, obs: Obs) -> Tensor:
        """Actions ``[N, A]`` of normalised observations ``[N, ...]``."""
        action: Tensor = self.head(self.trunk(obs)[0]).tanh()
        return action


@final
class Networks(nn.Module):
    """The policy and the value of its actions, which share no weights."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, action_layer: int, output_init: float,
        generator: torch.Generator, precision: Precision = "fp32",
    ):  # fmt: skip
        """output_init: bound of the uniform first weights of both last layers."""
        super().__init__()
        self.actor = Policy(spaces, model, generator, precision)
        size = self.actor.box.size
        self.critic = ActionValue(spaces, size, model, action_layer, generator, precision)
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
    """Whether parameter noise changes a parameter, by name; not those of normalising layers."""
    norms = {
        parameter
        for module in policy.modules()
        if isinstance(module, NORMALIZING)
        for parameter in module.parameters()
    }
    return {name: parameter not in norms for name, parameter in policy.named_parameters()}
