"""Options of the network, and the resolution of automatic ones."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeVar, final

from gymnasium.spaces import Box, Discrete
from gymnasium.spaces import Dict as DictSpace
from pydantic import ValidationError, model_validator

from quintet.errors import ConfigError
from quintet.models.leaves import (
    SMALLEST,
    Layout,
    Leaves,
    has_small_picture,
    is_added,
    is_grid_with_mission,
    is_image,
    normalized_leaves,
    pictures,
    require_grid,
    require_small,
    small_pictures,
)
from quintet.models.words import is_word, word_hash
from quintet.options.bounds import MOST_LAYERS, Count, Layers, Positive, Width
from quintet.options.declaration import Facts, Kwargs, Needs, Options, faults, idle, option
from quintet.spaces import action_leaves, observation_leaves
from quintet.system.importing import CodeName, words_or_code
from quintet.types import ACTION_MASK, Spaces

WIDE_WEIGHTS = 256 * 256
"""Weights of a layer from which a second thread makes a batch of 64 rows 1.5 times as fast."""

Activation = Literal["tanh", "relu"]
Init = Literal["orthogonal", "truncated_normal", "uniform"]
ActionBounds = Literal["clip", "squash", "mean_tanh"]
ActionStd = Literal["state_independent", "softplus", "state_dependent"]


@final
@dataclass(frozen=True)
class Traits:
    """Properties of an encoder that are known before it is built.

    hidden: default widths of its hidden layers; None for a user's module, which has none after it.
    activations: possible activations, the default first.
    only_hidden: whether the hidden layers are its only ones.
    smallest: least height and width of a uint8 array that it reads as a picture; None: it reads
        uint8 unscaled.
    reads_ids: whether it reads a grid's `image` of any size as ids.
    arguments: whether it has arguments, in ``model.encoder_kwargs``.
    large: whether threads, a GPU and bfloat16 pay off (measured: docs/performance.md); None: only
        if it reads a picture of at least 36 x 36.
    one_graph: whether it does the same work for every batch, so that it can be compiled.
    """

    hidden: tuple[int, ...] | None
    activations: tuple[Activation, ...] = ("relu",)
    only_hidden: bool = False
    smallest: int | None = SMALLEST["nature_cnn"]
    reads_ids: bool = False
    arguments: bool = False
    large: bool | None = True
    one_graph: bool = True


TRAITS: dict[str, Traits] = {
    "mlp": Traits((64, 64), ("tanh", "relu"), only_hidden=True, large=False),
    "nature_cnn": Traits((512,)),
    "impala_cnn": Traits((256,), smallest=SMALLEST["impala_cnn"]),
    "small_cnn": Traits((128,), smallest=None, arguments=True, large=None),
    # The number and the length of different missions change from batch to batch.
    "film_grid": Traits((256,), reads_ids=True, arguments=True, one_graph=False),
}
"""Quintet's own encoders."""

CUSTOM = Traits(None, ("relu", "tanh"), smallest=None, arguments=True, large=None)
"""The traits of every user's module."""


_CORE = Needs("a recurrent core (model.core)", lambda o, _: o.core != "none")
_HIDDEN = (
    "net_arch policy_kwargs fcnet_hiddens hidden_sizes hidden_size hidden_dim encoder_mlp_layers "
    "num_hidden layer_sizes"
)
_CONTINUOUS = Needs(
    "continuous actions (the action space is {f.spaces.action})", lambda _, f: f.continuous
)


@final
class GridOptions(Options):
    """Keyword arguments of film_grid, in ``model.encoder_kwargs``; see docs/ppo.md."""

    tokenizer: Literal["bytes", "words", "none"] = "words"
    """words: runs of letters, digits and non-ASCII characters, with ASCII letters in lower case;
    bytes: byte by byte; none: the mission is not read
    """
    vocabulary: tuple[str, ...] = option((), needs="tokenizer=words")
    """words that have a token each (all others share one); none: words are hashed"""
    hash_buckets: Count = option(1024, needs=("tokenizer=words", "vocabulary=()"))
    """number of tokens of hashed words"""
    text_embedding: Width = option(32, needs="tokenizer")
    """size of the embedding of a token"""
    text_hidden: Width = option(128, needs="tokenizer")
    """size of the GRU that reads the mission"""
    text_pooling: Literal["last", "attention"] = option("last", needs="tokenizer")
    """last: the GRU's last state; attention: the mean of its states, weighted by a query made from
    the view
    """
    deduplicate_text: bool = option(True, needs="tokenizer")
    """read equal missions once per batch; changes results by rounding"""
    image_channels: Width = 64
    """channels of the convolutions"""
    film_blocks: Layers = 2
    """number of FiLM blocks"""
    bidirectional_film: bool = option(False, needs="tokenizer")
    """scale the text by the image too (txt2pi of RTFM)"""

    @model_validator(mode="after")
    def _words_and_effects(self) -> Self:
        hashes = {word_hash(word) for word in self.vocabulary}
        if len(hashes) < len(self.vocabulary) or not all(map(is_word, self.vocabulary)):
            raise ValueError(
                "vocabulary must hold different words of lower-case letters and digits, got "
                f"{self.vocabulary}"
            )
        for name, (rest, needs) in idle(self, Facts()).items():
            if getattr(self, name) != rest:
                raise ValueError(f"{name} has no effect without {needs}; leave it out")
        return self


