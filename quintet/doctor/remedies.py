"""Records of how often commands of findings helped, by the name of the finding.

A command that trains again is printed only if its kind has helped in the record, where runs with a
planted fault were trained again by it.  `python benchmarks/doctor.py remedies` prints the numbers.
"""

from collections.abc import Mapping
from typing import NamedTuple, final

_LEAST, _HELPED, _HARMED = 4, 0.75, 0.05


@final
class Tried(NamedTuple):
    """Number of runs that were trained again, and of those that ended better and worse by more than
    a fifth of the healthy run's rise."""

    runs: int
    helped: int
    harmed: int


TRIED: Mapping[str, Tried] = {
    "budget-short": Tried(6, 6, 0),
    "few-updates": Tried(6, 6, 0),
    "gamma": Tried(1, 1, 0),
    "option-far": Tried(65, 61, 0),
    "option-other": Tried(4, 4, 0),
}


def helps(name: str) -> bool:
    """Whether the command of a finding of this name has helped often enough, and seldom harmed."""
    tried = TRIED.get(name)
    if tried is None or tried.runs < _LEAST:
        return False
    return tried.helped >= _HELPED * tried.runs and tried.harmed <= _HARMED * tried.runs


def proven(name: str, command: str) -> str:
    """The command, unless it trains and has not been shown to help: then ""."""
    trains = command.startswith("quintet train")
    return "" if trains and not helps(name) else command
