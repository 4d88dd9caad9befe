"""Copies between the CPU and a GPU: the host never waits for copies to the GPU, and waits once for
a copy from it.

A copy to a GPU blocks the host unless its source is page-locked, and every copy costs some
microseconds, however small it is.  So many tensors travel as one block of bytes, cut into views.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

K = TypeVar("K")

_ALIGNMENT = 16
"""Alignment in bytes of tensors on a GPU, which fast kernels need."""

_LARGE_BYTES = 2**20
"""Size in bytes from which PyTorch, with several threads, copies a tensor into a block; NumPy
copies smaller ones."""


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on `device`, without a wait; one that is page-locked already must not
    change before it has arrived.
    """
    if device.type != "cuda" or not x.is_cpu:
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def places_of(mask: Tensor, device: torch.device) -> Tensor:
    """The places ``[N]`` in a flat mask where it is set, on `device`; without a wait if the mask is
    on the CPU.
    """
    return to_device(mask.flatten().nonzero().squeeze(1), device)


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """Copies of the rows ``[N, ...]`` at places among the T * B rows of a ``[T, B, ...]``."""
    return x.flatten(0, 1).index_select(0, places)


@final
@dataclass(frozen=True)
class Use:
    """Rows of a batch ``[T, B]`` that a learner uses, on its device.

    mask: bool ``[T, B]``.
    places: ``[N]``, ascending, of the rows among all T * B.
    """

    mask: Tensor
    places: Tensor

    @classmethod
    def of(cls, on_cpu: Tensor, device: torch.device) -> "Use":
        """The rows where a mask on the CPU is set."""
        return cls(to_device(on_cpu, device), places_of(on_cpu, device))

    def take(self, x: Tensor) -> Tensor:
        """The rows ``[N, ...]`` of a tensor ``[T, B, ...]``, copied."""
        return rows_at(x, self.places)


def page_locked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors of the CPU as views of one block of page-locked memory."""
    layout = _layout(_forms(tensors), _ALIGNMENT)
    return layout.cut(layout.page_locked(tensors))


def all_to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU on `device`, without a wait, by one copy, or by two if some of them are
    views that `page_locked` made; the memory of views must not change before it has arrived.
    """
    if device.type != "cuda":
        return [x.to(device) for x in tensors]
    found = list(tensors)
    locked = _locked(tensors)
    others = [i for i in range(len(found)) if i not in locked]
    for group in filter(None, (locked, others)):
        of_group = [found[i] for i in group]
        layout = _layout(_forms(of_group), _ALIGNMENT)
        if group is locked:
            memory = torch.empty(0, dtype=torch.uint8).set_(of_group[0].untyped_storage())
        else:
            memory = layout.page_locked(of_group)
        copies = layout.cut(memory.to(device, non_blocking=True))
        for i, x in zip(group, copies, strict=True):
            found[i] = x
    return found


def to_host(tensors: Mapping[K, Tensor]) -> Mapping[K, Tensor]:
    """The tensors on the CPU, by name; tensors of a GPU are copied together, with one wait."""
    names = [name for name, x in tensors.items() if x.is_cuda]
    if not names:
        return tensors
    of_gpu = [tensors[name].detach() for name in names]
    if (block := whole_block(of_gpu)) is not None:
        here = torch.empty(block.shape, dtype=torch.uint8, pin_memory=True).copy_(block)
        return {**tensors, **dict(zip(names, views_in(of_gpu, here), strict=True))}
    layout = _layout(_forms(of_gpu), 1)
    flat = [_flatten_dense_tensors([of_gpu[i] for i in part.tensors]) for part in layout.parts]  # type: ignore[no-untyped-call]
    joined = flat[0] if len(flat) == 1 else torch.cat([x.view(torch.uint8) for x in flat])
    memory = torch.empty(layout.size, dtype=torch.uint8, pin_memory=True)
    memory.copy_(joined.view(torch.uint8))
    return {**tensors, **dict(zip(names, layout.cut(memory), strict=True))}


def _locked(tensors: Sequence[Tensor]) -> list[int]:
    """Indices of the tensors, in order, that are all views of one block of `page_locked`."""
    if not tensors[0].is_pinned():
        return []
    memory = tensors[0].untyped_storage()
    begin = memory.data_ptr()
    inside = [i for i, x in enumerate(tensors) if x.untyped_storage().data_ptr() == begin]
    views = [tensors[i] for i in inside]
    layout = _layout(_forms(views), _ALIGNMENT)
    if layout.size != memory.nbytes() or not all(x.is_contiguous() for x in views):
        return []
    places = [x.storage_offset() * x.element_size() for x in views]
    return inside if places == layout.places else []


