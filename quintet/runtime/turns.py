"""Games in turn: makes the rows of a group's unroll into streams of decisions.

Where agents act in turn (`EnvDescription.turns`), most rows of a stream hold no decision, and what
a decision leads to is known when its agent is on turn again.  `Turns` puts the decisions of each
column in its first rows, each with its outcome; the rows that are left over are not valid.  A
decision without an outcome at the end of an unroll, or with an end in its last row, is the first
row of the next one.
"""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.runtime.slots import PLAYER, Slot
from quintet.types import State

_OUTCOME = ("reward", "raw_reward", "terminated", "truncated", "success", "metrics")

Bools = NDArray[np.bool_]


def where_acted(before: State, after: State, acted: Bools) -> State:
    """The state after an act, ``[B, ...]``: agents that did not act keep their previous state."""
    mask = torch.from_numpy(acted.copy())
    return {
        # Players are drawn for games, not by decision.
        name: x
        if name == PLAYER
        else torch.where(mask.view(-1, *[1] * (x.ndim - 1)), x, before[name])
        for name, x in after.items()
    }


@final
class Begun:
    """Tracks which streams are within an episode, which begins with the agent's first decision."""

    def __init__(self, num_streams: int):
        self._begun = np.zeros(num_streams, np.bool_)

    def after(self, acted: Bools, ended: Bools) -> Bools:
        """Whether each stream's next decision after a row begins an episode."""
        self._begun |= acted
        self._begun &= ~ended
        return ~self._begun