@final
class PictureOptions(Options):
    """Keyword arguments of small_cnn, in ``model.encoder_kwargs``."""

    layout: Layout = "auto"
    """place of a picture's channels, which auto guesses from the shape"""


@final
class ModelConfig(Options):
    """Options of the network of policy and value function."""

    encoder: Annotated[CodeName, words_or_code("auto", *TRAITS)] = option(
        "auto",
        also="encoder_type features_extractor_class network custom_model "
        "conv_filters encoder_conv_architecture",
        auto=True,
    )
    """network body: mlp, nature_cnn, impala_cnn, small_cnn (any picture from 5 x 5 on), film_grid
    (MiniGrid, BabyAI), or the import string of your own module (pkg.module:Class) or its maker;
    auto: film_grid for grids with a mission, nature_cnn for uint8 pictures from 36 x 36 on,
    small_cnn for other pictures with channels, else mlp
    """
    encoder_kwargs: Kwargs = option(
        default_factory=dict,
        needs=Needs(
            "film_grid, small_cnn or an encoder of your own (model.encoder is {f.encoder})",
            lambda _, f: f.traits.arguments,
        ),
        also=f"features_extractor_kwargs features_dim {' '.join(GridOptions.model_fields)}",
    )
    """keyword arguments of film_grid or small_cnn (docs/ppo.md) or of an encoder of your own, as
    JSON
    """
    policy_hidden: tuple[Width, ...] | None = option(
        None,
        max_length=MOST_LAYERS,
        also=f"{_HIDDEN} actor_hidden_dims pi",
        auto=True,
    )
    """widths of the policy's (or the shared) hidden layers; none: 64 64 for mlp, 512 for
    nature_cnn, 256 for impala_cnn and film_grid, 128 for small_cnn, no layer after an encoder of
    your own
    """
    value_hidden: tuple[Width, ...] | None = option(
        None,
        max_length=MOST_LAYERS,
        needs="model.shared_torso=false",
        also=f"{_HIDDEN} critic_hidden_dims vf qf",
        auto=True,
    )
    """widths of the value function's hidden layers; none: as the policy's"""
    shared_torso: bool = option(
        False,
        needs=Needs(
            "layers that can be shared",
            lambda o, f: o.has_hidden or not f.traits.only_hidden or o.core != "none",
        ),
        also="share_features_extractor actor_critic_share_weights vf_share_layers value_network",
    )
    """share everything but the heads between policy and value function"""
    critic_leaves: tuple[str, ...] = option(
        (),
        needs=(
            "model.shared_torso=false",
            Needs(
                "an observation that is a Dict (it is {f.spaces.observation})",
                lambda _, f: isinstance(f.spaces.observation, DictSpace),
            ),
        ),
        also="privileged_obs obs_groups critic_obs num_privileged_obs",
    )
    """leaves of a Dict observation, or groups of them (a/b is in the group a), that only the value
    function sees; the policy, which acts and is exported, does without them
    """
    activation: Activation | None = option(
        None,
        needs=(
            Needs(
                "an mlp or an encoder of your own ({f.encoder} has {f.traits.activations[0]} "
                "throughout)",
                lambda o, f: o.activation in (None, *f.traits.activations),
            ),
            Needs(
                "a hidden layer",
                lambda o, f: (
                    o.has_hidden
                    or not (f.traits.only_hidden or o.custom)
                    or (o.activation == f.traits.activations[0] and not o.custom)
                ),
            ),
        ),
        also="activation_fn nonlinearity activation_function fcnet_activation",
        auto=True,
    )
    """activation after each hidden layer; none: tanh for mlp, relu for the others"""
    layer_norm: bool = option(
        False,
        needs=Needs("a hidden layer", lambda o, _: o.has_hidden),
    )
    """put LayerNorm between each hidden layer and its activation (not in convolutions)"""
    core: Literal["none", "lstm", "gru"] = option("none", also="use_lstm use_rnn rnn_type")
    """recurrent core between hidden layers and heads; policy and value function have one each,
    unless model.shared_torso
    """
    core_size: Width = option(128, needs=_CORE, also="lstm_hidden_size rnn_size lstm_cell_size")
    """number of units of each recurrent layer"""
    core_layers: Layers = option(1, needs=_CORE, also="n_lstm_layers rnn_num_layers")
    """number of recurrent layers"""
    core_skip: bool = option(False, needs=_CORE)
    """let the heads read the core's input next to its output, so that what needs no memory is
    learned as fast as without a core
    """
    init: Init = option("orthogonal", also="ortho_init policy_initialization")
    """first weights; orthogonal: gain sqrt 2, heads 0.01 and 1; truncated_normal: scale 2 over
    fan-in, policy head 0.1 (TF-Agents); uniform: within 1 / sqrt(fan-in), also biases and heads
    (Lillicrap et al.); cores are orthogonal per gate, your own encoder draws its own
    """
    action_std: ActionStd = option(
        "state_independent", needs=_CONTINUOUS, also="free_log_std adaptive_stddev"
    )
    """parametrisation of a Gaussian policy's standard deviation"""
    action_std_init: Positive = option(
        1.0, needs=_CONTINUOUS, also="log_std_init initial_stddev init_noise_std"
    )
    """first standard deviation, as a fraction of half the action range"""
    action_bounds: ActionBounds = option(
        "clip", needs=_CONTINUOUS, also="clip_actions squash_output"
    )
    """bounds of Box actions; clip: the sample is clipped; squash: tanh with exact log-probability;
    mean_tanh: tanh of the mean, then the sample is clipped
    """

    @property
    def has_hidden(self) -> bool:
        """Whether policy or value may have a hidden layer besides cores."""
        value = () if self.shared_torso else self.value_hidden
        none = ((), None) if self.custom else ((),)
        return self.policy_hidden not in none or value not in ((), None)

    @property
    def traits(self) -> Traits:
        """The traits of the encoder, which must be resolved."""
        return CUSTOM if self.custom else TRAITS[self.encoder]

    @property
    def custom(self) -> bool:
        """Whether the encoder is a user's module."""
        return ":" in self.encoder


