"""SAC's networks: a policy, two critics of its actions, and the temperature."""

import math
from typing import final

import torch
from torch import Tensor, nn

from quintet.models.action_value import ActionValue, action_box
from quintet.models.build import Branch, Trunk, check_observation, draw_weights, make_encoder
from quintet.models.config import ModelConfig, critic_leaves
from quintet.models.heads import PolicyHead
from quintet.models.precision import Precision
from quintet.models.weights import draw_layers
from quintet.ops.distributions import Family
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Obs, Spaces, State, TensorSpec


@final
class Policy(nn.Module):
    """Observations to the parameters of a Gaussian, whose samples a tanh brings to [-1, 1]."""

    def __init__(
        self, family: DiagGaussian, spaces: Spaces, model: ModelConfig,
        generator: torch.Generator | None, precision: Precision,
    ):  # fmt: skip
        super().__init__()
        encoder = make_encoder(
            spaces, model, model.policy_hidden, generator, critic_leaves(model, spaces)
        )
        self.trunk = Trunk("policy", encoder, None, precision)
        self.encoder = encoder
        size = self.trunk.feature_size
        self.head = PolicyHead(family, size, model.action_std, model.action_std_init)

    def forward(self, obs: Obs) -> Tensor:
        """Parameters ``[N, P]`` of normalised observations ``[N, ...]``."""
        params: Tensor = self.head(self.trunk(obs)[0])
        return params


@final
class Networks(nn.Module):
    """The policy, two critics and the learned temperature, if there is one."""

    def __init__(
        self, spaces: Spaces, model: ModelConfig, generator: torch.Generator | None,
        precision: Precision = "fp32", temperature: float | None = None,
    ):  # fmt: skip
        """generator: draws the weights; None: there is only the policy, to be loaded.
        temperature: its first value; None: it is not learned.
        """
        super().__init__()
        self.box = action_box("sac", spaces, squash=True)
        self.family: Family = self.box
        check_observation(spaces, self.box)
        with torch.random.fork_rng(devices=[]):
            self.actor = Policy(self.box, spaces, model, generator, precision)
        if generator is None:
            return
        size = self.box.size
        critics = [ActionValue(spaces, size, model, 1, generator, precision) for _ in range(2)]
        branches = [Branch(self.actor.trunk, self.actor.head, "policy")]
        branches += [Branch(critic.trunk, critic.layers, "hidden") for critic in critics]
        draw_weights(branches, model.init, generator)
        for critic in critics:
            draw_layers(critic.head, model.init, generator, "value")
        self.critic = nn.ModuleList(critics)
        if temperature is not None:
            self.temperature = nn.ParameterDict({"log": torch.tensor(math.log(temperature))})

    # Methods that an actor calls

    def forward(self, obs: Obs, state: State, is_first: Tensor) -> tuple[Tensor, Tensor, State]:
        """Parameters twice, and no state."""
        params, after = self.policy(obs, state, is_first)
        return params, params, after

    def policy(self, obs: Obs, state: State, is_first: Tensor) -> tuple[Tensor, State]:  # noqa: ARG002
        """Parameters ``[N, P]``, and no state."""
        return self.actor(obs), {}

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        return {}

    def initial_state(self, num_streams: int) -> State:  # noqa: ARG002
        return {}
