"""``run.json``: a record of how a run ended, which a resume does not need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from quintet.checkpoints.manifest import Checked, Count, Word, content_fault
from quintet.errors import FileFault
from quintet.system import files

FILE = "run.json"

Sentence = Annotated[str, Field(max_length=2_000)]
Source = Annotated[str, Field(max_length=10_000)]  # origin of an option, with the paths of files


class Choice(Checked):
    """A doubtful choice, a finding of `quintet.findings.choices`; env_steps: when it was said."""

    choice: Word
    said: Sentence
    option: Sentence
    env_steps: Count = 0


class Record(Checked):
    """env_steps: number trained at its end; None: it still runs, or was killed. error: error that
    ended it.
    sources: source of each option's value when it was set.  choices: those that are doubtful.
    """

    state: Literal["running", "finished", "stopped", "failed"]
    env_steps: Count | None = None
    error: str | None = None
    sources: dict[str, Source] = Field(default={})
    choices: list[Choice] = Field(default=[], max_length=1_000)


SAVED = "saved run"
"""Source of a value that a run has kept since it began."""


def first_sources(run_dir: Path, sources: Mapping[str, str]) -> dict[str, str]:
    """The sources of values; for kept values the source when they were first set."""
    record = read(run_dir)
    kept = {} if record is None else record.sources
    return {
        name: kept.get(name, source)
        if SAVED in source and kept.get(name, "").isprintable()
        else source
        for name, source in sources.items()
    }


def read(run_dir: Path) -> Record | None:
    """The record in a run folder; None if there is no readable one."""
    try:
        content = files.parse_json(files.read_bytes(run_dir / FILE))
    except (FileFault, ValueError):
        return None
    wrong = not isinstance(content, dict) or content_fault(Record, content) is not None
    return None if wrong else Record.model_validate(content)


def lost(run_dir: Path, env_steps: int) -> str | None:
    """A sentence where the newest checkpoint, at `env_steps`, is older than the run's end."""
    record = read(run_dir)
    if record is None or record.state not in ("finished", "stopped") or record.error is not None:
        return None
    if record.env_steps is None or record.env_steps <= env_steps:
        return None
    return (
        f"the run in {run_dir} {'was finished' if record.state == 'finished' else 'was stopped'} "
        f"with a checkpoint of {record.env_steps:,} env_steps, which is gone; the newest "
        f"checkpoint that is left has {env_steps:,}"
    )
