"""Watches for lost ranks while the host waits for its GPU instead of the ranks."""

import threading
from collections.abc import Callable
from typing import final


@final
class Guard:
    """A thread that watches the other ranks while an exchange on a GPU has not ended.

    The host continues after it has begun an exchange; when it next needs a result it waits, and
    nothing can interrupt this wait.  If the watch raises then, the guard ends the exchange, so that
    the wait ends too, and keeps the error.
    """

    def __init__(
        self, watch: Callable[[], None], end: Callable[[], None], look_every_s: float
    ) -> None:
        """watch: raises if another rank is gone; end: ends all exchanges, whatever they wait for.

        The guard's thread calls both.
        """
        self.error: BaseException | None = None
        self._watch, self._end, self._look_every_s = watch, end, look_every_s
        self._lock, self._over = threading.Lock(), threading.Event()
        self._ended: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None

    def follow(self, ended: Callable[[], bool]) -> None:
        """Watches until an exchange, and so every earlier one, has ended.

        ended: whether it has ended and its result was written.
        """
        self._ended = ended
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ranks' guard", daemon=True)
            self._thread.start()

    def rest(self) -> BaseException | None:
        """Ends the watch until the next exchange; returns what it has raised."""
        with self._lock:
            self._ended = None
        return self.error

    def check(self) -> None:
        """Raises what the watch has raised."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        seen: Callable[[], bool] | None = None
        while not self._over.wait(self._look_every_s):
            with self._lock:
                ended = self._ended
                # While exchanges follow each other, all ranks are there.
                if ended is None or ended is not seen or ended():
                    seen = ended
                    continue
                try:
                    self._watch()
                except BaseException as error:
                    self.error = error
                    self._end()
                    return
