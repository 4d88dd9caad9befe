"""One of several learners, a process begun by `quintet.runtime.parallel.learners`.

It does what the first one does, in the same order, on columns of its own; of what it finds only its
part in the exchanges is used.
"""

import pickle
import time
from multiprocessing.connection import Connection
from typing import final

import torch

from quintet.runtime.parallel.learners import BatchMemory, checksum, progress_name, shared_state
from quintet.runtime.parallel.ranks import PeerGone, RankGroup, reach_store
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import (
    Begin,
    Compare,
    Configure,
    Connect,
    Learn,
    LearnerWork,
    Ready,
    Stop,
    Sum,
)
from quintet.runtime.processes.worker import begin, report_failure
from quintet.runtime.torch_settings import configure_torch, inexact_told
from quintet.types import LearnerState


@final
class LearnerProcess:
    """A learner beside the first, on request."""

    def __init__(self, work: LearnerWork, arena: Arena, channel: Connection):
        self.work, self.channel = work, channel
        self.row = arena.tensor(progress_name(work.index)).numpy()
        self.memory = BatchMemory(arena, work.rows, work.plan)
        device = torch.device(work.device)
        self.ranks = RankGroup(work.index, work.size, device, joined=self._joined)
        self.learner = work.make_learner(self.ranks)

    def _joined(self, exchange: int) -> None:
        self.row[2] = exchange

    def run(self) -> None:
        """Answers messages until it is told to stop."""
        self.channel.send(Ready())
        try:
            while self._answer(self.channel.recv()):
                pass
        except PeerGone:
            # The first one finds out whose fault it is, and ends all of them.
            while not isinstance(self.channel.recv(), Stop):
                pass
        finally:
            self.ranks.close()

    def _answer(self, message: object) -> bool:
        """Does what it is told; whether it is to go on."""
        match message:
            case Connect(port):
                self.ranks.connect(reach_store(port))
            case Begin(scalars):
                state = shared_state(self.learner, self.ranks)
                self.learner.load(LearnerState(state.tensors, scalars))
            case Configure(options):
                self.learner.configure(options)
            case Learn(env_steps, cut, replayed):
                self.row[0], self.row[1] = time.monotonic_ns(), self.learner.updates + 1
                self.learner.update(self.memory.read(cut, replayed), env_steps)
            case Compare(number):
                self.channel.send(Sum(number, checksum(self.learner)))
            case _:
                assert isinstance(message, Stop)
                return False
        return True


def main() -> int:
    """Learns until told to stop."""
    pickled, arena, channel = begin()
    try:
        work: LearnerWork = pickle.loads(pickled)
        configure_torch(work.threads, work.device, work.exact)
        with inexact_told(print):
            LearnerProcess(work, arena, channel).run()
    except EOFError:  # the parent has ended without a word
        return 130
    except Exception as error:  # a model's own code may raise anything
        report_failure(channel, error)
        return 1
    return 0
