"""Notices about a step of an environment in this process that does not return."""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import final

from quintet.envs.vector import EnvDescription, place_of_frame
from quintet.jobs.silence import Silence
from quintet.observe.timing import Phase, PhaseTimer
from quintet.runtime.sampler import GroupSampler
from quintet.system.user_code import place_in

_OF_ENVIRONMENTS: tuple[Phase, ...] = ("stepping", "making", "acting", "evaluation")
"""Phases in which an environment may hang."""

_LOOK_EVERY_S = 1.0

_COMPILE_S = 60.0
"""Additional time for an act, which may be compiled."""

_HOME = Path(__file__).parents[2]


@final
class Watch:
    """Gives a notice, from its own thread, when the thread that made it stays in one step too long.
    It reads the phase timer, which every step switches, so it costs steps nothing.
    """

    def __init__(
        self,
        timer: PhaseTimer,
        env: EnvDescription,
        allowed_s: float,
        tell: Callable[[str], None],
        silence: Silence | None = None,
    ):
        """allowed_s: allowed seconds, without the time in which this process waited for a core.

        silence: what counts them.
        """
        self._silence = Silence() if silence is None else silence
        self.timer, self.env, self.allowed_s, self.tell = timer, env, allowed_s, tell
        self._watched = threading.get_ident()
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watches within the block."""
        thread = threading.Thread(target=self._look, daemon=True, name="watch")
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def where(self) -> str:
        """The activity of the watched thread, for a message."""
        phase, _ = self.timer.now()
        if phase == "learning":
            return "the update"
        if phase == "waiting":
            return "the workers' next unrolls"
        if phase in _OF_ENVIRONMENTS:
            return self._step() + (" of the evaluation" if phase == "evaluation" else "")
        return "the iteration"

    def _look(self) -> None:
        """Tells of a wait in the environments, then again when it has doubled."""
        every_s = min(_LOOK_EVERY_S, self.allowed_s / 4)
        tell_at_s = 0.0
        while not self._ending.wait(every_s):
            seen = self.timer.now()
            silent_s = self._silence.look(os.getpid(), seen, every_s)
            if not silent_s:
                tell_at_s = self.allowed_s + (_COMPILE_S if seen[0] == "acting" else 0.0)
            elif silent_s >= tell_at_s and seen[0] in _OF_ENVIRONMENTS:
                tell_at_s = 2 * silent_s
                self.tell(f"waiting for {silent_s:.0f} s: {self._late()}")

    def _late(self) -> str:
        """The message about a step that takes too long."""
        if _compiles(_frames(self._watched)):
            return (
                "PyTorch compiles the network for acting, and Ctrl-C waits until that is done; "
                "--runtime.compile off avoids it"
            )
        return (
            f"{self.where()} has not come back: it hangs or takes longer than "
            "runtime.worker_timeout_s; Ctrl-C waits for it, a second Ctrl-C ends at once, and "
            "the same command resumes from the last checkpoint"
        )

    def _step(self) -> str:
        """The environments that are stepped or reset, and the line of their code."""
        frames = _frames(self._watched)
        env = f"{self.env.id} ({self.env.backend})"
        streams = next(filter(None, map(_streams_of, reversed(frames))), "all streams")
        lines = ((frame, frame.f_lineno) for frame in frames)
        place = place_in(traceback.StackSummary.extract(lines, lookup_lines=False))
        return f"{env}, {streams}" + (f" (at {place})" if place else "")


def _frames(thread: int) -> list[FrameType]:
    """A thread's frames from the first one of quintet's code on, the outermost first."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    ours = (_HOME in Path(frame.f_code.co_filename).parents for frame in frames)
    first = next((index for index, our in enumerate(ours) if our), len(frames))
    return frames[first:]


def _compiles(frames: Iterable[FrameType]) -> bool:
    """Whether PyTorch's compiler is running in these frames."""
    homes = ("/torch/_inductor/", "/torch/_dynamo/")
    files = (frame.f_code.co_filename.replace("\\", "/") for frame in frames)
    # Compiled code is called by a frame of _dynamo too, `eval_frame.py`.
    return any(
        home in file for file in files for home in homes if not file.endswith("eval_frame.py")
    )


def _streams_of(frame: FrameType) -> str:
    """The streams that a frame steps; "" if it is not a step."""
    with suppress(KeyError):  # the frame has ended meanwhile
        if frame.f_code in (GroupSampler.receive.__code__, GroupSampler.act.__code__):
            group: GroupSampler = frame.f_locals["self"]
            last = group.first_stream + group.num_streams - 1
            step = group.steps_before + frame.f_locals["row"]
            return f"streams {group.first_stream} to {last}, step {step} since they began"
    return place_of_frame(frame)
