"""A process that steps environments for another one, see `quintet.runtime.processes.stepped`."""

import time
from multiprocessing.connection import Connection
from typing import Any, final

import torch
from numpy.typing import NDArray

from quintet.envs.make import tell
from quintet.envs.own_state import keeper
from quintet.envs.vector import StepRow, allocate_row
from quintet.envs.wrappers import tasks_of
from quintet.jobs import user_state
from quintet.observe.timing import PhaseTimer
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.hang_notice import Watch
from quintet.runtime.processes.messages import Ready, Stepped, StepperWork, Stop
from quintet.runtime.processes.process import MAKING
from quintet.runtime.processes.worker import begin, report_failure
from quintet.runtime.slots import OF_STEP
from quintet.runtime.torch_settings import configure_torch
from quintet.spaces import action_spec
from quintet.system import forks
from quintet.system.printing import note
from quintet.types import Spaces, TensorSpec


def shared_specs(spaces: Spaces, num_streams: int, metrics: int = 0) -> dict[str, TensorSpec]:
    """Tensors ``[B, ...]`` that the processes share: the actions of a step, and its row."""
    row = allocate_row(spaces.observation, num_streams, metrics)
    arrays = {f"obs/{path}": x for path, x in row.obs.items()}
    arrays |= {name: x for name in OF_STEP if (x := getattr(row, name)) is not None}
    action = action_spec(spaces.action)
    specs = {name: TensorSpec(x.shape, torch.from_numpy(x).dtype) for name, x in arrays.items()}
    return {**specs, "action": TensorSpec((num_streams, *action.shape), action.dtype)}


def shared_row(arena: Arena, streams: slice) -> tuple[NDArray[Any], StepRow]:
    """The actions and the row of some streams, in the memory of `shared_specs`."""

    def part(name: str) -> NDArray[Any]:
        return arena.tensor(name).numpy()[streams]

    obs = {name: x.numpy()[streams] for name, x in arena.below("obs/").items()}
    return part("action"), StepRow(obs=obs, **{x: part(x) for x in OF_STEP if x in arena.specs})


@final
class Stepper:
    """The environments of some streams, which the parent directs."""

    def __init__(self, work: StepperWork, arena: Arena, channel: Connection):
        self.channel = channel
        self.progress = arena.tensor(f"stepper {work.index}/row").numpy()
        self.progress[1] = MAKING
        self.env = work.make_env()
        self.begun = getattr(tasks_of(self.env), "options", {})
        self.action, self.row = shared_row(arena, slice(work.first, work.end))
        self.timer = PhaseTimer()
        # Says in which line it hangs; the parent knows only that it does.
        self.watch = Watch(self.timer, self.env.description, work.timeout_s, note)

    def run(self) -> None:
        """Handles messages until it must stop."""
        self.channel.send(Ready())
        with self.watch.running():
            while not isinstance(message := self.channel.recv(), Stop):
                (what, given), states = message, list[bytes]()
                self.progress[:2] = time.monotonic_ns(), MAKING if what == "restart" else 0
                self.timer.switch("stepping")
                if what == "restart":
                    self.env.restart(given, self.row.obs)
                elif what == "tell":
                    tell(self.env, given)
                elif what == "step":
                    self.env.send(self.action)
                    self.env.recv(self.row)
                    forks.require_files(self.env.description.id)
                else:
                    own = keeper(self.env)
                    assert own is not None
                    if what == "load":
                        own.load(given)
                    else:
                        states = own.save()
                self.timer.switch("waiting")
                self.channel.send(Stepped(states, self.begun))
                self.begun.clear()


def main() -> int:
    pickled, arena, channel = begin()
    stepper = None
    try:
        configure_torch(1, "cpu")
        stepper = Stepper(user_state.work_of(pickled), arena, channel)
        stepper.run()
    except BaseException as error:  # an environment's own code may raise anything
        report_failure(channel, error)
        return 1
    finally:
        if stepper is not None:
            stepper.env.close()
    return 0
