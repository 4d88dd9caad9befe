"""Puts encoder and heads together into the network that a configuration describes."""

from typing import Annotated, Literal, final

import torch
from gymnasium.spaces import Box
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.encoders import Mlp, NatureCnn, is_image
from quintet.models.heads import ActionBounds, ActionStd, PolicyHead
from quintet.ops.distributions import Family
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, Obs, Spaces

Width = Annotated[int, Field(ge=1)]
"""Units of a hidden layer."""


@final
class ModelConfig(BaseModel):
    """Network of policy and value function."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    encoder: Literal["auto", "mlp", "nature_cnn"] = Field(
        "auto", description="network body; auto: nature_cnn for one uint8 picture, else mlp"
    )
    policy_hidden: tuple[Width, ...] | None = Field(
        None,
        description="widths of the policy's (or the shared) hidden layers; none: 64 64 for mlp, "
        "512 for nature_cnn",
    )
    value_hidden: tuple[Width, ...] | None = Field(
        None, description="widths of the value function's hidden layers; none: as the policy's"
    )
    shared_torso: bool = Field(False, description="policy and value share all but the heads")
    activation: Literal["tanh", "relu"] | None = Field(
        None, description="after each hidden layer; none: tanh for mlp, relu for nature_cnn"
    )
    init: Literal["orthogonal", "truncated_normal"] = Field(
        "orthogonal",
        description="orthogonal: gain sqrt 2, heads 0.01 and 1; truncated_normal: scale 2 over "
        "fan-in, policy head 0.1 (TF-Agents)",
    )
    action_std: ActionStd = Field(
        "state_independent",
        description="how a Gaussian policy's standard deviation is parametrised",
    )
    action_std_init: float = Field(
        1.0,
        gt=0,
        description="standard deviation at the start, as a share of half the action range",
    )
    action_bounds: ActionBounds = Field(
        "clip",
        description="how Box actions stay in bounds; clip: the sample is clipped; squash: tanh "
        "with exact log-probability; mean_tanh: the mean through tanh, then the sample is "
        "clipped",
    )


def resolve_model(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with everything automatic replaced by what it means for these spaces.

    Raises:
        ConfigError: an option would have no effect.
    """
    leaves = observation_leaves(spaces.observation)
    leaves.pop(ACTION_MASK, None)
    encoder = config.encoder
    if encoder == "auto":
        encoder = "nature_cnn" if any(is_image(space) for space in leaves.values()) else "mlp"
    _refuse_idle(config, encoder, spaces)
    hidden = config.policy_hidden
    if hidden is None:
        hidden = (512,) if encoder == "nature_cnn" else (64, 64)
    return config.model_copy(
        update={
            "encoder": encoder,
            "policy_hidden": hidden,
            # Under a shared torso there is nothing that value_hidden could size.
            "value_hidden": hidden
            if config.value_hidden is None and not config.shared_torso
            else config.value_hidden,
            "activation": config.activation or ("relu" if encoder == "nature_cnn" else "tanh"),
        }
    )


def _refuse_idle(config: ModelConfig, encoder: str, spaces: Spaces) -> None:
    """Options that would have no effect on this network.

    Raises:
        ConfigError: lists them.
    """
    faults = []
    if encoder == "nature_cnn" and config.activation == "tanh":
        faults.append("model.activation=tanh requires an mlp, nature_cnn has relu throughout")
    if not isinstance(spaces.action, Box):
        fields = type(config).model_fields
        faults += [
            f"model.{name}={getattr(config, name)} requires continuous actions, the action space "
            f"is {spaces.action}"
            for name in ("action_std", "action_std_init", "action_bounds")
            if getattr(config, name) != fields[name].default
        ]
    if faults:
        raise ConfigError("; ".join(faults) + "; leave it out")


def check_observation(spaces: Spaces, family: Family) -> None:
    """Refuses what no encoder can read and masks that do not fit the actions.

    Raises:
        ConfigError: nothing to observe, an empty leaf, or a mask of another size.
    """
    leaves = observation_leaves(spaces.observation)
    mask = leaves.pop(ACTION_MASK, None)
    empty = [name for name, leaf in leaves.items() if 0 in (leaf.shape or ())]
    if not leaves or empty:
        raise ConfigError(
            "an observation with at least one number in every leaf is required, the space is "
            f"{spaces.observation}; leave out what is empty, or give a constant"
        )
    if mask is not None and family.mask_size == 0:
        raise ConfigError(
            f"an observation {ACTION_MASK!r} requires discrete actions, the action space is "
            f"{spaces.action}; leave the mask out"
        )
    if mask is not None and mask.shape != (family.mask_size,):
        raise ConfigError(
            f"{ACTION_MASK!r} of shape ({family.mask_size},) is required, one number per action; "
            f"its shape is {mask.shape}; mend the environment's observation space"
        )


