"""Layout and splitting of a batch for learners that make several passes over it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from torch import Tensor

from quintet.models.build import ActorCritic
from quintet.system.transfer import all_to_device, to_device
from quintet.types import Obs, Rollout, State


@final
@dataclass(frozen=True)
class Rows:
    """N rows of a batch, flat, in the form that a loss reads, and the recurrent states of their
    chunks.

    A chunk is C consecutive rows of one stream, N = C * chunks, ordered by (row in the chunk,
    chunk); feed-forward networks have chunks of one row and no state.

    state: leaves ``[chunks, ...]``, before the chunk's first row.
    """

    obs: Obs
    is_first: Tensor
    action: Tensor
    logp_mu: Tensor
    params_mu: Tensor
    value_mu: Tensor
    advantage: Tensor
    target: Tensor
    state: State

    @classmethod
    def of(cls, batch: Rollout, obs: Obs, advantage: Tensor, target: Tensor) -> "Rows":
        """All rows of a batch; `obs` are normalised, ``[(T + 1) * B, ...]``."""
        return cls(
            obs={name: x[: advantage.numel()] for name, x in obs.items()},
            is_first=batch.is_first[:-1].flatten(),
            action=batch.action.flatten(0, 1),
            logp_mu=batch.record["logp_mu"].flatten(),
            params_mu=batch.record["params_mu"].flatten(0, 1),
            value_mu=batch.record["value"].flatten(),
            advantage=advantage.flatten(),
            target=target.flatten(),
            state={name: x[:-1].flatten(0, 1) for name, x in batch.state.items()},
        )

    def take(self, rows: Tensor, chunks: Tensor) -> "Rows":
        """The rows and the states at these indices, copied."""
        plain = [field.name for field in fields(self) if field.name not in ("obs", "state")]
        return Rows(
            obs={name: x.index_select(0, rows) for name, x in self.obs.items()},
            state={name: x.index_select(0, chunks) for name, x in self.state.items()},
            **{name: getattr(self, name).index_select(0, rows) for name in plain},
        )


@final
@dataclass(frozen=True)
class Minibatch:
    """Some rows of a batch, not yet copied; with several learners, one learner's share of them.

    index: of rows ``[N]``.
    chunk_index: indices of states.
    weight: weights of rows, which sum to 1 over all learners.
    advantage: ``[N]``, replaces the rows' own.
    """

    rows: Rows
    index: Tensor
    chunk_index: Tensor
    weight: Tensor
    advantage: Tensor

    def take(self) -> Rows:
        """The rows, copied, with the minibatch's advantage."""
        return replace(self.rows.take(self.index, self.chunk_index), advantage=self.advantage)


