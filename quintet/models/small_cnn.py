"""The encoder of small pictures, and of pictures that are not uint8."""

from typing import final

import torch
from torch import Tensor, nn

from quintet.models.encoders import LeafForm, flat_size, flatten_leaf, layers
from quintet.models.leaves import Layout, Leaves, SmallPicture, require_small
from quintet.models.precision import cast_weights
from quintet.models.weights import draw_layers
from quintet.types import Obs

FIRST, LATER = 16, 32
"""Channels of the first convolution and of the others."""

LARGEST = 6
"""Largest height and width that the last convolution leaves."""


def small_trunk(picture: SmallPicture) -> nn.Sequential:
    """Convolutions of 3 x 3: one at full size, then one or more that halve height and width, until
    both are at most 6.  The first and the width of the layer that follows are those of Young and
    Tian (MinAtar, arXiv 1903.03176).
    """
    parts: list[nn.Module] = [
        nn.Conv2d(picture.frames * picture.channels, FIRST, 3, padding=1), nn.ReLU(),
    ]  # fmt: skip
    size, channels = max(picture.height, picture.width), FIRST
    while channels == FIRST or size > LARGEST:
        parts += [nn.Conv2d(channels, LATER, 3, stride=2, padding=1), nn.ReLU()]
        size, channels = -(-size // 2), LATER
    return nn.Sequential(*parts, nn.Flatten())


@final
class SmallCnn(nn.Module):
    """Convolutions over each picture; their features and all other leaves, flattened as in `Mlp`,
    then pass through linear layers.  ReLU throughout.
    """

    loss_names: tuple[str, ...] = ()
    draw_weights, cast_weights = draw_layers, cast_weights

    def __init__(
        self, leaves: Leaves, hidden: tuple[int, ...], layout: Layout, layer_norm: bool = False
    ):
        super().__init__()
        self.pictures = require_small(leaves, layout)
        others = {k: space for k, space in leaves.items() if k not in self.pictures}
        self.others = {name: LeafForm.of(space) for name, space in others.items()}
        self.convolutions = nn.ModuleList()
        size = flat_size(others)
        for picture in self.pictures.values():
            trunk = small_trunk(picture)
            channels = picture.frames * picture.channels
            with torch.no_grad():
                empty = torch.zeros(1, channels, picture.height, picture.width)
                size += trunk(empty).shape[1]
            self.convolutions.append(trunk)
        self.layers = layers((size, *hidden), "relu", layer_norm)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from leaves ``[N, ...]``; uint8 is divided by the largest value of its
        space, other numbers are read as they are.
        """
        parts = []
        for (name, picture), trunk in zip(self.pictures.items(), self.convolutions, strict=True):
            x = obs[name]
            floats = channels_of(x, picture).to(torch.float32, memory_format=torch.channels_last)
            parts.append(trunk(floats / picture.most if x.dtype == torch.uint8 else floats))
        parts += [flatten_leaf(obs[name], form) for name, form in self.others.items()]
        features: Tensor = self.layers(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        return features


def channels_of(x: Tensor, picture: SmallPicture) -> Tensor:
    """``[N, frames * C, H, W]`` of a leaf; channel c of frame k becomes ``k * C + c``."""
    rows, height, width = x.shape[0], picture.height, picture.width
    if picture.channels_last:
        x = x.reshape(rows, picture.frames, height, width, picture.channels)
        x = x.permute(0, 1, 4, 2, 3)
    return x.reshape(rows, picture.frames * picture.channels, height, width)
