"""The number format that encoders compute in; weights, heads and losses are float32 always."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Computes convolutions and matrix products within the block in `precision`."""
    if precision == "fp32":
        return nullcontext()
    # The cache of casts outlives the block inside of a caller's autocast, while weights change.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def cast_weights(module: nn.Module, precision: Precision) -> None:
    """Converts the weights of convolutions and linear layers of a network that is not trained: the
    results are the same, and autocast converts nothing when it acts.
    """
    if precision == "bf16":
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.to(torch.bfloat16)


def fast_bf16(device: torch.device) -> bool:
    """Whether bfloat16 matrices are multiplied faster than float32 ones.

    CPUs with this property have AMX, or are AMD's with AVX512-BF16.  On Intel's CPUs with only
    AVX512-BF16 the casts take more time than they save. docs/performance.md has the measurements.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "xpu":
        return bool(torch.xpu.is_bf16_supported())
    ask = vars(torch.cpu).get("get_capabilities")
    if ask is None:  # PyTorch 2.10 and older don't say
        return False
    able = ask()
    # Only AMD's processors have SSE4a; the name that a virtual machine shows may be any.
    amd = able.get("sse4a", False)
    return bool(able.get("amx_bf16") or (amd and able.get("avx512_bf16")))