@final
@dataclass(frozen=True)
class Pass:
    """The minibatches of one pass over a batch: their rows and the rows' weights ``[parts, size]``,
    and their chunks ``[parts, size / C]``.
    """

    index: Tensor
    chunk_index: Tensor
    weight: Tensor

    def minibatches(
        self, rows: Rows, advantage: Tensor, rank: int, ranks: int
    ) -> Iterator[Minibatch]:
        """Yields each minibatch; with several learners, the whole chunks of one of them.

        advantage: ``[parts, size]``.
        """
        units = self.chunk_index.shape[1]
        mine = slice(rank * units // ranks, (rank + 1) * units // ranks)

        def own(x: Tensor) -> Tensor:
            return x.view(len(x), -1, units)[:, :, mine].flatten(1)

        parts = own(self.index), self.chunk_index[:, mine], own(self.weight), own(advantage)
        return (Minibatch(rows, *each) for each in zip(*parts, strict=True))


@final
class Chunks:
    """Places of the chunks of `chunk_steps` rows of a batch ``[T, B]`` among its T * B rows.

    rows: numbers of the rows ``[C, chunks]``; chunks are ordered by (time, stream).
    on_cpu: the same on the CPU, where passes are drawn.
    """

    def __init__(self, shape: tuple[int, ...], chunk_steps: int, device: torch.device):
        steps, streams = shape
        grid = torch.arange(steps * streams).view(steps // chunk_steps, chunk_steps, streams)
        self.on_cpu = grid.transpose(0, 1).flatten(1)
        self.rows = to_device(self.on_cpu, device)
        self.chunk_steps = chunk_steps

    @property
    def order(self) -> Tensor:
        """All rows in the order of `Rows` ``[T * B]``."""
        return self.rows.flatten()

    def whole(self, rows: Rows, use: Tensor) -> tuple[Rows, Tensor]:
        """All rows in the order that the network reads, and which of them to use ``[N]``."""
        if self.chunk_steps == 1:
            return rows, use.flatten()
        every = torch.arange(self.rows.shape[1], device=use.device)
        return rows.take(self.order, every), use.flatten()[self.order]

    def values(self, network: ActorCritic, batch: Rollout, obs: Obs, recorded: bool) -> Tensor:
        """Values ``[T+1, B]`` of normalised observations ``[(T+1) * B, ...]``, from the recorded
        states.

        recorded: whether the actor's recorded values are used for rows 0 to T-1.
        """
        shape = batch.reward.shape
        if not batch.state and not recorded:
            return network.value(obs).view(shape[0] + 1, -1)
        last = {name: x[shape.numel() :] for name, x in obs.items()}
        end = {name: x[-1] for name, x in batch.state.items()}
        v_end = network.value(last, end, batch.is_first[-1]).unsqueeze(0)
        if recorded:
            return torch.cat((batch.record["value"], v_end))
        # The network reads the steps of each chunk in a row; `start` has one state per chunk.
        start = {name: x[:-1].flatten(0, 1) for name, x in batch.state.items()}
        rows = {name: x[self.order] for name, x in obs.items()}
        v = v_end.new_empty(shape.numel())
        v[self.order] = network.value(rows, start, batch.is_first[:-1].flatten()[self.order])
        return torch.cat((v.view(shape), v_end))

    def one_pass(self, use: Tensor, size: int, drop_last: bool, generator: torch.Generator) -> Pass:
        """One pass over the rows where `use` ``[T * B]``, on the CPU, is set, see
        `even_minibatches`.

        Whole chunks stay together; chunks without any row to use are left out.  The weights of each
        minibatch sum to 1.
        """
        single = self.chunk_steps == 1  # chunks are rows, in their order
        wanted = (use if single else use[self.on_cpu].any(0)).nonzero().squeeze(1)
        units = size // self.chunk_steps
        chunks, weights = even_minibatches(wanted, units, drop_last, generator)
        if single:
            rows, weights = all_to_device((chunks, weights), self.rows.device)
            return Pass(rows, rows, weights)
        rows = self.on_cpu[:, chunks].transpose(0, 1).flatten(1)
        present = use[rows] * (weights > 0).repeat(1, self.chunk_steps)
        parts = rows, chunks, present / present.sum(1, keepdim=True)
        return Pass(*all_to_device(parts, self.rows.device))


def even_minibatches(
    index: Tensor, size: int, drop_last: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One pass over the rows at `index` ``[N]``, on the CPU, in fresh random order, in minibatches
    of one shape.

    The rows are split in ceil(N / size) parts that differ by at most one row; a shorter part is
    filled with repeats of its last row at weight 0, so that all have `size` rows and none is tiny.
    With `drop_last` the parts are whole, and the remainder is left out if there is at least one
    whole part.

    Returns:
        Rows and their weights, which sum to 1 in each part, ``[parts, size]``.
    """
    count = index.numel()
    order = index.index_select(0, torch.randperm(count, generator=generator))
    whole = drop_last and count >= size
    parts = count // size if whole else math.ceil(count / size)
    bounds = torch.arange(parts + 1)
    bounds = bounds * size if whole else bounds * count // parts
    starts, sizes = bounds[:-1, None], bounds.diff()[:, None]
    place = torch.arange(size)
    places = starts + torch.minimum(place, sizes - 1)
    rows = order.index_select(0, places.flatten()).view(places.shape)
    return rows, (place < sizes).float() / sizes


def ended_rows(batch: Rollout) -> Tensor:
    """Valid rows of episodes that end within the unroll and the budget, ``[T, B]``, on the CPU."""
    valid = batch.on_cpu("valid")
    ended = ((batch.on_cpu("terminated") | batch.on_cpu("truncated")) & valid).int()
    return valid & (ended.flip(0).cummax(0).values.flip(0) > 0)
