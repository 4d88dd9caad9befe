"""Encoders, which turn an observation's leaves into a feature vector."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn
from torch.nn import functional

from quintet.errors import ConfigError
from quintet.models.config import Init
from quintet.models.leaves import Leaves, channels_last, image_shape, pictures, white_of
from quintet.models.precision import Precision, cast_weights
from quintet.models.weights import draw_layers
from quintet.types import Obs

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}

Encoded = Tensor | tuple[Tensor, dict[str, Tensor]]
"""Features ``[N, F]``, alone or with auxiliary losses by name, scalars or ``[N]``."""


class Encoder(Protocol):
    """The encoder of a network: one of quintet's modules, or a `CustomEncoder` around a user's.
    `models.config.Traits` has the properties that are known before it is built.

    feature_size: F, numbers per row.
    loss_names: sorted names of the auxiliary losses that come with the features.
    """

    feature_size: int
    loss_names: tuple[str, ...]

    def __call__(self, obs: Obs) -> Encoded:
        """Encodes leaves ``[N, ...]``, each row independently; ignores other leaves."""

    def modules(self) -> Iterator[nn.Module]:
        """Itself and all modules in it, in the order of `torch.nn.Module`."""

    def draw_weights(self, init: Init, generator: torch.Generator) -> None:
        """Draws all weights again; a user's module keeps its own."""

    def cast_weights(self, precision: Precision) -> None:
        """Converts weights to `precision` for acting, where that changes no result."""


def encoded_parts(encoded: Encoded) -> tuple[Tensor, dict[str, Tensor]]:
    """The features, and the auxiliary losses by name, if any."""
    if isinstance(encoded, tuple) and len(encoded) == 2 and isinstance(encoded[1], dict):
        return encoded
    return encoded, {}


