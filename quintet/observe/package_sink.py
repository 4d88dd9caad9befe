"""A sink of an installed package in a thread of its own, so that one that fails or hangs never
stops a run.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np

from quintet.errors import QuintetError
from quintet.observe.report_files import Kept, Notice
from quintet.system import files
from quintet.system.user_code import raised

END_S = 10.0
"""Longest time that the end of a run waits for a sink."""

_MOST_WAITING = 1_000  # calls
_BINS, _HEIGHT, _WIDTH = 30, 60, 4  # bins of a histogram; pixels of its picture and of a bin


@final
class ThreadedSink:
    """Gives a sink what the run writes, as fast as the sink takes it.

    A sink that raises an error is left out from then on. A sink that is slower
    than the run misses the reports that it has no time for.
    """

    def __init__(self, name: str, sink: Any, opened: Callable[[int], Any], notice: Notice):
        """sink: its `PackageSink`. opened: makes the argument of its `open` from the env_steps of
        the reports that the run keeps.
        """
        self._name, self._sink, self._opened, self._notice = name, sink, opened, notice
        self._waiting: queue.Queue[tuple[Any, ...] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._log = Path()
        self._fault, self._said, self._dropped = "", False, 0

    def begin(self, kept: Kept) -> None:
        run = self._opened(kept.env_steps)
        self._log = run.run_dir / "log.txt"
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)
        self._thread.start()

    def write(self, report: Mapping[str, float]) -> None:
        self._put("write", dict(report))

    def write_histograms(self, env_steps: int, histograms: Mapping[str, np.ndarray]) -> None:
        for name, x in histograms.items():
            self._put("picture", name, env_steps, bars(x))

    def sync(self) -> None:
        """Does nothing, since no resume needs what other services keep."""

    def close(self) -> None:
        """Waits for the rest, at most `END_S` seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(QuintetError, queue.Full):
            said = files.read_bytes(self._log).decode(errors="replace")
            self._waiting.put_nowait(("text", self._log.name, said))
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        thread.join(END_S)
        self._notice = files.warn_on_stderr  # the run's own log is closed
        if thread.is_alive():
            self._notice(f"the sink {self._name} has not ended after {END_S:.0f} s and is left")
        self._tell()

    def _put(self, *call: Any) -> None:
        self._tell()
        if self._fault:
            return
        try:
            self._waiting.put_nowait(call)
        except queue.Full:
            self._dropped += 1

    def _tell(self) -> None:
        said, self._said = self._said, self._said or bool(self._fault or self._dropped)
        if self._said and not said:
            why = self._fault or "is slower than the run writes, so some reports are dropped"
            self._notice(f"the sink {self._name} {why}; the run goes on")

    def _work(self, run: Any) -> None:
        try:
            state = self._sink.open(run)
            try:
                while (call := self._waiting.get()) is not None:
                    getattr(self._sink, call[0])(state, *call[1:])
            finally:
                self._sink.close(state)
        except BaseException as error:  # raised by the package
            self._fault = f"is left out from now on: it {raised(error)}"


def bars(x: np.ndarray) -> np.ndarray:
    """A histogram as a picture ``[H, W, 3]``, uint8, black on white, least values left."""
    counts = np.histogram(x, bins=_BINS)[0]
    heights = np.repeat(_HEIGHT * counts / max(1, counts.max()), _WIDTH)
    dark = np.arange(_HEIGHT)[::-1, None] < heights
    return np.where(dark[:, :, None], np.uint8(0), np.uint8(255)).repeat(3, 2)
