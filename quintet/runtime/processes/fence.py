"""A full memory barrier between processes that share memory (see `params.Board`).

x86 keeps the order of ordinary loads and of stores; a locked instruction, as in taking a lock,
orders non-temporal stores too.  On other processors a lock is no fence: accesses before and after
it may both move into it, and change places there.
"""

import ctypes
import errno
import platform
import sys
from collections.abc import Callable
from functools import cache
from threading import Lock

from quintet.errors import ConfigError

_ORDERED = ("x86_64", "amd64", "i386", "i686")
"""Machine types that keep the order of loads and of stores."""

# linux/membarrier.h and asm/unistd.h
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2
_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}


@cache
def fence() -> Callable[[], None]:
    """A function that completes all earlier reads and writes of this process, as every process sees
    them, before any later ones; raises ConfigError if this machine has no such barrier.
    """
    return fence_of(platform.machine(), sys.platform)


def fence_of(machine: str, system: str) -> Callable[[], None]:
    """`fence` for a kind of machine; the function works on this machine only."""
    if machine.lower() in _ORDERED:
        return _locked
    if system == "linux" and machine in _MEMBARRIER:
        return membarrier(_MEMBARRIER[machine])
    if system == "darwin":
        barrier = ctypes.CDLL(None).OSMemoryBarrier
        barrier.argtypes, barrier.restype = [], None
        return lambda: barrier()
    raise _refusal(machine, "none is known")


def membarrier(number: int) -> Callable[[], None]:
    """Linux's membarrier(2), the system call of that number: with GLOBAL_EXPEDITED a full barrier
    on every running thread of every process that has registered, as this one does here.  Raises
    ConfigError if the kernel, or a sandbox around this process, refuses it.
    """
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
    system_call.restype = ctypes.c_long

    def call(command: int) -> None:
        if system_call(number, command, 0, 0) != 0:
            name = errno.errorcode.get(ctypes.get_errno(), "an error")
            raise _refusal(platform.machine(), f"membarrier(2) returned {name}")

    call(_REGISTER_GLOBAL_EXPEDITED)
    call(_GLOBAL_EXPEDITED)
    return lambda: call(_GLOBAL_EXPEDITED)


_LOCK = Lock()


def _locked() -> None:
    with _LOCK:
        pass


def _refusal(machine: str, why: str) -> ConfigError:
    return ConfigError(
        f"worker processes need a memory barrier between processes, which this machine lacks "
        f"({machine}: {why}); use --runtime.kind serial"
    )
