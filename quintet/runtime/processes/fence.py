"""A full memory barrier between processes that share memory.

Weights in shared memory are guarded by versions that are written before and after them
(`quintet.runtime.processes.params`), which needs that writes are seen in their order and reads are
done in theirs.  x86 promises both of ordinary loads and stores; taking a lock, a locked
instruction, orders there what goes past the cache as well.  Other processors promise neither, and a
lock is no fence on them: what stands before it may sink into it, what stands after it may rise into
it, and there they may change places.
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
"""Machines on which loads are seen in order, and stores are."""

# linux/membarrier.h and asm/unistd.h
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2
_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}


@cache
def fence() -> Callable[[], None]:
    """What this process calls so that all it has read and written before is done before what it
    reads and writes after, in the eyes of all processes.

    Raises:
        ConfigError: there is nothing on this machine that does so.
    """
    return fence_of(platform.machine(), sys.platform)


def fence_of(machine: str, system: str) -> Callable[[], None]:
    """The same for a kind of machine; what it gives works on the machine at hand alone."""
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
    """Linux's membarrier(2), the system call of that number: with GLOBAL_EXPEDITED it is a full
    barrier on every running thread of every process that has registered, as this one does here.

    Raises:
        ConfigError: the kernel, or who has confined this process, refuses it.
    """
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
    system_call.restype = ctypes.c_long

    def call(command: int) -> None:
        if system_call(number, command, 0, 0) != 0:
            name = errno.errorcode.get(ctypes.get_errno(), "an error")
            raise _refusal(platform.machine(), f"membarrier(2) answers {name}")

    call(_REGISTER_GLOBAL_EXPEDITED)
    call(_GLOBAL_EXPEDITED)
    return lambda: call(_GLOBAL_EXPEDITED)


def _locked() -> None:
    """A locked instruction."""
    with _LOCK:
        pass


_LOCK = Lock()


def _refusal(machine: str, why: str) -> ConfigError:
    return ConfigError(
        f"worker processes require a memory barrier between processes, on this machine ({machine}) "
        f"there is none ({why}); use --runtime.kind serial"
    )
