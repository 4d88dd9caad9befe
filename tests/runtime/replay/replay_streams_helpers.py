"""Random streams in next-step layout, and a replay in plain Python lists to compare with."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from folders_helpers import new_folder
from gymnasium import spaces

from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime.replay.replay import Replay
from quintet.runtime.slots import RowSpecs
from quintet.types import Rollout, Spaces, TensorSpec

FRAMES = 4
SPACES = Spaces(
    spaces.Dict(
        {
            "image": spaces.Box(0, 255, (FRAMES, 2, 4), np.uint8),
            "color": spaces.Box(0, 255, (3 * 3, 2), np.uint8),
            "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "place": spaces.Discrete(7),
        }
    ),
    spaces.Box(-1, 1, (2,), np.float32),
)
ROWS = RowSpecs(
    SPACES,
    action=TensorSpec((2,), torch.float32),
    record={
        "tag": TensorSpec((), torch.int64),
        "half": TensorSpec((2,), torch.bfloat16),
        "nothing": TensorSpec((0,), torch.float32),
    },
    state={"core/h": TensorSpec((3,), torch.float32)},
)


def plan(kind: str, **values: Any) -> DataPlan:
    """A plan of unrolls of `unroll` steps; `values` as in ReplayPlan."""
    unroll = values.pop("unroll", 4)
    every = values.pop("state_every", unroll)
    options = {
        "capacity_steps": 40,
        "steps": unroll if kind == "sequences" else 1,
        "columns": 8,
        "draws": "owed",
        "rate": 1.0,
    } | values
    return DataPlan(unroll, 1, 0.9, every, replay=ReplayPlan(kind=kind, **options))


def make(data_plan: DataPlan, num_streams: int, seed: int = 0, **options: Any) -> Replay:
    options.setdefault("folder", new_folder())
    return Replay(data_plan, ROWS, num_streams, seed, **options)


@dataclass
class Row:
    """A row as it was made; a gap has only what was reached."""

    obs: dict[str, Any]
    first: bool
    values: dict[str, Any] = field(default_factory=dict)
    gap: bool = False


@dataclass
class Chances:
    """How often things happen, per row or per column."""

    end: float = 0.15
    masked: float = 0.05
    odd: float = 0.05
    empty: float = 0.05
    lost: float = 0.05
    budget: float = 0.05


class Stream:
    """One stream; every row has a tag of its own."""

    def __init__(self, number: int, random: np.random.Generator, chances: Chances):
        self.number, self.random, self.chances = number, random, chances
        self.tag = number * 1_000_000
        self.carry = 0.0
        self.restart()

    def restart(self) -> None:
        self.episode, self.final = 0, False
        self.last = (np.zeros(2, np.float32), np.float32(0))
        self._first()
        self.follows = False

    def _frame(self, shape: tuple[int, ...]) -> Any:
        return self.random.integers(0, 3, shape, np.uint8)  # few values: equal by chance at times

    def _first(self) -> None:
        kind = self.random.integers(3)
        self.stacks = {}
        for name, shape, count in (("image", (1, 2, 4), FRAMES), ("color", (3, 2), 3)):
            frame = self._frame(shape)
            older = {0: lambda f=frame: f, 1: lambda f=frame: 0 * f}.get(kind)
            make_one = older or (lambda s=shape: self._frame(s))
            self.stacks[name] = deque([*(make_one() for _ in range(count - 1)), frame], count)
        self.first = True
        self._observe()

    def _next(self) -> None:
        for stack in self.stacks.values():
            stack.append(self._frame(stack[-1].shape))
            if self.random.random() < self.chances.odd:
                for i in range(len(stack)):
                    stack[i] = self._frame(stack[i].shape)
        self.first = False
        self._observe()

    def _observe(self) -> None:
        self.obs = {name: np.concatenate(stack) for name, stack in self.stacks.items()}
        self.obs["vector"] = self.random.normal(size=3).astype(np.float32)
        self.obs["place"] = np.int64(self.random.integers(7))

    def _row(self, version: int) -> Row:
        random = self.random
        self.tag += 1
        ended = not self.final and random.random() < self.chances.end
        terminated = bool(ended and random.random() < 0.5)
        reward = np.float32(random.normal())
        self.carry = float(reward) + 0.9 * self.carry
        row = Row(
            self.obs,
            self.first,
            {
                "action": random.normal(size=2).astype(np.float32),
                "reward": reward,
                "terminated": terminated,
                "truncated": bool(ended and not terminated),
                "valid": not self.final and (ended or random.random() >= self.chances.masked),
                "trace_cut": False,
                "version": version,
                "policy_id": int(random.integers(3)),
                "return_carry": self.carry,
                "tag": self.tag,
                "half": torch.randn(
                    2, generator=torch.Generator().manual_seed(self.tag)
                ).bfloat16(),
                "episode_id": self.episode,
            },
        )
        self.last = (row.values["action"], reward)
        if self.final:
            self._first()
            self.episode += 1
        else:
            self._next()
        self.final = ended
        return row

    def column(self, steps: int, version: int) -> dict[str, Any]:
        """One unroll: its T rows and the one that is reached."""
        last = self.last
        rows = [self._row(version + (t > steps // 2)) for t in range(steps)]
        if self.random.random() < self.chances.empty:
            for row in rows:
                row.values["valid"] = False
        elif self.random.random() < self.chances.budget:
            valid = [t for t in range(steps) if rows[t].values["valid"]]
            keep = valid[: self.random.integers(len(valid) + 1)]
            for row in rows[keep[-1] + 1 if keep else 0 :]:
                row.values["valid"] = False
            # An ending is no budget's end; the row after the budget's is one that is cut off.
            last_kept = rows[keep[-1]].values if keep and keep[-1] + 1 < steps else None
            if last_kept and not (last_kept["terminated"] or last_kept["truncated"]):
                last_kept["trace_cut"] = True
        reached = Row(self.obs, self.first, {"episode_id": self.episode})
        column = {
            "stream": self.number,
            "rows": [*rows, reached],
            "last": last,
            "follows": self.follows,
            "state": self.random.normal(size=(9, 3)).astype(np.float32),
        }
        self.follows = True
        return column


def to_rollout(columns: list[dict[str, Any]], state_every: int) -> Rollout:
    """The columns as the runtime gives them."""
    steps = len(columns[0]["rows"]) - 1

    def per_row(name: str) -> torch.Tensor:
        values = [[c["rows"][t].values[name] for c in columns] for t in range(steps)]
        if isinstance(values[0][0], torch.Tensor):
            return torch.stack([torch.stack(row) for row in values])
        return torch.from_numpy(np.array(values))

    def per_column(values: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(values))

    return Rollout(
        obs={
            name: torch.from_numpy(
                np.array([[c["rows"][t].obs[name] for c in columns] for t in range(steps + 1)])
            )
            for name in columns[0]["rows"][0].obs
        },
        action=per_row("action"),
        reward=per_row("reward"),
        terminated=per_row("terminated"),
        truncated=per_row("truncated"),
        valid=per_row("valid"),
        is_first=per_column([[c["rows"][t].first for c in columns] for t in range(steps + 1)]),
        record={
            "tag": per_row("tag"),
            "half": per_row("half"),
            "nothing": torch.zeros(steps, len(columns), 0),
        },
        version=per_row("version"),
        policy_id=per_row("policy_id"),
        stream_id=per_column([c["stream"] for c in columns]),
        group_id=per_column([c["stream"] // 2 for c in columns]),
        episode_id=per_column([c["rows"][0].values["episode_id"] for c in columns]),
        last_action=per_column([c["last"][0] for c in columns]),
        last_reward=per_column([c["last"][1] for c in columns]),
        state={
            "core/h": torch.from_numpy(
                np.stack([c["state"][: steps // state_every + 1] for c in columns], 1)
            )
        },
        return_carry=per_row("return_carry"),
        trace_cut=per_row("trace_cut"),
    )


class ListReplay:
    """Every row of every stream in a list, gaps too; the newest `capacity` of each are live."""

    def __init__(self, num_streams: int, capacity: int):
        self.rows: list[list[Row]] = [[] for _ in range(num_streams)]
        self.unrolls: list[list[tuple[int, dict[str, Any]]]] = [[] for _ in range(num_streams)]
        self.reached: list[Row | None] = [None] * num_streams
        self.capacity = capacity

    def store(self, column: dict[str, Any], follows: bool) -> None:
        stream, rows = column["stream"], self.rows[column["stream"]]
        if not follows:
            reached = self.reached[stream]
            action, reward = column["last"]
            values = {"action": action, "reward": reward, "valid": False}
            obs, first = (reached.obs, reached.first) if reached else ({}, False)
            rows.append(Row(obs, first, values, gap=True))
        self.unrolls[stream].append((len(rows), column))
        rows += column["rows"][:-1]
        self.reached[stream] = column["rows"][-1]

    def oldest(self, stream: int) -> int:
        return max(len(self.rows[stream]) - self.capacity, 0)

    def live(self) -> dict[int, tuple[int, int]]:
        """(stream, number) of every live valid row, by tag."""
        return {
            row.values["tag"]: (stream, number)
            for stream, rows in enumerate(self.rows)
            for number, row in enumerate(rows)
            if number >= self.oldest(stream) and row.values["valid"]
        }

    def live_unrolls(self) -> dict[int, dict[str, Any]]:
        """Columns that are live as a whole, by the tag of row 0."""
        return {
            column["rows"][0].values["tag"]: column
            for stream, unrolls in enumerate(self.unrolls)
            for number, column in unrolls
            if number >= self.oldest(stream)
        }

    def window(self, stream: int, number: int, steps: int) -> tuple[list[Row], list[bool], Row]:
        """Rows number..number + steps (shorter where the stream breaks off), which of the first
        `steps` count, and the row before.
        """
        stretch, rows = [], self.rows[stream]
        for i in range(number, number + steps + 1):
            row = rows[i] if i < len(rows) else self.reached[stream]
            stretch.append(row)
            if row.gap or i >= len(rows):
                break
        counts, alive = [], True
        for i in range(steps):
            alive = alive and i < len(stretch) and bool(stretch[i].values.get("valid"))
            counts.append(alive)
            if alive:
                values = stretch[i].values
                alive = not (values["terminated"] or values["truncated"] or values["trace_cut"])
        return stretch, counts, rows[number - 1]


PER_ROW = ("action", "reward", "terminated", "truncated", "version", "policy_id", "return_carry")


def check_window(drawn: Rollout, column: int, reference: ListReplay, live: dict[int, Any]) -> int:
    """Compares one drawn window with the lists; returns its tag."""
    tag = int(drawn.record["tag"][0, column])
    stream, number = live[tag]
    steps = len(drawn.reward)
    stretch, counts, before = reference.window(stream, number, steps)
    for t in range(steps + 1):
        row = stretch[min(t, len(stretch) - 1)]
        for name, values in row.obs.items():
            assert np.array_equal(drawn.obs[name][t, column].numpy(), values), (name, t)
        if t < len(stretch):
            assert bool(drawn.is_first[t, column]) == row.first
    for t in range(steps):
        assert bool(drawn.valid[t, column]) == counts[t]
        if not counts[t]:
            continue
        for name in PER_ROW:
            assert np.array_equal(getattr(drawn, name)[t, column].numpy(), stretch[t].values[name])
        assert int(drawn.record["tag"][t, column]) == stretch[t].values["tag"]
        assert torch.equal(drawn.record["half"][t, column], stretch[t].values["half"])
        values = stretch[t].values
        goes_on = (
            counts[t + 1]
            if t + 1 < steps
            else not (values["terminated"] or values["truncated"] or values["trace_cut"])
        )
        assert float(drawn.not_cut_t[t, column]) == float(goes_on)
        if values["terminated"] or values["truncated"]:
            assert not drawn.trace_cut[t, column]
    assert int(drawn.stream_id[column]) == stream
    assert int(drawn.group_id[column]) == stream // 2
    assert int(drawn.episode_id[column]) == stretch[0].values["episode_id"]
    assert np.array_equal(drawn.last_action[column].numpy(), before.values["action"])
    assert drawn.last_reward[column].item() == before.values["reward"]
    assert not drawn.state
    assert drawn.replayed
    return tag


def check_sequence(drawn: Rollout, column: int, unrolls: dict[int, Any], state_every: int) -> int:
    """Compares one drawn unroll with what was stored, byte by byte; returns its tag."""
    tag = int(drawn.record["tag"][0, column])
    stored = to_rollout([unrolls[tag]], state_every)
    for name in ("obs", "record", "state"):
        mine, theirs = getattr(drawn, name), getattr(stored, name)
        assert mine.keys() == theirs.keys()
        for leaf in mine:
            assert mine[leaf].dtype == theirs[leaf].dtype
            assert torch.equal(mine[leaf][:, column], theirs[leaf][:, 0]), leaf
    for name in (*PER_ROW, "valid", "is_first", "trace_cut"):
        assert getattr(drawn, name).dtype == getattr(stored, name).dtype
        assert torch.equal(getattr(drawn, name)[:, column], getattr(stored, name)[:, 0]), name
    for name in ("stream_id", "group_id", "episode_id", "last_action", "last_reward"):
        assert torch.equal(getattr(drawn, name)[column], getattr(stored, name)[0]), name
    assert drawn.replayed
    return tag


class Run:
    """Random collection into a replay and into the lists at once."""

    def __init__(
        self,
        replay: Replay,
        num_streams: int,
        unroll: int,
        seed: int,
        chances: Chances | None = None,
    ):
        self.replay, self.unroll = replay, unroll
        self.random = np.random.default_rng(seed)
        self.chances = chances or Chances()
        self.streams = [Stream(i, self.random, self.chances) for i in range(num_streams)]
        self.lists = ListReplay(num_streams, replay.capacity // num_streams)
        self.goes_on = [False] * num_streams
        self.version = 0

    def restart(self, told: bool = True) -> None:
        for stream in self.streams:
            stream.restart()
        if told:
            self.replay.cut()

    def collect(self, which: list[int], state_every: int | None = None) -> Rollout:
        """Stores a batch with these streams' next unrolls, in order; returns it."""
        columns = []
        self.version += 1
        for number in which:
            stream = self.streams[number]
            column = stream.column(self.unroll, self.version)
            if self.random.random() < self.chances.lost:
                column = stream.column(self.unroll, self.version)
                column["follows"] = False
            columns.append(column)
        for column in columns:
            number = column["stream"]
            if any(row.values["valid"] for row in column["rows"][:-1]):
                self.lists.store(column, column["follows"] and self.goes_on[number])
                self.goes_on[number] = True
            else:
                self.goes_on[number] = False
        batch = to_rollout(columns, state_every or self.unroll)
        self.replay.store(batch)
        return batch
