"""Replay: stores collected rows, each once, and draws batches of them."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.checkpoints.manifest import Checked, Count, content_fault
from quintet.errors import CheckpointError, ConfigError
from quintet.protocols import DataPlan
from quintet.runtime.replay.device import OnDevice, device_bytes
from quintet.runtime.replay.frames import frame_slices
from quintet.runtime.replay.layout import Layout
from quintet.runtime.replay.resume import load_rows, save_rows
from quintet.runtime.replay.ring_files import Array, Numbers, files_in
from quintet.runtime.replay.store import RowStore
from quintet.runtime.replay.stored_batch import (
    CUT,
    FIRST,
    GAP,
    TERMINATED,
    TRUNCATED,
    VALID,
    as_array,
    as_tensor,
    split,
)
from quintet.runtime.slots import RowSpecs
from quintet.system import files
from quintet.system.memory import free_bytes
from quintet.types import Rollout

_FORMAT = 2
_COUNTS = ("counted_steps", "owed_draws", "drawn_rows")

_AHEAD_BYTES = 2**20
"""Number of bytes of rows that are read together for several draws, as each call has a cost."""

_SHARE_OF_FREE = 0.5
"""Largest part of a GPU's free memory that a replay takes."""

_FLAGS = np.arange(256)
_BITS = np.array([(_FLAGS & bit) > 0 for bit in (TERMINATED, TRUNCATED, VALID, CUT, FIRST)])
"""Bits of a drawn rollout, by flags."""


class _Saved(Checked):
    """The state that `Replay.save` returns."""

    format: int
    counted_steps: Count
    owed_draws: Count
    drawn_rows: Count
    rows: dict[str, Any] | None


