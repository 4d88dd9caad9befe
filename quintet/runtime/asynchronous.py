"""The asynchronous runtime: sampler processes run freely next to the learner."""

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import final

from quintet.errors import QuintetError, WorkerFault
from quintet.observe.timing import PhaseTimer
from quintet.runtime.batch import ColumnBlock
from quintet.runtime.delivery import Batch, Delivery, RestartsAfter, never, rows_for
from quintet.runtime.processes.grants import SERVER, Died, Event, Filled, Lost
from quintet.runtime.processes.pool import Pool, PoolSampling
from quintet.system import printing

_LOOK_AGAIN_S = 0.5
"""Longest wait for a message before a check of the workers and of the run's end."""


@final
class AsyncSampling(PoolSampling):
    """Workers fill free slots with the newest weights that they find.

    A second thread receives unrolls and joins columns of the next batches.  A slot is free again
    when its columns are copied or, if a batch is a view of one unroll, when the learner requests
    the next batch.  A worker that dies or stops responding is replaced, and its streams restart.
    Grants never exceed the rest of the budget: the last unrolls have fewer rows.
    """

    restarts = False
    """Whether streams restart at exact checkpoints."""

    def __init__(
        self,
        workers: Pool,
        timer: PhaseTimer,
        prefetch_batches: int = 2,
        max_restarts: int = 3,
        pin: bool = False,
        warn: Callable[[str], None] = printing.say,
    ):
        """prefetch_batches: number of joined batches that may wait for the learner.

        max_restarts: number of replaced workers before the run ends with the last error.
        pin: whether batches are in page-locked memory, for a GPU.
        warn: receives how a worker ended that is replaced.
        """
        spec = workers.spec
        self.workers, self.grants, self.timer = workers, workers.grants, timer
        self.prefetch_batches, self.max_restarts = prefetch_batches, max_restarts
        self.delivery = Delivery(spec.plan, spec.num_streams, spec.assignment, may_lag=True)
        self.delivery.pin, self.warn = pin, warn
        self.trouble: Died | BaseException | None = None  # the learner's thread handles it
        self.replaced, self.ending = threading.Event(), threading.Event()
        self.handling = threading.RLock()  # guards the delivery and the grants
        self.delivery.lock = self.handling
        self.changed = threading.Condition(self.handling)  # batches came, or were taken
        self.env_steps_wanted = 0  # total of all batches, also of those that were handed out
        self.granted = [0] * len(self.grants.samplers)  # unfinished env_steps, by worker
        self.assembler = threading.Thread(target=self._assemble, daemon=True)
        self.iteration = self.num_restarts = self.begun = 0
        self.grants.on_free = self._grant

    def restart(self, iteration: int) -> None:
        """Starts every stream, seeded by (seed, group, iteration); called once.  The first
        `collect`, which knows the number of wanted env_steps, grants the first unrolls.
        """
        assert not self.assembler.is_alive(), "the streams run on"
        self.iteration = iteration
        self._insist(self.workers.start, WorkerFault)
        for sampler in self.grants.samplers:
            self.grants.restart(sampler.index, iteration)
        self.assembler.start()

    def collect(self, env_steps_left: int, restarts_after: RestartsAfter = never) -> Batch:  # noqa: ARG002
        """The next batch, as soon as it exists; rows beyond the budget are masked.  Raises
        QuintetError if workers died too often.
        """
        self.timer.switch("waiting")
        notice = self.workers.wait_notice()
        with self.handling:
            self.env_steps_wanted = self.delivery.counted + env_steps_left
        while (taken := self._take()) is None:
            notice.look()
        self.iteration += 1
        with self.handling:
            return self.delivery.batch(*taken, env_steps_left)

    def _take(self) -> tuple[ColumnBlock, int] | None:
        """The columns of a batch and its policy; None if none arrived within a short wait, or after
        a worker was replaced.
        """
        with self.changed:
            for sampler in self.grants.samplers:  # rows that were dropped are wanted again
                self._grant(sampler.index)
            last = self._ungranted_steps <= 0 and not any(self.granted)  # no more rows will come
            taken = self.delivery.take(0 if last else sys.maxsize)
            self.changed.notify_all()  # fewer columns wait
            if taken is not None:
                if taken[0].rollout.valid.any():
                    return taken
                taken[0].release()
                return None
            if self.trouble is None:
                self.changed.wait(_LOOK_AGAIN_S)
                return None
            trouble, self.trouble = self.trouble, None
        if not isinstance(trouble, Died):
            raise trouble
        self._replace(trouble)
        return None

    def report(self) -> dict[str, float]:
        report = {"data/worker_restarts": float(self.num_restarts)}
        with self.handling:
            report["data/waiting_batches"] = float(self.delivery.batches)
            return report | self.workers.report() | self.delivery.report()

    def kill(self) -> None:
        self.ending.set()
        super().kill()

    def close(self) -> None:
        self.ending.set()
        self.replaced.set()
        if self.assembler.is_alive():
            with self.changed:
                self.changed.notify_all()
            self.assembler.join()
        super().close()

    def _grant(self, worker: int) -> None:
        """Grants an unroll for each free slot, as long as rows are needed."""
        streams = self.grants.samplers[worker].num_streams
        steps = self.workers.spec.plan.unroll_steps
        while True:
            with self.handling:
                rows = min(rows_for(self._ungranted_steps, streams), steps)
                if rows == 0 or not self.grants.grant(worker, None, rows):
                    return
                self.granted[worker] += rows * streams

    @property
    def _ungranted_steps(self) -> int:
        """env_steps of the budget that are neither executed nor granted yet."""
        kept = self.delivery.executed - self.delivery.discarded
        return self.env_steps_wanted - kept - sum(self.granted)

    def _insist(self, start: Callable[[], None], expected: type[QuintetError]) -> None:
        """Starts processes; one that dies before it is ready is replaced by the next start."""
        while True:
            try:
                return start()
            except expected as error:
                self._count(error)

    def _count(self, error: QuintetError) -> None:
        """Counts a worker that will be replaced; raises `error` if the limit is reached."""
        most = self.max_restarts
        self.num_restarts += 1
        if self.num_restarts > most:
            error.add_note(f"Workers were replaced {most} times (runtime.max_restarts).")
            raise error
        self.warn(f"{error} (replaced, {self.num_restarts} of at most {most} times)")

    def _replace(self, died: Died) -> None:
        """Starts a new process, in the learner's thread: a process ends with its thread."""
        self._count(died.error)
        self._insist(partial(self.workers.replace, died.worker), QuintetError)
        if died.worker != SERVER:
            self._begin_again(died.worker, died.executed)
        self.replaced.set()

    def _begin_again(self, worker: int, executed: int) -> None:
        """Restarts a worker's streams, by other seeds each time, and gives up its unroll."""
        self.begun += 1
        with self.handling:
            self.granted[worker] = 0
            groups = [place.group for place in self.grants.samplers[worker].places]
            self.delivery.given_up(groups, executed)
        self.grants.restart(worker, self.iteration + self.begun)
        self._grant(worker)

    def _assemble(self) -> None:
        """Receives filled slots from workers until the run ends, pausing while enough batches wait
        for the learner.
        """
        most = self.prefetch_batches
        try:
            while not self.ending.is_set():
                for event in self.workers.events(_LOOK_AGAIN_S):
                    if self.ending.is_set():  # nobody would replace a second worker
                        return
                    self._take_in(event)
                with self.changed:
                    self.delivery.join_ahead(most + 1)
                    if self.delivery.batches or not any(self.granted):
                        self.changed.notify_all()
                    while self.delivery.batches > most and not self.ending.is_set():
                        self.changed.wait(_LOOK_AGAIN_S)
        except BaseException as error:
            self._tell(error)

    def _take_in(self, event: Event) -> None:
        """Handles a worker's event; after a death waits until the process is replaced."""
        if isinstance(event, Died):
            self.replaced.clear()
            self._tell(event)
            while not self.ending.is_set() and not self.replaced.wait(_LOOK_AGAIN_S):
                pass
        elif isinstance(event, Lost):
            self._begin_again(event.worker, event.executed)
        else:
            assert isinstance(event, Filled)
            with self.handling:
                self.granted[event.worker] -= event.granted
                for unroll in event.unrolls:
                    self.delivery.put(unroll)

    def _tell(self, trouble: Died | BaseException) -> None:
        """Leaves the trouble to the learner's thread."""
        with self.changed:
            self.trouble = trouble
            self.changed.notify_all()
