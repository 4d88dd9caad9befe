"""An environment that closes files of its process, as careless code does."""

import os
from pathlib import Path

from loud_helpers import TenSteps


class Closing(TenSteps):
    """Closes the files from a number to another, in its maker or in a step, in one process of a
    kind.
    """

    def __init__(self, first: int, end: int, process: str = "", made: bool = False) -> None:
        self.files, self.process = (first, end), process
        if made:
            self.shut()

    def shut(self) -> None:
        name = Path("/proc/self/comm").read_text()
        if name.startswith(self.process):
            os.closerange(*self.files)

    def in_step_five(self) -> None:
        self.shut()
