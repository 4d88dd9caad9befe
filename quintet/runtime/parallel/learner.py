"""One of several learners, in a process that `quintet.runtime.parallel.learners` starts.

It repeats the first learner's calls in the same order on its own columns; only its part in the
exchanges is used.
"""

import time
from multiprocessing.connection import Connection
from typing import final

import torch

from quintet.jobs import user_state
from quintet.runtime.parallel.learners import BatchMemory, LearnerWork, checksum, shared_state
from quintet.runtime.parallel.ranks import PeerGone, RankGroup, reach_store
from quintet.runtime.processes import messages
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.process import MAKING
from quintet.runtime.processes.worker import begin, report_failure
from quintet.runtime.torch_settings import OwnTorch, configure_torch, inexact_told
from quintet.system import printing
from quintet.types import LearnerState


@final
class LearnerProcess:
    """A learner other than the first, directed by messages."""

    @OwnTorch()
    def __init__(self, work: LearnerWork, arena: Arena, channel: Connection):
        spec, self.channel = work.spec, channel
        self.row = arena.tensor(f"learner {work.index}/row").numpy()
        self.row[1] = MAKING
        self.memory = BatchMemory(arena, spec.rows, work.plan)
        device = torch.device(spec.devices[work.index])
        self.ranks = RankGroup(work.index, len(spec.devices), device, joined=self._joined)
        self.learner = spec.make_learner(self.ranks)
        self.row[1] = 0

    def _joined(self, exchange: int) -> None:
        self.row[2] = exchange

    def run(self) -> None:
        """Answers messages until it is told to stop."""
        self.channel.send(messages.Ready())
        try:
            while self._answer(self.channel.recv()):
                pass
        except PeerGone:
            # The first learner finds the process that failed, and ends all of them.
            while not isinstance(self.channel.recv(), messages.Stop):
                pass
        finally:
            self.ranks.close()

    @OwnTorch()
    def _answer(self, message: object) -> bool:
        """Carries out a message; False if it is the last."""
        match message:
            case messages.Connect(port):
                self.ranks.connect(reach_store(port))
            case messages.Begin(scalars):
                tensors = shared_state(self.learner, self.ranks).tensors
                self.learner.load(LearnerState(tensors, scalars))
            case messages.Learn(env_steps, cut, replayed):
                self.row[0], self.row[1] = time.monotonic_ns(), self.learner.updates + 1
                self.learner.update(self.memory.read(cut, replayed), env_steps)
                self.ranks.settle()
                self.row[3] += 1
            case messages.Compare(number):
                self.channel.send(messages.Sum(number, checksum(self.learner)))
            case _:
                assert isinstance(message, messages.Stop)
                return False
        return True


def main() -> int:
    pickled, arena, channel = begin()
    try:
        work: LearnerWork = user_state.work_of(pickled)
        spec = work.spec
        configure_torch(spec.threads, spec.devices[work.index], spec.gpu)
        with inexact_told(printing.say):
            LearnerProcess(work, arena, channel).run()
    except EOFError:  # the parent has ended without a word
        return 130
    except BaseException as error:  # a model's own code may raise anything
        report_failure(channel, error)
        return 1
    return 0
