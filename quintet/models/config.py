"""Which network is asked for: its options, and what is automatic in them resolved."""

import json
from typing import Annotated, Any, Literal, final

from gymnasium.spaces import Box
from pydantic import BaseModel, ConfigDict, Field, field_validator

from quintet.errors import ConfigError
from quintet.models.encoders import SMALLEST, Leaves, is_image
from quintet.models.heads import ActionBounds, ActionStd
from quintet.spaces import action_leaves, observation_leaves
from quintet.types import ACTION_MASK, Spaces

Width = Annotated[int, Field(ge=1)]
"""Units of a hidden layer."""

HIDDEN: dict[str, tuple[int, ...]] = {"mlp": (64, 64), "nature_cnn": (512,), "impala_cnn": (256,)}
"""Encoders of ours, and the hidden layers that they have when nothing is said."""


@final
class ModelConfig(BaseModel):
    """Network of policy and value function."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    encoder: str = Field(
        "auto",
        description="network body: mlp, nature_cnn, impala_cnn, or an import string of a module of "
        "your own ('pkg.module:Class'); auto: nature_cnn where there is a uint8 picture, else mlp",
    )
    encoder_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments for an encoder of your own"
    )
    policy_hidden: tuple[Width, ...] | None = Field(
        None,
        description="widths of the policy's (or the shared) hidden layers; none: 64 64 for mlp, "
        "512 for nature_cnn, 256 for impala_cnn",
    )
    value_hidden: tuple[Width, ...] | None = Field(
        None, description="widths of the value function's hidden layers; none: as the policy's"
    )
    shared_torso: bool = Field(False, description="policy and value share all but the heads")
    activation: Literal["tanh", "relu"] | None = Field(
        None, description="after each hidden layer; none: tanh for mlp, relu for the others"
    )
    layer_norm: bool = Field(
        False,
        description="LayerNorm between each hidden layer and its activation (not in convolutions)",
    )
    core: Literal["none", "lstm", "gru"] = Field(
        "none",
        description="recurrent layers between the hidden ones and the heads; policy and value have "
        "one each, without shared_torso",
    )
    core_size: int = Field(128, ge=1, description="units of each recurrent layer")
    core_layers: int = Field(1, ge=1, description="recurrent layers")
    init: Literal["orthogonal", "truncated_normal"] = Field(
        "orthogonal",
        description="orthogonal: gain sqrt 2, heads 0.01 and 1; truncated_normal: scale 2 over "
        "fan-in, policy head 0.1 (TF-Agents); cores are orthogonal per gate in both, an encoder of "
        "your own draws its own",
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

    @field_validator("encoder")
    @classmethod
    def _encoder_is_known(cls, value: str) -> str:
        module, _, name = value.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if value in ("auto", *HIDDEN) or all(part.isidentifier() for part in parts):
            return value
        raise ValueError(
            f"must be auto, {', '.join(HIDDEN)} or an import string 'pkg.module:Class'"
        )

    @field_validator("encoder_kwargs")
    @classmethod
    def _kwargs_can_be_stored(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"must be of what JSON can hold, since it is stored ({error})"
            ) from error
        return value

    @property
    def custom(self) -> bool:
        """Whether the encoder is a module of the user's own."""
        return ":" in self.encoder


def encoded_leaves(spaces: Spaces) -> Leaves:
    """What an encoder reads: the leaves of the observation without the action mask."""
    leaves = observation_leaves(spaces.observation)
    leaves.pop(ACTION_MASK, None)
    return leaves


def uses_pictures(model: ModelConfig, spaces: Spaces) -> bool:
    """Whether a resolved network is a picture network: large kernels, which are worth threads and a
    GPU.  An encoder of the user's own counts as one where it is given a picture.
    """
    if not model.custom:
        return model.encoder in SMALLEST
    return any(is_image(space) for space in encoded_leaves(spaces).values())


def resolve_model(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with everything automatic replaced by what it means for these spaces.

    Raises:
        ConfigError: an option would have no effect.
    """
    leaves = encoded_leaves(spaces)
    encoder = config.encoder
    if encoder == "auto":
        encoder = "nature_cnn" if any(is_image(space) for space in leaves.values()) else "mlp"
    _refuse_idle(config, encoder, spaces)
    if config.custom:  # has no layers of ours
        return config
    hidden = config.policy_hidden
    if hidden is None:
        hidden = HIDDEN[encoder]
    value_hidden = config.value_hidden
    if value_hidden is None and not config.shared_torso:
        value_hidden = hidden
    activation = config.activation or ("tanh" if encoder == "mlp" else "relu")
    return config.model_copy(
        update={
            "encoder": encoder,
            "policy_hidden": hidden,
            "value_hidden": value_hidden,
            "activation": activation,
        }
    )


def _refuse_idle(config: ModelConfig, encoder: str, spaces: Spaces) -> None:
    """Options that would have no effect on this network.

    Raises:
        ConfigError: lists them.
    """
    faults = []
    fields = type(config).model_fields

    def refuse(names: tuple[str, ...], required: str) -> None:
        for name in names:
            value = getattr(config, name)
            if value != fields[name].get_default(call_default_factory=True):
                faults.append(f"model.{name}={value} requires {required}")

    if encoder in SMALLEST and config.activation == "tanh":
        faults.append(f"model.activation=tanh requires an mlp, {encoder} has relu throughout")
    if config.custom:
        ours = ("policy_hidden", "value_hidden", "activation", "layer_norm")
        refuse(ours, f"an encoder with layers of ours, {encoder} has its own")
    else:
        refuse(("encoder_kwargs",), f"an encoder of your own, model.encoder is {encoder}")
        value_hidden = () if config.shared_torso else config.value_hidden
        if config.policy_hidden == () and value_hidden in ((), None):
            refuse(("layer_norm",), "a hidden layer, there is none")
    if config.core == "none":
        refuse(("core_size", "core_layers"), "a recurrent core, model.core is none")
    if not any(isinstance(leaf, Box) for leaf in action_leaves(spaces.action)):
        refuse(
            ("action_std", "action_std_init", "action_bounds"),
            f"continuous actions, the action space is {spaces.action}",
        )
    if faults:
        raise ConfigError("; ".join(faults) + "; leave it out")
