"""Options of the network, and the resolution of automatic ones."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, final

from gymnasium.spaces import Box
from pydantic import BaseModel, ConfigDict, Field, field_validator

from quintet.bounds import LARGEST, MOST_COUNT, MOST_LAYERS, MOST_UNITS
from quintet.errors import ConfigError
from quintet.models.leaves import (
    SMALLEST,
    Leaves,
    is_grid_with_mission,
    is_image,
    pictures,
    require_grid,
)
from quintet.models.words import is_word, word_hash
from quintet.spaces import action_leaves, observation_leaves
from quintet.system.importing import CodeName, is_code_name
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, Spaces

Width = Annotated[int, Field(ge=1, le=MOST_UNITS)]
"""Units of a hidden layer."""

WIDE_WEIGHTS = 256 * 256
"""Weights of a layer from which on a second thread makes a batch of 64 rows 1.5 times as fast."""

OF_TEXTS = (
    *("vocabulary", "hash_buckets", "text_embedding", "text_hidden", "text_pooling"),
    *("deduplicate_text", "bidirectional_film"),
)
"""Options of film_grid that have an effect where it reads missions."""

OF_GRIDS = ("tokenizer", *OF_TEXTS, "image_channels", "film_blocks")
"""All options of film_grid."""

Activation = Literal["tanh", "relu"]
Init = Literal["orthogonal", "truncated_normal"]
ActionBounds = Literal["clip", "squash", "mean_tanh"]
ActionStd = Literal["state_independent", "softplus", "state_dependent"]


@final
@dataclass(frozen=True)
class Traits:
    """Properties of an encoder that are known before it is built.

    hidden: default widths of its hidden layers; None: a user's module.
    activations: possible activations, the default first.
    only_hidden: whether the hidden layers are its only ones.
    options: fields of `ModelConfig` that no other encoder has.
    smallest: least height and width of uint8 that it reads as a picture; None: it reads uint8 as it
        is.
    reads_ids: whether it reads a grid's `image` of any size as ids.
    large: whether threads, a GPU and bfloat16 are worth it (measured: docs/performance.md); None:
        if it reads a picture.
    one_graph: whether it does the same work for every batch, so that it can be compiled.
    """

    hidden: tuple[int, ...] | None
    activations: tuple[Activation, ...] = ("relu",)
    only_hidden: bool = False
    options: tuple[str, ...] = ()
    smallest: int | None = SMALLEST["nature_cnn"]
    reads_ids: bool = False
    large: bool | None = True
    one_graph: bool = True


TRAITS: dict[str, Traits] = {
    "mlp": Traits((64, 64), ("tanh", "relu"), only_hidden=True, large=False),
    "nature_cnn": Traits((512,)),
    "impala_cnn": Traits((256,), smallest=SMALLEST["impala_cnn"]),
    # The number and the length of different missions change from batch to batch.
    "film_grid": Traits((256,), options=OF_GRIDS, reads_ids=True, one_graph=False),
}
"""Quintet's own encoders."""

CUSTOM = Traits(None, smallest=None, large=None)
"""The traits of every user's module."""


