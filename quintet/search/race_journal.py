"""The state of a race, in one file that is replaced whole, so that a kill loses little."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import AfterValidator, Field, model_validator

from quintet.checkpoints.manifest import Checked, Count, Word
from quintet.errors import FileFault
from quintet.search import journal
from quintet.search.journal import Finite, Seconds, Sentence
from quintet.search.rungs import batches, halved
from quintet.system.files import is_number

FOLDER, FILE = "race", "race.json"

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")]


def _harmless(value: Any) -> Any:
    """The JSON value of an option, which may not name code: another person may have written it."""
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _harmless(each)
    if isinstance(value, str) and ":" in value:
        raise ValueError("must name no code")
    return value


Returns = Annotated[list[Finite], Field(max_length=1_000)]
Value = Annotated[Any, AfterValidator(_harmless)]

_CALLED = ("env.id", "env.kwargs", "eval.env.id", "eval.env.kwargs", "init_from")


def _calls_nothing(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an entry, which may not choose what is called, or its arguments."""
    if found := options.keys() & {*_CALLED}:
        raise ValueError(f"must leave {min(found)} to the user")
    return options


@final
class Look(Checked):
    """The evaluation of an entry at the end of a rung.

    returns, sampled: of its episodes with greedy and with sampled actions, in raw reward units;
        training: mean return of the last training episodes, with sampled actions; at_s: seconds of
        the race, at its end.
    env_steps: trained so far; speed: env_steps per second of training in this rung; wall_s:
        seconds of training so far, evaluation_s: of the evaluation, where they are known.
    """

    returns: Returns
    sampled: Returns = Field(default=[])
    env_steps: Count
    at_s: Seconds
    speed: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0.0
    training: Finite | None = None
    wall_s: Seconds | None = None
    evaluation_s: Seconds | None = None


@final
class Runner(Checked):
    """An entry and how it did; out: why it is not in the race any more, "" while it is; out_at_s:
    seconds of the race; begun_s: seconds that it has had of a leg that was stopped or killed.
    """

    name: Name
    algo: Word
    options: Annotated[dict[Word, Value], AfterValidator(_calls_nothing)]
    why: Sentence
    looks: Annotated[list[Look], Field(max_length=100)] = Field(default=[])
    out: Sentence = ""
    failed: bool = False
    out_at_s: Seconds = 0.0
    begun_s: Seconds = 0.0


@final
class Journal(journal.Journal):
    """State of a race.

    told: what findings changed.
    jobs: entries at the same time; compiles: runtime.compile by entry.
    counts, leg_s: the plan, see `quintet.search.rungs.Plan`; empty before it is made.
    rung: index of the part of the plan that runs; rung_s: seconds in this rung.
    totals: env_steps of the finalists, once known.
    state: `moving` while the winner's run becomes the run of the folder.
    """

    told: Annotated[list[Sentence], Field(max_length=1_000)] = Field(default=[])
    runners: Annotated[list[Runner], Field(max_length=1_000)] = Field(default=[])
    jobs: Annotated[int, Field(ge=1, le=1_000)] = 1
    compiles: dict[Name, Literal["auto", "on", "off"]] = Field(default={})
    counts: list[Count] = Field(default=[])
    leg_s: list[Seconds] = Field(default=[])
    rung: Count = 0
    rung_s: Seconds = 0.0
    totals: dict[Name, Annotated[int, Field(ge=1, le=2**53)]] = Field(default={})
    winner: Name | None = None
    state: Literal["running", "moving", "finished"] = "running"

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuses a state in which no race can be."""
        names = {each.name for each in self.runners}
        if len(names) < len(self.runners):
            raise ValueError("runners must have different names")
        named = {*self.compiles, *self.totals} | ({self.winner} if self.winner else set())
        if other := named - names:
            raise ValueError(f"{min(other)} must be one of the runners")
        if (self.state == "running") != (self.winner is None):
            raise ValueError("winner must be there unless state is running")
        self._require_plan()
        for each in self.runners:
            if not each.out and not self.rung <= len(each.looks) <= self.rung + 1:
                raise ValueError(
                    f"{each.name} must have {self.rung} or {self.rung + 1} evaluations"
                )
            if each.name == self.winner and (each.out or not each.looks):
                raise ValueError(f"{each.name} must have come to the end, since it is the winner")
        if self.runners and all(each.out and not each.failed for each in self.runners):
            raise ValueError("runners must have one that is in the race")
        return self

    def _require_plan(self) -> None:
        """Raises ValueError unless the rounds fit the runners and the time."""
        planned = halved(len(self.runners), self.jobs) if self.runners else []
        if self.counts != planned or len(self.leg_s) != len(planned):
            raise ValueError(
                f"counts and leg_s must fit {len(self.runners)} runners, {self.jobs} at a time"
            )
        if self.rung >= max(1, len(planned)):
            raise ValueError(f"rung must be below {len(planned)}, got {self.rung}")
        parts = zip(self.leg_s, self.counts, strict=True)
        whole_s = sum(leg_s * batches(count, self.jobs) for leg_s, count in parts)
        minutes: Any = self.asked.get("minutes")
        if planned and not (is_number(minutes) and whole_s <= 60.0 * (minutes + 1)):
            raise ValueError("leg_s must fit into the minutes of the race")


def read(folder: Path) -> Journal | None:
    """The journal in the folder of a race; None without one.  Raises FileFault if it is damaged,
    CheckpointError if something in the folder is a link.
    """
    return journal.read(folder, f"{FOLDER}/{FILE}", Journal, "race")


def damaged(folder: Path, how: str) -> FileFault:
    """The error for the journal of a race that says something wrong."""
    return journal.damaged(folder / FOLDER / FILE, "race", how)


def write(folder: Path, state: Journal) -> None:
    """Replaces the journal; raises OSError if it can't."""
    journal.write(folder, f"{FOLDER}/{FILE}", state)
