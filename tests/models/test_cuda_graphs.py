"""Captured methods give what the methods give, whatever the graph read when it was captured."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from taped_helpers import use_tapes
from torch import Tensor

from quintet.errors import QuintetError
from quintet.models import cuda_graphs
from quintet.models.cuda_graphs import GraphedMethod


@pytest.fixture(autouse=True)
def _tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tapes(monkeypatch)


@dataclass(frozen=True)
class Rows:
    x: Tensor


@dataclass(frozen=True)
class Batch:
    rows: Rows
    index: Tensor
    kind: str = "sum"


class Result(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]


class Steps:
    """Weights that each call moves."""

    def __init__(self) -> None:
        self.weight, self.name = torch.ones(3), ""

    def step(self, batch: Batch, rate: Tensor) -> Result:
        x = batch.rows.x.index_select(0, batch.index)
        total = (x @ self.weight).sum() if batch.kind == "sum" else (x @ self.weight).amax()
        self.name = batch.kind
        with torch.no_grad():
            self.weight.add_(rate * x.mean(0))
        return Result(total, {"weight": self.weight})


def made(
    kept: tuple[type, ...] = (Rows,),
) -> tuple[Steps, GraphedMethod[[Batch, Tensor], Result]]:
    steps = Steps()
    return steps, GraphedMethod(steps.step, lambda: [steps.weight], ("name",), kept)


def test_calls_equal_eager_ones_and_none_counts_twice() -> None:
    eager, (steps, graph) = Steps(), made()
    rows = Rows(torch.randn(6, 3))
    for number in range(5):
        kind = "sum" if number % 2 else "max"
        batch = Batch(rows, torch.randperm(6)[:4], kind)
        rate = torch.tensor(0.1 * number)
        wanted, given = eager.step(batch, rate), graph(batch, rate)
        assert torch.equal(given.total, wanted.total)
        assert torch.equal(steps.weight, eager.weight)
        assert steps.name == kind  # of two graphs, each sets its own
        if number == 2:
            rows.x.mul_(2.0)  # the same tensor with other numbers
    assert len(graph._graphs) == 2


def test_results_are_not_written_over_by_later_calls() -> None:
    _, graph = made()
    batch = Batch(Rows(torch.ones(2, 3)), torch.arange(2))
    first = graph(batch, torch.tensor(1.0))
    before = first.total.clone(), first.parts["weight"].clone()
    graph(batch, torch.tensor(1.0))
    assert (first.total, first.parts["weight"].sum()) == (before[0], before[1].sum())


def test_rows_of_several_minibatches_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    copy = torch._foreach_copy_

    def counted(into: list[Tensor], sources: list[Tensor]) -> None:
        copied.extend(x.numel() for x in sources)
        copy(into, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    _, graph = made()
    rows = Rows(torch.randn(50, 3))
    for _ in range(3):
        graph(Batch(rows, torch.arange(4)), torch.tensor(0.1))
    assert copied.count(150) == 1
    graph(Batch(Rows(torch.randn(50, 3)), torch.arange(4)), torch.tensor(0.1))
    assert copied.count(150) == 2


def in_one_block(value: float) -> Batch:
    """A batch whose tensors fill one block of memory."""
    block = torch.zeros(5, dtype=torch.int64)
    x = block.view(torch.float32)[:6].view(2, 3)
    block[3:] = torch.arange(2)
    return Batch(Rows(x.fill_(value)), block[3:])


def test_what_a_block_has_replaced_is_copied_again() -> None:
    _, graph = made()
    apart, rate = Batch(Rows(torch.ones(2, 3)), torch.arange(2)), torch.tensor(0.0)
    given = in_one_block(2.0), apart, in_one_block(3.0), apart
    assert [graph(batch, rate).total.item() for batch in given] == [12, 6, 18, 6]


def test_another_tensor_in_the_place_of_a_freed_one_is_copied() -> None:
    _, graph = made()
    index, rate = torch.arange(2), torch.tensor(0.0)
    for value in range(1, 9):  # Python and PyTorch give the memory of the last one again
        batch = Batch(Rows(torch.full((2, 3), float(value))), index)
        total = graph(batch, rate).total
        del batch
        assert total == 6 * value


def test_what_changes_behind_pytorch_is_copied() -> None:
    for mode in (torch.inference_mode, torch.enable_grad):
        _, graph = made(kept=())
        with mode():
            x = torch.ones(2, 3)
            batch = Batch(Rows(x), torch.arange(2))
            first = graph(batch, torch.tensor(0.0)).total
            x.numpy()[:] *= 3.0
            assert graph(batch, torch.tensor(0.0)).total == 3 * first


def test_tensors_may_lie_in_memory_as_they_like() -> None:
    x = torch.randn(3, 3)
    for seen in (x, x.t(), torch.randn(3, 6)[:, ::2], torch.randn(1, 3).expand(3, 3)):
        eager, (_, graph) = Steps(), made()
        for _ in range(2):
            batch = Batch(Rows(seen), torch.arange(3))
            wanted = eager.step(batch, torch.tensor(0.1))
            torch.testing.assert_close(graph(batch, torch.tensor(0.1)).total, wanted.total)
    _, graph = made()
    for width in (3, 7, 9):  # a gap in memory is no other layout
        graph(Batch(Rows(torch.randn(4, width)[:, :3]), torch.arange(3)), torch.tensor(0.1))
    assert len(graph._graphs) == 1
    # In another order of memory, PyTorch may choose another kernel, with other rounding.
    graph(Batch(Rows(torch.randn(3, 4).t()), torch.arange(3)), torch.tensor(0.1))
    assert len(graph._graphs) == 2


def test_the_graph_unused_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_LAYOUTS", 2)
    _, graph = made()
    rate = torch.tensor(0.1)
    for rows in (2, 3, 2, 4, 2):
        graph(Batch(Rows(torch.ones(rows, 3)), torch.arange(rows)), rate)
    sizes = {captive.inputs.buffers[0].shape[0] for captive in graph._graphs.values()}
    assert sizes == {4, 2}


class Looks:
    def act(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


def test_a_method_that_waits_is_refused_in_a_sentence() -> None:
    with pytest.raises(QuintetError, match=r"^runtime.compile=graph: .* Looks\.act \(.*; begin"):
        GraphedMethod(Looks().act)(torch.ones(2))
