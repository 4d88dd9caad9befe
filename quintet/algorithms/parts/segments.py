"""The parts of a network's weights, each of which has its own step."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.models.flat import views_of


class Segment(NamedTuple):
    """Views of one segment's part of the vectors.  In a graph they replace the vectors: a part that
    is cut out inside the graph would be written back by a select over the whole vector.

    name: name of a child module; empty: the segment is the whole network.
    """

    name: str
    theta: Tensor
    memory: dict[str, Tensor]
    average: Tensor | None
    shapes: dict[str, torch.Size]


def segments_of(
    groups: Mapping[str, Mapping[str, Tensor]],
    theta: Tensor,
    memory: Mapping[str, Tensor],
    average: Tensor | None,
) -> list[Segment]:
    """The segments of vectors, from the parameters of each, in order."""
    segments: list[Segment] = []
    begin = 0
    for segment, group in groups.items():
        end = begin + sum(p.numel() for p in group.values())
        segments.append(
            Segment(
                segment,
                theta[begin:end],
                {name: x[begin:end] for name, x in memory.items()},
                None if average is None else average[begin:end],
                {name: p.shape for name, p in group.items()},
            )
        )
        begin = end
    return segments


def joined(parts: Iterable[tuple[Tensor, dict[str, torch.Size]]]) -> dict[str, Tensor]:
    """The tensors of these shapes in flat vectors, by name."""
    return {name: x for part, shapes in parts for name, x in views_of(part, shapes).items()}
