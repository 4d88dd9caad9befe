"""Messages about too little memory; this module imports nothing large."""

import errno
import math
import resource
from pathlib import Path

from quintet.errors import ConfigError, QuintetError
from quintet.system import cpus

LEAST_BYTES = 3 << 29
"""Least address space with which PyTorch can be used; the smallest run was measured at 1.25 GiB."""

_SIGNS = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "can't start new thread")
"""Parts of RuntimeError messages of PyTorch and Python that mean too little memory."""

_SIGNS_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""Error messages of a GPU's memory: of PyTorch's allocator, CUDA, cuBLAS and cuDNN."""


def check_address_space() -> None:
    """Raises ConfigError if PyTorch, not imported yet, has too little address space."""
    most = _most_bytes()
    if most is not None and most < LEAST_BYTES:
        raise ConfigError(
            f"PyTorch must have an address space of at least {LEAST_BYTES / 2**30:.1f} GiB, got a "
            f"limit of {most / 2**30:.1f} GiB; raise it (ulimit -v unlimited)"
        )


def memory_fault(error: BaseException) -> QuintetError | None:
    """The error to show if `error` means that memory ran out; None for other errors."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_GPU):
        return QuintetError(
            f"the GPU's memory ran out ({said}); end what else uses the GPU, lower "
            "env.num_streams, the rows of a minibatch, the length of unrolls or the width of the "
            "network, or use --runtime.device cpu"
        )
    if not (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS))
    ):
        return None
    return QuintetError(
        f"memory ran out ({said}{limit_told()}); make room, lower env.num_streams or "
        "runtime.num_workers, or shorten unrolls"
    )


def require(nbytes: int, what: str, way_out: str) -> None:
    """Raises ConfigError when `what` needs more bytes than are free; `way_out`: what to change."""
    free = free_bytes()
    if nbytes > free:
        raise ConfigError(
            f"{what} must have {nbytes:,} bytes of memory, got {free:,.0f} free{limit_told()}; "
            f"make room, or {way_out}"
        )


def free_bytes() -> float:
    """Memory that this process may allocate without other processes being killed."""
    import psutil

    left = map(_left_to_group, cpus.groups("memory"))
    free = min(psutil.virtual_memory().available, *left)
    used = psutil.Process().memory_info()
    # `data` is known on Linux alone.
    for most, taken in ((_most_bytes(), used.vms), (_most_data(), getattr(used, "data", 0))):
        free = free if most is None else min(free, max(0, most - taken))
    return free


def _left_to_group(folder: Path) -> float:
    """Free bytes within a control group's limit, the page cache included; infinite without."""
    limit, usage, prefix = "memory.max", "memory.current", ""
    if not (folder / limit).exists():
        limit, usage, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    try:
        most, used = (float((folder / name).read_text()) for name in (limit, usage))
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # ValueError: "max", no limit
        return math.inf
    kept = dict(line.split() for line in lines)
    files = sum(int(kept.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0.0, most - used + files)


def limit_told() -> str:
    """A process's limit of address space, for the end of a message; "" without a limit."""
    most = _most_bytes()
    return "" if most is None else f"; ulimit -v leaves each process {most / 2**30:.1f} GiB"


def _most_bytes() -> int | None:
    return _limit(resource.RLIMIT_AS)


def _most_data() -> int | None:
    return _limit(resource.RLIMIT_DATA)


def _limit(resource_id: int) -> int | None:
    most = resource.getrlimit(resource_id)[0]
    return None if most == resource.RLIM_INFINITY else most
