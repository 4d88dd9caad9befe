"""Parameters as one vector, its segments, and flat trees of named tensors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from quintet.system.transfer import copy_into


def flatten_in_place(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves all parameters into one vector and makes them views of it.

    Clipping and an optimizer step are then a few operations, however many layers there are.
    """
    theta = torch.cat([p.detach().flatten() for p in parameters])
    start = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = theta[start : start + size].view_as(parameter)
        start += size
    return theta


def views_of(theta: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The parameters, by name, as views of a vector that `flatten_in_place` made."""
    parts = torch.split(theta, [shape.numel() for shape in shapes.values()])
    return {name: x.view(shape) for (name, shape), x in zip(shapes.items(), parts, strict=True)}


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


def split(
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


def join(parts: Iterable[tuple[Tensor, dict[str, torch.Size]]]) -> dict[str, Tensor]:
    """The tensors of these shapes in flat vectors, by name."""
    return {name: x for part, shapes in parts for name, x in views_of(part, shapes).items()}


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix/``, by the rest of their names."""
    start = prefix + "/"
    return {name[len(start) :]: x for name, x in tensors.items() if name.startswith(start)}


def tensors_of(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The parameters and buffers of modules, named ``MODULE/NAME``."""
    return {
        f"{prefix}/{name}": x
        for prefix, module in modules.items()
        for name, x in module.state_dict().items()
    }


def load_into(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Copies the result of `tensors_of` into modules of the same names."""
    for prefix, module in modules.items():
        module.load_state_dict(strip_prefix(tensors, prefix))


@final
class ModuleTensors:
    """Tensors that `tensors_of` reads and `load_into` writes, without searching the modules, which
    takes longer than acting with a small network: the places of tensors in modules are found once.
    A module may replace a tensor by another one.
    """

    def __init__(self, modules: Mapping[str, nn.Module]):
        self._modules = modules
        self._places: dict[str, tuple[Mapping[str, Tensor | None], str]] = {}
        for name in tensors_of(modules):
            prefix, _, path = name.partition("/")
            owner, _, key = path.rpartition(".")
            part = modules[prefix].get_submodule(owner)
            self._places[name] = (
                part._parameters if key in part._parameters else part._buffers,
                key,
            )
        self._hooked = {
            prefix: module
            for prefix, module in modules.items()
            if any(name.startswith(f"{prefix}/") for name in self._places)
            and _has_load_hooks(module)
        }
        self._checked = False

    def read(self, but: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Tensors by name, in the modules' memory.

        but: prefixes of names that are left out.
        """
        found = {
            name: members[key]
            for name, (members, key) in self._places.items()
            if not name.startswith(but)
        }
        return {name: x.detach() for name, x in found.items() if x is not None}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies the tensors into the modules.  Names and shapes are checked the first time.

        Raises:
            RuntimeError: names or shapes differ; see `torch.nn.Module.load_state_dict`.
        """
        if not self._checked:
            load_into(self._modules, tensors)
            self._checked = True
            return
        load_into(self._hooked, tensors)
        own = self.read(tuple(f"{prefix}/" for prefix in self._hooked))
        copy_into([*own.values()], [tensors[name] for name in own])


def _has_load_hooks(module: nn.Module) -> bool:
    """Whether a part of the module has hooks for loading tensors."""
    return any(
        part._load_state_dict_pre_hooks
        or part._load_state_dict_post_hooks
        or type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
        for part in module.modules()
    )