def _encoder(spaces: Spaces, config: ModelConfig, hidden: tuple[int, ...]) -> Mlp | NatureCnn:
    leaves = observation_leaves(spaces.observation)
    leaves.pop(ACTION_MASK, None)
    if config.encoder == "nature_cnn":
        return NatureCnn(leaves, hidden)
    assert config.activation is not None
    return Mlp(leaves, hidden, config.activation)


@final
class ActorCritic(nn.Module):
    """Policy parameters and value from normalised observations.

    With `shared_torso` the value head reads the policy's features, else the value function has an
    encoder of its own.
    """

    def __init__(
        self,
        spaces: Spaces,
        family: Family,
        config: ModelConfig,
        generator: torch.Generator | None,
    ):
        """`generator` draws the weights; None leaves them undefined, for whoever loads others."""
        super().__init__()
        check_observation(spaces, family)
        assert config.policy_hidden is not None
        # torch's layers draw weights as they are made, from the process's own generator, which is
        # the user's.
        with torch.random.fork_rng(devices=[]):
            self.encoder = _encoder(spaces, config, config.policy_hidden)
            self.policy_head = PolicyHead(
                family, self.encoder.feature_size, config.action_std, config.action_std_init
            )
            self.value_encoder = None
            if not config.shared_torso:
                assert config.value_hidden is not None
                self.value_encoder = _encoder(spaces, config, config.value_hidden)
            value_body = self.value_encoder or self.encoder
            self.value_head = nn.Linear(value_body.feature_size, 1)
        if generator is not None:
            initialize(self, config.init, generator)

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Distribution parameters ``[N, P]`` and values ``[N]`` from leaves ``[N, ...]``, both
        float32.
        """
        features = self.encoder(obs)
        value_features = features if self.value_encoder is None else self.value_encoder(obs)
        return self.policy_head(features), self.value_head(value_features).squeeze(-1)

    def value(self, obs: Obs) -> Tensor:
        """Values ``[N]`` alone."""
        body = self.encoder if self.value_encoder is None else self.value_encoder
        value: Tensor = self.value_head(body(obs)).squeeze(-1)
        return value

    def kernel_groups(self) -> dict[str, list[str]]:
        """Names of weights without biases by who uses them: policy, value, shared; each in one
        group.
        """
        groups: dict[str, list[str]] = {"policy": [], "value": [], "shared": []}
        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim < 2:
                continue
            if name.startswith("value_"):
                groups["value"].append(name)
            elif name.startswith("encoder") and self.value_encoder is None:
                groups["shared"].append(name)
            else:
                groups["policy"].append(name)
        return groups


@torch.no_grad()
def initialize(network: ActorCritic, kind: str, generator: torch.Generator) -> None:
    """Draws all weights from `generator`, in order of their names; biases are 0.

    orthogonal: gain sqrt 2, 0.01 for the policy head, 1 for the value head (Andrychowicz et al.,
    arXiv 2006.05990).  truncated_normal: variance 2 over fan-in, cut at two standard deviations,
    0.1 over fan-in for the policy head (TF-Agents).
    """
    for name, parameter in sorted(network.named_parameters()):
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim >= 2 and kind == "orthogonal":
            gain = {"policy_head": 0.01, "value_head": 1.0}.get(name.split(".")[0], 2.0**0.5)
            nn.init.orthogonal_(parameter, gain, generator=generator)
        elif parameter.ndim >= 2:
            fan_in = parameter[0].numel()
            scale = {"policy_head": 0.1, "value_head": 1.0}.get(name.split(".")[0], 2.0)
            # 0.8796 is the standard deviation of a unit normal cut at +-2.
            std = (scale / fan_in) ** 0.5 / 0.87962566103423978
            nn.init.trunc_normal_(parameter, 0.0, std, -2 * std, 2 * std, generator=generator)
