"""The stand-in for a GPU is what its tests need: a device with a memory of its own, to PyTorch."""

import pytest
import standin_helpers
import torch
from torch import Tensor

CUDA = "cuda"


def test_tensors_of_the_gpu_and_of_the_cpu_do_not_mix() -> None:
    x = torch.ones(3, device=CUDA)
    assert x.is_cuda
    assert (x * 2 + x.sum()).device == torch.device("cuda:0")
    for mixed in (lambda: x + torch.ones(3), lambda: torch.clamp(x, torch.tensor(1.0), x)):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number may be on the CPU


def test_waits_are_told_with_their_line() -> None:
    x, many = torch.ones(8, device=CUDA), torch.arange(8, device=CUDA) > 3
    pinned, free = torch.empty(8).pin_memory(), torch.empty(8)
    waiting = {
        "sync": [
            lambda: x.sum().item(),
            lambda: x[many],
            lambda: many.nonzero(),
            lambda: float(x[0]),
        ],
        "d2h": [lambda: x.cpu(), lambda: free.copy_(x, non_blocking=True), lambda: pinned.copy_(x)],
        "h2d": [
            lambda: torch.ones(8).to(CUDA),
            lambda: torch.tensor(1.0, device=CUDA),
            lambda: x[torch.arange(3)],
        ],
        "h2d_pageable": [lambda: x.copy_(free, non_blocking=True)],
        "h2d_index": [lambda: x.index_put_((torch.arange(3),), torch.ones(3, device=CUDA))],
        "device": [torch.cuda.synchronize],
        "stream": [torch.cuda.Stream().synchronize],
    }
    for kind, calls in waiting.items():
        for call in calls:
            with standin_helpers.counting() as counts:
                call()
            assert (counts.waits, counts.kinds[kind]) == (1, 1), (kind, counts.kinds)
    going = [
        lambda: x.add_(1),
        lambda: torch.where(many, x, 0.0),
        lambda: x.masked_fill_(many, 1.0),
        lambda: x.copy_(pinned, non_blocking=True),
        lambda: pinned.copy_(x, non_blocking=True),
        lambda: torch.empty(3, device=CUDA).fill_(2.0),
    ]
    with standin_helpers.counting() as counts:
        for call in going:
            call()
    assert counts.waits == 0, counts.lines()
    torch.cuda.synchronize()


def test_a_copy_to_page_locked_memory_arrives_at_the_next_wait() -> None:
    x, host = torch.ones(2, device=CUDA), torch.zeros(2).pin_memory()
    early = torch.cuda.Event()
    early.record()
    host.copy_(x, non_blocking=True)
    early.synchronize()  # which came before the copy
    assert host.isnan().all()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert host.tolist() == [1, 1]


def test_page_locked_memory_that_is_overwritten_too_early_is_told() -> None:
    host, before = torch.zeros(2).pin_memory(), sum(standin_helpers.races.values())
    x = host.to(CUDA, non_blocking=True)
    torch.cuda.synchronize()
    host.fill_(1.0)
    assert sum(standin_helpers.races.values()) == before
    x.copy_(host, non_blocking=True)
    host.fill_(2.0)
    torch.cuda.synchronize()
    assert sum(standin_helpers.races.values()) == before + 1
    standin_helpers.races.clear()


def test_a_graph_does_again_what_was_captured() -> None:
    def step(given: Tensor, weight: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(((given @ weight).tanh() - 1).square().mean(), weight)
        with torch.no_grad():
            weight -= 0.1 * slope
        return slope.norm()

    start = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    captured, eager = (start.to(CUDA).requires_grad_() for _ in range(2))
    given, graph = torch.zeros(4, 3, device=CUDA), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        told = step(given, captured)
    assert torch.equal(captured.cpu(), start)  # a capture runs nothing
    for number in range(1, 4):
        given.fill_(number)
        with standin_helpers.counting() as counts:
            graph.replay()
        assert (counts.launches, counts.waits) == (1, 0)
        expected = step(torch.full((4, 3), float(number), device=CUDA), eager)
        assert told.item() == expected.item()
        assert torch.equal(captured, eager)


def test_a_wait_can_not_be_captured() -> None:
    x = torch.ones(2, device=CUDA)
    for wait in (lambda: x.sum().item(), lambda: torch.ones(2).to(CUDA), torch.cuda.synchronize):
        with (
            pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            wait()


def test_a_generator_of_the_gpu_draws_there() -> None:
    draws = [
        torch.randn(4, device=CUDA, generator=torch.Generator(CUDA).manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.slow  # another process with GPUs
@pytest.mark.gpus(2)
def test_two_gpus_do_not_mix() -> None:
    first, second = (torch.ones(2, device=f"cuda:{i}") for i in range(2))
    with pytest.raises(RuntimeError, match="same device"):
        first + second
    assert (first.to(second.device) + second).device == torch.device("cuda:1")
    with torch.cuda.device(1):
        assert torch.ones(1, device=CUDA).device == torch.device("cuda:1")