def encoded_leaves(spaces: Spaces) -> Leaves:
    """The leaves that an encoder reads: the observation's leaves without the action mask."""
    leaves = observation_leaves(spaces.observation)
    leaves.pop(ACTION_MASK, None)
    return leaves


def critic_leaves(model: ModelConfig, spaces: Spaces) -> frozenset[str]:
    """Paths of the leaves that only the value function sees; raises ConfigError if the observation
    has none of a name, or the policy would have no leaf.
    """
    if not model.critic_leaves:
        return frozenset()
    leaves, found = encoded_leaves(spaces), set[str]()
    for name in model.critic_leaves:
        mine = {path for path in leaves if _is_in(path, name)}
        if not mine:
            raise ConfigError(
                "model.critic_leaves must be leaves of the observation, or groups of them, got "
                f"{name!r}: name some of {', '.join(leaves)}"
            )
        found |= mine
    if len(found) == len(leaves):
        raise ConfigError(
            "model.critic_leaves must leave the policy something to see, got all of "
            f"{', '.join(leaves)}: leave some out"
        )
    return frozenset(found)


def _of_critic(model: ModelConfig, path: str) -> bool:
    """Whether only the value function sees a leaf."""
    return any(_is_in(path, name) for name in model.critic_leaves)


def _is_in(path: str, name: str) -> bool:
    """Whether a leaf has a name or is in the group of that name."""
    return path == name or path.startswith(f"{name}/")


def uses_pictures(model: ModelConfig, spaces: Spaces) -> bool:
    """Whether a resolved network is large enough for threads, a GPU and bfloat16 to pay off."""
    if model.traits.large is not None:
        return model.traits.large
    if model.encoder == "small_cnn":
        least = SMALLEST["nature_cnn"]
        found = small_pictures(encoded_leaves(spaces), picture_options(model).layout)
        return any(min(x.height, x.width) >= least for x in found.values())
    return any(is_image(space) for space in encoded_leaves(spaces).values())


