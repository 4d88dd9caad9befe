"""Several learners that share every batch and appear as one: the first is in this process, the
others in separate processes.
"""

import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import optree
import torch
from torch import Tensor

from quintet.errors import ConfigError, LearnerFault, QuintetError
from quintet.jobs.silence import Silence
from quintet.protocols import DataPlan, Learner, Ranks
from quintet.runtime.parallel.ranks import LOOK_EVERY_S, PeerGone, RankGroup, host_store
from quintet.runtime.processes import messages
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.process import (
    STOP_GRACE_S,
    Process,
    ProcessKind,
    await_all,
    pickled,
    stop_all,
)
from quintet.runtime.slots import RowSpecs, Slot, slot_specs
from quintet.runtime.torch_settings import GpuMath
from quintet.system import printing
from quintet.types import LearnerState, Rollout, TensorSpec

POLL_EVERY_S = 1e-4
"""Seconds between two looks at whether the other learners still read a batch."""

_FIND_S = 5.0
"""Longest time from a failed exchange until the failed process is found."""


@final
@dataclass(frozen=True)
class LearnersSpec:
    """Everything that the learners of a run have in common.

    make_learner: makes the learner of one rank; cloudpickle must be able to send it.
    devices: one per learner.
    rows: number of rows of a batch.
    threads: number of PyTorch's threads in each process.
    timeout_s: seconds by which other learners may finish an update later than the first.
    gpu: how they compute on GPUs.
    """

    make_learner: Callable[[Ranks], Learner]
    devices: tuple[str, ...]
    rows: RowSpecs
    threads: int
    timeout_s: float
    gpu: GpuMath | None = None


@final
@dataclass(frozen=True)
class LearnerWork:
    """The pickled work of a learner's process."""

    index: int
    spec: LearnersSpec
    plan: DataPlan


@final
class BatchMemory:
    """A fresh batch and one from replay in shared memory, with the layout of slots of one group."""

    def __init__(self, arena: Arena, rows: RowSpecs, plan: DataPlan):
        self._batches: dict[bool, Rollout] = {}
        for replayed, (row_specs, shape) in _batches(rows, plan).items():
            memory = arena.below(f"batch/{replayed}/")
            cut = memory.pop("trace_cut")
            rollout = Slot(memory, row_specs, shape).rollout
            self._batches[replayed] = replace(rollout, trace_cut=cut, replayed=replayed)

    @staticmethod
    def specs(rows: RowSpecs, plan: DataPlan) -> dict[str, TensorSpec]:
        all_specs: dict[str, TensorSpec] = {}
        for replayed, (row_specs, shape) in _batches(rows, plan).items():
            columns = shape.columns_per_batch
            cut = TensorSpec((shape.unroll_steps, columns), torch.bool)
            specs = slot_specs(row_specs, shape, columns) | {"trace_cut": cut}
            all_specs |= prefixed(f"batch/{replayed}/", specs)
        return all_specs

    def write(self, batch: Rollout) -> None:
        into: Any = vars(self.read(batch.trace_cut is not None, batch.replayed))
        source: Any = vars(batch)
        optree.tree_map_(_copy, into, source)

    def read(self, cut: bool, replayed: bool) -> Rollout:
        """The batch as views; `cut`: whether it has a trace_cut."""
        batch = self._batches[replayed]
        return batch if cut else replace(batch, trace_cut=None)


def _batches(rows: RowSpecs, plan: DataPlan) -> dict[bool, tuple[RowSpecs, DataPlan]]:
    """The rows of batches and the plan of their shape, by `Rollout.replayed`."""
    batches, replay = {False: (rows, plan)}, plan.replay
    if replay is not None:
        windows = replay.kind == "windows"
        every = replay.steps if windows else plan.state_every
        drawn = replace(
            plan, unroll_steps=replay.steps, columns_per_batch=replay.columns, state_every=every
        )
        batches[True] = (replace(rows, state={}) if windows else rows, drawn)
    return batches


def _copy(into: Any, source: Any) -> None:
    if isinstance(into, Tensor):
        assert source.shape == into.shape
        into.copy_(source)


def shared_state(learner: Learner, ranks: Ranks) -> LearnerState:
    """The learner's state with the first rank's tensors; all ranks must call it together."""
    state = learner.save()
    ranks.broadcast(x for _, x in sorted(state.tensors.items()))
    return state


def checksum(learner: Learner) -> int:
    """The CRC-32 of the state that the learner would save."""
    state, crc = learner.save(), 0
    for _, x in sorted(state.tensors.items()):
        array: Any = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        crc = zlib.crc32(array, crc)
    return zlib.crc32(repr(sorted(state.scalars.items())).encode(), crc)


