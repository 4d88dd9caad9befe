"""Too little memory, said in one sentence; imports nothing that takes much of it."""

import errno
import resource

from quintet.errors import ConfigError, QuintetError

LEAST_BYTES = 3 << 29
"""Address space without which PyTorch ends the whole process while it is loaded, or soon after: the
smallest run on CartPole was measured to take 1.25 GiB.
"""

_SIGNS = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "can't start new thread")
"""In the words of a RuntimeError of PyTorch's or Python's."""


def check_address_space() -> None:
    """To be called before PyTorch is imported.

    Raises:
        ConfigError: this process may not have enough of it.
    """
    most = _most_bytes()
    if most is not None and most < LEAST_BYTES:
        raise ConfigError(
            f"an address space of at least {LEAST_BYTES / 2**30:.1f} GiB is required for PyTorch, "
            f"the limit of memory is {most / 2**30:.1f} GiB; raise it (ulimit -v unlimited)"
        )


def memory_fault(error: BaseException) -> QuintetError | None:
    """An error that stands for want of memory, as a person should read it; None for others."""
    short = isinstance(error, MemoryError)
    short = short or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    short = short or (isinstance(error, RuntimeError) and any(s in str(error) for s in _SIGNS))
    if not short:
        return None
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return QuintetError(
        f"memory ran out ({said}{limit_told()}); make room, lower env.num_streams or "
        "runtime.num_workers, or shorten unrolls"
    )


def limit_told() -> str:
    """What a process may have at most, to follow what became of one; "" without a limit."""
    most = _most_bytes()
    return "" if most is None else f"; ulimit -v leaves each process {most / 2**30:.1f} GiB"


def _most_bytes() -> int | None:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most
