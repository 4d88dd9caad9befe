"""The serial runtime: one process samples and learns in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import ColumnQueue, Episode, Part, within_budget
from quintet.runtime.policies import PolicyMix
from quintet.runtime.sampler import GroupSampler
from quintet.runtime.seeds import Role, environment_seeds, generator_seed
from quintet.types import Publication, Rollout


@dataclass(frozen=True)
class Batch:
    """What one collection gives: the rollout, the policy whose learner it is for, the env_steps in
    it, the episodes that ended in it, and what there is to report of its way here.
    """

    rollout: Rollout
    policy: int
    env_steps: int
    episodes: list[Episode]
    metrics: dict[str, float]


@final
class SerialSampling:
    """All groups in this process; one steps while the others' actions are computed."""

    def __init__(
        self,
        envs: Sequence[VectorEnv],
        make_actor: Callable[[], Actor],
        plan: DataPlan,
        seed: int,
        timer: PhaseTimer,
        num_policies: int = 1,
    ):
        self.groups: list[GroupSampler] = []
        first_stream = 0
        for index, env in enumerate(envs):
            # All groups act by the same weights, but an actor may keep things between acts
            # (exploration), so each group has its own.
            actor = make_actor()
            if num_policies > 1:
                actor = PolicyMix([actor, *(make_actor() for _ in range(num_policies - 1))])
            self.groups.append(GroupSampler(env, actor, plan, first_stream, index))
            first_stream += env.num_streams
        self.plan, self.seed, self.timer = plan, seed, timer
        self.num_streams = first_stream
        self.versions = [-1] * num_policies
        self.queues = [ColumnQueue(plan, k, num_policies) for k in range(num_policies)]
        # With one policy and whole rounds of columns every batch is of the newest weights.
        self.may_lag = num_policies > 1 or first_stream != plan.columns_per_batch

    def publish(self, publication: Publication, policy: int = 0) -> None:
        """Gives every group the weights that `policy` acts by from the group's next unroll on."""
        self.versions[policy] = publication.version
        for group in self.groups:
            if isinstance(group.actor, PolicyMix):
                group.actor.load_policy(policy, publication)
            else:
                group.publish(publication)

    def restart(self, iteration: int) -> None:
        """Re-keys every stream from (seed, group, iteration).

        Running episodes and columns that wait for a batch are given up.
        """
        self.timer.switch("stepping")
        for queue in self.queues:
            queue.clear()
        self._turn_to(iteration * self.plan.columns_per_batch)
        for index, group in enumerate(self.groups):
            group.restart(
                environment_seeds(self.seed, index, iteration, group.num_streams),
                generator_seed(self.seed, Role.NOISE, index, iteration),
            )

    def collect(self, env_steps_left: int) -> Batch:
        """The next batch; samples if no policy has enough columns.  Rows past the budget are
        masked.
        """
        while True:
            for policy, queue in enumerate(self.queues):
                taken = queue.take(self.versions[policy])
                if taken is not None:
                    return self._batch(*taken, policy, env_steps_left)
            for queue in self.queues:
                queue.keep()
            self._unroll()

    def _batch(
        self, rollout: Rollout, episodes: list[Episode], policy: int, env_steps_left: int
    ) -> Batch:
        rollout, env_steps = within_budget(rollout, env_steps_left)
        episodes.sort(key=lambda episode: (episode.row, episode.column))
        kept = [episode for episode in episodes if rollout.valid[episode.row, episode.column]]
        metrics = self._lag_metrics(rollout, policy) if self.may_lag else {}
        return Batch(rollout, policy, env_steps, kept, metrics)

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

    def _unroll(self) -> None:
        """One unroll of every group."""
        timer, groups = self.timer, self.groups
        timer.switch("acting")
        for group in groups:
            group.begin()
            group.act(0)
        for row in range(1, self.plan.unroll_steps):
            for group in groups:
                timer.switch("stepping")
                group.receive(row - 1)
                timer.switch("acting")
                group.act(row)
        timer.switch("stepping")
        for group in groups:
            group.receive(self.plan.unroll_steps - 1)
        # What is left over is dropped at restarts and for its age; the streams take turns at being
        # the first, so that it is not always the same ones'.
        late: list[Part] = []
        for group in groups:
            part = group.finish()
            ahead = min(max(self.first_stream - group.first_stream, 0), group.num_streams)
            if 0 < ahead < group.num_streams:
                first, part = part.split(ahead)
                late.append(first)
            elif ahead:
                late.append(part)
                continue
            for queue in self.queues:
                queue.put(part)
        for part in late:
            for queue in self.queues:
                queue.put(part)
        self._turn_to(self.first_stream + self.plan.columns_per_batch)

    def _turn_to(self, stream: int) -> None:
        """Whose columns come first in the next round."""
        self.first_stream = stream % self.num_streams
