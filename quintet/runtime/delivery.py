"""Makes batches of unrolls: the column queues of all policies."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from quintet.observe.metrics import policy_prefix
from quintet.protocols import DataPlan
from quintet.runtime.batch import ColumnQueue, Episode, Lease, Part, within_budget
from quintet.types import Publication, Rollout


@dataclass(frozen=True)
class Steps:
    """env_steps outside of batches, counted when a batch is handed out.

    executed: steps that environments made since the batch before.
    discarded: steps since then that no batch will hold: too old, past the budget, or of an unroll
        whose worker died.
    cut: steps since then in episodes that were given up because their worker died.
    running: steps in episodes that have not ended, over all streams.
    waiting: executed steps that are in no batch yet.
    """

    executed: int
    discarded: int
    cut: int
    running: int
    waiting: int


@dataclass(frozen=True)
class Batch:
    """The result of one collection.

    policy: whose learner it is for.
    env_steps: valid rows.
    episodes: those that ended in it, or in rows that were dropped since the batch before.
    lease: of the slot that the rollout is a view of; None: the rollout owns its memory.
    others: by policy, episodes of other policies that ended in waiting columns which were given up
        after this batch.
    """

    rollout: Rollout
    policy: int
    env_steps: int
    episodes: list[Episode]
    steps: Steps
    lease: Lease | None = None
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
        """Least, mean and greatest by declared name; empty without rows."""
        if not self.count:
            return {}
        return {
            "policy_lag/min": float(self.least),
            "policy_lag/mean": self.total / self.count,
            "policy_lag/max": float(self.greatest),
        }


BeginsAnew = Callable[[Batch], bool]
"""Says whether the streams begin anew after a batch, so that the next is sampled after that."""


def never(_: Batch) -> bool:
    """Streams run on."""
    return False


def rows_for(env_steps: int, num_streams: int) -> int:
    """The fewest rows of all streams that can hold `env_steps`.  Resets take rows too, so callers
    ask again until it is 0, and execute less than one row too many.
    """
    return max(0, -(-env_steps // num_streams))


@final
class Delivery:
    """Unrolls go in, batches come out, for one learner or several that share the streams."""

    def __init__(
        self,
        plan: DataPlan,
        num_streams: int,
        num_policies: int,
        may_lag: bool,
        num_learners: int | None = None,
    ):
        """may_lag: batches may have older weights even where each is one round of all streams.

        num_learners: of the policies that learn, the first ones; None: all.
        """
        self.num_learners = num_policies if num_learners is None else num_learners
        self.plan, self.num_streams = plan, num_streams
        # Versions, by policy: of the weights that act next, and of the learner's weights.
        self.published, self.learned = [-1] * num_policies, [-1] * num_policies
        self.queues = [ColumnQueue(plan, k, num_policies) for k in range(num_policies)]
        self.lags = [Lag() for _ in range(num_policies)]
        self.may_lag = may_lag or num_policies > 1 or num_streams != plan.columns_per_batch
        self.first_stream = self.first_policy = 0
        self.running: dict[int, int] = {}  # env_steps in episodes that have not ended, by group
        self.executed = self.counted = self.cut = self.past_budget = self.lost = 0
        self._told = (0, 0, 0)

    def restart(self, iteration: int) -> None:
        """Prepares for streams that begin anew; the last batch has given up all waiting columns."""
        assert not any(queue.waiting for queue in self.queues)
        self.running.clear()
        self._told = (self.executed, self.discarded, self.cut)
        self._turn_to(iteration * self.plan.columns_per_batch)
        self.first_policy = iteration

    def clear(self) -> None:
        for queue in self.queues:
            queue.clear()

    def publish(self, publication: Publication) -> None:
        """Notes that the learner has this version, by which the next unrolls act."""
        policy = publication.policy
        self.published[policy] = self.learned[policy] = publication.version

    def forget(self, policy: int, version: int) -> None:
        """Drops what a policy's former weights collected, as the learner has those of another: from
        this version on, which was not published yet, rows are its own.
        """
        self.queues[policy].least_version = version

    def arrived(self, group: int, executed: int, running: int) -> None:
        """Counts an unroll's executed env_steps, and those in its group's running episodes."""
        self.executed += executed
        self.running[group] = running

    def given_up(self, groups: Sequence[int], executed: int) -> None:
        """Gives up the running episodes of groups whose streams begin anew alone, and the env_steps
        that were executed in their unfinished unrolls.
        """
        self.executed += executed
        self.lost += executed
        self.cut += executed + sum(self.running.pop(group, 0) for group in groups)

    @property
    def discarded(self) -> int:
        """Executed env_steps that no batch has held or will hold."""
        return self.past_budget + self.lost + sum(q.dropped_steps for q in self.queues)

    @property
    def waiting(self) -> int:
        """env_steps in columns that wait for a batch."""
        return sum(queue.env_steps for queue in self.queues)

    def put_round(self, parts: Sequence[Part]) -> None:
        """Takes one unroll of every group, in the order of their streams.

        Columns that are left over may be dropped later, at a restart or for their age; so the
        streams take turns at being the first.
        """
        late: list[Part] = []
        begin = 0
        for part in parts:
            columns = part.columns
            ahead = min(max(self.first_stream - begin, 0), columns)
            begin += columns
            if 0 < ahead < columns:
                first, part = part.split(ahead)
                late.append(first)
            elif ahead:
                late.append(part)
                continue
            self.put(part)
        for part in late:
            self.put(part)
        self._turn_to(self.first_stream + self.plan.columns_per_batch)

    def put(self, part: Part) -> None:
        for queue in self.queues[1:]:
            queue.put(part.shared())
        self.queues[0].put(part)

    def keep(self) -> None:
        """Copies waiting columns, so that the memory of their unrolls can be written again."""
        for queue in self.queues:
            queue.keep()

    def take(self, env_steps_left: int) -> tuple[Part, int] | None:
        """The columns of a batch and its policy; None if no policy has enough, unless the waiting
        columns hold the rest of the budget.

        The policies take turns at being the first, so that a restart drops columns of all alike.
        """
        count = len(self.queues)
        for take in (ColumnQueue.take, ColumnQueue.take_rest):
            for turn in range(self.first_policy, self.first_policy + count):
                policy = turn % count
                part = take(self.queues[policy], self.learned[policy])
                if part is not None:
                    self.first_policy = policy + 1
                    return part, policy
            if self.waiting < env_steps_left:
                break
        return None

    @property
    def full(self) -> bool:
        """Whether some policy has enough columns for a batch."""
        return any(queue.columns >= self.plan.columns_per_batch for queue in self.queues)

    def batch(
        self, part: Part, policy: int, env_steps_left: int, begins_anew: BeginsAnew = never
    ) -> Batch:
        """Makes a batch of what `take` returned; rows past the budget are masked.

        With the last batch of the budget, or before the streams begin anew, waiting columns are
        given up; episodes that ended in them are the batch's, so that the next checkpoint counts
        them.
        """
        rollout, env_steps = within_budget(part.rollout, env_steps_left)
        if rollout.valid is not part.rollout.valid:
            self.past_budget += int(part.rollout.valid.sum()) - env_steps
        self.counted += env_steps
        queue = self.queues[policy]
        episodes = sorted(part.episodes, key=lambda episode: (episode.row, episode.column))
        kept = [episode for episode in episodes if rollout.valid[episode.row, episode.column]]
        kept = queue.pop_ended() + kept
        if self.may_lag:
            self.lags[policy].add((self.learned[policy] - rollout.version)[rollout.valid])
        batch = Batch(rollout, policy, env_steps, kept, self._steps(), part.lease)
        if env_steps < env_steps_left and not begins_anew(batch):
            return batch
        self.clear()
        learning = self.queues[: self.num_learners]
        ended = {index: queue.pop_ended() for index, queue in enumerate(learning)}
        now = self._steps()
        steps = replace(
            batch.steps, discarded=batch.steps.discarded + now.discarded, waiting=now.waiting
        )
        episodes = kept + ended.pop(policy)
        return replace(batch, episodes=episodes, steps=steps, others=ended)

    def _steps(self) -> Steps:
        now = (self.executed, self.discarded, self.cut)
        executed, discarded, cut = (a - b for a, b in zip(now, self._told, strict=True))
        self._told = now
        waiting = self.executed - self.counted - self.discarded
        return Steps(executed, discarded, cut, sum(self.running.values()), waiting)

    def report(self) -> dict[str, float]:
        """Policy lags of the batches since the last call and the columns dropped so far; of several
        policies each under its prefix.
        """
        found: dict[str, float] = {}
        for policy, queue in enumerate(self.queues[: self.num_learners] if self.may_lag else ()):
            lag, self.lags[policy] = self.lags[policy], Lag()
            metrics = {"data/discarded_columns": float(queue.dropped_columns)} | lag.metrics()
            prefix = policy_prefix(policy, self.num_learners)
            found |= {prefix + name: value for name, value in metrics.items()}
        return found

    def _turn_to(self, stream: int) -> None:
        """Sets the stream whose columns come first in the next round."""
        self.first_stream = stream % self.num_streams
