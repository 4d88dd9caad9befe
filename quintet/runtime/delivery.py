"""Makes batches from unrolls, whose columns wait in a queue per policy for a learner."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from quintet.observe.metrics import policy_prefix
from quintet.protocols import DataPlan
from quintet.runtime.batch import (
    ColumnBlock,
    Episode,
    Lease,
    Unroll,
    joined,
    known,
    pinned,
    select,
)
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.system.transfer import all_to_device
from quintet.types import Publication, Rollout


@dataclass(frozen=True)
class Steps:
    """env_steps outside of batches, counted when a batch is handed out.

    executed: steps that environments made since the last batch.
    discarded: steps since then that no batch will hold: too old, beyond the budget, or of an unroll
        whose worker died.
    cut: steps since then in episodes that were abandoned because their worker died.
    running: steps in episodes that have not ended, over all streams.
    waiting: executed steps that are not yet in a batch.
    """

    executed: int
    discarded: int
    cut: int
    running: int
    waiting: int


@dataclass(frozen=True)
class Batch:
    """The result of one collection.

    policy: index of the policy that learns from it.
    env_steps: number of valid rows.
    episodes: episodes that ended in it, or in rows dropped since the last batch.
    others: by policy, episodes of other policies that ended in waiting columns which were dropped
        after this batch.
    """

    rollout: Rollout
    policy: int
    env_steps: int
    episodes: list[Episode]
    steps: Steps
    others: dict[int, list[Episode]] = field(default_factory=dict)


@final
class Lag:
    """Policy lags of all rows since the last report, in updates."""

    def __init__(self) -> None:
        self.least, self.total, self.count, self.greatest = math.inf, 0, 0, -math.inf

    def add(self, lag: Tensor) -> None:
        """Adds the lags of some rows, int64."""
        if lag.numel():
            self.least = min(self.least, int(lag.min()))
            self.greatest = max(self.greatest, int(lag.max()))
            self.total += int(lag.sum())
            self.count += lag.numel()

    def metrics(self) -> dict[str, float]:
        """Minimum, mean and maximum by declared name; empty without rows."""
        if not self.count:
            return {}
        return {
            "policy_lag/min": float(self.least),
            "policy_lag/mean": self.total / self.count,
            "policy_lag/max": float(self.greatest),
        }


RestartsAfter = Callable[[Batch], bool]
"""Returns whether the streams restart after a batch, so that the next batch is sampled after it."""


def never(_: Batch) -> bool:
    """Streams run on."""
    return False


def rows_for(env_steps: int, num_streams: int) -> int:
    """The smallest number of rows of all streams that can hold `env_steps`.  Resets take rows too,
    so callers repeat this until it is 0, and execute less than one row too many.
    """
    return max(0, -(-env_steps // num_streams))


@final
@dataclass
class PolicyQueue:
    """Waiting columns of one policy, oldest unroll first, and counts of dropped rows.

    published: version of the weights that act next; learned: version of the learner's weights.
    least_version: rows of older weights are masked, since these weights were another policy's.
    ended: episodes that ended in dropped rows since the last batch.
    """

    waiting: list[ColumnBlock] = field(default_factory=list)
    published: int = -1
    learned: int = -1
    least_version: int = -1
    ended: list[Episode] = field(default_factory=list)
    dropped_columns: int = 0
    dropped_steps: int = 0
    lag: Lag = field(default_factory=Lag)

    @property
    def columns(self) -> int:
        return sum(block.columns for block in self.waiting)

    def drop(self, block: ColumnBlock, kept: Tensor) -> ColumnBlock:
        """The block with only the rows ``kept`` ``[T, B]``; counts the other valid rows, and moves
        the episodes that ended in them to `ended`.
        """
        dropped = known(block.rollout).valid & ~kept
        self.dropped_columns += int((dropped.any(0) & ~kept.any(0)).sum())
        self.dropped_steps += int(dropped.sum())
        unlearned = [episode for episode in block.episodes if dropped[episode.row, episode.column]]
        self.ended += [replace(episode, row=-1, column=-1) for episode in unlearned]
        rest = [episode for episode in block.episodes if not dropped[episode.row, episode.column]]
        return replace(block, rollout=changed(block.rollout, valid=kept), episodes=rest)

    def pop_ended(self) -> list[Episode]:
        ended, self.ended = self.ended, []
        return ended


@final
class Delivery:
    """Turns unrolls into batches, for one learner or several that share the streams.

    A batch takes any columns of its policy, whatever the number of streams; the others wait for the
    next one.  When it is made, rows whose weights are more than the plan's ``max_policy_lag``
    updates old are masked, and columns without other valid rows are dropped.
    """

    def __init__(
        self,
        plan: DataPlan,
        num_streams: int,
        assignment: Assignment = ONE_POLICY,
        may_lag: bool = False,
    ):
        """may_lag: whether weights may be older even if a batch is one round of all streams."""
        self.plan, self.num_streams, self.num_learners = plan, num_streams, assignment.num_learners
        num_policies = assignment.num_policies
        self.queues = [PolicyQueue() for _ in range(num_policies)]
        self.may_lag = may_lag or num_policies > 1 or num_streams != plan.columns_per_batch
        self.pin = False  # whether batches are put in page-locked memory, for a GPU
        self.lock: AbstractContextManager[Any] = nullcontext()  # held by who changes the queues
        self.samples_ahead = False  # whether the last whole batch begins the next round
        self.first_stream = self.first_policy = 0  # the next round's, and the next batch's
        self.running: dict[int, int] = {}  # env_steps in episodes that have not ended, by group
        self.executed = self.counted = self.cut = self.past_budget = self.lost = 0
        self._reported = (0, 0, 0)
        self._lease: Lease | None = None  # keeps the slot that the last batch is a view of

    def restart(self, iteration: int) -> None:
        """Prepares for restarted streams; waiting columns were dropped with the last batch."""
        self.release()
        assert not any(queue.waiting for queue in self.queues)
        self.running.clear()
        self._reported = (self.executed, self.discarded, self.cut)
        self.first_stream = iteration * self.plan.columns_per_batch % self.num_streams
        self.first_policy = iteration

    def release(self) -> None:
        """Ends the reading of the last batch."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def clear(self) -> None:
        """Drops waiting columns."""
        for queue in self.queues:
            for block in queue.waiting:
                queue.drop(block, torch.zeros_like(known(block.rollout).valid)).release()
            queue.waiting = []

    def publish(self, publication: Publication) -> None:
        """Records that the learner has this version, with which the next unrolls act."""
        queue = self.queues[publication.policy]
        queue.published = queue.learned = publication.version

    def forget(self, policy: int, version: int) -> None:
        """Drops rows of a policy's former weights, since its learner took over another policy's
        weights: only rows of this version, not yet published, and of later ones are its own.
        """
        self.queues[policy].least_version = version

    def given_up(self, groups: Sequence[int], executed: int) -> None:
        """Abandons the running episodes of groups that restart alone, and the env_steps executed in
        their unfinished unrolls.
        """
        self.executed += executed
        self.lost += executed
        self.cut += executed + sum(self.running.pop(group, 0) for group in groups)

    @property
    def discarded(self) -> int:
        """Number of executed env_steps that are in no batch and never will be."""
        return self.past_budget + self.lost + sum(q.dropped_steps for q in self.queues)

    @property
    def waiting(self) -> int:
        """env_steps in columns that wait for a batch."""
        blocks = (block for queue in self.queues for block in queue.waiting)
        return sum(int(known(block.rollout).valid.sum()) for block in blocks)

    @property
    def batches(self) -> int:
        """Number of whole batches that wait."""
        return sum(queue.columns // self.plan.columns_per_batch for queue in self.queues)

    def put_round(self, unrolls: Sequence[Unroll]) -> None:
        """Adds one unroll of every group, in the order of their streams.

        Remaining columns may be dropped later, at a restart or for their age; so streams take turns
        to come first.
        """
        late: list[ColumnBlock] = []
        begin = 0
        for unroll in unrolls:
            block = self._counted(unroll)
            columns = block.columns
            skipped = min(max(self.first_stream - begin, 0), columns)
            begin += columns
            if 0 < skipped < columns:
                first, block = block.split(skipped)
                late.append(first)
            elif skipped:
                late.append(block)
                continue
            self._add(block)
        for block in late:
            self._add(block)
        self.first_stream = (self.first_stream + self.plan.columns_per_batch) % self.num_streams

    def put(self, unroll: Unroll) -> None:
        """Adds an unroll, whose memory must not change until `keep` or the batch's release."""
        self._add(self._counted(unroll))

    def _counted(self, unroll: Unroll) -> ColumnBlock:
        self.executed += unroll.executed
        self.running[unroll.group] = unroll.running
        return unroll.block

    def _add(self, block: ColumnBlock) -> None:
        """Adds columns; of several policies each takes a copy of the columns in which it acted."""
        if len(self.queues) == 1:
            self.queues[0].waiting.append(block)
            return
        for policy, queue in enumerate(self.queues):
            mine = block.rollout.policy_id == policy
            valid = block.rollout.valid & mine
            columns = valid.any(0).nonzero().squeeze(1)
            if len(columns):
                episodes = [e for e in block.episodes if mine[e.row, e.column]]
                own = ColumnBlock(replace(block.rollout, valid=valid), episodes, None)
                queue.waiting.append(own.copy(columns))
        block.release()

    def keep(self) -> None:
        """Copies waiting columns, so that the memory of their unrolls can be reused."""
        for queue in self.queues:
            queue.waiting = [
                block if block.lease is None else block.take(torch.arange(block.columns))
                for block in queue.waiting
            ]

    def next_policy(self) -> int | None:
        """The policy of the batch that `take` would return; None if none waits, rows would be
        dropped first, or a round begins with it.
        """
        count = len(self.queues)
        with self.lock:
            for policy in (
                turn % count for turn in range(self.first_policy, self.first_policy + count)
            ):
                queue = self.queues[policy]
                if queue.columns >= self.plan.columns_per_batch:
                    least = self._least_version(queue)
                    blocks = [known(x.rollout) for x in queue.waiting]
                    old = any(bool((x.valid & (x.version < least)).any()) for x in blocks)
                    return None if old or self.samples_ahead else policy
        return None

    def _least_version(self, queue: PolicyQueue) -> int:
        """Version of weights below which rows are not learned from."""
        most = self.plan.max_policy_lag
        least = queue.least_version
        return least if most is None else max(least, queue.learned - most)

    def join_ahead(self, batches: int) -> None:
        """Joins the columns of the first waiting batches, at most this many per policy, so that
        `take` finds them joined.
        """
        for queue in self.queues:
            first: list[ColumnBlock] = []
            while len(first) < batches and queue.columns >= self.plan.columns_per_batch:
                first.append(self._next(queue))
            queue.waiting = first + queue.waiting

    def take(self, env_steps_left: int) -> tuple[ColumnBlock, int] | None:
        """The columns of a batch and its policy; None if no policy has enough and the waiting
        columns do not hold the rest of the budget.  Columns of a single unroll are views.  The
        memory of the last batch may be written again.

        Policies take turns to come first, so that the columns that a restart drops are not always
        of the same one.
        """
        self.release()
        count = len(self.queues)
        for least in (self.plan.columns_per_batch, 1):
            for turn in range(self.first_policy, self.first_policy + count):
                queue = self.queues[turn % count]
                self._drop_old(queue)
                if queue.columns >= least:
                    self.first_policy = turn % count + 1
                    return self._next(queue), turn % count
            if self.waiting < env_steps_left:
                break
        return None

    def _next(self, queue: PolicyQueue) -> ColumnBlock:
        """The columns of the next batch, by stream and age; invalid ones where too few wait."""
        taken: list[ColumnBlock] = []
        missing = self.plan.columns_per_batch
        while missing and queue.waiting:
            block = queue.waiting.pop(0)
            if block.columns > missing:
                block, rest = block.split(missing)
                queue.waiting.insert(0, rest)
            taken.append(block)
            missing -= block.columns
        whole = taken[0] if len(taken) == 1 else joined(taken)
        if missing:
            none = select(whole.rollout, torch.zeros(missing, dtype=torch.long))
            none = changed(none, valid=torch.zeros_like(known(none).valid))
            whole = joined([whole, ColumnBlock(none, [], None)])
        streams = known(whole.rollout).stream_id.numpy()
        if (streams[1:] < streams[:-1]).any():
            whole = whole.take(known(whole.rollout).stream_id.argsort(stable=True))
        if self.pin and not whole.rollout.reward.is_pinned():
            copied = ColumnBlock(pinned(whole.rollout), whole.episodes, None)
            whole.release()
            whole = copied
        return whole

    def _drop_old(self, queue: PolicyQueue) -> None:
        """Masks rows that are too old and drops columns without other valid rows."""
        least = self._least_version(queue)
        if least < 0:
            return
        kept: list[ColumnBlock] = []
        for block in queue.waiting:
            flags = known(block.rollout)
            fresh = flags.valid & (flags.version >= least)
            if not torch.equal(fresh, flags.valid):
                block = queue.drop(block, fresh).take(fresh.any(0).nonzero().squeeze(1))
            if block.columns:
                kept.append(block)
        queue.waiting = kept

    def batch(
        self,
        block: ColumnBlock,
        policy: int,
        env_steps_left: int,
        restarts_after: RestartsAfter = never,
    ) -> Batch:
        """Makes a batch from the result of `take`; rows beyond the budget are masked.

        With the last batch of the budget, or before a restart of the streams, waiting columns are
        dropped; episodes that ended in them are counted in this batch, so that the next checkpoint
        has them.
        """
        queue, rollout = self.queues[policy], block.rollout
        rollout, env_steps = within_budget(rollout, env_steps_left)
        valid = known(rollout).valid
        if valid is not known(block.rollout).valid:
            self.past_budget += int(known(block.rollout).valid.sum()) - env_steps
        self.counted += env_steps
        episodes = sorted(block.episodes, key=lambda episode: (episode.row, episode.column))
        kept = [episode for episode in episodes if valid[episode.row, episode.column]]
        kept = queue.pop_ended() + kept
        if self.may_lag:
            queue.lag.add((queue.learned - known(rollout).version)[valid])
        batch = Batch(rollout, policy, env_steps, kept, self.steps())
        self._lease = block.lease
        if env_steps < env_steps_left and not restarts_after(batch):
            return batch
        self.clear()
        learning = self.queues[: self.num_learners]
        ended = {index: each.pop_ended() for index, each in enumerate(learning)}
        now = self.steps()
        steps = replace(
            batch.steps, discarded=batch.steps.discarded + now.discarded, waiting=now.waiting
        )
        episodes = kept + ended.pop(policy)
        return replace(batch, episodes=episodes, steps=steps, others=ended)

    def steps(self) -> Steps:
        """env_steps outside of batches since the last call."""
        now = (self.executed, self.discarded, self.cut)
        executed, discarded, cut = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        waiting = self.executed - self.counted - self.discarded
        return Steps(executed, discarded, cut, sum(self.running.values()), waiting)

    def report(self) -> dict[str, float]:
        """Policy lags of the batches since the last call and the columns dropped so far; with
        several policies, each under its prefix.
        """
        report: dict[str, float] = {}
        for policy, queue in enumerate(self.queues[: self.num_learners] if self.may_lag else ()):
            metrics = {"data/discarded_columns": float(queue.dropped_columns)} | queue.lag.metrics()
            queue.lag = Lag()
            prefix = policy_prefix(policy, self.num_learners)
            report |= {prefix + name: value for name, value in metrics.items()}
        return report


def within_budget(batch: Rollout, env_steps_left: int) -> tuple[Rollout, int]:
    """The batch with the rows beyond the budget masked, and the number of remaining valid rows.

    Steps are counted in the order (row, column), so timing does not affect which are masked.
    """
    valid = known(batch).valid
    count = int(np.count_nonzero(valid.numpy()))
    if count == valid.numel() <= env_steps_left:
        return batch, count
    if count > env_steps_left:
        order = valid.flatten().cumsum(0).view_as(valid)
        batch = changed(batch, valid=valid & (order <= env_steps_left))
    return with_cuts(batch), min(count, env_steps_left)


def with_cuts(batch: Rollout) -> Rollout:
    """The batch with `Rollout.trace_cut` set before each invalid row whose episode continues
    (beyond the budget, of old weights, of another policy).  So every invalid row follows a cut, and
    no estimate for a valid row uses its reward.
    """
    flags = known(batch)
    valid, terminated, truncated = (
        x.numpy() for x in (flags.valid, flags.terminated, flags.truncated)
    )
    broken = ~(valid[1:] | terminated[:-1] | truncated[:-1])
    if not broken.any():
        return batch
    cut = torch.zeros_like(flags.valid)
    cut.numpy()[:-1] = broken
    return changed(batch, trace_cut=cut)


def changed(rollout: Rollout, **fields: Any) -> Rollout:
    """The rollout with other flags, given on the CPU."""
    if rollout.source is None:
        return replace(rollout, **fields)
    copies = all_to_device([*fields.values()], rollout.reward.device)
    on_device: Any = dict(zip(fields, copies, strict=True))
    return replace(rollout, **on_device, source=replace(rollout.source, **fields))
