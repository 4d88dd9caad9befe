"""The number format that encoders compute in; weights, heads and losses are float32 always."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Within it, convolutions and matrix products are in `precision`."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def cast_weights(module: nn.Module, precision: Precision) -> None:
    """Holds the weights of convolutions and linear layers in the format that they are used in, for
    a network that is not trained: the same results, and nothing is cast in every act.
    """
    if precision == "bf16":
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.to(torch.bfloat16)


def fast_bf16(device: torch.device) -> bool:
    """Whether bfloat16 matrices are multiplied faster than float32 ones.

    Of processors it is those with AMX.  AVX512-BF16 alone gains less than the casts cost: pong-appo
    and BabyAI are 11 to 19% slower with it than in float32 (docs/performance.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))
