"""Linear layers in which each row of a batch has its own weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Outputs ``[N, O]`` of rows ``[N, I]``, weights ``[N, O, I]`` and biases ``[N, O]``.

    On a CPU, with layers of 256, products of matrices and columns take ten times as long as
    products of rows and matrices; a compiled graph turns them into one loop, which is faster than
    both.
    """
    if torch.compiler.is_compiling():
        return torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1) + bias
    return torch.baddbmm(bias.unsqueeze(1), x.unsqueeze(1), weight.transpose(1, 2)).squeeze(1)


def sequential(layers: nn.Sequential, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Output of linear layers, LayerNorms and activations for rows ``[N, I]``.

    weights: each parameter of `layers` by name, one per row ``[N, ...]``.
    """
    for name, layer in layers.named_children():
        if not any(True for _ in layer.parameters()):
            x = layer(x)
            continue
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if isinstance(layer, nn.LayerNorm):
            normed = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
            x = torch.addcmul(bias, normed, weight)
        else:
            assert isinstance(layer, nn.Linear)
            x = linear(x, weight, bias)
    return x
