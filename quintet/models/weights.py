"""Finds and draws kernels, the weights that multiply a layer's inputs."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from quintet.models.config import Init

Role = Literal["hidden", "policy", "value"]
"""A layer's place in its network: the policy's head, the value's head, or below a head."""

_GAIN: dict[Role, float] = {"hidden": 2.0**0.5, "policy": 0.01, "value": 1.0}
_VARIANCE: dict[Role, float] = {"hidden": 2.0, "policy": 0.1, "value": 1.0}


def kernels(network: nn.Module, modules: Iterable[nn.Module]) -> list[str]:
    """Sorted names in `network` of the kernels of some of its modules.

    Kernels are the parameters of two or more dimensions, embeddings included, except those of
    normalising layers, which scale each number separately.  Only a module's own parameters count,
    not those of its submodules.
    """
    found = {
        parameter
        for module in modules
        if not isinstance(module, nn.LayerNorm | nn.RMSNorm)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim >= 2
    }
    return sorted(name for name, parameter in network.named_parameters() if parameter in found)


@torch.no_grad()
def draw_layers(
    module: nn.Module, init: Init, generator: torch.Generator, role: Role = "hidden"
) -> None:
    """Draws the kernels of all linear layers and convolutions in a module from `generator`, in the
    order of the layers' names; biases are 0, except with uniform.  Other layers stay unchanged.

    orthogonal: gain sqrt 2, 0.01 for the policy head, 1 for the value head (Andrychowicz et al.,
    arXiv 2006.05990).  truncated_normal: variance 2 over fan-in, cut at two standard deviations,
    0.1 and 1 over fan-in for the two heads (TF-Agents).  uniform: kernels and biases within
    1 / sqrt(fan-in), also those of the heads (Lillicrap et al., arXiv 1509.02971; torch's own).
    """
    for _, layer in sorted(module.named_modules(), key=lambda named: named[0]):
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        fan_in = layer.weight[0].numel()
        if init == "uniform":
            for parameter in layer.parameters(recurse=False):
                nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
            continue
        if layer.bias is not None:
            layer.bias.zero_()
        if init == "orthogonal":
            nn.init.orthogonal_(layer.weight, _GAIN[role], generator=generator)
        else:
            # 0.8796 is the standard deviation of a unit normal cut at +-2.
            std = (_VARIANCE[role] / fan_in) ** 0.5 / 0.87962566103423978
            nn.init.trunc_normal_(layer.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