def is_wide(model: ModelConfig) -> bool:
    """Whether a resolved network has a layer with so many weights that a second thread pays off."""
    torsos = (model.policy_hidden or (), model.value_hidden or ())
    return any(a * b >= WIDE_WEIGHTS for torso in torsos for a, b in pairwise(torso))


def picture_leaves(model: ModelConfig, spaces: Spaces) -> dict[str, tuple[int, ...]]:
    """Shapes of the leaves that a resolved network reads as pictures, so that each pixel can be
    normalised: uint8 leaves that are large enough for the encoder.

    The image of a grid with a mission holds ids and is not a picture, unless it is large enough for
    nature_cnn and the network reads it as a picture.
    """
    leaves, traits = encoded_leaves(spaces), model.traits
    if model.encoder == "small_cnn":
        read = small_pictures(leaves, picture_options(model).layout)
        return {
            name: tuple(leaves[name].shape or ()) for name in read if leaves[name].dtype == "uint8"
        }
    if traits.smallest is None:
        return {}
    grid, found = is_grid_with_mission(leaves), {}
    for name, leaf in leaves.items():
        of_ids = grid and name == "image" and (traits.reads_ids or not is_image(leaf))
        if (
            not of_ids
            and not is_added(name)
            and len(leaf.shape or ()) <= 4
            and is_image(leaf, traits.smallest)
        ):
            found[name] = tuple(leaf.shape or ())
    return found


def resolve_model(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with every automatic option resolved for these spaces; raises ConfigError
    if one of quintet's encoders can't read the leaves.
    """
    config = _with_encoder(config, spaces)
    critic_leaves(config, spaces)
    if config.encoder in SMALLEST:
        pictures(config.encoder, encoded_leaves(spaces))
    elif config.encoder == "small_cnn":
        require_small(encoded_leaves(spaces), picture_options(config).layout)
    elif config.encoder == "film_grid":
        require_grid(encoded_leaves(spaces))
        grid_options(config)
    if config.custom and not config.has_hidden:
        return config
    hidden = config.policy_hidden
    if hidden is None:
        hidden = config.traits.hidden or ()
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


def grid_options(config: ModelConfig) -> GridOptions:
    """The keyword arguments of film_grid; raises ConfigError if they are wrong."""
    return _arguments(config, GridOptions)


def picture_options(config: ModelConfig) -> PictureOptions:
    """The keyword arguments of small_cnn; raises ConfigError if they are wrong."""
    return _arguments(config, PictureOptions)


Given = TypeVar("Given", bound=Options)


def _arguments(config: ModelConfig, kind: type[Given]) -> Given:
    try:
        return kind(**config.encoder_kwargs)
    except ValidationError as error:
        raise ConfigError(
            f"model.encoder_kwargs must be arguments of {config.encoder}: "
            f"{'; '.join(faults(error))}"
        ) from error


def _with_encoder(config: ModelConfig, spaces: Spaces) -> ModelConfig:
    """The configuration with an encoder chosen by the leaves, if it is automatic."""
    if config.encoder != "auto":
        return config
    leaves = {k: x for k, x in encoded_leaves(spaces).items() if not _of_critic(config, k)}
    # The image of a grid with other leaves may not hold ids.
    own = [name for name in leaves if not is_added(name)]
    encoder = "film_grid" if len(own) == 3 and is_grid_with_mission(leaves) else "mlp"
    if any(is_image(space) for space in leaves.values()):
        encoder = "nature_cnn"
    elif has_small_picture(leaves, config.encoder_kwargs.get("layout", "auto")):
        encoder = "small_cnn"
    return config.model_copy(update={"encoder": encoder})


def network_facts(config: ModelConfig, spaces: Spaces | None) -> dict[str, Any]:
    """Facts of a network on which conditions of options depend, and of the spaces if known."""
    model = config if spaces is None else _with_encoder(config, spaces)
    facts: dict[str, Any] = {"model": model}
    if model.encoder != "auto":
        facts |= {"encoder": model.encoder, "traits": model.traits}
    if spaces is None:
        return facts
    boxes = [isinstance(leaf, Box) for leaf in action_leaves(spaces.action)]
    pictures = bool(picture_leaves(model, spaces))
    return facts | {
        "spaces": spaces,
        "continuous": any(boxes),
        "discrete": not all(boxes),
        "one_choice": isinstance(spaces.action, Discrete),
        "floats": bool(normalized_leaves(spaces.observation)),
        "pictures": pictures,
        "hint": "; normalize_pictures is for these" if pictures else "",
    }
