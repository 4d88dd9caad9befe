"""The journal of a sweep: what was drawn for each trial and how it ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, model_validator

from quintet.checkpoints.manifest import Checked, Count, Word
from quintet.search import journal
from quintet.search.journal import Finite, Seconds, Sentence
from quintet.search.space import Dimension

FILE = "sweep.json"

State = Literal["running", "complete", "pruned", "fail"]
Point = Annotated[list[Finite], Field(min_length=2, max_length=2)]


@final
class Trial(Checked):
    """A trial; score: None if it has none; drawn: by key of the space; curve: pairs of a step and
    the score there; attrs: what the pruner must know of it; error: why it failed.
    """

    number: Count
    state: State = "running"
    score: Finite | None = None
    drawn: dict[str, Any]
    curve: Annotated[list[Point], Field(max_length=1_000)] = Field(default=[])
    attrs: dict[Word, Finite] = Field(default={})
    error: Sentence = ""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.state == "complete" and self.score is None:
            raise ValueError("score must be there, since the trial is complete")
        return self


@final
class Journal(journal.Journal):
    """State of a sweep; longest_s: seconds of the longest batch of trials."""

    trials: Annotated[list[Trial], Field(max_length=100_000)] = Field(default=[])
    longest_s: Seconds = 0.0

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if [each.number for each in self.trials] != [*range(len(self.trials))]:
            raise ValueError("trials must be numbered from 0")
        return self


def read(folder: Path, space: Sequence[Dimension]) -> Journal | None:
    """The journal in the folder of a sweep; None without one.

    Raises:
        FileFault: it can't be read; `quintet.search.journal.Damaged`: its content is wrong, or its
            trials are not of that space.
        CheckpointError: something in the folder is a link.
    """
    found = journal.read(folder, FILE, Journal, "sweep")
    for each in [] if found is None else found.trials:
        if not drawn_of(each.drawn, space):
            how = f"trial {each.number} has another search space"
            raise journal.damaged(folder / FILE, "sweep", how)
    return found


def drawn_of(drawn: dict[str, Any], space: Sequence[Dimension]) -> bool:
    """Whether these values may have been drawn from the space."""
    named = {one.key: one for one in space}
    return named.keys() == drawn.keys() and all(named[key].holds(x) for key, x in drawn.items())


def write(folder: Path, state: Journal) -> None:
    """Replaces the journal; raises OSError if it can't."""
    journal.write(folder, FILE, state)
