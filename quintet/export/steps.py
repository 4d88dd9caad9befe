"""The recorded steps of a certificate: what a policy saw, and what it answered.

Arrays are ``[T, B, ...]``: T rows of B streams, each stream a sequence of whole episodes one after
another; the state is fed back from row to row.
"""

import io
import math
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from quintet.errors import ExportError
from quintet.export.interface import INPUTS, Interface, Port
from quintet.system import memory

STEPS = "steps.npz"

Observations = Literal["environment", "space"]

STATE_EVERY = 16
"""Rows between two stored states, since states may be larger than all else; every row is compared
when the export is made.
"""

Arrays = dict[str, np.ndarray[Any, Any]]

_HEADER = 4096
"""Most bytes of an array's header in the file."""

_FAULTS = (
    *(ValueError, KeyError, TypeError, OSError, EOFError, MemoryError, RuntimeError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error),
)
"""Errors of a damaged archive."""


@final
@dataclass(frozen=True)
class Steps:
    """Inputs and answers of T x B steps.

    inputs: by the program's names, without the state, which begins with zeros.
    greedy: all outputs, by name, when the noise is 0.
    sampled: the actions for the recorded noise; empty for a policy that does not sample.
    """

    inputs: Arrays
    greedy: Arrays
    sampled: Arrays

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def streams(self) -> int:
        return int(next(iter(self.inputs.values())).shape[1])

    def packed(self, interface: Interface) -> bytes:
        """The file's content, with every `STATE_EVERY`-th row of the states."""
        arrays: dict[str, Any] = {}
        for name, port, kind, _ in _listed(interface, self.rows, self.streams):
            source = {"in": self.inputs, "greedy": self.greedy, "sampled": self.sampled}[kind]
            arrays[name] = source[port.name][:: STATE_EVERY if port.role == "next_state" else 1]
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        return file.getvalue()


def _listed(
    interface: Interface, rows: int, streams: int
) -> list[tuple[str, Port, str, tuple[int, ...]]]:
    """Name, port, kind (in, greedy or sampled) and shape of every array in the file."""
    found = []
    for port in (*interface.inputs, *interface.outputs):
        if port.role == "state":
            continue
        count = -(-rows // STATE_EVERY) if port.role == "next_state" else rows
        shape = (count, streams, *port.shape)
        kinds = ["in" if port.role in INPUTS else "greedy"]
        if port.role == "action" and interface.samples:
            kinds.append("sampled")
        found += [(f"{kind}/{port.name}", port, kind, shape) for kind in kinds]
    return found


def unpacked(data: bytes, interface: Interface, rows: int, streams: int) -> Steps:
    """The steps in a file's content; the states are those that it holds.  Raises ExportError if
    it is not what the interface describes.
    """
    listed = _listed(interface, rows, streams)
    needed = sum(port.row_bytes * math.prod(shape[:2]) for _, port, _, shape in listed)
    memory.require(3 * needed, f"the recorded steps in {STEPS}", "verify it on a larger machine")
    kinds: dict[str, Arrays] = {"in": {}, "greedy": {}, "sampled": {}}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if sorted(sizes) != sorted(f"{name}.npy" for name, *_ in listed):
                raise ValueError(f"it holds the arrays {sorted(sizes)[:5]}")
            for name, port, kind, shape in listed:
                most = port.row_bytes * math.prod(shape[:2]) + _HEADER
                if sizes[f"{name}.npy"] > most:
                    raise ValueError(f"{name} has {sizes[f'{name}.npy']:,} bytes")
                with archive.open(f"{name}.npy") as file:
                    # A limit, because an entry that lies about its size is unpacked whole.
                    content = file.read(most)
                array = np.load(io.BytesIO(content), allow_pickle=False)
                if (array.shape, array.dtype) != (shape, np.dtype(port.dtype)):
                    raise ValueError(f"{name} is {array.dtype} {array.shape}")
                kinds[kind][port.name] = array
    except _FAULTS as fault:
        raise ExportError(
            f"{STEPS} must hold the steps that policy.json describes, got {_brief(fault)}: it is "
            "damaged; export the policy again"
        ) from fault
    return Steps(kinds["in"], kinds["greedy"], kinds["sampled"])


def _brief(fault: BaseException) -> str:
    text = " ".join(str(fault).split())
    return f"{type(fault).__name__}: {text[:200]}"