@final
class Replay:
    """Stores fresh batches and draws batches by the plan.

    Windows begin at any live valid row, uniformly.  Rows after the first cut of a window are
    invalid.  Cuts are endings, the end of the budget, invalid rows, gaps in the stream, and its
    newest row.  ``trace_cut`` marks the last row before a cut other than an ending, so
    ``not_cut_t`` is 0 there; its next observation is always the true one.  A window of one row is
    always whole.

    Sequences are whole unrolls, exactly as they were stored, even with few valid rows.

    Columns without any valid row are not stored.  Drawn tensors are copies on the CPU and may have
    strides.
    """

    def __init__(
        self,
        plan: DataPlan,
        rows: RowSpecs,
        num_streams: int,
        seed: int,
        folder: Path,
        slack_steps: int = 0,
        numbers: Sequence[int] | None = None,
    ):
        """Refuses a replay that can't fit in any case; the first `store` allocates memory, since it
        shows whether observations are stacks of frames.

        seed: seed of this replay's draws only.
        folder: folder for its files only.
        slack_steps: number of rows that each stream may store after a `save` without overwriting
            rows of the saved state; every stream takes this additional room.
        numbers: numbers of the streams in the run, ascending; None: 0, 1, 2, ...  Other streams'
            rows are never stored.

        Raises ConfigError if no unroll of every stream fits into the capacity, or the replay does
        not fit on the disk or in memory.
        """
        assert plan.replay is not None
        self.plan = plan.replay
        self._layout = Layout(plan, rows, num_streams, folder, slack_steps, numbers)
        self._rate, self._rate_steps = _exact(plan.replay.rate).as_integer_ratio()
        self._column_bytes = self._layout.column_bytes(plan.replay.steps)
        self._per_stream = plan.replay.column_source == "per_stream"
        # The ring of each column of a batch, where each stream gives its own.
        self._rings = np.arange(plan.replay.columns) * num_streams // plan.replay.columns
        self._store: RowStore | None = None
        self._random = _Random(seed, plan.replay.columns)
        self._shifts = np.arange(-1, plan.replay.steps + 1)[:, None]
        self.counted_steps = 0  # valid steps that owe draws
        self.owed_draws = 0  # draws that they owed, all made
        self.drawn_rows = 0
        self._device, self._must = torch.device("cpu"), False
        self._on_device: OnDevice | None = None
        self._saved: Numbers | None = None  # the streams' newest rows in the last checkpoint
        # Existing rings keep their length, which may be less than is asked for now.
        if not files_in(folder):
            self._layout.require_room()

    def draw_on(self, device: torch.device, must: bool) -> None:
        """Asks for large leaves of observations to lie on a CUDA GPU too, from where draws take
        them; called before rows are stored or loaded.

        must: whether leaves that don't fit raise ConfigError; otherwise they stay on the CPU alone.
        """
        self._device, self._must = device, must

    def _put_on_device(self) -> None:
        """Copies large leaves to the GPU if they fit; raises ConfigError if they must but don't."""
        store = self._store
        assert store is not None
        size = device_bytes(store)
        if self._device.type != "cuda" or not size:
            return
        free, _ = torch.cuda.mem_get_info(self._device)
        if size <= free * _SHARE_OF_FREE:
            self._on_device = OnDevice(store, self._device)
        elif self._must:
            raise ConfigError(
                f"runtime.replay_device=learner must fit {size / 2**20:,.1f} MiB into "
                f"{_SHARE_OF_FREE:.0%} of the free memory of {self._device}, got "
                f"{free / 2**20:,.1f} MiB free: lower the replay capacity, or use "
                "--runtime.replay-device cpu"
            )

    @property
    def size(self) -> int:
        """Live valid rows."""
        return self._store.size if self._store is not None else 0

    @property
    def capacity(self) -> int:
        """Rows that can be live, over all streams: the plan's capacity_steps, rounded down to the
        same number for every stream, and for sequences to whole unrolls.
        """
        return self._layout.rows_per_stream * self._layout.num_streams

    @property
    def slack_unrolls(self) -> int:
        """Unrolls that each stream may store between two calls of `save`; `load` sets it to the
        value of the existing rings.
        """
        return self._layout.slack_unrolls

    @property
    def nbytes(self) -> int:
        """Bytes of memory or disk; before the first `store` the smallest possible number."""
        return self._layout.nbytes() if self._store is None else self._store.nbytes

    def describe(self) -> str:
        """One sentence for the user; complete after the first `store`."""
        layout = self._layout
        least = "at least " if self._store is None else ""
        notes = ""
        if self._store is not None and self._store.stacks:
            notes += ", stacked frames kept once"
        if layout.slack:
            notes += f", with room for {layout.slack:,} rows per stream between two checkpoints"
        memory = free_bytes()
        if self.nbytes > memory:
            notes += f"; {memory / 2**20:,.1f} MiB of memory are free, so draws wait for the disk"
        if self._store is not None and self._device.type == "cuda":
            mib = device_bytes(self._store) / 2**20
            if self._on_device is not None:
                notes += f"; {mib:,.1f} MiB of it also on {self._device}, for draws"
            elif mib:
                notes += f"; draws read it on the CPU, since {mib:,.1f} MiB of it may not fit on "
                notes += str(self._device)
        size = f"{self.nbytes / 2**20:,.1f} MiB"
        return f"replay of {self.capacity:,} rows takes {least}{size} in {layout.folder}{notes}"

    def metrics(self) -> dict[str, float]:
        """``replay/*`` by declared name."""
        values = {"replay/size": float(self.size)}
        if self._store is not None and self._store.stored:
            values["replay/draws_per_env_step"] = self.drawn_rows / self._store.stored
        return values

    def store(self, batch: Rollout) -> None:
        """Stores a fresh batch; raises ConfigError if the replay does not fit: at the first batch,
        or later if many stacks of frames must be stored whole.
        """
        if self._store is None:
            slices_of = {
                name: frame_slices(as_array(batch.obs[name.removeprefix("obs/")]))
                for name in self._layout.stacks  # leaves that may be stacks
            }
            found = {name: slices for name, slices in slices_of.items() if slices is not None}
            self._layout.stacks = found
            self._store = RowStore(self._layout, fresh=True)
            self._put_on_device()
        self._store.store(batch)

    def overwrites(self, batch: Rollout) -> bool:
        """Whether storing the batch would overwrite rows that the last checkpoint needs."""
        if self._store is None or self._saved is None:
            return False
        unrolls = int(np.bincount(batch.stream_id.numpy()).max())
        head = self._store.head + unrolls * (self._layout.unroll_steps + 1)
        kept = np.maximum(self._saved, self._layout.needed_rows)
        return bool((head - kept > self._layout.slack).any())

    @property
    def full(self) -> bool:
        """Whether rows that an earlier checkpoint needed may have been overwritten."""
        most = self._layout.needed_rows + self._layout.slack
        return self._store is not None and bool((self._store.head > most).any())

    def cut(self) -> None:
        """Notes that the streams were restarted: the next rows do not follow on the last ones."""
        if self._store is not None:
            self._store.cut()

    def draws(self, valid_steps: int, iteration: int) -> Iterator[Rollout]:
        """Yields the batches that are due after a stored fresh batch with `valid_steps` valid rows.

        Draws begin once ``start_steps`` valid rows are stored and there are rows to draw from
        (``per_stream``: in every stream); earlier steps cause no draws.  The drawn rows are a
        function of the seed, `iteration` and the stored rows.  They are read during the iteration,
        so it must end before the next `store`.
        """
        store = self._store
        if store is None or not valid_steps or store.stored < max(self.plan.start_steps, 1):
            return iter(())
        plan, counts = self.plan, store.last - store.first
        ends = counts.cumsum()
        total = int(ends[-1])
        if total == 0 or (self._per_stream and not counts.all()):
            return iter(())
        if plan.draws == "owed":
            self.counted_steps += min(valid_steps, store.stored - plan.start_steps)
            number = self._rate * self.counted_steps // self._rate_steps - self.owed_draws
            self.owed_draws += number
            if number == 0:
                return iter(())
        elif plan.draws == "poisson":
            number = self._random.poisson(iteration, plan.rate)
        else:
            number = int(plan.rate)
        chance = self._random.uniform(iteration, number)
        if self._per_stream:
            of = self._rings
            entry = (chance * counts[of]).astype(np.int64)
            entry += store.first[of]
            stream = np.broadcast_to(of, entry.shape)
        else:
            entry = (chance * total).astype(np.int64)
            stream = ends.searchsorted(entry, "right")
            # A number over all streams becomes one within the stream's own entries.
            entry += (store.last - ends)[stream]
        return self._drawn(store, stream, entry)

    def _drawn(self, store: RowStore, stream: Numbers, entry: Numbers) -> Iterator[Rollout]:
        """A batch for each row of `stream` and `entry`; several share one read."""
        number, columns = entry.shape
        if self._on_device is not None:
            self._on_device.catch_up()
        per_read = max(1, _AHEAD_BYTES // (columns * self._column_bytes))
        for begin in range(0, number, per_read):
            part = slice(begin, begin + per_read)
            batches = self._draw(store, stream[part].reshape(-1), entry[part].reshape(-1))
            yield from split(batches, columns)

    def _draw(self, store: RowStore, stream: Numbers, entry: Numbers) -> Rollout:
        """The rows of these entries in the streams' index, one column per entry."""
        position = store.in_index(stream, entry)
        number = store.starts[position] + self._shifts
        place = store.rows.at(stream, number)
        records = store.rows.take_records(place)
        flags = records["flags"][1:]
        drawn = Drawn(store, stream, number, place, records, flags, None, self._on_device)
        if self.plan.kind == "windows" and self.plan.steps > 1:
            drawn = _cut_window(drawn)
        state = {}
        if store.unrolls is not None:
            state = {
                name: store.unrolls.read(name, position).transpose(0, 1).contiguous()
                for name in self._layout.states
            }
        rollout, valid_rows = drawn.rollout(state)
        # A window is one transition, of several steps.
        self.drawn_rows += len(entry) if self.plan.kind == "windows" else valid_rows
        return rollout

    def save(self) -> dict[str, Any]:
        """The JSON-able state for a checkpoint; the files are then synced to disk."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        rows = save_rows(self._store) if self._store is not None else None
        if self._store is not None:
            files.sync_folder(self._layout.folder)
            self._saved = self._store.head.copy()
        return {"format": _FORMAT, **counts, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of `save` and the files; called before any `store`.  Raises what
        `load_rows` raises.
        """
        wrong = content_fault(_Saved, state)
        if wrong is not None:
            raise CheckpointError(f"the state of its replay is invalid ({wrong})")
        if state["format"] != _FORMAT:
            raise CheckpointError(
                f"the checkpoint's replay must have format {_FORMAT}, got {state['format']}; "
                "resume with the version of quintet that wrote it"
            )
        for name in _COUNTS:
            setattr(self, name, state[name])
        self._check_counts()
        if state["rows"] is not None:
            self._store = load_rows(self._layout, state["rows"])
            self._put_on_device()
            self._saved = self._store.head.copy()

    def _check_counts(self) -> None:
        """Raises CheckpointError if the counts of drawn and owed batches don't agree."""
        if self.plan.draws != "owed":
            return
        owed = self._rate * self.counted_steps // self._rate_steps
        most = owed * self.plan.columns * self.plan.steps
        if self.owed_draws != owed or self.drawn_rows > most:
            raise CheckpointError(
                f"the state of its replay must count {owed:,} draws of {most:,} rows at most after "
                f"{self.counted_steps:,} steps, got {self.owed_draws:,} of {self.drawn_rows:,}"
            )


_BLOCK = 64  # iterations whose random numbers are made at once, where each draws one batch
_NUMBER, _CHANCE, _BLOCKS = range(3)  # uses of random numbers, for an iteration or a block


class _Random:
    """Random numbers that depend only on the seed and the iteration."""

    def __init__(self, seed: int, columns: int):
        self._bits = np.random.Philox(key=seed)
        self._random = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._columns = columns
        self._block, self._of_block = -1, np.empty((0, columns))

    def poisson(self, iteration: int, mean: float) -> int:
        """A Poisson number with this mean."""
        return int(self._at(iteration, _NUMBER).poisson(mean))

    def uniform(self, iteration: int, number: int) -> NDArray[np.float64]:
        """Uniform numbers ``[number, columns]`` in [0, 1)."""
        if number != 1:
            return self._at(iteration, _CHANCE).random((number, self._columns))
        block, row = divmod(iteration, _BLOCK)
        if block != self._block:
            self._of_block = self._at(block, _BLOCKS).random((_BLOCK, self._columns))
            self._block = block
        return self._of_block[row : row + 1]

    def _at(self, index: int, what: int) -> np.random.Generator:
        counter = self._state["state"]["counter"]
        counter[1], counter[2] = index, what  # each has its own 2**64 blocks of Philox
        self._bits.state = self._state
        return self._random


def _exact(rate: float) -> Fraction:
    """The nearest simple fraction (1/3, 29/100), also for rates far below 1."""
    finest = 1_000_000 * max(1, ceil(1 / Fraction(rate))) if rate > 0 else 1
    return Fraction(rate).limit_denominator(finest)


class Drawn(NamedTuple):
    """The rows -1..T of B windows or unrolls.

    number, place: ``[T + 2, B]``, number of a row in its stream, and its place in the rings.
    records: ``[T + 2, B]``, copies of the rows' records.
    flags: ``[T + 1, B]``, of rows 0..T.
    blank: ``[T, B]``, rows that have only an observation; None if there are none.
    on_device: holds the large leaves of observations on a GPU; None: draws are on the CPU.
    """

    store: RowStore
    stream: Numbers
    number: Numbers
    place: Numbers
    records: Array
    flags: Array
    blank: Array | None
    on_device: OnDevice | None

    def rollout(self, state: dict[str, Tensor]) -> tuple[Rollout, int]:
        """A copy of the rows, and the number of valid rows."""
        store, layout, stream = self.store, self.store.layout, self.stream
        numbers = layout.numbers  # numbers of the streams in the run, one for each ring
        streams = stream.copy() if numbers is None else numbers[stream]
        bits = _BITS.take(self.flags, 1)
        terminated, truncated, valid, cut = bits[:4, :-1]
        action, last_action = self._with_last("action")
        reward, last_reward = self._with_last("reward")
        rollout = Rollout(
            obs={name[4:]: self._observed(name) for name in layout.leaves},
            action=action,
            reward=reward,
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            valid=torch.from_numpy(valid),
            is_first=torch.from_numpy(bits[4]),
            record={name: self._read(f"record/{name}") for name in layout.records},
            version=self._read("version"),
            policy_id=self._read("policy_id"),
            stream_id=torch.from_numpy(streams),
            group_id=torch.from_numpy(store.group[stream]),
            episode_id=torch.from_numpy(self.records["episode_id"][1]),
            last_action=last_action,
            last_reward=last_reward,
            state=state,
            return_carry=self._read("return_carry") if layout.has_return_carry else None,
            trace_cut=torch.from_numpy(cut),
            replayed=True,
        )
        return rollout, int(np.count_nonzero(valid))

    def _observed(self, name: str) -> Tensor:
        """A leaf of the observation, rows 0..T."""
        rows, store = self.store.rows, self.store
        if name in store.packed:
            return as_tensor(self.records[name][1:], rows.specs[name].dtype)
        if self.on_device is not None:
            return self.on_device.read(name, self.stream, self.number[1:], self.place[1:])
        return store.read_obs(name, self.stream, self.number[1:], self.place[1:])

    def _before_last(self, name: str) -> Array:
        """A field of rows -1..T - 1."""
        rows = self.store.rows
        packed = name in self.store.packed
        values = self.records[name][:-1] if packed else rows.take(name, self.place[:-1])
        if self.blank is not None:
            values[1:][self.blank] = 0
        return values

    def _read(self, name: str) -> Tensor:
        """Rows 0..T - 1."""
        return as_tensor(self._before_last(name)[1:], self.store.rows.specs[name].dtype)

    def _with_last(self, name: str) -> tuple[Tensor, Tensor]:
        """Rows 0..T - 1, and row -1."""
        values, dtype = self._before_last(name), self.store.rows.specs[name].dtype
        return as_tensor(values[1:], dtype), as_tensor(values[0], dtype)


def _cut_window(drawn: Drawn) -> Drawn:
    """The windows, with the rows after the first cut of each masked."""
    flags = drawn.flags
    gap = (flags & GAP) > 0
    if gap.any():
        # Rows after a gap belong to another stretch, or don't exist: the gap's row is repeated.
        store, stream, number = drawn.store, drawn.stream, drawn.number
        reach = np.where(gap.any(0), gap.argmax(0), len(gap))
        number = np.minimum(number, number[1] + reach)
        place = store.rows.at(stream, number)
        records = store.rows.take_records(place)
        flags = records["flags"][1:]
        blank = number[1:-1] == store.head[stream]
        drawn = Drawn(store, stream, number, place, records, flags, blank, drawn.on_device)
    ended = (flags[:-1] & (TERMINATED | TRUNCATED)) > 0
    broken = (flags[:-1] & CUT) > 0
    broken[:-1] |= (flags[1:-1] & VALID) == 0
    alive = np.ones_like(ended)
    alive[1:] = ~np.logical_or.accumulate(ended | broken, 0)[:-1]
    rows = flags[:-1] & np.uint8(0xFF & ~(VALID | CUT))
    rows |= alive * np.uint8(VALID)
    rows |= (alive & broken & ~ended) * np.uint8(CUT)
    return drawn._replace(flags=np.concatenate([rows, flags[-1:]]))
