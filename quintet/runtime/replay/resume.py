"""Saves a replay's rows: a checkpoint holds heads, counts and checksums; files hold the rows."""

from collections.abc import Mapping
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from pydantic import Field

from quintet.checkpoints.manifest import Checked, Count, content_fault
from quintet.errors import CheckpointError
from quintet.runtime.replay.layout import Layout
from quintet.runtime.replay.ring_files import Numbers, bytes_of, damaged, require_file
from quintet.runtime.replay.store import RowStore
from quintet.runtime.replay.stored_batch import START, VALID

_COUNTERS = ("head", "group", "going_on", "first", "last")


class _Layout(Checked):
    stacks: dict[str, Count]
    ring_rows: Count


class SavedRows(Checked):
    """The state that `save_rows` returns; lists have an entry per stream, `pools` one per stack."""

    layout: _Layout
    pools: list[Count]
    size: Count
    stored: Count
    head: list[Count]
    group: list[Count]
    going_on: list[bool]
    first: list[Count]
    last: list[Count]
    checksums: list[list[Count]]
    newest_flags: list[Annotated[int, Field(ge=0, le=255)]]
    newest_checksums: list[Count]
    state_checksums: list[list[Count]] = Field(default=[])

    def fault(self, layout: Layout) -> str | None:
        """A description of entries that don't fit the layout or each other; None if all fit."""
        stacks, streams = self.layout.stacks, layout.num_streams
        slices = layout.slices_of_stacks()
        strange = [name for name, x in stacks.items() if x not in slices.get(name, ())]
        if strange:
            return f"{strange[0][:60]!r} is no stack of {stacks[strange[0]]} slices"
        if len(self.pools) != len(stacks):
            return f"{len(self.pools)} pools for {len(stacks)} stacks"
        lists = [*_COUNTERS, "checksums", "newest_flags", "newest_checksums"]
        lists += ["state_checksums"] * bool(layout.states)
        short = [name for name in lists if len(getattr(self, name)) != streams]
        if short:
            return f"{short[0]} has {len(getattr(self, short[0]))} entries for {streams} streams"
        if not self.size <= self.stored <= sum(self.head):
            return f"{self.stored:,} rows were stored, of which {self.size:,} are left"
        return None


def save_rows(store: RowStore) -> dict[str, Any]:
    """The JSON-able state for `load_rows`; when it returns, the rows are on disk.

    Only segments with rows written since the last call are read for checksums.
    """
    store.rows.seal(store.head, store.kept_whole)
    rows = store.rows
    state = {
        "layout": store.layout.to_json(),
        "pools": [stack.entries for stack in store.stacks.values()],
        "size": store.size,
        "stored": store.stored,
        **{name: getattr(store, name).tolist() for name in _COUNTERS},
        "checksums": rows.checksums(_oldest(store), store.head),
        "newest_flags": store.flags[_newest(store)].tolist(),
        "newest_checksums": [_newest_checksum(store, i) for i in range(rows.num_streams)],
    }
    if store.unrolls is not None:
        store.unrolls.seal(store.last)
        state["state_checksums"] = store.unrolls.checksums(store.first, store.last)
        store.unrolls.flush()
    rows.flush()
    for stack in store.stacks.values():
        stack.flush()
    return state


def load_rows(layout: Layout, state: Mapping[str, Any]) -> RowStore:
    """The rows as they were when `save_rows` returned `state`; later rows are dropped.  The rings
    keep their length, and `layout` takes their slack.

    Raises CheckpointError if the files don't hold every row of the checkpoint, or the layout
    differs; ConfigError if memory is missing.
    """
    wrong = content_fault(SavedRows, state) or SavedRows.model_validate(state).fault(layout)
    if wrong is not None:
        raise CheckpointError(f"the state of its replay holds values that no run writes ({wrong})")
    layout.keep(state["layout"]["stacks"], state["layout"]["ring_rows"])
    current = layout.to_json()
    if current != state["layout"]:
        differing = [name for name in current if current[name] != state["layout"].get(name)]
        raise CheckpointError(
            "replay must have the layout with which the checkpoint was written, got another: "
            + "; ".join(f"{k} was {state['layout'].get(k)} and is {current[k]}" for k in differing)
            + "; continue with the old settings, or start again in another run folder"
        )
    for name, nbytes in layout.rings_bytes().items():
        require_file(layout.file(name), nbytes)
    store = RowStore(layout, fresh=False)
    store.size, store.stored = state["size"], state["stored"]
    for name in _COUNTERS:
        getattr(store, name)[:] = state[name]
    for stack, entries in zip(store.stacks.values(), state["pools"], strict=True):
        if entries > store.rows.num_streams * store.rows.length:
            raise CheckpointError(f"a pool must have at most one frame per row, got {entries}")
        stack.recover(entries, _is_sealed(store))
    # The newest row has been completed since; its observation is still there.
    store.flags[_newest(store)] = state["newest_flags"]
    _verify(store, state)
    _rebuild_index(store)
    return store


def _oldest(store: RowStore) -> Numbers:
    """Number of the oldest row that a draw can need, by stream."""
    oldest: Numbers = np.maximum(store.head - store.layout.needed_rows, 0)
    return oldest


def _newest(store: RowStore) -> Numbers:
    """Place of the newest row, by stream."""
    return store.rows.at(np.arange(store.rows.num_streams), store.head)


def _newest_checksum(store: RowStore, stream: int) -> int:
    """Checksum of a stream's current observation and of its episode's number."""
    place = int(_newest(store)[stream])
    rows, fields, total = slice(place, place + 1), store.rows.fields, 0
    parts = [fields[name][rows] for name in fields if name.startswith("obs/")]
    for part in (*parts, fields["episode_id"][rows], *store.kept_whole(rows)):
        total = crc32(bytes_of(part), total)
    return total


def _is_sealed(store: RowStore) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each place of the rings is in a segment of the checkpoint."""
    count, length = store.rows.num_streams, store.rows.length
    live = np.zeros((count, length), np.bool_)
    begin = _oldest(store) // store.layout.segment * store.layout.segment
    for stream in np.flatnonzero(store.head).tolist():
        live[stream, np.arange(begin[stream], store.head[stream] + 1) % length] = True
    return live.reshape(-1)


def _verify(store: RowStore, state: Mapping[str, Any]) -> None:
    store.rows.restore(_oldest(store), store.head, state["checksums"], store.kept_whole)
    for stream, checksum in enumerate(state["newest_checksums"]):
        if store.head[stream] and _newest_checksum(store, stream) != checksum:
            raise damaged(store.rows.place, stream)
    if store.unrolls is not None:
        store.unrolls.restore(store.first, store.last, state["state_checksums"])


def _rebuild_index(store: RowStore) -> None:
    """Finds the rows where draws may begin, and compares the checkpoint's counts with the rows."""
    valid = 0
    for stream, head in enumerate(store.head.tolist()):
        live = np.arange(max(head - store.layout.rows_per_stream, 0), head)
        flags = store.flags[stream * store.rows.length + live % store.rows.length]
        starts = live[(flags & START) > 0]
        if int(store.last[stream] - store.first[stream]) != len(starts):
            raise damaged(store.rows.place, stream)
        entry = np.arange(store.first[stream], store.last[stream]) % store.index.shape[1]
        store.index[stream, entry] = starts
        valid += int(np.count_nonzero(flags & VALID))
    if valid != store.size:
        raise CheckpointError(
            f"{store.rows.place} must hold the checkpoint's {store.size:,} rows, got {valid:,}; "
            f"resume from another checkpoint, or start again in another run folder"
        )