@final
class Turns:
    """Collects data of a group's unroll in addition to its slot, and gathers the unroll in the
    slot.

    An unroll of R rows is gathered from R + 2: the waiting decision of the previous unroll, rows 0
    to R - 1, and the observation after them.  An item of a column is a decision, or the row after
    the end of an episode, with its last observation.
    """

    def __init__(self, num_streams: int):
        self.num_streams = num_streams
        self.restart()

    def restart(self) -> None:
        count = self.num_streams
        self.begun = Begun(count)
        self.open = np.zeros(count, np.bool_)  # streams whose newest decision has no outcome yet
        self.just_ended = np.zeros(count, np.bool_)  # streams that got an end in the newest row
        self.before: State = {}
        self.states: list[State] = []
        self.waits = np.zeros(count, np.bool_)  # streams with a decision from the unroll before
        self.ended = np.zeros(count, np.bool_)  # waiting decisions whose outcome is an end
        self.waiting: dict[str, Tensor] = {}
        self.episodes = np.zeros(count, np.int64)  # number of episodes that have begun
        self.next: dict[str, Tensor] = {}  # observations that the next unroll begins with
        self.last_action: Tensor | None = None
        self.last_reward = np.zeros(count, np.float32)

    def begin(self, slot: Slot) -> None:
        """Prepares any unroll but the first."""
        for name, x in slot.obs_rows[0].items():
            x.copy_(self.next[name])
        slot.is_first[0] = self.first
        assert self.last_action is not None
        slot.last_action.copy_(self.last_action)
        slot.last_reward[:] = self.last_reward

    def act(self, state: State, slot: Slot) -> None:
        """Keeps the state before an act."""
        self.before = state
        self.states.append({name: state[name].clone() for name in slot.state})

    def receive(self, row: int, slot: Slot, after: State) -> State:
        """Reads which agents acted in a row; returns the state for the next act."""
        acted = slot.valid[row]
        ended = slot.terminated[row] | slot.truncated[row]
        # The row after an end shows the last observation, to which memory and policy belong.
        slot.is_first[row + 1] = self.begun.after(acted, ended) & ~ended
        self.open |= acted
        self.just_ended = self.open & ended
        self.open &= ~ended
        return where_acted(self.before, after, acted)

    def executed(self, slot: Slot, rows: int) -> int:
        """Number of decisions that the unroll would hold if it ended after `rows` rows."""
        made = np.count_nonzero(self.waits) + np.count_nonzero(slot.valid[:rows])
        return int(made - np.count_nonzero(self.open | self.just_ended))

    def gather(self, slot: Slot, rows: int, state: State) -> None:
        """Ends an unroll of `rows` rows and puts it into `slot` in its final form."""
        self.states.append({name: state[name].clone() for name in slot.state})
        self.next = {name: x.clone() for name, x in slot.obs_rows[rows].items()}
        self.first = slot.is_first[rows].copy()
        if self.last_action is None:
            self.last_action = slot.last_action.clone()
        if not self.waiting:
            self.waiting = {name: x[:1] for name, x in self._fields(slot).items()}
            self.waiting |= {f"state/{name}": x[None] for name, x in self.states[0].items()}
            self.waiting = {name: torch.zeros_like(x) for name, x in self.waiting.items()}
        outcome, decides, items = self._outcomes(slot, rows)
        last = np.where(decides, np.arange(rows + 1)[:, None], -1).max(0)
        columns = np.arange(self.num_streams)
        ended = (outcome["terminated"] | outcome["truncated"])[last, columns]
        # One that ended in the last row waits too: no act has seen its last observation yet, and
        # there may be no room.
        waits = (last >= 0) & (~ended | self.just_ended)
        behind = np.arange(rows + 2)[:, None] > last
        items &= ~(behind & waits)
        source = _sources(items, slot.steps)
        learned = decides & ~((np.arange(rows + 1)[:, None] == last) & waits)
        firsts = self._number(slot, rows, decides)
        self._remember(slot, rows, learned, outcome)
        whole = self._all_rows(slot, rows, firsts)
        waiting = {
            name: x[torch.from_numpy(np.maximum(last, 0)), torch.from_numpy(columns)][None]
            for name, x in whole.items()
        }
        outcome_waits = {
            name: torch.from_numpy(x[np.maximum(last, 0), columns][None].copy())
            for name, x in outcome.items()
        }
        row = np.where(source[: slot.steps] <= rows, source[: slot.steps], rows)
        valid = learned[row, columns] & (np.arange(slot.steps)[:, None] < items.sum(0))
        valid &= source[: slot.steps] <= rows  # the row of the last observation is no decision
        self._write(slot, whole, source, row)
        for name, x in outcome.items():
            getattr(slot, name)[:] = np.where(_over(valid, x), x[row, columns], 0)
        slot.valid[:] = valid
        slot.is_first[:-1] &= valid
        slot.is_first[-1] = False
        self.waiting, self.waits = waiting | outcome_waits, waits
        self.ended = waits & ended
        self.states = []

    def _fields(self, slot: Slot) -> dict[str, Tensor]:
        """The fields of rows, ``[T or T + 1, B, ...]``, by name."""
        memory = slot.memory
        obs = {f"obs/{name}": x for name, x in slot.obs.items()}
        record = {f"record/{name}": x for name, x in slot.record.items()}
        own = ("action", "version", "policy_id", "is_first", *_OUTCOME)
        return obs | record | {name: memory[name] for name in own if name in memory}

    def _outcomes(
        self, slot: Slot, rows: int
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any]]:
        """Outcomes of decisions ``[R + 1, B]``, masks of decisions and of items ``[R + 2, B]``."""
        decides = np.concatenate((self.waits[None], slot.valid[:rows]))
        fields = {name: getattr(slot, name) for name in _OUTCOME}
        of_rows = {name: x[:rows] for name, x in fields.items() if x is not None}
        ends = of_rows["terminated"] | of_rows["truncated"]
        items = np.zeros((rows + 2, self.num_streams), np.bool_)
        items[:-1] = decides
        items[2:] |= ends
        items[1] |= self.ended
        # An outcome belongs to the newest decision.
        index = np.where(decides, np.arange(rows + 1)[:, None], -1)
        newest = np.maximum.accumulate(index)[1:]
        outcome: dict[str, NDArray[Any]] = {}
        brings = ends | (of_rows["raw_reward"] != 0.0) | (of_rows["reward"] != 0.0)
        row, column = np.nonzero(brings & (newest >= 0))
        for name, x in of_rows.items():
            into = np.zeros((rows + 1, *x.shape[1:]), x.dtype)
            into[0] = np.where(_over(self.waits, into), self.waiting[name][0].numpy(), 0)
            at = (newest[row, column], column)
            if x.dtype == np.bool_:
                into[at] |= x[row, column]
            elif name == "metrics":  # the newest row counts, where an episode may end
                into[at] = x[row, column]
            else:
                np.add.at(into, at, x[row, column])
            outcome[name] = into
        return outcome, decides, items

    def _number(self, slot: Slot, rows: int, decides: Bools) -> Bools:
        """Writes ids of the columns' first episodes; returns first rows ``[R + 1, B]``."""
        firsts = np.concatenate((self.waiting["is_first"].numpy(), slot.is_first[:rows])) & decides
        waits = self.waits
        begins = np.where(waits, False, firsts[decides.argmax(0), np.arange(self.num_streams)])
        slot.episode_id[:] = np.maximum(self.episodes - 1 + begins, 0)
        self.episodes += firsts[1:].sum(0)
        return firsts

    def _remember(
        self, slot: Slot, rows: int, learned: Bools, outcome: dict[str, NDArray[Any]]
    ) -> None:
        """Keeps the last action and reward of each column for the next unroll."""
        last = np.where(learned, np.arange(rows + 1)[:, None], -1).max(0)
        columns = np.flatnonzero(last >= 0)
        actions = torch.cat((self.waiting["action"], slot.action[:rows]))
        assert self.last_action is not None
        index = torch.from_numpy(columns)
        self.last_action[index] = actions[torch.from_numpy(last[columns]), index]
        self.last_reward[columns] = outcome["reward"][last[columns], columns]

    def _all_rows(self, slot: Slot, rows: int, firsts: Bools) -> dict[str, Tensor]:
        """All rows that an unroll is gathered from, by field: R + 1, R + 2 of obs and states."""
        whole: dict[str, Tensor] = {}
        for name, x in self._fields(slot).items():
            if name not in _OUTCOME:
                more = name.startswith("obs/")
                whole[name] = torch.cat((self.waiting[name], x[: rows + more]))
        whole["is_first"] = torch.from_numpy(firsts)
        for name in slot.state:
            each = torch.stack([state[name] for state in self.states])
            whole[f"state/{name}"] = torch.cat((self.waiting[f"state/{name}"], each))
        return whole

    def _write(
        self, slot: Slot, whole: dict[str, Tensor], source: NDArray[Any], row: NDArray[Any]
    ) -> None:
        """Writes the rows of the slot: row i of column b is row ``source[i, b]``."""
        columns = torch.from_numpy(np.arange(self.num_streams))
        every, of_row = torch.from_numpy(source), torch.from_numpy(row)
        for name, x in self._fields(slot).items():
            if name in _OUTCOME:
                continue
            if name.startswith("obs/"):
                x.copy_(whole[name][every, columns])
            else:
                x[: slot.steps] = whole[name][of_row, columns]
        stored = every[:: slot.state_every]
        for name, x in slot.state.items():
            x.copy_(whole[f"state/{name}"][stored, columns])


def _over(mask: Bools, x: NDArray[Any]) -> Bools:
    """The mask ``[..., B]`` in the form in which it selects values ``[..., B, M]`` too."""
    return mask[..., None] if x.ndim == 3 else mask


def _sources(items: Bools, steps: int) -> NDArray[np.int64]:
    """The row of the original unroll from which each row ``[T + 1, B]`` of the gathered one is
    copied: that of its item.  Rows after the last item repeat it; without items it is row 0.
    """
    count = items.sum(0)
    row, column = np.nonzero(items)
    source = np.ones((steps + 1, items.shape[1]), np.int64)
    source[(items.cumsum(0) - 1)[row, column], column] = row
    index = np.minimum(np.arange(steps + 1)[:, None], np.maximum(count - 1, 0))
    return np.take_along_axis(source, index, 0)
