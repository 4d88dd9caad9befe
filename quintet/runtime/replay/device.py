"""Large leaves of a replay's observations on the learner's GPU, where draws find them.

The rings on the CPU stay complete: they are what a resumed run reads.  An observation never changes
once it is stored, so only new rows are copied, each once, before the next draw; then a draw sends
numbers of rows instead of pictures.
"""

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from quintet.runtime.replay.ring_files import Numbers
from quintet.runtime.replay.store import RowStore
from quintet.runtime.replay.stored_batch import as_tensor
from quintet.system.transfer import to_device
from quintet.types import TensorSpec

_AT_ONCE_BYTES = 2**26
"""Bytes of rows that are copied together, through as much memory of the CPU."""


def large_leaves(store: RowStore) -> Mapping[str, TensorSpec]:
    """Leaves of the observation that are large enough for a copy, by field: those outside of the
    records of rows; of stacks of frames the newest frame.
    """
    specs = store.rows.specs
    return {name: specs[name] for name in store.layout.leaves if name not in store.packed}


def device_bytes(store: RowStore) -> int:
    """Bytes that `OnDevice` takes of the GPU."""
    rows = store.rows.num_streams * store.rows.length
    return rows * sum(spec.nbytes for spec in large_leaves(store).values())


@final
class OnDevice:
    """Copies of the large leaves on a GPU.

    leaves: their fields.
    """

    def __init__(self, store: RowStore, device: torch.device):
        self._store, self._device = store, device
        rows = store.rows.num_streams * store.rows.length
        self._fields = {
            name: torch.zeros((rows, *spec.shape), dtype=spec.dtype, device=device)
            for name, spec in large_leaves(store).items()
        }
        self.leaves = frozenset(self._fields)
        # Number of each stream's newest row that is there.
        self._newest = np.maximum(store.head - store.layout.needed_rows, 0) - 1

    def catch_up(self) -> None:
        """Copies the rows that were stored since the last call; the host waits for none of them."""
        store = self._store
        counts = np.minimum(store.head - self._newest, store.rows.length)
        ends = counts.cumsum()
        stream = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(int(ends[-1])) + np.repeat(store.head - ends + 1, counts)
        place = store.rows.at(stream, number)
        of_row = sum(spec.nbytes for spec in large_leaves(store).values())
        for part in np.split(place, range(0, len(place), max(1, _AT_ONCE_BYTES // of_row))[1:]):
            copy = to_device(torch.from_numpy(part), self._device)
            for name, field in self._fields.items():
                values = to_device(store.rows.read(name, part), self._device)
                field.index_copy_(0, copy, values)
        self._newest[:] = store.head

    def read(self, name: str, stream: Numbers, number: Numbers, place: Numbers) -> Tensor:
        """Observations as `RowStore.read_obs` returns them, on the GPU."""
        field, stack = self._fields[name], self._store.stacks.get(name)
        if stack is None:
            return field.index_select(0, self._sent(place)).view(*place.shape, *field.shape[1:])
        origins = stack.origins(stream, number, place)
        frames = field.index_select(0, self._sent(origins.rows))
        if len(origins.zero):
            frames.index_fill_(0, self._sent(origins.zero), 0)
        if len(origins.whole):
            kept = to_device(as_tensor(origins.frames, field.dtype), self._device)
            frames.index_copy_(0, self._sent(origins.whole), kept)
        return frames.view(*place.shape, *self._store.layout.leaves[name].shape)

    def _sent(self, numbers: Numbers) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(numbers.reshape(-1))), self._device)
