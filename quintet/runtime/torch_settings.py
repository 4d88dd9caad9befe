"""PyTorch's settings of a whole process."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_FILLING: Any = torch.utils.deterministic

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

_SIGN = " does not have a deterministic implementation"
"""In PyTorch's warning of an operation, behind its name."""


def configure_torch(threads: int, device: str, exact: bool = False) -> None:
    """Has a process compute on so many cores, and on a GPU the same from run to run; with `exact`
    as far as PyTorch can.

    To be called before anything is computed on a GPU, as cuBLAS reads its setting when it begins.
    TF32 is left to what asks for it: cuDNN's convolutions would take it unasked.
    """
    torch.set_num_threads(threads)
    if not device.startswith("cuda"):
        return
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    if exact:
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        # What has no such algorithm is told and not refused.
        torch.use_deterministic_algorithms(True, warn_only=True)
        _FILLING.fill_uninitialized_memory = False


@contextmanager
def torch_settings(threads: int, device: str, exact: bool) -> Iterator[None]:
    """`configure_torch` within; then everything is as it was, for the user's own code."""
    cudnn: Any = torch.backends.cudnn
    before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    algorithms = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _FILLING.fill_uninitialized_memory,
    )
    workspace = os.environ.get(_WORKSPACE)
    try:
        configure_torch(threads, device, exact)
        yield
    finally:
        threads, cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before
        torch.set_num_threads(threads)
        now = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if now != algorithms[:2]:  # setting it imports PyTorch's compiler, which takes seconds
            torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        _FILLING.fill_uninitialized_memory = algorithms[2]
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


@contextmanager
def inexact_told(say: Callable[[str], None]) -> Iterator[None]:
    """Says within, once for each, which operations PyTorch warns of as not deterministic."""
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("default", message=f".*{_SIGN}")
        show = warnings.showwarning

        def tell(message: Warning | str, *rest: Any, **named: Any) -> None:
            operation, sign, _ = str(message).partition(_SIGN)
            if not sign:
                show(message, *rest, **named)
            elif operation not in told:
                told.add(operation)
                say(
                    f"not exact on this GPU: PyTorch has no deterministic {operation}, so the same "
                    "run may give other bytes; use --runtime.device cpu where that matters"
                )

        warnings.showwarning = tell
        yield
