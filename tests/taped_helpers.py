"""CUDA graphs without a GPU: a tape of the operations that a call makes.

As a CUDA graph does, a replay repeats these operations on the same memory, whatever Python would do
now; what waits for a GPU is an error while it is recorded.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quintet.models import cuda_graphs

aten = torch.ops.aten

WAITS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default,
    aten._unique2.default, aten.equal.default, aten.is_nonzero.default,
}  # fmt: skip


class Tape(TorchDispatchMode):
    """Records operations, with the memory that each reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        result = func(*args, **(kwargs or {}))
        memory = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            self.calls.append((func, args, kwargs, None))
        elif not any(x.untyped_storage().data_ptr() in memory for x in _tensors(result)):
            self.calls.append((func, args, kwargs, result))  # else it is a view
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                result.copy_(again)
            elif isinstance(result, tuple | list):
                for into, x in zip(result, again, strict=True):
                    if isinstance(into, Tensor):
                        into.copy_(x)


def _tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]


def record(run: Callable[[], Any], _: Any) -> tuple[Callable[[], None], Any]:
    """Stands for `quintet.models.cuda_graphs.record`."""
    for _ in range(cuda_graphs.WARM_UPS):
        run()
    tape = Tape()
    with tape:
        outputs = run()
    return tape.replay, outputs


def one_hot(x: Tensor, num_classes: int) -> Tensor:
    """As on a GPU, where it does not look at the values."""
    zeros = torch.zeros((*x.shape, num_classes), dtype=torch.int64, device=x.device)
    return zeros.scatter_(-1, x.unsqueeze(-1), 1)


def use_tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tapes in place of CUDA graphs, on any device."""
    monkeypatch.setattr(nn.functional, "one_hot", one_hot)
    monkeypatch.setattr(cuda_graphs, "record", record)
    monkeypatch.setattr(cuda_graphs, "stream_of", lambda _: 0)
