"""Shared memory: one block of named tensors that is freed even after a crash."""

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self, final

import torch
from torch import Tensor

from quintet.errors import ConfigError
from quintet.system.memory import free_bytes
from quintet.types import TensorSpec

_ALIGNMENT = 64  # bytes, a cache line: neighbours are written by different processes


@final
class Arena:
    """Named tensors in one block of memory that several processes map.

    The block has no name in the file system, so it is freed when the last process that maps it
    ends, however.  Other processes inherit the file descriptor and are given the same specs.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], file: int):
        """Maps the block of an open file; `create` makes a new one."""
        self.specs, self.file = dict(specs), file
        self._offsets, size = _places(specs)
        # The mapping lives as long as a tensor over it.
        self._bytes = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)

    @classmethod
    def create(cls, specs: Mapping[str, TensorSpec], folder: Path | None = None) -> Self:
        """A new block, zeroed, of which all memory is allocated at once; `folder`: folder of an
        unlinked file in place of the memfd.  Raises ConfigError if there is too little memory.
        """
        _, size = _places(specs)
        # Refuses a block for which the system would have to kill processes.
        free = free_bytes()
        if size > free:
            raise ConfigError(_too_large(size, f"{free:,.0f} bytes are free"))
        file = _open_unnamed(folder)
        try:
            os.ftruncate(file, size)
            if sys.platform == "linux":
                # Else the first write to a page that memory lacks would kill the process.
                os.posix_fallocate(file, 0, size)
            return cls(specs, file)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise ConfigError(_too_large(size, error.strerror or "")) from error
            raise

    def tensor(self, name: str) -> Tensor:
        spec, offset = self.specs[name], self._offsets[name]
        part = self._bytes[offset : offset + spec.nbytes]
        return part.view(spec.dtype).view(spec.shape)

    def below(self, prefix: str) -> dict[str, Tensor]:
        """Views of the tensors whose names begin with `prefix`, by the rest of the name."""
        return {k[len(prefix) :]: self.tensor(k) for k in self.specs if k.startswith(prefix)}

    def span(self, first: str, last: str) -> memoryview:
        """All bytes from one tensor to another; the same specs have the same layout anywhere."""
        end = self._offsets[last] + self.specs[last].nbytes
        return self._bytes[self._offsets[first] : end].numpy().data

    def close(self) -> None:
        """Closes the file; the memory is freed with the last tensor that uses it."""
        os.close(self.file)


def prefixed(prefix: str, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    return {prefix + name: spec for name, spec in specs.items()}


def _places(specs: Mapping[str, TensorSpec]) -> tuple[dict[str, int], int]:
    """The offset of each tensor, and the size of the block, in bytes."""
    offsets, size = {}, 0
    for name, spec in specs.items():
        offsets[name] = size
        size += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(size, _ALIGNMENT)


def _open_unnamed(folder: Path | None) -> int:
    if folder is None and sys.platform == "linux":
        return os.memfd_create("quintet", os.MFD_CLOEXEC)
    file, name = tempfile.mkstemp(prefix="quintet-", dir=folder)
    os.unlink(name)
    return file


def _too_large(size: int, why: str) -> str:
    return (
        f"unrolls and weights must have shared memory of {size:,} bytes, got less "
        f"({why}); make room, lower env.num_streams or runtime.slots, or shorten unrolls"
    )
