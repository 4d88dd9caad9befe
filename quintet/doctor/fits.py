"""Predictions of the next observation and of the reward, from rows of random play."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quintet.doctor.clock import Clock, hidden_clock
from quintet.doctor.network import by_network
from quintet.doctor.play import Play
from quintet.doctor.predict import (
    Floats,
    Score,
    folds,
    nearest_score,
    residuals,
    scores,
    share_of_groups,
    tells,
)

LEAST_ROWS = 600
_LEAST_PAID = 60  # rows with another reward, below which nothing is said about predicting it
_MOST_ROWS, _MOST_BY_NETWORK = 5_000, 25_000
_MOST_TARGETS = 12  # numbers of the observation whose next values are predicted
_ROUNDING = 1e-6  # part of a number's size, in float32
_TOLD = 0.95  # share of a change from which on its action does the same in all episodes
MEMORY_GAIN = 0.2  # gain of a score from which on memory is said to help
UNTOLD = 0.1  # score of a number that nothing before it tells
HALF_TOLD = 0.7
_LAGS = (1, 2, 4, 8, 16, 32, 64)
_RECALLED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_LAG_ROWS = 2_500
_EPISODE_ROWS = 3  # fewest rows per episode, on average, to say what belongs to an episode
_FIXED = 0.999
_DEALT = 30  # times that rows are dealt to episodes at random


@final
@dataclass(frozen=True)
class Next:
    """Scores of a number's change from one observation to the next, on held-out episodes.

    name: leaf and place; "" for a projection of a large leaf.
    now: from the observation and the action; memory: also from the two before them.
    value: of the next value itself, from observation and action.
    delay: as now, and from the two actions before; None: not measured, since memory helps little.
    own_loss: loss of `value` without this number; nan: not measured, since it is predicted well.
    others: score of its next value from the other numbers of that observation; nan: not measured.
    used: whether it tells anything of the reward, or of how other numbers change.
    """

    name: str
    now: Score
    memory: Score
    value: Score
    delay: Score | None = None
    own_loss: float = float("nan")
    others: float = float("nan")
    used: bool = False

    @property
    def gain(self) -> float:
        """Gain by memory."""
        return self.memory.low - self.now.high

    @property
    def noise(self) -> bool:
        """Whether its next value is unpredictable, or is predicted as well without it.  It is no
        noise if other numbers of its observation predict it, as two numbers predict their
        difference, or if it predicts anything, as a gust or a price does."""
        if self.others > HALF_TOLD or self.used:
            return False
        return self.value.high < UNTOLD or (self.value.high < HALF_TOLD and self.own_loss < 0.02)


@final
@dataclass(frozen=True)
class Fits:
    """Scores on held-out rows.

    next: of numbers that change.
    reward: of the reward, from both observations and the action, without the rows that end an
        episode if there are enough others; None: it changes too rarely.
    reward_nearest: of the reward from the rows with the nearest observations and actions, before
        or after the step or both; None: not measured, since it is predicted anyhow.
    reward_memory: also from the two steps before, or from the step that helps most.
    memory_steps: how far back that is.
    reward_lags: by lag, from the observations and the action that many steps before.
    reward_varies: number of rows whose reward is not the most frequent one.
    reward_by_episode: share of the unpredicted rest of the reward that lies between episodes.
    shown_by_episode: number of observed numbers that stay the same in an episode and differ between
        episodes, as a goal that is shown.
    action_by_episode: share of the effect of actions on observations that lies between
        episodes, so that an action has another effect in each.
    clock: a rule by which the step's number predicts rewards or observations; None: none.
    projected: whether leaves were too large to be looked at number by number.
    """

    rows: int
    next: tuple[Next, ...] = ()
    reward: Score | None = None
    reward_nearest: Score | None = None
    reward_memory: Score | None = None
    memory_steps: int = 2
    reward_lags: dict[int, Score] = field(default_factory=dict)
    reward_varies: int = 0
    reward_by_episode: float = 0.0
    shown_by_episode: int = 0
    action_by_episode: float = 0.0
    clock: Clock | None = None
    projected: bool = False


def fit(played: Play) -> Fits:
    """Fits everything; a few seconds."""
    table = _table(played, _MOST_ROWS)
    projected = "" in played.numbers
    if len(table.t) < LEAST_ROWS:
        return Fits(len(table.t), projected=projected)
    varying = _targets(table)
    change = table.change(varying)
    found: list[Next] = []
    action_share, clock = 0.0, None
    if varying.size:
        now = scores(table.input(), change, table.group)
        memory = scores(table.input(memory=True), change, table.group)
        value = scores(table.input(), table.after[:, varying], table.group)
        now, value = _better(table, varying, (now, memory, value))
        delay = _delays(table, change, now, memory)
        names, alone = [played.numbers[i] for i in varying], _alone(table, varying, value)
        parts = zip(names, now, memory, value, delay, alone, strict=True)
        found = [Next(name, a, b, c, d, *own) for name, a, b, c, d, own in parts]
        action_share = _action_share(table, change)
        hidden = [i for i, each in enumerate(now) if each.mean < _TOLD]
        clock = hidden_clock(table.steps, table.input(), change[:, hidden], table.group)
    of_rewards, own_clock = _of_rewards(played, table.paid())
    return Fits(
        len(table.t), tuple(found), projected=projected, action_by_episode=action_share,
        clock=own_clock or clock, **of_rewards,
    )  # fmt: skip


def _with_history(played: Play) -> NDArray[np.bool_]:
    """Rows whose two predecessors are of the same episode."""
    use = played.valid.copy()
    use[:2] = False
    use[1:] &= played.valid[:-1]
    use[2:] &= played.valid[:-2]
    return use


@final
class _Table:
    """Observations and actions of chosen rows ``[N, n]``."""

    def __init__(self, played: Play, t: NDArray[np.int64], b: NDArray[np.int64]) -> None:
        self.played, self.t, self.b = played, t, b
        self.obs, self.after = played.obs[t, b], played.obs[t + 1, b]
        self.action, self.reward = played.action[t, b], played.reward[t, b][:, None]
        self.group = played.episode[t, b]
        self.steps = played.steps_before[t, b]

    def input(self, *, memory: bool = False, actions: bool = False, after: bool = False) -> Floats:
        """The inputs of predictors ``[N, F]``, with the two steps before or the one after."""
        parts = [self.obs, self.action]
        if after:
            parts.append(self.after)
        for back in (1, 2):
            if memory:
                parts.append(self.played.obs[self.t - back, self.b])
            if memory or actions:
                parts.append(self.played.action[self.t - back, self.b])
        return np.concatenate(parts, -1)

    def without(self, place: int) -> Floats:
        """The inputs without a number of the observation."""
        return np.delete(self.input(), place, 1)

    def change(self, places: NDArray[np.int64]) -> Floats:
        """Changes of numbers to the next observation, without differences due to rounding alone."""
        change = (self.after - self.obs)[:, places]
        rounded = change.std(0) <= _ROUNDING * np.abs(self.after[:, places]).max(0, initial=0.0)
        return np.where(rounded, change.mean(0), change)

    def paid(self) -> "_Table":
        """The rows for predictions of the reward, without those that end an episode unless only
        these pay: rewards at an end, as for a crash, are of another size and hide the others."""
        played = self.played
        within = ~(played.terminated | played.truncated)[self.t, self.b]
        if _varies(self.reward[within]) < _LEAST_PAID:
            return self
        return _Table(played, self.t[within], self.b[within])


def _table(played: Play, most: int) -> _Table:
    """At most `most` rows, of randomly chosen whole episodes (the last may be cut): effects that
    are constant in an episode show only over several of its rows."""
    use = _with_history(played)
    place = np.argwhere(use)
    if len(place) > most:
        episode = played.episode[use]
        order = np.random.default_rng(0).permutation(np.unique(episode))
        rank = np.empty(episode.max() + 1, np.int64)
        rank[order] = np.arange(len(order))
        place = place[np.argsort(rank[episode], kind="stable")[:most]]
    return _Table(played, *place.T)


def _targets(table: _Table) -> NDArray[np.int64]:
    """Places of the numbers that change, spread over all of them."""
    moving = np.flatnonzero((table.after != table.obs).mean(0) > 0.01)
    if len(moving) > _MOST_TARGETS:
        moving = moving[np.linspace(0, len(moving) - 1, _MOST_TARGETS).astype(int)]
    return moving


def _varies(reward: Floats) -> int:
    values, counts = np.unique(reward, return_counts=True)
    return int(len(reward) - counts.max(initial=0)) if len(values) > 1 else 0


def _delays(
    table: _Table, change: Floats, now: list[Score], memory: list[Score]
) -> list[Score | None]:
    """Scores from the last actions in place of all that was before, where memory helps."""
    gain = max((b.low - a.high for a, b in zip(now, memory, strict=True)), default=0.0)
    if gain < MEMORY_GAIN:
        return [None] * len(now)
    return list(scores(table.input(actions=True), change, table.group))


def _better(
    table: _Table,
    varying: NDArray[np.int64],
    found: tuple[list[Score], list[Score], list[Score]],
) -> tuple[list[Score], list[Score]]:
    """Scores of the changes and of the next values, by a network where those found would lead to a
    finding and it does better."""
    now, memory, value = (list(each) for each in found)
    doubtful = [
        i
        for i, each in enumerate(value)
        if each.high < HALF_TOLD or memory[i].low - now[i].high >= MEMORY_GAIN
    ]
    if doubtful:
        places = varying[doubtful]
        after = table.after[:, places]
        y = np.concatenate([table.change(places), after], 1)
        better = scores(table.input(), y, table.group, by_network)
        for place, i in enumerate(doubtful):
            now[i] = max(now[i], better[place])
            value[i] = max(value[i], better[len(doubtful) + place])
    return now, value


def _alone(
    table: _Table, varying: NDArray[np.int64], value: list[Score]
) -> list[tuple[float, float, bool]]:
    """Facts about each number whose next value is predicted badly: the loss of that score without
    the number itself, its score from the other numbers of the next observation, and whether it
    tells anything of the reward or of how other numbers change."""
    found, paid = list[tuple[float, float, bool]](), table.paid()
    pays = _varies(paid.reward) >= _LEAST_PAID
    for i, each in zip(varying, value, strict=True):
        if each.high >= HALF_TOLD:
            found.append((float("nan"), float("nan"), False))
            continue
        after, rest = table.after[:, i, None], np.delete(table.after, i, 1)
        loss = each.mean - scores(table.without(i), after, table.group)[0].mean
        others = scores(rest, after, table.group)[0].mean
        moving = varying[varying != i]
        subjects = [(table, table.change(moving))] if moving.size else []
        subjects += [(paid, paid.reward)] if pays else []
        used = any(
            tells(x, of.without(i), y, of.group)
            for of, y in subjects
            for x in (of.obs[:, i], of.after[:, i])
        )
        found.append((loss, others, used))
    return found


def _of_rewards(played: Play, table: _Table) -> tuple[dict[str, Any], Clock | None]:
    """The part of `Fits` about rewards, and the rule by which the step's number predicts them."""
    varies = _varies(table.reward)
    if varies < _LEAST_PAID:
        return {"reward_varies": varies}, None
    x = table.input(after=True)
    # Score of the reward from its own step, by a network where the usual predictor fails.
    present = scores(x, table.reward, table.group)[0]
    predicted, residual = table, None
    if present.high < 0.9:
        # A network takes as long for more rows, so it gets more.
        more = _table(played, _MOST_BY_NETWORK).paid()
        left, (score,) = folds(more.input(after=True), more.reward, more.group, by_network)
        if score > present:
            present, predicted, residual = score, more, left
    # Whether near rows or earlier steps tell more.
    memory = scores(table.input(memory=True, after=True), table.reward, table.group)[0]
    steps, lags, nearest = 2, dict[int, Score](), None
    if present.mean < 0.9:
        # Rows are near each other only in few dimensions.
        some = (table.input(), table.after, x)
        found = [nearest_score(each, table.reward[:, 0], table.group) for each in some]
        nearest = max(found, key=lambda each: each.mean)
        lags = _lag_scores(played)
        for lag in _RECALLED:
            recalled = _lagged(played, lag, now=True)
            if recalled is not None and recalled.low > memory.high:
                steps, memory = lag, recalled
    # Whether the number of the step does, and what is left differs between episodes.
    clock = None
    if present.mean < _TOLD:
        clock = hidden_clock(table.steps, x, table.reward, table.group, of_reward=True)
    if residual is None:
        residual = residuals(x, table.reward, table.group)
    factors = [*predicted.obs.T, *predicted.action.T]
    return {
        "reward_varies": varies,
        "reward": present,
        "reward_nearest": nearest,
        "reward_memory": memory,
        "memory_steps": steps,
        "reward_lags": lags,
        "reward_by_episode": _by_episode(residual[:, 0], factors, predicted.group),
        "shown_by_episode": sum(share_of_groups(x, table.group) > _FIXED for x in table.obs.T),
    }, clock


