"""ACER's network: a policy, and a critic of its actions."""

from collections import OrderedDict
from typing import final

import torch
from torch import Tensor, nn

from quintet.models.build import (
    Branch,
    Trunk,
    check_observation,
    draw_weights,
    make_trunks,
    zeros_of,
)
from quintet.models.config import ModelConfig
from quintet.models.encoders import LEAST_UNITS, layers
from quintet.models.heads import PolicyHead, action_family
from quintet.models.precision import Precision, autocast
from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import Family, TupleFamily
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Obs, Spaces, State, TensorSpec


@final
class StochasticDueling(nn.Module):
    """A state's value and the advantages of some actions, in spaces whose actions are too many to
    be summed over.  The value of an action is
    ``v + advantage - mean(advantages of samples of pi)``.

    Source: Wang et al., arXiv 1611.01224, section 5.1.
    """

    def __init__(self, feature_size: int, family: Family, model: ModelConfig, precision: Precision):
        """The advantages have a hidden layer of features and action, as wide as the features and at
        least LEAST_UNITS.
        """
        super().__init__()
        self.family, self.precision = family, precision
        self.value = nn.Linear(feature_size, 1)
        width = max(feature_size, LEAST_UNITS)
        sizes = feature_size + encoded_size(family), width
        self.hidden = layers(sizes, model.activation or "relu", model.layer_norm)
        # A bias would go out with the mean.
        self.advantage = nn.Linear(width, 1, bias=False)

    def forward(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[N]`` of features ``[N, feature_size]``, and of the first M rows the advantages
        ``[M, K]`` of K actions each ``[M, K, ...]``.
        """
        rows, number = actions.shape[:2]
        beside = features[:rows].unsqueeze(1).expand(-1, number, -1)
        both = torch.cat((beside, encoded(self.family, actions)), -1)
        with autocast(self.precision, features.device):
            hidden = self.hidden(both)
        value: Tensor = self.value(features).squeeze(-1)
        return value, self.advantage(hidden.float()).squeeze(-1)


def encoded_size(family: Family) -> int:
    """Size of an encoded action."""
    if isinstance(family, TupleFamily):
        return sum(encoded_size(leaf) for leaf in family.families)
    return family.num_actions if isinstance(family, Categorical) else family.action_shape[0]


def encoded(family: Family, action: Tensor) -> Tensor:
    """Actions ``[...]`` as a layer reads them ``[..., encoded_size]``: choices one-hot, Box actions
    as the environment receives them, in units of half their range.
    """
    if isinstance(family, TupleFamily):
        parts = zip(family.families, family.unpack(action), strict=True)
        return torch.cat([encoded(leaf, part) for leaf, part in parts], -1)
    if isinstance(family, Categorical):
        return nn.functional.one_hot(action, family.num_actions).float()
    if isinstance(family, Bernoulli):
        return action.float()
    assert isinstance(family, DiagGaussian), family
    return family.in_bounds(action)


@final
class PolicyAndCritic(nn.Module):
    """The policy's parameters and the features that the critic's head reads.

    Policy and critic share one trunk with `shared_torso`; otherwise each has its own.  The critic's
    head is a separate module, `critic_head`, since it may need actions sampled from the policy.
    """

    def __init__(
        self,
        spaces: Spaces,
        model: ModelConfig,
        generator: torch.Generator | None,
        precision: Precision = "fp32",
        *,
        only_acts: bool = False,
    ):
        """generator: draws the weights; None leaves them undefined, to be loaded.
        only_acts: leaves out the critic, except a separate recurrent trunk, whose state actors
            carry.
        """
        super().__init__()
        family = action_family(spaces.action, model.action_bounds)
        check_observation(spaces, family)
        self.family: Family = family
        with torch.random.fork_rng(devices=[]):
            self.trunk, self.critic_trunk = make_trunks(spaces, model, generator, precision)
            self.encoder, self.core = self.trunk.encoder, self.trunk.core
            size = self.trunk.feature_size
            self.policy_head = PolicyHead(family, size, model.action_std, model.action_std_init)
            self.has_critic_trunk = not self.shared and (
                not only_acts or self.critic_trunk.core is not None
            )
            if self.has_critic_trunk:
                self.critic_encoder = self.critic_trunk.encoder
                self.critic_core = self.critic_trunk.core
            if not only_acts:
                size = self.critic_trunk.feature_size
                self.critic_head: nn.Module = (
                    nn.Sequential(OrderedDict(linear=nn.Linear(size, family.num_actions)))
                    if isinstance(family, Categorical)
                    else StochasticDueling(size, family, model, precision)
                )
        if generator is not None:
            policy = Branch(self.trunk, self.policy_head, "policy")
            critic = Branch(self.critic_trunk, self.critic_head, "value")
            draw_weights((policy, critic), model.init, generator)

    @property
    def shared(self) -> bool:
        """Whether policy and critic read the same trunk."""
        return self.trunk is self.critic_trunk

    def forward(
        self,
        obs: Obs,
        state: State | None = None,
        is_first: Tensor | None = None,
        *,
        critic: bool = True,
    ) -> tuple[Tensor, Tensor, State]:
        """Distribution parameters ``[N, P]``, the critic's features ``[N, feature_size]`` and the
        state after the last step, of leaves ``[N, ...]``; see `Trunk`.

        critic: false skips a separate trunk of the critic: features and state are then the
            policy's.
        """
        features, after = self.trunk(obs, state, is_first)
        critic_features = features
        if critic and self.has_critic_trunk:
            if not self.critic_trunk.can_read(obs):  # a policy that only acts
                return self.policy_head(features), features, after | self.critic_trunk.kept(state)
            critic_features, critic_after = self.critic_trunk(obs, state, is_first)
            after |= critic_after
        return self.policy_head(features), critic_features, after

    def policy(
        self, obs: Obs, state: State | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Distribution parameters ``[N, P]`` and the state after the last step."""
        params, _, after = self(obs, state, is_first)
        return params, after

    def freeze_precision(self) -> None:
        """Converts the weights of quintet's own encoders for a network that only acts."""
        for trunk in self._trunks():
            trunk.encoder.cast_weights(trunk.precision)

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        """The leaves of the recurrent state, without ``[B]``."""
        return {name: x for trunk in self._trunks() for name, x in trunk.state_specs.items()}

    def initial_state(self, num_streams: int) -> State:
        """Zeros ``[B, ...]`` for every leaf of the state, on the network's device."""
        return zeros_of(self.state_specs, num_streams, self.policy_head.linear.weight.device)

    def _trunks(self) -> list[Trunk]:
        return [self.trunk, self.critic_trunk] if self.has_critic_trunk else [self.trunk]