@final
class ModelConfig(BaseModel):
    """Network of policy and value function."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    encoder: CodeName = Field(
        "auto",
        description="network body: mlp, nature_cnn, impala_cnn, film_grid (for MiniGrid and "
        "BabyAI), or an import string of a module of your own ('pkg.module:Class', or a function "
        "that makes one); auto: "
        "film_grid where the leaves are direction, image and mission of a grid, nature_cnn where "
        "there is a uint8 picture, else mlp",
    )
    encoder_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments for an encoder of your own"
    )
    policy_hidden: tuple[Width, ...] | None = Field(
        None,
        max_length=MOST_LAYERS,
        description="widths of the policy's (or the shared) hidden layers; none: 64 64 for mlp, "
        "512 for nature_cnn, 256 for impala_cnn and film_grid",
    )
    value_hidden: tuple[Width, ...] | None = Field(
        None,
        max_length=MOST_LAYERS,
        description="widths of the value function's hidden layers; none: as the policy's",
    )
    shared_torso: bool = Field(False, description="policy and value share all but the heads")
    activation: Activation | None = Field(
        None, description="after each hidden layer; none: tanh for mlp, relu for the others"
    )
    layer_norm: bool = Field(
        False,
        description="LayerNorm between each hidden layer and its activation (not in convolutions)",
    )
    tokenizer: Literal["bytes", "words", "none"] = Field(
        "bytes",
        description="what film_grid reads missions by: bytes, or words in lower case; none: it "
        "does not read them",
    )
    vocabulary: tuple[str, ...] = Field(
        (), description="words that tokenizer words knows; none given: they are hashed"
    )
    hash_buckets: int = Field(
        1024,
        ge=1,
        le=MOST_COUNT,
        description="tokens that words are hashed to; several may share one",
    )
    text_embedding: int = Field(
        32, ge=1, le=MOST_UNITS, description="numbers that stand for a token"
    )
    text_hidden: int = Field(
        128, ge=1, le=MOST_UNITS, description="units of the GRU that reads missions"
    )
    text_pooling: Literal["last", "attention"] = Field(
        "last",
        description="a mission's vector; last: the GRU's last state; attention: the mean of its "
        "states, weighted by a query of what is in view",
    )
    deduplicate_text: bool = Field(
        True,
        description="missions that are alike are read once per batch; changes results by rounding",
    )
    image_channels: int = Field(
        64, ge=1, le=MOST_UNITS, description="channels of film_grid's cells"
    )
    film_blocks: int = Field(
        2,
        ge=1,
        le=MOST_LAYERS,
        description="convolutions of film_grid, each scaled and shifted by the mission",
    )
    bidirectional_film: bool = Field(
        False, description="in each of them the image also scales and shifts the mission"
    )
    core: Literal["none", "lstm", "gru"] = Field(
        "none",
        description="recurrent layers between the hidden ones and the heads; policy and value have "
        "one each, without shared_torso",
    )
    core_size: int = Field(128, ge=1, le=MOST_UNITS, description="units of each recurrent layer")
    core_layers: int = Field(1, ge=1, le=MOST_LAYERS, description="recurrent layers")
    core_skip: bool = Field(
        False,
        description="heads read what goes into the core beside what comes out: what can be done "
        "without memory is learned as fast as without a core",
    )
    init: Init = Field(
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
        le=LARGEST,
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
        if value in ("auto", *TRAITS) or is_code_name(value):
            return value
        raise ValueError(
            f"must be auto, {', '.join(TRAITS)} or an import string 'pkg.module:Class'"
        )

    @field_validator("vocabulary")
    @classmethod
    def _vocabulary_is_of_words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [word for word in value if not is_word(word)]
        if wrong:
            raise ValueError(
                f"must be of words as the tokenizer finds them, letters and digits in lower case, "
                f"not {wrong}"
            )
        if len({word_hash(word) for word in value}) < len(value):
            raise ValueError("must be of words that differ")
        return value

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
    def traits(self) -> Traits:
        """The traits of the encoder, which must be resolved."""
        return CUSTOM if self.custom else TRAITS[self.encoder]

    @property
    def custom(self) -> bool:
        """Whether the encoder is a module of the user's own."""
        return ":" in self.encoder


def torso_faults(model: ModelConfig) -> list[str]:
    """Faults where an option is about layers that a shared torso does not have."""
    if model.shared_torso and model.value_hidden is not None:
        return ["model.value_hidden has no effect with model.shared_torso; leave one out"]
    return []


def encoded_leaves(spaces: Spaces) -> Leaves:
    """The leaves that an encoder reads: the observation's without the action mask."""
    leaves = observation_leaves(spaces.observation)
    leaves.pop(ACTION_MASK, None)
    return leaves


def uses_pictures(model: ModelConfig, spaces: Spaces) -> bool:
    """Whether a resolved network is large enough to be worth threads, a GPU and bfloat16."""
    if model.traits.large is not None:
        return model.traits.large
    return any(is_image(space) for space in encoded_leaves(spaces).values())


def is_wide(model: ModelConfig) -> bool:
    """Whether a resolved network has a layer of so many weights that a second thread pays."""
    torsos = (model.policy_hidden or (), model.value_hidden or ())
    return any(a * b >= WIDE_WEIGHTS for torso in torsos for a, b in pairwise(torso))


