"""Encoders: from an observation's leaves to a feature vector."""

from itertools import pairwise
from typing import final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn
from torch.nn import functional

from quintet.errors import ConfigError
from quintet.types import Obs

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}

Leaves = dict[str, gym_spaces.Space]  # type: ignore[type-arg]


def is_image(space: gym_spaces.Space) -> bool:  # type: ignore[type-arg]
    """Whether a leaf is a picture: uint8, at least 36 x 36 (what nature_cnn needs), perhaps
    stacked.
    """
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8 or len(space.shape) < 2:
        return False
    *_, height, width = image_shape(space.shape)
    return height >= 36 and width >= 36


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """``(channels, height, width)`` of a picture's shape; frames of a stack become channels.

    ``HW``, ``CHW``, ``HWC`` and ``KHWC`` are told apart by the small last or first size (1 to 4
    colours).
    """
    if len(shape) == 2:
        return (1, *shape)
    channels_last = shape[-1] <= 4
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1]) if channels_last else shape
    if len(shape) == 4 and channels_last:
        return (shape[0] * shape[3], shape[1], shape[2])
    if len(shape) == 4:
        return (shape[0] * shape[1], shape[2], shape[3])
    raise ConfigError(
        f"a picture of 2 to 4 dimensions is required, the space has shape {shape}; flatten it or "
        "use --model.encoder mlp"
    )


def channels_first(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``[N, *shape]`` as ``[N, C, H, W]``, see `image_shape`."""
    if len(shape) == 3 and shape[-1] <= 4:
        return x.permute(0, 3, 1, 2)
    if len(shape) == 4 and shape[-1] <= 4:
        x = x.permute(0, 1, 4, 2, 3)
    return x.reshape(x.shape[0], *image_shape(shape))


def layers(sizes: tuple[int, ...], activation: str) -> nn.Sequential:
    """Linear layers with the activation after each."""
    parts: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        parts += [nn.Linear(size_in, size_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*parts)


@final
class Mlp(nn.Module):
    """All leaves flattened and concatenated (discrete ones one-hot), then linear layers."""

    def __init__(self, leaves: Leaves, hidden: tuple[int, ...], activation: str):
        super().__init__()
        self.leaves = leaves
        size = sum(gym_spaces.flatdim(space) for space in leaves.values())
        self.layers = layers((size, *hidden), activation)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from leaves ``[N, ...]``."""
        flat = [flatten_leaf(obs[name], space) for name, space in self.leaves.items()]
        x: Tensor = self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, -1))
        return x


def flatten_leaf(x: Tensor, space: gym_spaces.Space) -> Tensor:  # type: ignore[type-arg]
    """One leaf ``[N, ...]`` as floats ``[N, gymnasium.spaces.flatdim(space)]``; pictures are
    scaled to [0, 1].
    """
    if isinstance(space, gym_spaces.Discrete):
        return functional.one_hot(x - int(space.start), int(space.n)).float()
    if isinstance(space, gym_spaces.MultiDiscrete):
        start = torch.as_tensor(np.asarray(space.start), device=x.device)
        digits = (x - start).flatten(1).unbind(1)
        sizes = np.asarray(space.nvec).flatten().tolist()
        return torch.cat(
            [functional.one_hot(d, int(n)).float() for d, n in zip(digits, sizes, strict=True)], -1
        )
    if x.dtype == torch.uint8 and len(space.shape or ()) >= 2:
        return x.flatten(1).float() / 255.0
    return x.reshape(x.shape[0], -1).float()


@final
class NatureCnn(nn.Module):
    """The convolutions of Mnih et al. (2015) over one picture, then linear layers, ReLU
    throughout.
    """

    def __init__(self, leaves: Leaves, hidden: tuple[int, ...]):
        super().__init__()
        pictures = [name for name, space in leaves.items() if is_image(space)]
        if len(pictures) != 1 or len(leaves) != 1:
            raise ConfigError(
                "nature_cnn requires exactly one uint8 picture of at least 36 x 36 as the "
                "observation, the leaves are "
                f"{ ({name: str(space) for name, space in leaves.items()}) }; use --model.encoder "
                "mlp"
            )
        (self.name,) = pictures
        self.shape = tuple(leaves[self.name].shape or ())
        channels, height, width = image_shape(self.shape)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, channels, height, width)).shape[1]
        self.layers = layers((size, *hidden), "relu")
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from a picture ``[N, ...]`` of uint8."""
        x = channels_first(obs[self.name], self.shape).float() * (1.0 / 255.0)
        features: Tensor = self.layers(self.convolutions(x))
        return features
