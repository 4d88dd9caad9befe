"""Replay: what was collected is kept, each row once, and drawn again as it was."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from quintet import files
from quintet.errors import CheckpointError
from quintet.protocols import DataPlan
from quintet.runtime.replay_files import Array, Numbers, as_array, require_room
from quintet.runtime.replay_frames import frame_slices
from quintet.runtime.replay_layout import Layout
from quintet.runtime.replay_resume import load_rows, save_rows
from quintet.runtime.replay_store import (
    BUDGET,
    FIRST,
    GAP,
    TERMINATED,
    TRUNCATED,
    VALID,
    RowStore,
)
from quintet.runtime.seeds import Role, generator_seed
from quintet.runtime.slots import RowSpecs
from quintet.types import Rollout

_FORMAT = 1
_COUNTS = ("counted_steps", "owed_draws", "drawn_rows")


@final
class Replay:
    """Stores fresh batches and draws from them what the plan owes.

    Windows begin at any live valid row, uniformly.  Rows after the first cut of a window are not
    valid: after an ending, the end of the budget, before a row that was not valid or a gap in the
    stream, and after the newest row of the stream.  ``budget_cut`` marks the last row before a cut
    that is no ending, so ``not_cut_t`` is 0 there; its next observation is the true one in every
    case.  A window of one row is always whole.

    Sequences are whole unrolls, exactly as they were stored, also those with few valid rows.

    Columns without any valid row are not kept.  Everything drawn is on the CPU and a copy.
    """

    def __init__(
        self,
        plan: DataPlan,
        rows: RowSpecs,
        num_streams: int,
        seed: int,
        folder: Path | None = None,
        slack_steps: int = 0,
    ):
        """Memory is taken at the first `store`, which shows whether observations are stacks of
        frames; what can't fit in any case is refused here.

        folder: for its files, and no others; None: in memory, which can't be saved.
        slack_steps: rows that any one stream may store after a `save` without overwriting what that
            one needs; all streams take that much more room.  After a `load` see `slack_unrolls`.

        Raises:
            ConfigError: no unroll of every stream fits into the capacity, or the replay doesn't fit
                on the disk or in memory.
        """
        assert plan.replay is not None
        self.plan, self.seed = plan.replay, seed
        self._layout = Layout(plan, rows, num_streams, folder, slack_steps)
        self._rate = _exact(plan.replay.rate)
        self._store: RowStore | None = None
        self.counted_steps = 0  # valid steps that owe draws
        self.owed_draws = 0  # draws that they owed, all made
        self.drawn_rows = 0
        # Rings that are there keep their length, which may be less than is asked for now.
        if folder is None or not any(folder.glob("*.bin")):
            require_room(folder, self.nbytes)

    @property
    def size(self) -> int:
        """Live valid rows."""
        return self._store.size if self._store is not None else 0

    @property
    def capacity(self) -> int:
        """Rows that can be live, over all streams: the plan's capacity_steps rounded down to the
        same number for every stream, and for sequences to whole unrolls.  A gap, where a stream was
        restarted, takes the place of a row.
        """
        return self._layout.rows_per_stream * self._layout.num_streams

    @property
    def slack_unrolls(self) -> int:
        """Unrolls that any one stream may store between two calls of `save`; after a `load` that
        is what the rings were made for.
        """
        return self._layout.slack_unrolls

    @property
    def nbytes(self) -> int:
        """Bytes of memory or disk; before the first `store` the least that it can be."""
        if self._store is None:
            return self._layout.nbytes(self._layout.smallest_stacks())
        return self._store.nbytes

    def describe(self) -> str:
        """One sentence for a person, best after the first `store`."""
        layout = self._layout
        where = "in memory" if layout.folder is None else f"in {layout.folder}"
        least = "at least " if self._store is None else ""
        notes = ""
        if self._store is not None and self._store.stacks:
            notes += ", stacked frames kept once"
        if layout.slack:
            notes += f", with room for {layout.slack:,} rows per stream between two checkpoints"
        size = f"{self.nbytes / 2**20:,.1f} MiB"
        return f"replay of {self.capacity:,} rows takes {least}{size} {where}{notes}"

    def metrics(self) -> dict[str, float]:
        """``replay/*`` by declared name."""
        values = {"replay/size": float(self.size)}
        if self._store is not None and self._store.stored:
            values["replay/draws_per_env_step"] = self.drawn_rows / self._store.stored
        return values

    def store(self, batch: Rollout) -> None:
        """Stores a fresh batch.

        Raises:
            ConfigError: at the first batch, the replay doesn't fit; later, so many stacks of frames
                had to be kept whole that no room is left.
        """
        if self._store is None:
            found = {
                name: frame_slices(as_array(batch.obs[name.removeprefix("obs/")]))
                for name in self._layout.smallest_stacks()
            }
            stacks = {name: slices for name, slices in found.items() if slices is not None}
            self._store = RowStore(self._layout, stacks, fresh=True)
        self._store.store(batch)

    def cut(self) -> None:
        """The streams were restarted: what is stored next doesn't follow on what was last."""
        if self._store is not None:
            self._store.cut()

    def draws(self, valid_steps: int, iteration: int) -> Iterator[Rollout]:
        """The batches that are owed after a fresh one of `valid_steps` valid rows, stored before.

        Nothing is drawn, and no step owes a draw, before ``start_steps`` valid rows were stored and
        there is something to draw from (``per_stream``: in every stream); of the batch with which
        that begins, the steps beyond ``start_steps`` count.  Which rows are drawn follows from the
        seed, `iteration` and what is stored; they are read one batch at a time, so take them all
        before the next `store`.
        """
        store = self._store
        if store is None or store.stored < max(self.plan.start_steps, 1):
            return iter(())
        counts = store.last - store.first
        if not (counts.all() if self.plan.column_source == "per_stream" else counts.any()):
            return iter(())
        if self.plan.draws == "owed":
            self.counted_steps += min(valid_steps, store.stored - self.plan.start_steps)
            number = int(self._rate * self.counted_steps) - self.owed_draws
            self.owed_draws += number
            if number == 0:
                return iter(())
        draw = np.random.default_rng(generator_seed(self.seed, Role.REPLAY, 0, iteration))
        if self.plan.draws == "poisson":
            number = int(draw.poisson(self.plan.rate))
        return (self._draw(store, draw, counts) for _ in range(number))

    def _draw(self, store: RowStore, draw: np.random.Generator, counts: Numbers) -> Rollout:
        if self.plan.column_source == "per_stream":
            stream = np.arange(len(counts))
            entry = draw.integers(0, counts)
        else:
            ends = np.cumsum(counts)
            entry = draw.integers(0, ends[-1], self.plan.columns)
            stream = ends.searchsorted(entry, "right")
            entry -= ends[stream] - counts[stream]
        entry += store.first[stream]
        entries = store.index.shape[1]
        place = stream * entries + entry % entries
        number = store.index.reshape(-1)[place] + np.arange(self.plan.steps + 1)[:, None]
        flags = store.flags[store.rows.at(stream, number)]
        if self.plan.kind == "windows" and self.plan.steps > 1:
            number, flags = _cut_window(store, stream, number, flags)
        self.drawn_rows += int(np.count_nonzero(flags[:-1] & VALID))
        state = {}
        if store.unrolls is not None:
            unrolls = store.unrolls
            state = {
                name: unrolls.read(name, place).transpose(0, 1).contiguous()
                for name in self._layout.states
            }
        return _rollout(store, stream, number, flags, state)

    def save(self) -> dict[str, Any]:
        """What a checkpoint needs beside the files, for JSON; the disk has the rows on return."""
        assert self._layout.folder is not None, "a replay in memory can't be saved"
        counts = {name: getattr(self, name) for name in _COUNTS}
        rows = save_rows(self._store) if self._store is not None else None
        if rows is not None:
            files.sync_folder(self._layout.folder)
        return {"format": _FORMAT, **counts, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave, with the files as they are now; before any `store`.

        Raises:
            CheckpointError: the files don't hold every row of the checkpoint, or this replay isn't
                laid out as the saved one.
            ConfigError: memory is missing.
        """
        assert self._layout.folder is not None, "a replay in memory can't be saved"
        if state["format"] != _FORMAT:
            raise CheckpointError(
                f"a replay of format {_FORMAT} is required, the checkpoint's has "
                f"{state['format']}; go on with the version of quintet that wrote it"
            )
        for name in _COUNTS:
            setattr(self, name, int(state[name]))
        if state["rows"] is not None:
            self._store = load_rows(self._layout, state["rows"])


def _exact(rate: float) -> Fraction:
    """The simple fraction that is meant (1/3, 29/100), also of rates far below 1."""
    finest = 1_000_000 * max(1, ceil(1 / Fraction(rate))) if rate > 0 else 1
    return Fraction(rate).limit_denominator(finest)


def _cut_window(
    store: RowStore, stream: Numbers, number: Numbers, flags: Array
) -> tuple[Numbers, Array]:
    """The rows ``[T + 1, B]`` of windows with what is after the first cut of each masked."""
    gap = (flags & GAP) > 0
    if gap.any():
        # What comes after a gap is of another stretch, or not there: the gap's row is repeated.
        reach = np.where(gap.any(0), gap.argmax(0), len(gap))
        number = np.minimum(number, number[0] + reach)
        flags = store.flags[store.rows.at(stream, number)]
    ended = (flags[:-1] & (TERMINATED | TRUNCATED)) > 0
    broken = (flags[:-1] & BUDGET) > 0
    broken[:-1] |= (flags[1:-1] & VALID) == 0
    alive = np.ones_like(ended)
    alive[1:] = ~np.logical_or.accumulate(ended | broken, 0)[:-1]
    rows = flags[:-1] & np.uint8(0xFF & ~(VALID | BUDGET))
    rows |= alive * np.uint8(VALID)
    rows |= (alive & broken & ~ended) * np.uint8(BUDGET)
    return number, np.concatenate([rows, flags[-1:]])


def _rollout(
    store: RowStore, stream: Numbers, number: Numbers, flags: Array, state: dict[str, Tensor]
) -> Rollout:
    """The rows ``[T + 1, B]``, with these flags."""
    rows, layout = store.rows, store.layout
    place = rows.at(stream, number)
    before, body = rows.at(stream, number[0] - 1), place[:-1]

    def has(bit: int, of: Array) -> Tensor:
        return torch.from_numpy((of & bit) > 0)

    return Rollout(
        obs={name[4:]: store.read_obs(name, stream, number) for name in layout.leaves},
        action=rows.read("action", body),
        reward=rows.read("reward", body),
        terminated=has(TERMINATED, flags[:-1]),
        truncated=has(TRUNCATED, flags[:-1]),
        valid=has(VALID, flags[:-1]),
        is_first=has(FIRST, flags),
        record={name: rows.read(f"record/{name}", body) for name in layout.records},
        version=rows.read("version", body),
        policy_id=rows.read("policy_id", body),
        stream_id=torch.from_numpy(stream),
        group_id=torch.from_numpy(store.group[stream]),
        episode_id=rows.read("episode_id", place[0]),
        last_action=rows.read("action", before),
        last_reward=rows.read("reward", before),
        state=state,
        return_carry=rows.read("return_carry", body) if layout.has_return_carry else None,
        budget_cut=has(BUDGET, flags[:-1]),
        replayed=True,
    )
