"""Weights in shared memory: versioned publications that are never read half-written."""

import time
from collections.abc import Callable
from typing import final

import torch

from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.fence import fence
from quintet.system.transfer import to_host
from quintet.types import Publication, TensorSpec

_BUFFERS = 3
"""Number of buffers: the newest, the one being written, and one that a reader still copies."""


def board_specs(policy: int, publication: Publication) -> dict[str, TensorSpec]:
    """The tensors of a policy's board in an arena, for publications of this form."""
    of_one = {k: TensorSpec(tuple(x.shape), x.dtype) for k, x in publication.tensors.items()}
    version = TensorSpec((_BUFFERS,), torch.int64)
    specs = {"begun": version, "whole": version, "newest": TensorSpec((1,), torch.int64)}
    for buffer in range(_BUFFERS):
        specs |= prefixed(f"{buffer}/", of_one)
    return prefixed(f"board/{policy}/", specs)


@final
class Board:
    """The last publications of one policy, written by one process and read by any number.

    A buffer's `begun` is set before it is written and its `whole` after.  A reader reads `whole`,
    copies the buffer, and reads `begun`: if both hold the same version, the copy is that version
    and nothing else.  Versions are stored plus one; 0 marks an empty buffer.

    Fences make this correct.  If a reader has copied anything of a later version, the writer's
    fence after `begun` came before that copy, and the reader's own fence comes before its read of
    `begun`: so it finds the later version there.  And a reader that finds `whole` finds all of that
    version.
    """

    def __init__(self, arena: Arena, policy: int):
        """Raises ConfigError if this machine has no fence between processes."""
        self._fence, self.policy = fence(), policy
        place = f"board/{policy}/"
        self.begun = arena.tensor(place + "begun").numpy()
        self.whole = arena.tensor(place + "whole").numpy()
        self.newest = arena.tensor(place + "newest").numpy()
        self.buffers = [arena.below(f"{place}{buffer}/") for buffer in range(_BUFFERS)]

    def write(self, publication: Publication) -> None:
        """Writes a publication; the newest one stays readable meanwhile."""
        tensors = to_host(publication.tensors)
        buffer = (int(self.newest[0]) + 1) % _BUFFERS
        self.whole[buffer] = 0
        self.begun[buffer] = publication.version + 1
        self._fence()
        for name, x in self.buffers[buffer].items():
            x.copy_(tensors[name])
        self._fence()
        self.whole[buffer] = publication.version + 1
        self._fence()
        self.newest[0] = buffer

    @property
    def version(self) -> int:
        """Version of the newest publication; -1 before the first."""
        return int(self.whole[self.newest[0]]) - 1

    def read(self, load: Callable[[Publication], None], version: int | None = None) -> int:
        """Calls `load` on the newest publication, or on the one with `version`, which must be one
        of the last two; returns its version.  `load` must copy, and is called again if the writer
        overtook it.
        """
        while True:
            buffer = int(self.newest[0])
            if version is not None:
                buffer = int((self.begun == version + 1).argmax())
            whole = int(self.whole[buffer])
            if whole and (version is None or whole == version + 1):
                self._fence()
                load(Publication(whole - 1, self.buffers[buffer], self.policy))
                self._fence()
                if self.begun[buffer] == whole:
                    return whole - 1
            elif version is not None:
                raise AssertionError(f"version {version} is not on the board: {self.begun - 1}")
            time.sleep(0)  # overtaken: gives the writer time to finish