def _lag_scores(played: Play) -> dict[int, Score]:
    """Scores of the reward by lag, more of them around the best."""
    found: dict[int, Score] = {}

    def look(lags: Iterable[int]) -> None:
        for lag in lags:
            if lag not in found and (score := _lagged(played, lag)) is not None:
                found[lag] = score

    look(_LAGS)
    for part in (4, 16):
        if found:
            best = max(found, key=lambda lag: found[lag].mean)
            step = best // part
            if step:
                look([best - step, best + step, best + 2 * step, best - 2 * step])
    return found


def _lagged(played: Play, lag: int, *, now: bool = False) -> Score | None:
    """The score of the reward from observation and action `lag` steps before; now: and from those
    of its own step."""
    before = played.valid.copy()
    same = np.zeros_like(before)
    if lag >= len(before):
        return None
    same[lag:] = played.episode[lag:] == played.episode[:-lag]
    # The last step may pay what was still owed.
    place = np.argwhere(before & same & ~(played.terminated | played.truncated))
    if len(place) < LEAST_ROWS:
        return None
    place = place[:: max(1, len(place) // _LAG_ROWS)]
    t, b = place.T
    reward = played.reward[t, b][:, None]
    if _varies(reward) < _LEAST_PAID:
        return None
    then = t - lag
    x = [played.obs[then, b], played.action[then, b], played.obs[then + 1, b]]
    if now:
        x += [played.obs[t, b], played.action[t, b], played.obs[t + 1, b]]
    return scores(np.concatenate(x, -1), reward, played.episode[t, b])[0]


def _by_episode(left: Floats, factors: list[Floats], group: NDArray[np.int64]) -> float:
    """The greatest share that lies between episodes, of the rest and of its products with the
    factors; 0 where rows that are dealt to episodes at random have as much, or episodes have few
    rows."""
    if len(left) < _EPISODE_ROWS * len(np.unique(group)):
        return 0.0
    columns = [left]
    for factor in factors[:64]:
        spread = factor.std()
        if spread > 1e-9:
            columns.append(left * (factor - factor.mean()) / spread)

    def greatest(of: NDArray[np.int64]) -> float:
        return max(share_of_groups(column, of) for column in columns)

    found, random = greatest(group), np.random.default_rng(0)
    chance = max(greatest(random.permutation(group)) for _ in range(_DEALT))
    return found if found > chance else 0.0


def _action_share(table: _Table, change: Floats) -> float:
    """The largest share by which an action's effect differs between episodes."""
    # Held actions belong to their episode.
    free = ~table.played.held[table.b]
    group = table.group[free]
    if free.sum() < LEAST_ROWS:
        return 0.0
    # Skip numbers that the action alone predicts: there episodes can't differ.
    left = residuals(table.input()[free], change[free], group)
    shares = [0.0]
    explained = 1.0 - left.var(0) / np.maximum(change[free].var(0), 1e-18)
    for column in left.T[explained < _TOLD]:
        for action in table.action[free].T:
            centred = action - action.mean()
            if centred.std() > 1e-9:
                product = share_of_groups(column * centred, group)
                shares.append(product - share_of_groups(column, group))
    return max(shares)
