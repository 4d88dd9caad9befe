"""Many tensors travel to a GPU and back as one block, without a wait or with one."""

import optree
import standin_helpers
import torch
from gpu_cases_helpers import case_of

from quintet.runtime.batch import pinned
from quintet.system.transfer import all_to_device, page_locked, places_of, to_device, to_host

CUDA = torch.device("cuda")
DTYPES = (torch.bool, torch.float32, torch.int64, torch.uint8, torch.float64, torch.bfloat16)


def given() -> list[torch.Tensor]:
    """Tensors of all dtypes and of odd sizes, also empty, single and not contiguous."""
    shapes = [(3, 5), (1,), (), (0, 4), (7, 2, 3)]
    generator = torch.Generator().manual_seed(1)
    made = [
        (torch.rand(shape, generator=generator) * 99).to(dtype)
        for shape in shapes
        for dtype in DTYPES
    ]
    return [*made, torch.arange(24).view(4, 6)[:, 1:3], torch.arange(24.0).view(4, 6).t()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(one, other, strict=True)
    )


def test_a_block_goes_there_and_back() -> None:
    tensors = given()
    with standin_helpers.counting() as counts:
        there = all_to_device(tensors, CUDA)
    assert (counts.waits, counts.kinds["h2d_async"]) == (0, 1)
    assert all(x.device == torch.device("cuda:0") for x in there)
    assert all(x.data_ptr() % 16 == 0 for x in there if x.numel())
    with standin_helpers.counting() as counts:
        back = to_host({**dict(enumerate(there)), "here": tensors[0]})
    assert (counts.waits, counts.kinds["d2h"]) == (1, 1)
    assert same(list(back.values()), [*tensors, tensors[0]])


def test_what_is_page_locked_already_is_not_copied_again() -> None:
    tensors = given()
    locked = page_locked(tensors)
    with standin_helpers.counting() as counts:
        assert same([x.cpu() for x in all_to_device(locked, CUDA)], tensors)
    assert counts.kinds["h2d_async"] == 1
    assert counts.bytes["h2d_async"] == locked[0].untyped_storage().nbytes()
    # Some were replaced, as flags are.
    mixed = [*locked[:3], torch.tensor([True, False]), *locked[3:]]
    with standin_helpers.counting() as counts:
        there = all_to_device(mixed, CUDA)
    assert (counts.waits, counts.kinds["h2d_async"]) == (0, 2)
    assert same([x.cpu() for x in there], mixed)
    # A part of a block, and memory that is page-locked in another way, travel as any other.
    for others in (locked[:5], [torch.ones(3).pin_memory(), torch.ones(2)]):
        assert same([x.cpu() for x in all_to_device(others, CUDA)], others)


def test_a_page_locked_batch_holds_nothing_of_its_slot() -> None:
    """Which is filled again while the batch waits, and which replay compares with later ones."""
    batch = case_of("ddpg", "numbers").batches(1)[0][0]
    leaves, _ = optree.tree_flatten(vars(batch))
    before = [x.clone() for x in leaves if isinstance(x, torch.Tensor)]
    copied, _ = optree.tree_flatten(vars(pinned(batch)))
    for x in leaves:
        if isinstance(x, torch.Tensor):
            x.zero_()
    assert same([x for x in copied if isinstance(x, torch.Tensor)], before)


def test_a_mask_on_the_cpu_is_not_waited_for() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    with standin_helpers.counting() as counts:
        places, x = places_of(mask, CUDA), to_device(mask, CUDA)
    assert counts.waits == 0
    assert places.tolist() == [0, 3]
    assert x.is_cuda