def channels_first(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``[N, *shape]`` as ``[N, C, H, W]``, see `image_shape`."""
    if len(shape) == 3 and channels_last(shape):
        return x.permute(0, 3, 1, 2)
    if len(shape) == 4 and channels_last(shape):
        x = x.permute(0, 1, 4, 2, 3)
    return x.reshape(x.shape[0], *image_shape(shape))


def layers(sizes: tuple[int, ...], activation: str, layer_norm: bool) -> nn.Sequential:
    """Linear layers with an activation after each, and perhaps LayerNorm before the activation."""
    parts: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        parts.append(nn.Linear(size_in, size_out))
        if layer_norm:
            parts.append(nn.LayerNorm(size_out))
        parts.append(ACTIVATIONS[activation]())
    return nn.Sequential(*parts)


LEAST_UNITS = 64
"""Least width of a hidden layer that is otherwise as wide as an encoder's features, of which there
may be only one.
"""

MOST_VALUES = 2**16
"""Most values of a discrete leaf that is flattened, since each value becomes a number."""


def flat_size(leaves: Leaves) -> int:
    """Number of values in all flattened leaves; raises ConfigError if a discrete leaf has too many
    values to be one-hot.
    """
    sizes = {name: int(gym_spaces.flatdim(space)) for name, space in leaves.items()}
    for name, space in leaves.items():
        discrete = isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete)
        if discrete and sizes[name] > MOST_VALUES:
            raise ConfigError(
                f"observation leaf {name!r} must have at most {MOST_VALUES:,} discrete values, "
                f"which are encoded one-hot, got {space}: encode it in the environment, or use "
                "an encoder of your own with an embedding"
            )
    return sum(sizes.values())


@final
class Mlp(nn.Module):
    """All leaves flattened and concatenated (discrete ones one-hot), then linear layers."""

    loss_names: tuple[str, ...] = ()
    draw_weights, cast_weights = draw_layers, cast_weights

    def __init__(
        self, leaves: Leaves, hidden: tuple[int, ...], activation: str, layer_norm: bool = False
    ):
        super().__init__()
        self.forms = {name: LeafForm.of(space) for name, space in leaves.items()}
        size = flat_size(leaves)
        self.layers = layers((size, *hidden), activation, layer_norm)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from leaves ``[N, ...]``."""
        x: Tensor = self.layers(self.flat(obs))
        return x

    def flat(self, obs: Obs) -> Tensor:
        """The flat inputs of the first layer."""
        flat = [flatten_leaf(obs[name], form) for name, form in self.forms.items()]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


class LeafForm(NamedTuple):
    """Flattening of a leaf, in Python numbers, since the compiler can't read those of a space.

    starts, sizes: first values and numbers of its discrete values, one for each component; empty if
        it is not discrete.
    white: the value of bytes that becomes 1; 0: they are not scaled.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    white: float

    @classmethod
    def of(cls, space: gym_spaces.Space) -> "LeafForm":  # type: ignore[type-arg]
        if isinstance(space, gym_spaces.Discrete):
            return cls((int(space.start),), (int(space.n),), 0.0)
        if isinstance(space, gym_spaces.MultiDiscrete):
            starts, sizes = (np.ravel(x).tolist() for x in (space.start, space.nvec))
            return cls(tuple(starts), tuple(sizes), 0.0)
        scaled = space.dtype == np.uint8 and len(space.shape or ()) >= 2
        return cls((), (), white_of(space) if scaled else 0.0)


def flatten_leaf(x: Tensor, form: LeafForm) -> Tensor:
    """A leaf ``[N, ...]`` as floats ``[N, gymnasium.spaces.flatdim(space)]``; uint8 arrays of at
    least two dimensions are scaled by the largest value of their space (normalised ones are floats
    already).
    """
    if form.sizes:
        digits = x.reshape(x.shape[0], -1).unbind(1)
        parts = [
            _one_hot(digit.long() - start, size)
            for digit, start, size in zip(digits, form.starts, form.sizes, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if form.white and x.dtype == torch.uint8:
        return x.flatten(1).float() / form.white
    return x.reshape(x.shape[0], -1).float()


def _one_hot(x: Tensor, size: int) -> Tensor:
    """``[N, size]``, float32, from values ``[N]`` of 0 to size - 1."""
    if torch.compiler.is_exporting():  # `one_hot` looks at the values
        return (x.unsqueeze(-1) == torch.arange(size)).float()
    return functional.one_hot(x, size).float()


def nature_trunk(channels: int) -> nn.Sequential:
    """The convolutions of Mnih et al. (2015)."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip


@final
class ResidualBlock(nn.Module):
    """``x + conv(relu(conv(relu(x))))``, of the same size."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` from the same."""
        inner: Tensor = self.second(self.first(x.relu()).relu())
        return x + inner


def impala_trunk(channels: int) -> nn.Sequential:
    """The residual convolutions of Espeholt et al. (arXiv 1802.01561, figure 3, right): three
    sections, each of which halves height and width; 15 convolutions.
    """
    parts: list[nn.Module] = []
    for size_in, size_out in pairwise((channels, 16, 32, 32)):
        parts += [nn.Conv2d(size_in, size_out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        parts += [ResidualBlock(size_out), ResidualBlock(size_out)]
    return nn.Sequential(*parts, nn.ReLU(), nn.Flatten())


TRUNKS: dict[str, Callable[[int], nn.Sequential]] = {
    "nature_cnn": nature_trunk,
    "impala_cnn": impala_trunk,
}


@final
class Cnn(nn.Module):
    """Convolutions over each picture; their features and all other leaves, flattened as in `Mlp`,
    then pass through linear layers.  ReLU throughout.
    """

    loss_names: tuple[str, ...] = ()
    draw_weights, cast_weights = draw_layers, cast_weights

    def __init__(
        self, kind: str, leaves: Leaves, hidden: tuple[int, ...], layer_norm: bool = False
    ):
        super().__init__()
        self.pictures = pictures(kind, leaves)
        self.units = {name: 1.0 / white_of(leaves[name]) for name in self.pictures}
        others = {k: space for k, space in leaves.items() if k not in self.pictures}
        self.others = {name: LeafForm.of(space) for name, space in others.items()}
        self.convolutions = nn.ModuleList()
        size = flat_size(others)
        for shape in self.pictures.values():
            channels, height, width = image_shape(shape)
            self.convolutions.append(TRUNKS[kind](channels))
            with torch.no_grad():
                empty = torch.zeros(1, channels, height, width)
                size += self.convolutions[-1](empty).shape[1]
        self.layers = layers((size, *hidden), "relu", layer_norm)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from leaves ``[N, ...]``; pictures of uint8 are scaled to [0, 1],
        normalised ones, which are floats, are not.
        """
        parts = []
        for (name, shape), trunk in zip(self.pictures.items(), self.convolutions, strict=True):
            x = channels_first(obs[name], shape)
            # Convolutions on CPUs are up to twice as fast in this layout, in either precision.
            floats = x.to(torch.float32, memory_format=torch.channels_last)
            # Scaled in place: a second copy would take longer than the arithmetic.
            parts.append(trunk(floats.mul_(self.units[name]) if x.dtype == torch.uint8 else floats))
        parts += [flatten_leaf(obs[name], form) for name, form in self.others.items()]
        features: Tensor = self.layers(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        return features

    def scaled(self, obs: Obs) -> Obs:
        """An observation that several networks of this kind read: pictures are converted to floats
        only once.  Only for ``CHW`` pictures; others stay as bytes.
        """
        found = dict(obs)
        for name, shape in self.pictures.items():
            if obs[name].dtype == torch.uint8 and len(shape) == 3 and shape[-1] > 4:
                floats = obs[name].to(torch.float32, memory_format=torch.channels_last)
                found[name] = floats.mul_(self.units[name])
        return found
