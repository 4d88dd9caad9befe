"""From unrolls to batches: the queues of all policies, and what a batch is told with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from quintet.protocols import DataPlan
from quintet.runtime.batch import ColumnQueue, Episode, Lease, Part, within_budget
from quintet.types import Rollout


@dataclass(frozen=True)
class Batch:
    """What one collection gives: the rollout, the policy whose learner it is for, the env_steps in
    it, the episodes that ended in it, and what there is to report of its way here.

    lease: of the slot that the rollout is a view of; None: its memory is its own.
    """

    rollout: Rollout
    policy: int
    env_steps: int
    episodes: list[Episode]
    metrics: dict[str, float]
    lease: Lease | None = None


@final
class Delivery:
    """Unrolls go in, batches come out, for one learner or several that share the streams."""

    def __init__(self, plan: DataPlan, num_streams: int, num_policies: int, may_lag: bool):
        """may_lag: batches can be of older weights even where each is one round of all streams."""
        self.plan, self.num_streams = plan, num_streams
        self.versions = [-1] * num_policies
        self.queues = [ColumnQueue(plan, k, num_policies) for k in range(num_policies)]
        self.may_lag = may_lag or num_policies > 1 or num_streams != plan.columns_per_batch
        self.first_stream = 0

    def restart(self, iteration: int) -> None:
        """The streams begin anew: columns that wait for a batch are given up."""
        self.clear()
        self._turn_to(iteration * self.plan.columns_per_batch)

    def clear(self) -> None:
        """Gives up what waits."""
        for queue in self.queues:
            queue.clear()

    def put_round(self, parts: Sequence[Part]) -> None:
        """Takes one unroll of every group, in the order of their streams.

        What is left over is dropped at restarts and for its age; the streams take turns at being
        the first, so that it is not always the same ones'.
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
        """Takes the columns of an unroll."""
        for queue in self.queues[1:]:
            queue.put(part.shared())
        self.queues[0].put(part)

    def keep(self) -> None:
        """Copies what waits, so that the memory of its unrolls can be written again."""
        for queue in self.queues:
            queue.keep()

    def take(self) -> tuple[Part, int] | None:
        """The columns of a batch and its policy; None as long as no policy has enough."""
        for policy, queue in enumerate(self.queues):
            part = queue.take(self.versions[policy])
            if part is not None:
                return part, policy
        return None

    @property
    def full(self) -> bool:
        """Whether some policy has the columns of a batch."""
        return any(queue.columns >= self.plan.columns_per_batch for queue in self.queues)

    def batch(self, part: Part, policy: int, env_steps_left: int) -> Batch:
        """What `take` gave, as a batch; rows past the budget are masked."""
        rollout, env_steps = within_budget(part.rollout, env_steps_left)
        episodes = sorted(part.episodes, key=lambda episode: (episode.row, episode.column))
        kept = [episode for episode in episodes if rollout.valid[episode.row, episode.column]]
        metrics = self._lag_metrics(rollout, policy) if self.may_lag else {}
        return Batch(rollout, policy, env_steps, kept, metrics, part.lease)

    def _lag_metrics(self, rollout: Rollout, policy: int) -> dict[str, float]:
        lag = (self.versions[policy] - rollout.version)[rollout.valid].double()
        queue = self.queues[policy]
        metrics = {
            "data/discarded_columns": float(queue.dropped_columns),
            "data/discarded_env_steps": float(queue.dropped_steps),
        }
        if lag.numel():
            metrics |= {
                "policy_lag/min": lag.min().item(),
                "policy_lag/mean": lag.mean().item(),
                "policy_lag/max": lag.max().item(),
            }
        return metrics

    def _turn_to(self, stream: int) -> None:
        """Whose columns come first in the next round."""
        self.first_stream = stream % self.num_streams
