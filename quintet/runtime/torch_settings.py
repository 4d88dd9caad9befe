"""PyTorch's settings for a whole process."""

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, final

import torch

from quintet.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_FILLING: Any = torch.utils.deterministic

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of settings of glibc's mallopt

_KEPT_BYTES = 2**30
"""Most freed memory that a process keeps for its next tensors."""

_SIGN = " does not have a deterministic implementation"
"""Text after the operation's name in PyTorch's warning."""

_threaded = False
"""Whether this process may have computed in several threads."""

_lacks_threads = False
"""Whether it is a fork of such a process: only the forking thread survives, and PyTorch would wait
forever for the others.
"""


def _forked() -> None:
    global _lacks_threads
    _lacks_threads = _lacks_threads or _threaded


os.register_at_fork(after_in_child=_forked)


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Computes with so many threads in the block; None: with as many as before."""
    before = torch.get_num_threads()
    if number is not None and number != before:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
@dataclass(frozen=True)
class GpuMath:
    """Settings of a GPU's arithmetic.

    deterministic: only with algorithms that give the same bytes twice, where PyTorch has one.
    tf32: whether float32 matrix products and convolutions are made of TF32, which keeps 10 bits of
        each factor; None: as PyTorch is set, by default for convolutions only.
    """

    deterministic: bool = False
    tf32: bool | None = None


def configure_torch(threads: int, device: str, gpu: GpuMath | None = None) -> None:
    """Sets the threads of a process, and how a GPU computes, if `device` is one.  Call it before
    any computation on a GPU: cuBLAS reads its setting at its start.
    """
    torch.set_num_threads(threads)
    _keep_freed_memory()
    if gpu is None or not device.startswith("cuda"):
        return
    if gpu.tf32 is not None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = gpu.tf32
    if gpu.deterministic:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        # Operations without such an algorithm cause a warning and no error.
        torch.use_deterministic_algorithms(True, warn_only=True)
        _FILLING.fill_uninitialized_memory = False


def _keep_freed_memory() -> None:
    """Has glibc keep up to _KEPT_BYTES of freed memory: it would return what is over 64 MiB to the
    system and fetch it again in each update, by a page fault for every 4 KiB.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _KEPT_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)


@contextmanager
def torch_settings(threads: int, device: str, gpu: GpuMath) -> Iterator[None]:
    """`configure_torch` within the block, PyTorch's former settings after it; what freed memory is
    kept does not change back.  Raises ConfigError if this process can't have several threads.
    """
    if threads > 1 and _lacks_threads:
        raise ConfigError(
            "runtime.threads must be 1 in a fork of a process that has used several threads, "
            f"got {threads}, as PyTorch would hang; use runtime.threads 1, or start the "
            "process by multiprocessing's spawn"
        )
    with ExitStack() as ends:
        ends.callback(torch.set_num_threads, torch.get_num_threads())
        if device.startswith("cuda"):
            ends.callback(_gpu_restorer())
        configure_torch(threads, device, gpu)
        # Memory that is made in inference mode could not be learned from later.
        with ExitStack() as modes:
            _leave_modes(modes)
            yield


def _gpu_restorer() -> Callable[[], None]:
    """A function that restores PyTorch's present settings for GPUs."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    algorithms = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filling, workspace = _FILLING.fill_uninitialized_memory, os.environ.get(_WORKSPACE)
    restore_tf32 = _tf32_restorer()

    def restore() -> None:
        cudnn.deterministic, cudnn.benchmark = before
        restore_tf32()
        now = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if now != algorithms:  # setting it imports PyTorch's compiler, which takes seconds
            torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        _FILLING.fill_uninitialized_memory = filling
        if workspace is None:  # a value that was set before was not changed
            os.environ.pop(_WORKSPACE, None)

    return restore


def _tf32_restorer() -> Callable[[], None]:
    """A function that restores TF32's present setting."""
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    try:
        products, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:  # the user has set PyTorch's newer names, and older ones can't be read
        parts = matmul, cudnn.conv, cudnn.rnn
        each = [part.fp32_precision for part in parts]

        def restore() -> None:
            for part, precision in zip(parts, each, strict=True):
                part.fp32_precision = precision

        return restore

    def restore_older() -> None:
        cudnn.allow_tf32 = convolutions
        if torch.get_float32_matmul_precision() != products:
            torch.set_float32_matmul_precision(products)

    return restore_older


@final
class OwnTorch:
    """A context manager and decorator that sets PyTorch in this thread as quintet's
    computations need it: float32 and the CPU by default, with gradients, without autocast and
    inference mode.  Afterwards the user's settings are back.  It takes a microsecond where
    nothing was set.
    """

    def __init__(self, threads: int | None = None) -> None:
        """threads: number of threads of PyTorch's CPU kernels within the block (one in a fork of a
        process that has computed in several); None: unchanged.
        """
        self._threads = threads
        self._before: int | None = None
        self._ends: ExitStack | None = None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        threads = self._threads

        @wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> R:
            # Every action comes through here: a block would take twice as long.
            settled = not _lacks_threads and (_threaded or torch.get_num_threads() == 1)
            if threads is None and settled and _is_plain():
                return function(*args, **kwargs)
            with OwnTorch(threads):
                return function(*args, **kwargs)

        return inner

    def __enter__(self) -> None:
        global _threaded
        before = torch.get_num_threads()
        threads = 1 if _lacks_threads else self._threads or before
        if threads > 1:
            _threaded = True
        if before != threads:
            torch.set_num_threads(threads)
            self._before = before
        if not _is_plain():
            self._ends = ExitStack()
            _make_plain(self._ends)

    def __exit__(self, *_: object) -> None:
        if self._ends is not None:
            self._ends.close()
        if self._before is not None:
            torch.set_num_threads(self._before)


def _is_plain() -> bool:
    return (
        torch.get_default_dtype() is torch.float32
        and torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch._C._is_any_autocast_enabled()
        and not torch._C._len_torch_function_stack()  # such as that of a default device
    )


def _make_plain(ends: ExitStack) -> None:
    """Sets the settings of `OwnTorch`, until `ends`."""
    dtype = torch.get_default_dtype()
    if dtype is not torch.float32:
        torch.set_default_dtype(torch.float32)
        ends.callback(torch.set_default_dtype, dtype)
    _leave_modes(ends)
    # A new tensor tells the device: PyTorch 2.7's `get_default_device` knows nothing of blocks.
    if torch.empty(0).device.type != "cpu":
        ends.enter_context(torch.device("cpu"))


def _leave_modes(ends: ExitStack) -> None:
    """Leaves the caller's inference mode, gradient mode and autocast, until `ends`."""
    ends.enter_context(torch.inference_mode(False))
    ends.enter_context(torch.enable_grad())
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            ends.enter_context(torch.autocast(device, enabled=False))


@contextmanager
def inexact_told(say: Callable[[str], None]) -> Iterator[None]:
    """Reports once per operation, within the block, that PyTorch calls it nondeterministic."""
    reported: set[str] = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("default", message=f".*{_SIGN}")
        show = warnings.showwarning

        def tell(message: Warning | str, *rest: Any, **named: Any) -> None:
            """Shows a warning, or says once per operation that it is not deterministic."""
            operation, sign, _ = str(message).partition(_SIGN)
            if not sign:
                show(message, *rest, **named)
            elif operation not in reported:
                reported.add(operation)
                say(
                    f"not exact on this GPU: PyTorch has no deterministic {operation}, so the same "
                    "run may give other results; use --runtime.device cpu where that matters"
                )

        warnings.showwarning = tell
        yield
