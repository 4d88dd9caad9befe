"""Kernels, the weights that layers multiply their inputs by: which they are, how they are drawn."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

Init = Literal["orthogonal", "truncated_normal"]
Role = Literal["hidden", "policy", "value"]
"""Of a layer in its network: below the heads, or a head itself."""

_GAIN: dict[Role, float] = {"hidden": 2.0**0.5, "policy": 0.01, "value": 1.0}
_VARIANCE: dict[Role, float] = {"hidden": 2.0, "policy": 0.1, "value": 1.0}


def kernels(network: nn.Module, modules: Iterable[nn.Module]) -> list[str]:
    """Names, sorted, that `network` has for the kernels of some of its modules: their own
    parameters of two dimensions or more, but for those of normalising layers, which scale each
    number by itself.  Embeddings are kernels.

    Modules below those that are given count only where they are given too.
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
    """Draws the kernels of all linear layers and convolutions in a module from `generator`, in
    order of the layers' names; their biases are 0.  Other layers stay as they are.

    orthogonal: gain sqrt 2, 0.01 for the policy head, 1 for the value head (Andrychowicz et al.,
    arXiv 2006.05990).  truncated_normal: variance 2 over fan-in, cut at two standard deviations,
    0.1 and 1 over fan-in for the two heads (TF-Agents).
    """
    for _, layer in sorted(module.named_modules(), key=lambda named: named[0]):
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        if layer.bias is not None:
            layer.bias.zero_()
        if init == "orthogonal":
            nn.init.orthogonal_(layer.weight, _GAIN[role], generator=generator)
        else:
            # 0.8796 is the standard deviation of a unit normal cut at +-2.
            std = (_VARIANCE[role] / layer.weight[0].numel()) ** 0.5 / 0.87962566103423978
            nn.init.trunc_normal_(layer.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