@final
class Learners:
    """The first learner, which publishes, reports and is saved, with the processes of the others.

    In each update every learner takes its columns of the batch; their results are combined by the
    learner's own calls of `Ranks`.
    """

    def __init__(self, spec: LearnersSpec):
        """Raises ConfigError if `spec` can't be sent, or there is too little memory."""
        self.spec, size = spec, len(spec.devices)
        self.ranks = RankGroup(0, size, torch.device(spec.devices[0]), self._watch)
        self.learner = spec.make_learner(self.ranks)
        plan = self.learner.plan
        if plan.replay is not None and plan.replay.columns % size:
            raise ConfigError(
                f"runtime.num_learners={size} must divide the {plan.replay.columns} sequences of a "
                "batch from replay evenly; use another number of learners"
            )
        specs = BatchMemory.specs(spec.rows, plan)
        for rank in range(1, size):
            specs |= messages.progress_specs(f"learner {rank}")
        refusal = (
            "runtime.num_learners needs spaces and a model that can be sent to other processes"
        )
        work = [
            pickled(LearnerWork(rank, spec, plan), refusal, "leave it out")
            for rank in range(1, size)
        ]
        self.histograms, self.publication = self.learner.histograms, self.learner.publication
        self.weights, self.metrics = self.learner.weights, self.learner.metrics
        self._arena = Arena.create(specs)
        self._memory = BatchMemory(self._arena, spec.rows, plan)
        self.processes = [self._process(rank, each) for rank, each in enumerate(work, 1)]
        self._say: Callable[[str], None] = printing.say
        self._notice: Callable[[str], None] = lambda _: None
        self._started = self._connected = self._equal = self._at_work = self._closed = False
        self._connection = Silence()
        self._batches = self._compared = 0
        self._fault: QuintetError | None = None

    def _process(self, rank: int, work: bytes) -> Process:
        """The process of the learner of a rank, not started yet."""
        kind = ProcessKind(
            f"learner {rank}",
            self.spec.devices[rank],
            "quintet.runtime.parallel.learner",
            work,
            place="in update {}",
            making="making its network",
            slow_start="raise runtime.learner_timeout_s if making the network takes longer",
            fault=LearnerFault,
        )
        return Process(kind, self._arena, lambda line: self._say(line), self.spec.timeout_s)

    # The Learner protocol

    @property
    def plan(self) -> DataPlan:
        return self.learner.plan

    @property
    def updates(self) -> int:
        return self.learner.updates

    @property
    def version(self) -> int:
        return self.learner.version

    def save(self) -> LearnerState:
        """The first learner's state; raises LearnerFault if another learner's differs, since then
        all updates after the last save may be wrong.
        """
        self._compare()
        return self.learner.save()

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        self._equal = False
        self.learner.load(state, counters=counters)

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        self._equal = False
        self.learner.warm_start(weights)

    def configure(self, options: Any) -> None:  # noqa: ARG002
        raise AssertionError("a population changes options, and its policies have one learner each")

    def update(self, batch: Rollout, env_steps: int) -> None:
        """One update of all learners, which take their columns of the batch from the CPU; raises
        QuintetError if one of them failed, ended, or stopped responding.
        """
        self.start(self._say, self._notice)
        if not self._connected:
            await_all(self.processes, self._notice)
        self._at_work = True
        try:
            if not self._connected:
                self._connect()
            self._begin()
            self._await_readers()
            self._memory.write(batch)
            self._batches += 1
            self._tell(messages.Learn(env_steps, batch.trace_cut is not None, batch.replayed))
            self._update(batch, env_steps)
        except PeerGone as error:
            raise self._culprit(str(error)) from error
        self._at_work = False

    def _update(self, batch: Rollout, env_steps: int) -> None:
        """The first learner's update, until it has ended on its GPU."""
        try:
            self.learner.update(batch, env_steps)
            self.ranks.settle()
        except Exception as error:
            found = self.ranks.found()  # a lost rank may be why numbers are wrong
            if found is None or found is error:
                raise
            raise found from error

    # Processes

    def start(self, say: Callable[[str], None], notice: Callable[[str], None]) -> None:
        """Begins the processes, if there are none; the first update waits until they are ready.
        `say` gets what they print, `notice` the reason for a long wait.
        """
        if self._started:
            return
        self._started = True
        self._say, self._notice = say, notice
        for process in self.processes:
            process.launch()

    def _connect(self) -> None:
        """Connects the ranks; raises PeerGone, or what `_watch` raises, if one fails meanwhile."""
        store, port = host_store()
        self._tell(messages.Connect(port))
        failed: list[PeerGone] = []

        def connect() -> None:
            try:
                self.ranks.connect(store)
            except PeerGone as error:
                failed.append(error)

        # The thread waits for all learners, and this one watches them meanwhile.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_EVERY_S)
            if thread.is_alive():
                self._watch()
        if failed:
            raise failed[0]
        self._connected = True

    def _begin(self) -> None:
        """Gives all learners the first learner's state, unless they already have it."""
        if self._equal:
            return
        self._tell(messages.Begin(dict(self.learner.save().scalars)))
        shared_state(self.learner, self.ranks)
        self._equal = True

    def _tell(self, message: tuple[Any, ...]) -> None:
        for process in self.processes:
            process.send(message)

    def _await_readers(self) -> None:
        """Waits until no learner reads the last batch, whose memory the next one reuses: learners
        may take any time after their last exchange.
        """
        looked = time.monotonic()
        while any(self._reads(each) for each in self.processes):
            time.sleep(POLL_EVERY_S)
            if time.monotonic() - looked > LOOK_EVERY_S:
                looked = time.monotonic()
                self._watch(self._reads)

    def _reads(self, process: Process) -> bool:
        return bool(process.row[3] < self._batches)

    def _absent(self, process: Process) -> bool:
        return bool(process.row[2] < self.ranks.exchanges)

    def _watch(self, awaited: Callable[[Process], bool] | None = None) -> None:
        """Checks the other learners while this process waits for some of them: for the `awaited`
        ones, by default until they join the exchange; raises QuintetError if one has failed, ended,
        or been silent for too long.
        """
        error = self._fault or self._news(0.0)
        if error is not None:
            raise error
        at = self.ranks.exchanges, self._batches
        late = [each for each in self.processes if (awaited or self._absent)(each)]
        silent_s = [
            each.silence.look(each.child.pid, at, LOOK_EVERY_S)
            for each in late
            if each.child is not None
        ]
        if not late:
            silent_s = [self._connection.look(None, at, LOOK_EVERY_S)]
        if max(silent_s, default=0.0) < self.spec.timeout_s:
            return
        names = " and ".join(each.name for each in late) or "the connection between learners"
        for process in late:
            process.end()
        raise LearnerFault(
            f"{names} must {('end' if awaited else 'join')} update {self.updates} within "
            f"{self.spec.timeout_s:g} s, but did not: it hangs or was stopped; raise "
            "runtime.learner_timeout_s if one learner may be that much slower than another"
        )

    def _news(self, timeout_s: float) -> QuintetError | None:
        """The error of a learner that can't continue; None if no error arrives in that time."""
        deadline = time.monotonic() + timeout_s
        while True:
            for process in self.processes:
                if process.ready and process.channel.poll():
                    message = process.hear()
                    if isinstance(message, QuintetError):
                        return message
                elif process.gone:
                    return process.lost()
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)

    def _culprit(self, what: str) -> QuintetError:
        """The error of the learner that ended an exchange."""
        message = f"the learners lost their connection, though none has ended: {what}"
        return self._fault or self._news(_FIND_S) or LearnerFault(message)

    def _compare(self) -> None:
        """Checks that all learners have the same state."""
        if not self._equal:
            return
        self._compared += 1
        self._tell(messages.Compare(self._compared))
        expected = messages.Sum(self._compared, checksum(self.learner))
        for process in self.processes:
            while process.ready and process.channel.poll(STOP_GRACE_S):
                answer = process.hear()
                if isinstance(answer, QuintetError):
                    self._fault = answer  # raised by the next update: the first's state is sound
                elif answer.number == expected.number:  # else it is a late one
                    if answer != expected:
                        raise LearnerFault(
                            f"{process.name} must have the same weights as the first learner, "
                            f"but they differ after update {self.updates}; check this "
                            "machine's hardware"
                        )
                    break
            else:
                if process.ready:
                    self._say(
                        f"{process.name} did not send the checksum of its weights within "
                        f"{STOP_GRACE_S:g} s, so they were not compared with the first learner's"
                    )

    def kill(self) -> None:
        """Ends all processes at once, before `close`."""
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """Ends all processes and frees memory and sockets; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            # A learner in the middle of an update waits for the others and reads no messages.
            if self._started and not self._at_work:
                stop_all(self.processes)
        finally:
            for process in self.processes:
                process.end()
            self.ranks.close()
            self._arena.close()
            self.processes.clear()
            del self._memory, self._arena