# Blocks


def whole_block(tensors: Sequence[Tensor]) -> Tensor | None:
    """The bytes of the one block that several tensors are views of, if they fill most of it."""
    memory = tensors[0].untyped_storage()
    begin, used = memory.data_ptr(), 0
    for x in tensors:
        if x.untyped_storage().data_ptr() != begin or not x.is_contiguous():
            return None
        used += x.nbytes
    if len(tensors) < 2 or 2 * used < memory.nbytes() or memory.nbytes() % 8:
        return None
    bytes_of_one = tensors[0].detach().view(-1).view(torch.uint8)
    return bytes_of_one.as_strided((memory.nbytes(),), (1,), 0)


def views_in(views: Sequence[Tensor], block: Tensor) -> list[Tensor]:
    """The views of one block, in a copy of it."""
    of_dtype: dict[torch.dtype, Tensor] = {}
    found = []
    for x in views:
        if (whole := of_dtype.get(x.dtype)) is None:
            whole = of_dtype[x.dtype] = block.view(x.dtype)
        found.append(whole.as_strided(x.shape, x.stride(), x.storage_offset()))
    return found


def pack(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A block of bytes with copies of tensors of a device, and these copies."""
    layout = _layout(_forms(tensors), _ALIGNMENT)
    block = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    views = layout.cut(block)
    with torch.no_grad():
        copy_into(views, tensors)
    return block, views


def copy_into(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copies the tensors into others; on a GPU by one kernel for those of equal dtypes."""
    kinds: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for x, y in zip(into, tensors, strict=True):
        if x.is_cuda and y.is_cuda:
            of_kind = kinds.setdefault((x.dtype, y.dtype), ([], []))
            of_kind[0].append(x)
            of_kind[1].append(y)
        else:
            x.copy_(y)
    for of_kind in kinds.values():
        torch._foreach_copy_(*of_kind)


_Forms = tuple[tuple[torch.dtype, torch.Size], ...]


def _forms(tensors: Sequence[Tensor]) -> _Forms:
    return tuple([(x.dtype, x.shape) for x in tensors])


class _Part(NamedTuple):
    """The part of a block with all tensors of one dtype.

    begin, end: its bytes.
    tensors: their numbers, in order.
    cuts: shape, stride and offset of each, in the whole block.
    """

    dtype: torch.dtype
    begin: int
    end: int
    tensors: list[int]
    cuts: list[tuple[torch.Size, tuple[int, ...], int]]


class _Layout(NamedTuple):
    """Places of tensors in a block of `size` bytes; places: the first byte of each."""

    forms: _Forms
    parts: list[_Part]
    places: list[int]
    size: int

    def page_locked(self, tensors: Sequence[Tensor]) -> Tensor:
        """A block of page-locked memory with copies of tensors of the CPU."""
        memory = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
        block = memory.numpy()
        # NumPy's calls take a fraction of the time of PyTorch's.
        for x, place in zip(tensors, self.places, strict=True):
            given = (x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy()
            into: Any = np.ndarray(given.shape, given.dtype, block, place)
            if given.nbytes < _LARGE_BYTES:
                into[...] = given
            else:
                torch.from_numpy(into).copy_(torch.from_numpy(given))
        return memory

    def cut(self, memory: Tensor) -> list[Tensor]:
        """The tensors as views of a filled block."""
        found: list[Any] = [None] * len(self.forms)
        for part in self.parts:
            block = memory[part.begin : part.end].view(part.dtype)
            for i, cut in zip(part.tensors, part.cuts, strict=True):
                found[i] = block.as_strided(*cut)
        return found


@lru_cache
def _layout(forms: _Forms, alignment: int) -> _Layout:
    """The layout of tensors of these dtypes and shapes, each at a multiple of `alignment`; those
    with the widest elements come first, so that every place is a multiple of its element's size.
    """
    dtypes = sorted({dtype for dtype, _ in forms}, key=lambda x: (-x.itemsize, str(x)))
    parts, places, end = [], [0] * len(forms), 0
    for dtype in dtypes:
        begin, inside = end, [i for i, form in enumerate(forms) if form[0] is dtype]
        cuts = []
        for i in inside:
            places[i], shape = end, forms[i][1]
            stride = torch.empty(shape, device="meta").stride()
            cuts.append((shape, stride, end // dtype.itemsize))
            end += -(-shape.numel() * dtype.itemsize // alignment) * alignment
        parts.append(_Part(dtype, begin, end, inside, cuts))
    return _Layout(forms, parts, places, end)
