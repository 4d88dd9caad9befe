"""The encoder of grids with a mission: MiniGrid and BabyAI, in EnvPool's form.

A cell holds the ids of an object, a colour and a state, which are embedded.  Blocks of convolutions
follow, in each of which the mission scales and shifts the channels: feature-wise linear modulation
(FiLM, Perez et al., arXiv 1709.07871).  Scale and shift start at 0, so that a new network does not
depend on the mission.

With `bidirectional_film` the image also scales and shifts the mission, in every cell, and the two
are summed, after txt2pi (Zhong et al., arXiv 1910.08210), without that network's position features,
its attention to the text by summaries that go from block to block, and its several texts.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from quintet.errors import EnvironmentFault
from quintet.models.config import Init, ModelConfig, grid_options
from quintet.models.encoders import LeafForm, flat_size, flatten_leaf, layers
from quintet.models.leaves import DIRECTIONS, Leaves, require_grid
from quintet.models.precision import cast_weights
from quintet.models.text import TextEncoder
from quintet.models.weights import draw_layers
from quintet.types import Obs

OBJECTS, COLOURS, STATES = 11, 6, 4
"""The number of MiniGrid's ids: objects from unseen (0) to agent (10); colours from red to grey;
states, which are open, closed or locked for doors and the direction for agents.
"""

DIRECTION_SIZE = 8
"""Size of a direction's embedding."""


def check_ids(image: Tensor, direction: Tensor) -> None:
    """Raises EnvironmentFault unless ids ``[N, H, W, 3]`` and directions ``[N]`` are MiniGrid's."""
    low, high = direction.aminmax()
    # Together, since each number that is read from a GPU takes a synchronisation.
    most = [*image.amax((0, 1, 2)).long().unbind(), low.long(), high.long()]
    *ids, low_id, high_id = torch.stack(most).tolist()
    seen = (
        ("'image' must have object ids", OBJECTS, ids[0]),
        ("'image' must have colour ids", COLOURS, ids[1]),
        ("'image' must have state ids", STATES, ids[2]),
        ("'direction' must have values", DIRECTIONS, low_id if low_id < 0 else high_id),
    )
    faults = [
        f"observation leaf {what} of 0 to {size - 1}, as in MiniGrid, got {value}"
        for what, size, value in seen
        if not 0 <= value < size
    ]
    if faults:
        raise EnvironmentFault(
            "; ".join(faults) + "; if these are no ids, use --model.encoder mlp, or an encoder of "
            "your own"
        )


@final
class FilmBlock(nn.Module):
    """``x + relu((1 + scale) * conv(x) + shift)``, of the same size; `scale` and `shift` come from
    the text.

    bidirectional: ``+ relu((1 + gain(x)) * read + offset(x))``, where `read` comes from the text,
        and gain and offset are convolutions.
    """

    def __init__(self, channels: int, text_size: int | None, bidirectional: bool):
        """text_size: size of a text's vector; None: without a text, scale and shift are 0."""
        super().__init__()

        def conv() -> nn.Conv2d:
            return nn.Conv2d(channels, channels, 3, padding=1)

        self.conv = conv()
        self.film = self.gain = self.offset = None
        if text_size is not None:
            self.film = nn.Linear(text_size, (3 if bidirectional else 2) * channels)
            if bidirectional:
                self.gain, self.offset = conv(), conv()

    def forward(self, x: Tensor, text: Tensor | None, text_index: Tensor | None) -> Tensor:
        """Output ``[N, C, H, W]`` of an input of this shape.

        text_index: ``[N]``, index of each row's text; None: row i has text i.
        """
        seen: Tensor = self.conv(x)
        if self.film is None:
            return x + seen.relu()
        film = self.film(text).float()
        if text_index is not None:
            film = functional.embedding(text_index, film)
        scale, shift, *read = film.to(seen.dtype)[:, :, None, None].split(seen.shape[1], 1)
        # Work in place saves memory where autograd keeps no value.
        y: Tensor = x + (seen * (1 + scale)).add_(shift).relu_()
        if self.gain is not None and self.offset is not None:
            y = y + (self.offset(x) + (1 + self.gain(x)) * read[0]).relu_()
        return y


