"""Parameters as one vector, and flat trees of named tensors."""

from collections.abc import Mapping, Sequence
from typing import Self, final

import torch
from torch import Tensor, nn


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


@final
class Held:
    """The tensors that `tensors_of` names.  Where modules hold them is found once, since the walk
    takes longer than acting with a small network; they may be replaced there.
    """

    def __init__(self, modules: Mapping[str, nn.Module]):
        self._places: dict[str, tuple[Mapping[str, Tensor | None], str]] = {}
        for name in tensors_of(modules):
            prefix, _, path = name.partition("/")
            owner, _, key = path.rpartition(".")
            part = modules[prefix].get_submodule(owner)
            self._places[name] = (
                part._parameters if key in part._parameters else part._buffers,
                key,
            )

    def without(self, starts: tuple[str, ...]) -> Self:
        """Those whose names do not begin so."""
        found = type(self)({})
        found._places = {k: x for k, x in self._places.items() if not k.startswith(starts)}
        return found

    def read(self) -> dict[str, Tensor]:
        """All by name; they share memory with those of the modules."""
        found = {name: held[key] for name, (held, key) in self._places.items()}
        return {name: x.detach() for name, x in found.items() if x is not None}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies the tensors of these names."""
        for name, x in self.read().items():
            x.copy_(tensors[name])


def load_into(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Copies the result of `tensors_of` into modules of the same names."""
    for prefix, module in modules.items():
        module.load_state_dict(strip_prefix(tensors, prefix))
