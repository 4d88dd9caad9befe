"""Copies between the CPU and a GPU: for those to it the host never waits, for one from it once.

A copy to a GPU blocks the host unless its source is page-locked, and every copy costs some
microseconds, however small it is.  So many tensors travel as one block of bytes, cut into views.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")

_ALIGNMENT = 64
"""Bytes, of which the place of each tensor in a block is a multiple."""


def sent(x: Tensor, device: torch.device) -> Tensor:
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
    return sent(mask.flatten().nonzero().squeeze(1), device)


def page_locked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors of the CPU as views of one block of page-locked memory."""
    places, size = _places(tensors)
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    views = _cut(memory, tensors, places)
    for view, x in zip(views, tensors, strict=True):
        view.copy_(x)
    return views


def sent_all(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU on `device`, without a wait and by one copy, or two if only some of them
    are the views that `page_locked` made, whose memory must not change before it has arrived.
    """
    if device.type != "cuda":
        return [x.to(device) for x in tensors]
    found = list(tensors)
    locked = _locked(tensors)
    others = [i for i in range(len(found)) if i not in locked]
    block = page_locked([found[i] for i in others])
    for group, views in (([*locked], [found[i] for i in locked]), (others, block)):
        if group:
            there = _whole_block(views[0]).to(device, non_blocking=True)
            for i, x in zip(group, _cut(there, views, _places(views)[0]), strict=True):
                found[i] = x
    return found


def _locked(tensors: Sequence[Tensor]) -> list[int]:
    """Which of the tensors are all the views of one block of `page_locked`, in order."""
    memory = tensors[0].untyped_storage()
    inside = [i for i, x in enumerate(tensors) if _memory_of(x) == memory.data_ptr()]
    views = [tensors[i] for i in inside]
    places, size = _places(views)
    offsets = [x.storage_offset() * x.element_size() for x in views]
    whole = size == memory.nbytes() and offsets == places
    return inside if whole and tensors[0].is_pinned() else []


def _memory_of(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _whole_block(view: Tensor) -> Tensor:
    """The block that the tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())


def fetched(tensors: Mapping[K, Tensor]) -> Mapping[K, Tensor]:
    """The tensors on the CPU, by name; those of a GPU as copies, by one copy and one wait."""
    # By falling size of numbers, each place is a multiple of it without gaps.
    of_gpu = {name: x for name, x in tensors.items() if x.is_cuda}
    names = sorted(of_gpu, key=lambda name: -of_gpu[name].element_size())
    if not names:
        return tensors
    parts = [of_gpu[name].detach().contiguous().flatten().view(torch.uint8) for name in names]
    joined = torch.cat(parts)
    memory = torch.empty(joined.shape, dtype=torch.uint8, pin_memory=True).copy_(joined)
    places = [0, *accumulate(part.numel() for part in parts)][:-1]
    views = _cut(memory, [of_gpu[name] for name in names], places)
    return {**tensors, **dict(zip(names, views, strict=True))}


def _places(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """The first byte of each tensor in a block, and the block's bytes."""
    places, size = [], 0
    for x in tensors:
        places.append(size)
        size += -(-x.numel() * x.element_size() // _ALIGNMENT) * _ALIGNMENT
    return places, size


def _cut(memory: Tensor, like: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
    """Views of a block at these places, with the dtypes and shapes of `like`."""
    return [
        memory[place : place + x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        for x, place in zip(like, places, strict=True)
    ]
