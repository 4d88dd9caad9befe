"""The state of a race that runs: its journal and its clock."""

import sys
import time
from pathlib import Path
from typing import Any, final

from quintet.observe.pace import clock
from quintet.search import race_journal
from quintet.search.race_journal import Journal, Runner
from quintet.system.printing import QuietStream


@final
class State:
    """Journal and clock of a race of `total_s` seconds in a folder."""

    def __init__(self, folder: Path, total_s: float, journal: Journal) -> None:
        self.folder, self.total_s = folder, total_s
        self._out = QuietStream(sys.stdout)
        self.go_on(journal)

    def go_on(self, journal: Journal) -> None:
        """Goes on from a journal; its clock runs from now on."""
        self.journal, self._since = journal, time.monotonic()

    def say(self, line: str) -> None:
        self._out.line(f"[{clock(self.spent_s)}] {line}")

    @property
    def spent_s(self) -> float:
        """Seconds of the race so far, without the time that a kill lost."""
        return self.journal.spent_s + time.monotonic() - self._since

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s

    def keep(self, **changes: Any) -> None:
        """Stores changes of the journal, and the time."""
        passed = time.monotonic() - self._since
        self._since = time.monotonic()
        own = {
            "spent_s": self.journal.spent_s + passed,
            "rung_s": self.journal.rung_s + passed,
            **changes,
        }
        self.journal = self.journal.model_copy(update=own)
        race_journal.write(self.folder, self.journal)

    def update(self, name: str, **changes: Any) -> None:
        """Changes what is known of an entry, without storing it yet."""
        runners = [
            each.model_copy(update=changes) if each.name == name else each
            for each in self.journal.runners
        ]
        self.journal = self.journal.model_copy(update={"runners": runners})

    @property
    def rung_s(self) -> float:
        """Seconds of the race in this rung so far."""
        return self.journal.rung_s + time.monotonic() - self._since

    @property
    def inside(self) -> list[Runner]:
        """The entries that have not fallen out."""
        return [each for each in self.journal.runners if not each.out]
