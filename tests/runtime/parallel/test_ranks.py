"""Exchanges between learners: what each gets, and what it hears when another is gone."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from adders_helpers import digest, make_batch
from torch import Tensor
from torch.distributed import HashStore

from quintet.runtime.parallel import ranks as ranks_module
from quintet.runtime.parallel.ranks import PeerGone, RankGroup
from quintet.system.compiler import too_old

CPU = torch.device("cpu")


def each(groups: list[RankGroup], work: Callable[[RankGroup], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(work, groups))


def connected(size: int, **options: Any) -> list[RankGroup]:
    groups, store = [RankGroup(i, size, CPU, **options) for i in range(size)], HashStore()
    each(groups, lambda one: one.connect(store))
    return groups


@pytest.mark.parametrize("numbers", [1, 7, 100_003])
def test_a_sum_has_the_same_bits_on_every_rank_and_twice(numbers: int) -> None:
    g = torch.Generator().manual_seed(numbers)
    given = [10.0 ** (i - 2) * torch.randn(numbers, generator=g) for i in range(5)]
    exact = torch.stack(given).double().sum(0)
    found: list[Tensor] = []
    for _ in range(2):
        found += each(connected(5), lambda one: one.sum(given[one.index].clone()))
    assert all(torch.equal(x, found[0]) for x in found)
    torch.testing.assert_close(found[0].double(), exact, rtol=5e-7, atol=1e-5)


def test_gather_keeps_the_order_and_what_is_not_finite() -> None:
    rows = torch.tensor([[1.0, torch.inf], [torch.nan, 2.0], [3.0, -torch.inf]])
    for found in each(connected(3), lambda one: one.gather(rows[one.index])):
        torch.testing.assert_close(found, rows, equal_nan=True, rtol=0, atol=0)


def test_broadcast_gives_the_tensors_of_the_first() -> None:
    def tensors(index: int) -> list[Tensor]:
        x = torch.arange(6.0).view(2, 3) + index
        return [
            torch.tensor(0.1 + index),  # without dimensions; what follows is not aligned
            x.double() / 3,
            x.t(),  # not contiguous
            torch.tensor([index == 0, True, False]),
            torch.tensor([2**40 + index]),
            torch.empty(0),
            x.to(torch.bfloat16),
        ]

    given = [tensors(index) for index in range(3)]
    each(connected(3), lambda one: one.broadcast(given[one.index]))
    for mine in given:
        for x, expected in zip(mine, tensors(0), strict=True):
            assert torch.equal(x, expected)
    each(connected(2), lambda one: one.broadcast([]))


def test_shards_are_the_batch() -> None:
    batch = make_batch(1, cut=True)
    shards = [RankGroup(i, 3, CPU).shard(batch) for i in range(3)]
    assert torch.equal(torch.cat([one.reward for one in shards], 1), batch.reward)
    assert torch.equal(torch.cat([one.stream_id for one in shards]), batch.stream_id)
    assert torch.equal(torch.stack([digest(one) for one in shards]).sum(0), digest(batch))


def test_who_waits_looks_and_hears_of_the_end() -> None:
    """The first waits for the second, which joins only once it was looked for."""
    looked = threading.Event()
    first, second = connected(2, watch=looked.set)
    joined: list[int] = []
    second._joined = joined.append

    def late(one: RankGroup) -> Tensor:
        if one is second:
            assert looked.wait(10)
        return one.sum(torch.ones(3))

    assert all(torch.equal(x, torch.full((3,), 2.0)) for x in each([first, second], late))
    assert (first.exchanges, joined) == (2, [2])

    def leaves(one: RankGroup) -> None:
        if one is second:
            one.close()
            return
        with pytest.raises(PeerGone):
            one.sum(torch.ones(3))

    each([first, second], leaves)


@pytest.mark.skipif(
    too_old() is not None, reason="PyTorch 2.7's gloo has one timeout, of 300 s, for both"
)
def test_an_exchange_may_take_longer_than_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "_CONNECT", timedelta(seconds=0.6))
    first, second = connected(2)

    def late(one: RankGroup) -> Tensor:
        time.sleep(1.5 * one.index)
        return one.sum(torch.ones(3))

    each([first, second], late)


def test_ranks_that_do_not_come_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "_CONNECT", timedelta(seconds=0.3))
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.3))
    with pytest.raises(PeerGone):
        RankGroup(0, 2, CPU).connect(store)


def test_what_the_watch_raises_ends_the_wait() -> None:
    def watch() -> None:
        raise KeyError("nobody is there")

    first, second = connected(2, watch=watch)
    with pytest.raises(KeyError, match="nobody is there"):
        first.sum(torch.ones(3))
    second.close()


class OnGPU:
    """An exchange on a GPU: its own `wait` waits for nothing, and must not be given a timeout.  It
    says that it is completed also when it has failed.
    """

    def __init__(self) -> None:
        self.waited = self.over = False

    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        self.waited = True
        return True


class GPUs:
    """A rank on a GPU that is not there, and its group, whose end ends the exchange."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watch: Callable[[], None]) -> None:
        monkeypatch.setattr(ranks_module, "LOOK_EVERY_S", 0.005)
        monkeypatch.setattr(ranks_module, "await_device", lambda _: self.over.wait(10))
        monkeypatch.setattr(ranks_module, "passed", lambda _: partial(getattr, self.work, "over"))
        self.over, self.aborted, self.work = threading.Event(), 0, OnGPU()
        self.rank = RankGroup(0, 2, torch.device("cuda:0"), watch=watch)
        self.rank._group = self

    def allreduce(self, _: list[Tensor]) -> OnGPU:
        self.work = OnGPU()
        return self.work

    def abort(self) -> None:
        self.aborted += 1
        self.end()

    def end(self) -> None:
        self.work.over = True
        self.over.set()


