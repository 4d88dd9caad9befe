"""Notices during long waits for other processes."""

import time
from collections.abc import Callable, Mapping
from typing import final

_TOLD_EVERY_S = 10.0


@final
class WaitNotice:
    """Prints a notice every ten seconds of a wait."""

    def __init__(self, notice: Callable[[str], None], what: Callable[[], str]):
        """Begins the wait; `what` returns a few words about the awaited process."""
        self._notice, self._what = notice, what
        self._begin_s = self._told_s = time.monotonic()

    def look(self) -> None:
        """Prints a notice if one is due; called about every second."""
        now = time.monotonic()
        if now - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now
            self._notice(f"waiting for {now - self._begin_s:.0f} s: {self._what()}")


def whereabouts(rows: Mapping[str, tuple[int, str]], steps: int) -> str:
    """The progress of the slowest worker in its unroll of `steps` rows, or its activity before."""
    if not rows:
        return "no worker has anything to do"
    name = min(rows, key=lambda name: rows[name])
    others = f", the slowest of {len(rows)}" if len(rows) > 1 else ""
    row, doing = rows[name]
    return f"{name} is {doing or f'at row {row} of {steps}'}{others}"
