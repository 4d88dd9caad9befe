"""The lockstep runtime: sampler processes that work on a rollout while the learner updates."""

import time
from typing import final

from quintet.errors import WorkerFault
from quintet.observe.timing import PhaseTimer
from quintet.runtime.batch import Unroll
from quintet.runtime.delivery import Batch, Delivery, RestartsAfter, never, rows_for
from quintet.runtime.processes.grants import Asking, Died, Lost
from quintet.runtime.processes.pool import Pool, PoolSampling
from quintet.runtime.processes.process import WaitNotice

_LOOK_AGAIN_S = 1.0
"""Longest wait for a message before the workers are checked."""

_SERVER_END_S = 10.0
"""Longest time from a worker's loss of the server until the server's end is noticed."""


@final
class LockstepSampling(PoolSampling):
    """Rounds of one unroll of every group, granted one at a time to sampler processes.

    With lag 0 a round begins when a batch is requested, and acts with the newest weights, so
    batches equal the serial runtime's.  With lag 1 a round begins as soon as the previous batch is
    handed out: it is sampled during that batch's update, with weights that are one version old.
    Both depend only on the configuration, not on the number of processes.
    """

    restarts = True
    """Whether streams restart at exact checkpoints."""

    def __init__(self, workers: Pool, timer: PhaseTimer, lag: int, may_lag: bool = False):
        """may_lag: whether weights may be older than `lag`, as some versions are not published."""
        spec = workers.spec
        self.workers, self.timer, self.lag = workers, timer, lag
        self.grants = workers.grants
        self.delivery = Delivery(spec.plan, spec.num_streams, spec.assignment, may_lag or lag > 0)
        self.delivery.samples_ahead = lag > 0
        self.round_begun = False
        self.rows = 0  # done in the round at work

    def restart(self, iteration: int) -> None:
        """Seeds every stream by (seed, group, iteration) and abandons running episodes."""
        self.workers.start()
        assert not self.round_begun, "the last batch before a restart is asked for as such"
        self.delivery.restart(iteration)
        for sampler in self.grants.samplers:
            self.grants.restart(sampler.index, iteration)

    def collect(self, env_steps_left: int, restarts_after: RestartsAfter = never) -> Batch:
        """The next batch; rows beyond the budget are masked."""
        notice = self.workers.wait_notice()
        while (taken := self.delivery.take(env_steps_left)) is None:
            needed = env_steps_left - self.delivery.waiting
            if not self.round_begun:
                self._begin_round(needed)
            self.delivery.put_round(self._end_round(needed, notice))
        batch = self.delivery.batch(*taken, env_steps_left, restarts_after)
        needed = env_steps_left - batch.env_steps - self.delivery.waiting
        # Begin the next round now, unless a batch waits, the budget is used up or streams restart.
        if self.lag and needed > 0 and not self.delivery.batches and not restarts_after(batch):
            self._begin_round(needed)
        return batch

    def report(self) -> dict[str, float]:
        return self.workers.report() | self.delivery.report()

    def _begin_round(self, needed: int) -> None:
        """Grants every worker an unroll, with fewer rows if these execute `needed` env_steps."""
        self.delivery.keep()
        versions = tuple(queue.published for queue in self.delivery.queues)
        rows = min(rows_for(needed, self.delivery.num_streams), self.workers.spec.plan.unroll_steps)
        for sampler in self.grants.samplers:
            granted = self.grants.grant(sampler.index, versions, rows, asks=True)
            assert granted, f"worker {sampler.index} has no free slot"
        self.round_begun, self.rows = True, rows

    def _end_round(self, needed: int, notice: WaitNotice) -> list[Unroll]:
        """Waits for all groups' unrolls and returns them in the order of their streams; raises
        QuintetError if a worker died, with its error in the message.
        """
        self.timer.switch("waiting")
        filled: dict[int, list[Unroll]] = {}
        asking: dict[int, int] = {}
        lost_at_s: float | None = None
        while len(filled) < len(self.grants.samplers):
            notice.look()
            for event in self.workers.events(_LOOK_AGAIN_S):
                if isinstance(event, Died):
                    raise event.error
                if isinstance(event, Lost):
                    lost_at_s = time.monotonic()  # the server died; its `Died` comes next
                elif isinstance(event, Asking):
                    asking[event.worker] = event.executed
                else:
                    filled[event.worker] = event.unrolls
            if len(asking) == len(self.grants.samplers):
                self._extend_round(needed - sum(asking.values()))
                asking.clear()
            if lost_at_s is not None and time.monotonic() - lost_at_s > _SERVER_END_S:
                raise WorkerFault(
                    "a worker lost its connection to the inference server, which is still running"
                )
        self.round_begun = False
        return [unroll for _, mine in sorted(filled.items()) for unroll in mine]

    def _extend_round(self, needed: int) -> None:
        """Grants all workers, which have finished their rows, the further rows that `needed`
        needs."""
        steps = self.workers.spec.plan.unroll_steps
        more = min(rows_for(needed, self.delivery.num_streams), steps - self.rows)
        self.rows += more
        for sampler in self.grants.samplers:
            self.grants.extend(sampler.index, more)
