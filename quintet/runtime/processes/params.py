"""Weights in shared memory: versioned publications that are never read half-written."""

import time
from collections.abc import Callable
from typing import final

import torch

from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.fence import fence
from quintet.types import Publication, TensorSpec

_BUFFERS = 3
"""One that is the newest, one that is being written, one that a slow reader may still copy."""


def board_specs(policy: int, publication: Publication) -> dict[str, TensorSpec]:
    """What the board of a policy takes in an arena, for publications like this one."""
    of_one = {k: TensorSpec(tuple(x.shape), x.dtype) for k, x in publication.tensors.items()}
    specs = {"begun": TensorSpec((_BUFFERS,), torch.int64)}
    specs |= {
        "whole": TensorSpec((_BUFFERS,), torch.int64),
        "newest": TensorSpec((1,), torch.int64),
    }
    for buffer in range(_BUFFERS):
        specs |= prefixed(f"{buffer}/", of_one)
    return prefixed(f"board/{policy}/", specs)


@final
class Board:
    """The last publications of one policy; one process writes, any number read.

    A buffer's `begun` is set before it is written and its `whole` after; who finds the same version
    in both, after he has copied, has copied that version and nothing else.  Versions are stored
    plus one, so that 0 is a buffer that holds none.

    That is so by fences.  If a reader has copied anything of a later version, its writer's fence
    after `begun` came before that copy, and the reader's own fence after it before his look at
    `begun`: he finds the later one there, and copies again.  If he has found `whole`, all of that
    version was there before, by the writer's fence and his own.
    """

    def __init__(self, arena: Arena, policy: int):
        """Raises:
        ConfigError: this machine has no fence between processes.
        """
        self._fence = fence()
        place = f"board/{policy}/"
        self.begun = arena.tensor(place + "begun").numpy()
        self.whole = arena.tensor(place + "whole").numpy()
        self.newest = arena.tensor(place + "newest").numpy()
        self.buffers = [arena.below(f"{place}{buffer}/") for buffer in range(_BUFFERS)]

    def write(self, publication: Publication) -> None:
        """Publishes; what the newest but one holds stays readable meanwhile."""
        buffer = (int(self.newest[0]) + 1) % _BUFFERS
        self.whole[buffer] = 0
        self.begun[buffer] = publication.version + 1
        self._fence()
        for name, x in self.buffers[buffer].items():
            x.copy_(publication.tensors[name])
        self._fence()
        self.whole[buffer] = publication.version + 1
        self._fence()
        self.newest[0] = buffer

    @property
    def version(self) -> int:
        """Of the newest publication; -1 before the first."""
        return int(self.whole[self.newest[0]]) - 1

    def read(self, load: Callable[[Publication], None], version: int | None = None) -> int:
        """Has `load` copy a publication - the newest, or the one of that version, which must be one
        of the last two - and returns its version.  `load` is called again where it was overtaken.
        """
        while True:
            buffer = int(self.newest[0])
            if version is not None:
                buffer = int((self.begun == version + 1).argmax())
            found = int(self.whole[buffer])
            if found and (version is None or found == version + 1):
                self._fence()
                load(Publication(found - 1, self.buffers[buffer]))
                self._fence()
                if self.begun[buffer] == found:
                    return found - 1
            elif version is not None:
                raise AssertionError(f"version {version} is not on the board: {self.begun - 1}")
            time.sleep(0)  # overtaken: by the time the others are given, the writer is done
