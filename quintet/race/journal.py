"""The state of a race, in one file that is replaced whole, so that a kill loses little."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import AfterValidator, Field

from quintet.config.saved import require_as_begun
from quintet.errors import CheckpointError, FileFault
from quintet.system import files
from quintet.system.manifest import Checked, Count, Number, Word, content_fault

FOLDER, FILE = "race", "race.json"

Sentence = Annotated[str, Field(max_length=2_000)]
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

    returns: of its episodes, in raw reward units; training: mean return of the last training
        episodes, with sampled actions; at_s: seconds of the race, at its end.
    env_steps: trained so far; speed: env_steps per second of training in this rung; wall_s:
        seconds of training so far, evaluation_s: of the evaluation, where they are known.
    """

    returns: Annotated[list[Number], Field(max_length=1_000)]
    env_steps: Count
    at_s: float
    speed: float = 0.0
    training: float | None = None
    wall_s: float | None = None
    evaluation_s: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean of the returns; that of training if no episode was evaluated; None: no episode of
        either has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else self.training


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
    out_at_s: float = 0.0
    begun_s: float = 0.0


@final
class Journal(Checked):
    """State of a race.

    asked: what may not change when it goes on, as JSON-able values; told: what findings changed.
    jobs: entries at the same time; compiles: runtime.compile by entry.
    counts, leg_s: the plan, see `quintet.race.plan.Plan`.
    rung: index of the part of the plan that runs; spent_s: seconds so far; rung_s: in this rung.
    totals: env_steps of the finalists, once known.
    state: `moving` while the winner's run becomes the run of the folder.
    """

    version: Literal[1] = 1
    asked: dict[str, Any]
    told: Annotated[list[Sentence], Field(max_length=1_000)] = Field(default=[])
    runners: Annotated[list[Runner], Field(max_length=1_000)] = Field(default=[])
    jobs: Count = 1
    compiles: dict[Name, Word] = Field(default={})
    counts: list[Count] = Field(default=[])
    leg_s: list[float] = Field(default=[])
    rung: Count = 0
    spent_s: Annotated[float, Field(ge=0)] = 0.0
    rung_s: Annotated[float, Field(ge=0)] = 0.0
    totals: dict[Name, Count] = Field(default={})
    winner: Name | None = None
    state: Literal["running", "moving", "finished"] = "running"


def read(folder: Path) -> Journal | None:
    """The journal in the folder of a run; None without one.  Raises FileFault if it is damaged."""
    path = folder / FOLDER / FILE
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or path.parent.is_symlink():
        raise CheckpointError(f"{path} must be an ordinary file, got a link: remove it")
    try:
        held = files.parse_json(files.read_bytes(path))
    except ValueError as fault:
        raise _damaged(path, f"no JSON, {fault}") from fault
    if not isinstance(held, dict):
        raise _damaged(path, f"a {type(held).__name__}")
    wrong = content_fault(Journal, held)
    if wrong is not None:
        raise _damaged(path, wrong)
    return Journal.model_validate(held)


def write(folder: Path, journal: Journal) -> None:
    """Replaces the journal; raises OSError if it can't."""
    files.make_folder(folder / FOLDER)
    content = json.dumps(journal.model_dump(mode="json"), indent=1)
    files.write_whole(folder / FOLDER / FILE, content.encode())


def require_same(folder: Path, journal: Journal, asked: Mapping[str, Any]) -> None:
    """Raises ConfigError if a command asks for another race than that of the folder."""
    instead = "another --run-dir, --overwrite"
    require_as_begun("race", folder, journal.asked, asked, instead)


def _damaged(path: Path, how: str) -> FileFault:
    return FileFault(
        f"{path} must be the journal of a race, got a damaged one ({how}): give another --run-dir"
    )
