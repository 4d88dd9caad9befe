"""Environments that other processes step, as one vector environment."""

import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import final

import numpy as np

from quintet.envs.make import make_group_env
from quintet.envs.own_state import keeper
from quintet.envs.owners import made_for
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import (
    Array,
    CannotRender,
    ObsArrays,
    Rendered,
    StepRow,
    VectorEnv,
    check_seeds,
)
from quintet.envs.wrappers import tasks_of
from quintet.errors import QuintetError
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Ask, Stepped, StepperWork, progress_specs
from quintet.runtime.processes.process import (
    Process,
    ProcessKind,
    WaitNotice,
    await_all,
    pickled,
    stop_all,
)
from quintet.runtime.processes.stepper import shared_row, shared_specs
from quintet.runtime.slots import OF_STEP
from quintet.system import printing

_LOOK_EVERY_S = 0.5

_UNSENDABLE = (
    "env.num_processes > 1 needs an environment that can be sent to other processes",
    "give its id or a function that makes it, or use --env.num-processes 1",
)

_TELLS_S = 2.0
"""Seconds between a stepper's message about where it hangs and its end by the parent."""


@final
class SteppedEnv:
    """B environments in the order of their streams, each process with an even share of them.

    They give what one process would have stepped, byte for byte, as each has its own seed.  The
    processes begin at the first restart.
    """

    def __init__(
        self, env: ResolvedEnv, like: VectorEnv, count: int, *, first_stream: int, timeout_s: float
    ):  # fmt: skip
        """like: the same environments, made by this process; only their properties are read.

        count: number of processes; first_stream: number of the first environment in the run.
        timeout_s: longest time of a step of one stream.

        Raises ConfigError if the environment can't be sent, or there is too little memory.
        """
        num_streams = self.num_streams = like.num_streams
        self.spaces, self.description = like.spaces, like.description
        self._notice: Callable[[str], None] = lambda _: None
        self._ends = [num_streams * k // count for k in range(count + 1)]
        works: list[StepperWork] = []
        for index, (first, end) in enumerate(pairwise(self._ends)):
            make = partial(_made_here, env, end - first, first_stream + first)
            # A process steps its streams one after another.
            works.append(StepperWork(index, first, end, make, timeout_s * (end - first)))
        sent = [pickled(work, *_UNSENDABLE) for work in works]
        specs = shared_specs(self.spaces, num_streams, len(self.description.metrics))
        for work in works:
            specs |= progress_specs(f"stepper {work.index}")
        self._arena = Arena.create(specs)
        self._action, self._row = shared_row(self._arena, slice(None))
        self._processes: list[Process] = []
        for work, content in zip(works, sent, strict=True):
            streams = _streams(first_stream + work.first, first_stream + work.end)
            what, module = f"{streams} of {env.config.id}", "quintet.runtime.processes.stepper"
            kind = ProcessKind(f"stepper {work.index}", what, module, content, place="at work")
            self._processes.append(Process(kind, self._arena, printing.say, work.timeout_s))
        self._poller = select.poll()
        self._launched = self._begun = False
        self._questions = 0  # number of questions to all processes
        self.offered = keeper(like) is not None
        self.tasks = None if tasks_of(like) is None else SimpleNamespace(options={})

    @property
    def num_processes(self) -> int:
        return len(self._ends) - 1

    @property
    def own(self) -> "SteppedEnv":
        """Access to the state that the environments keep."""
        return self

    def tell(self, say: Callable[[str], None], notice: Callable[[str], None]) -> None:
        """Sets receivers, before the first restart: `say` receives the processes' output, and
        `notice` the reason for a long wait.
        """
        self._notice = notice
        for process in self._processes:
            process.say = say

    def launch(self) -> None:
        """Lets the processes begin, without waiting for them."""
        self._launched = True
        for process in self._processes:
            process.launch()

    @property
    def can_begin(self) -> bool:
        """Whether all processes that were launched have told that they are ready, or failed."""
        return all(process.channel.poll() for process in self._processes)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        checked = check_seeds(seeds, self.num_streams)
        self.ask(lambda streams: Ask("restart", checked[streams]))
        for name, values in self._row.obs.items():
            np.copyto(out[name], values)

    def ask(self, message: Callable[[slice], Ask]) -> list[Stepped]:
        """Sends each process its message, of its streams, and returns the answers."""
        if not self._begun:
            self._begin()
        for process, ends in zip(self._processes, pairwise(self._ends), strict=True):
            process.send(message(slice(*ends)))
        return self._await()

    def set_task(self, text: bytes) -> None:
        """Tells the environments something, see `quintet.envs.tasks`."""
        self.ask(lambda _: Ask("tell", text))

    def save(self) -> list[bytes]:
        """See `quintet.envs.own_state.Keeper`."""
        return [x for answer in self.ask(lambda _: Ask("save")) for x in answer.states]

    def load(self, states: Sequence[bytes]) -> None:
        self.ask(lambda streams: Ask("load", states[streams]))

    def send(self, action: Array) -> None:
        np.copyto(self._action, action)
        for process in self._processes:
            process.send(Ask("step"))

    def recv(self, out: StepRow) -> None:
        self._await()
        row = self._row
        for name, values in row.obs.items():
            np.copyto(out.obs[name], values)
        for name in OF_STEP:
            if (into := getattr(out, name)) is not None:
                np.copyto(into, getattr(row, name))

    def render(self, stream: int) -> Rendered:  # noqa: ARG002
        raise CannotRender("other processes step it")

    def kill(self) -> None:
        """Ends the processes at once, from any thread; `close` does the rest."""
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        processes, self._processes = self._processes, []
        if processes:
            stop_all(processes)
            self._arena.close()

    def _begin(self) -> None:
        self._begun = True
        if not self._launched:
            self.launch()
        await_all(self._processes, self._notice)
        for process in self._processes:
            self._poller.register(process.channel.fileno(), select.POLLIN)

    def _await(self) -> list[Stepped]:
        """Waits until all processes have answered; raises QuintetError if one fails or hangs."""
        answers: dict[int, Stepped] = {}
        all_ = {process.channel.fileno(): process for process in self._processes}
        busy = dict(all_)
        self._questions += 1
        looked_s = time.monotonic()
        notice = WaitNotice(self._notice, lambda: _at_work(list(busy.values())))
        while busy:
            for file, _ in self._poller.poll(1000.0 * _LOOK_EVERY_S):
                answer = all_[file].hear()
                if isinstance(answer, QuintetError):  # also of one that has answered before
                    raise answer
                answers[file] = answer
                del busy[file]
            now = time.monotonic()
            if now - looked_s < _LOOK_EVERY_S:
                continue
            looked_s = now
            notice.look()
            for process in busy.values():
                self._look_at(process)
        found = [answers[file] for file in all_]
        for first, answer in zip(self._ends, found, strict=False):
            if self.tasks is not None:
                self.tasks.options |= {first + k: own for k, own in answer.begun.items()}
        return found

    def _look_at(self, process: Process) -> None:
        doing = f" while {process.doing}" if process.doing else ""
        cure = "raise runtime.worker_timeout_s if a step may take so long"
        rest = f"{doing}: an environment hangs, or the process was stopped; {cure}"
        error = process.lost() if process.gone else None
        error = error or process.overdue(self._questions, "step", rest, _TELLS_S)
        if error is not None:
            raise error


def _made_here(env: ResolvedEnv, num_streams: int, first_stream: int) -> VectorEnv:
    with made_for("a process that steps environments"):
        return make_group_env(env, num_streams, first_stream=first_stream)


def _streams(first: int, end: int) -> str:
    return f"stream {first}" if end - first == 1 else f"streams {first} to {end - 1}"


def _at_work(processes: Sequence[Process]) -> str:
    names = [process.kind.name for process in processes]
    return f"{names[0]} steps" + (f", and {len(names) - 1} more" if len(names) > 1 else "")