def picture_leaves(model: ModelConfig, spaces: Spaces) -> dict[str, tuple[int, ...]]:
    """Shapes of the leaves that a resolved network reads as pictures, so that each pixel can be
    normalised: uint8 leaves that are large enough for the encoder.

    The image of a grid with a mission holds ids and is no picture, unless it is large enough for
    nature_cnn and the network reads it as one.
    """
    leaves, traits = encoded_leaves(spaces), model.traits
    if traits.smallest is None:
        return {}
    grid, found = is_grid_with_mission(leaves), {}
    for name, leaf in leaves.items():
        of_ids = grid and name == "image" and (traits.reads_ids or not is_image(leaf))
        own = name.split("/")[0] in (LAST_ACTION, LAST_REWARD)
        if (
            not of_ids
            and not own
            and len(leaf.shape or ()) <= 4
            and is_image(leaf, traits.smallest)
        ):
            found[name] = tuple(leaf.shape or ())
    return found


def resolve_model(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with every automatic option resolved for these spaces; raises ConfigError
    if an option would have no effect, or one of our encoders can't read the leaves.
    """
    config = _with_encoder(config, spaces)
    idle = idle_options(config, spaces)
    if idle:
        raise ConfigError("; ".join(idle.values()) + "; leave it out")
    if config.encoder in SMALLEST:
        pictures(config.encoder, encoded_leaves(spaces))
    elif config.encoder == "film_grid":
        require_grid(encoded_leaves(spaces))
    if config.traits.hidden is None:
        return config
    hidden = config.policy_hidden
    if hidden is None:
        hidden = config.traits.hidden
    value_hidden = config.value_hidden
    if value_hidden is None and not config.shared_torso:
        value_hidden = hidden
    return config.model_copy(
        update={
            "policy_hidden": hidden,
            "value_hidden": value_hidden,
            "activation": config.activation or config.traits.activations[0],
        }
    )


def _with_encoder(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with an encoder chosen by the leaves, if it is automatic."""
    if config.encoder != "auto":
        return config
    leaves = encoded_leaves(spaces)
    # The image of a grid with other leaves may not hold ids.
    encoder = "film_grid" if len(leaves) == 3 and is_grid_with_mission(leaves) else "mlp"
    if any(is_image(space) for space in leaves.values()):
        encoder = "nature_cnn"
    return config.model_copy(update={"encoder": encoder})


def idle_options(config: ModelConfig, spaces: Spaces) -> dict[str, str]:
    """Options without effect on this network; by name a sentence on what each requires."""
    config = _with_encoder(config, spaces)
    idle: dict[str, str] = {}
    fields = type(config).model_fields

    def refuse(names: tuple[str, ...], required: str) -> None:
        for name in names:
            value = getattr(config, name)
            if value != fields[name].get_default(call_default_factory=True):
                idle[name] = f"model.{name}={value} requires {required}"

    encoder, traits = config.encoder, config.traits
    if traits.hidden is None:
        ours = ("policy_hidden", "value_hidden", "activation", "layer_norm")
        refuse(ours, f"an encoder with layers of ours, {encoder} has its own")
    else:
        refuse(("encoder_kwargs",), f"an encoder of your own, model.encoder is {encoder}")
        if config.activation not in (None, *traits.activations):
            refuse(("activation",), f"an mlp, {encoder} has {traits.activations[0]} throughout")
        value_hidden = () if config.shared_torso else config.value_hidden
        if config.policy_hidden == () and value_hidden in ((), None):  # cores aside
            refuse(("layer_norm",), "a hidden layer, there is none")
            if traits.only_hidden and config.activation != traits.activations[0]:
                refuse(("activation",), "a hidden layer, there is none")
            if traits.only_hidden and config.core == "none":
                refuse(("shared_torso",), "layers that can be shared, there are none")
    for name, other in TRAITS.items():
        if name != encoder:
            refuse(other.options, f"the encoder {name}, model.encoder is {encoder}")
    tokenizer = config.tokenizer if "tokenizer" in traits.options else None
    if tokenizer == "none":
        refuse(OF_TEXTS, "that missions are read, model.tokenizer is none")
    elif tokenizer == "bytes":
        refuse(("vocabulary", "hash_buckets"), "model.tokenizer words, it is bytes")
    elif tokenizer == "words" and config.vocabulary:
        refuse(("hash_buckets",), "words that are hashed, there is a model.vocabulary")
    if config.core == "none":
        refuse(("core_size", "core_layers", "core_skip"), "a recurrent core, model.core is none")
    if not any(isinstance(leaf, Box) for leaf in action_leaves(spaces.action)):
        refuse(
            ("action_std", "action_std_init", "action_bounds"),
            f"continuous actions, the action space is {spaces.action}",
        )
    return idle