def test_on_a_gpu_the_host_goes_on_and_is_watched_until_the_exchange_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = threading.Semaphore(0)
    gpus = GPUs(monkeypatch, looked.release)
    gpus.rank.sum(torch.ones(3))
    assert gpus.work.waited
    assert not gpus.work.over  # though the call has returned
    assert looked.acquire(timeout=10)
    gpus.end()
    gpus.rank.settle()
    gpus.work.over = False  # from here on others may use what the watch uses
    while looked.acquire(blocking=False):
        pass
    assert not looked.acquire(timeout=0.1)
    gpus.rank.sum(torch.ones(3))  # it is watched again
    assert looked.acquire(timeout=10)
    gpus.rank.close()
    assert gpus.aborted == 1


def test_what_the_watch_raises_ends_the_wait_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch() -> None:
        raise KeyError("nobody is there")

    gpus = GPUs(monkeypatch, watch)
    gpus.rank.sum(torch.ones(3))
    with pytest.raises(KeyError, match="nobody is there"):
        gpus.rank.settle()  # which waits for what only the guard ends
    assert gpus.aborted == 1
    with pytest.raises(KeyError, match="nobody is there"):
        gpus.rank.sum(torch.ones(3))


def test_pytorch_does_not_end_a_process_that_has_lost_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its settings are read when a group is made; other groups of the process keep theirs."""
    name, other = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"
    monkeypatch.setenv(name, "3")
    monkeypatch.delenv(other, raising=False)
    made: list[str | None] = []

    class Group:
        def __init__(self, *_: object) -> None:
            made.extend(os.environ.get(x) for x in (name, other))

        Options = staticmethod(lambda: SimpleNamespace(_timeout=None))

        def _set_default_timeout(self, _: object) -> None:
            pass

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    RankGroup(0, 1, torch.device("cuda:0")).connect(HashStore())
    assert made == ["0", "0"]
    assert (os.environ[name], os.environ.get(other)) == ("3", None)


def test_exchanges_that_follow_each_other_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    gpus = GPUs(monkeypatch, lambda: looks.append(None))
    monkeypatch.setattr(gpus.rank._guard, "_look_every_s", 0.05)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        gpus.rank.sum(torch.ones(3))
    assert not looks
    gpus.rank.close()


@pytest.mark.parametrize("fault", [None, "the others are gone"])
def test_an_exchange_that_ends_just_after_the_look_is_over(fault: str | None) -> None:
    """Not one that has failed by the time that was over."""

    class Late:
        waits = 0

        def wait(self, timeout: timedelta | None = None) -> None:
            self.waits += 1
            if timeout is not None:
                raise RuntimeError("Operation timed out!")
            if fault is not None:
                raise RuntimeError(fault)

        def is_completed(self) -> bool:
            return True

    group = RankGroup(0, 1, CPU)
    if fault is None:
        assert group._ended_within(Late(), 0.01)
    else:
        with pytest.raises(RuntimeError, match=fault):
            group._ended_within(Late(), 0.01)