@final
class FilmGrid(nn.Module):
    """FiLM blocks on `image` and `mission`, then the maximum over the grid; concatenated with
    `direction` and all other leaves, flattened as in `Mlp`; then linear layers.  ReLU throughout.
    """

    loss_names: tuple[str, ...] = ()
    cast_weights = cast_weights

    def __init__(self, leaves: Leaves, hidden: tuple[int, ...], config: ModelConfig):
        """Raises ConfigError if the leaves do not have this form."""
        super().__init__()
        require_grid(leaves)
        options = grid_options(config)
        size = options.image_channels
        self.objects = nn.Embedding(OBJECTS, size)
        self.colours = nn.Embedding(COLOURS, size)
        self.states = nn.Embedding(STATES, size)
        self.directions = nn.Embedding(DIRECTIONS, DIRECTION_SIZE)
        self.text = None
        if options.tokenizer != "none":
            self.text = TextEncoder(
                (leaves["mission"].shape or ())[0],
                tokenizer=options.tokenizer,
                vocabulary=options.vocabulary,
                hash_buckets=options.hash_buckets,
                embedding_size=options.text_embedding,
                hidden_size=options.text_hidden,
                pooling=options.text_pooling,
                query_size=size if options.text_pooling == "attention" else None,
                deduplicate=options.deduplicate_text,
            )
        self.blocks = nn.ModuleList(
            FilmBlock(
                size,
                None if self.text is None else self.text.feature_size,
                options.bidirectional_film,
            )
            for _ in range(options.film_blocks)
        )
        own = ("direction", "image", "mission")
        others = {name: space for name, space in leaves.items() if name not in own}
        self.others = {name: LeafForm.of(space) for name, space in others.items()}
        size += DIRECTION_SIZE + flat_size(others)
        self.layers = layers((size, *hidden), "relu", config.layer_norm)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Tensor:
        """``[N, features]`` from leaves ``[N, ...]``; raises EnvironmentFault if an id is not
        MiniGrid's.
        """
        if not torch.compiler.is_exporting():  # graphs decide nothing on values
            check_ids(obs["image"], obs["direction"])
        x = self._embed(obs["image"]).permute(0, 3, 1, 2)
        text = text_index = None
        if self.text is not None:
            text, text_index = self.text.distinct(obs["mission"], _over_grid(x))
        if torch.is_autocast_enabled(x.device.type):  # between convolutions all is in its dtype
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = block(x, text, text_index)
        parts = [_over_grid(x), self.directions(obs["direction"].int())]
        parts += [flatten_leaf(obs[name], form) for name, form in self.others.items()]
        features: Tensor = self.layers(torch.cat(parts, -1))
        return features

    def _embed(self, image: Tensor) -> Tensor:
        """``[N, H, W, C]``, the sum of the three embeddings, from ids ``[N, H, W, 3]``.

        The sum of every combination of ids is computed once, and each cell looks its sum up.
        """
        table = (
            self.objects.weight[:, None, None]
            + self.colours.weight[None, :, None]
            + self.states.weight[None, None, :]
        ).flatten(0, 2)
        kind, colour, state = image.int().unbind(-1)
        return functional.embedding((kind * COLOURS + colour) * STATES + state, table)

    @torch.no_grad()
    def draw_weights(self, init: Init, generator: torch.Generator) -> None:
        """Draws the layers, the embeddings (the image's such that their sum has variance 1) and the
        text encoder.  At first text and image have no effect on each other.
        """
        draw_layers(self, init, generator)
        for table in (self.objects, self.colours, self.states):
            table.weight.normal_(0.0, 3.0**-0.5, generator=generator)
        self.directions.weight.normal_(generator=generator)
        if self.text is not None:
            self.text.draw_weights(generator)
        for block in self.blocks:
            assert isinstance(block, FilmBlock)
            for layer in (block.film, block.gain):
                for parameter in layer.parameters() if layer is not None else ():
                    parameter.zero_()


def _over_grid(x: Tensor) -> Tensor:
    """Maximum of each channel ``[N, C]``, float32, from ``[N, C, H, W]``.

    The first of several equal cells gets the gradient.  On a CPU this takes a fifth of the time of
    `amax` or `max`; on a GPU only the gradient of `max` is deterministic.
    """
    if torch.compiler.is_exporting():  # other formats need the simplest form
        return x.amax((2, 3)).float()
    if x.is_cuda:
        return x.flatten(2).max(-1).values.float()
    return functional.adaptive_max_pool2d(x, 1).flatten(1).float()
