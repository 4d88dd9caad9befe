"""The journal of a sweep or race: one JSON file, replaced whole, perhaps of another person."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field

from quintet.checkpoints.links import require_own
from quintet.checkpoints.manifest import Checked, content_fault
from quintet.errors import FileFault
from quintet.system import files

_MOST_BYTES = 2**26

Sentence = Annotated[str, Field(max_length=2_000)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Journal(Checked):
    """State of a sweep or race.

    asked: what may not change when it goes on, as JSON-able values.
    spent_s: seconds that it has taken.
    """

    version: Literal[1] = 1
    asked: dict[str, Any] = Field(default={})
    spent_s: Seconds = 0.0


J = TypeVar("J", bound=Journal)


@final
class Damaged(FileFault):
    """A journal that can be read, but holds something that quintet does not write."""


def read(folder: Path, name: str, model: type[J], what: str) -> J | None:
    """The journal in a folder, by its name there; None without one.

    what: ``sweep`` or ``race``.

    Raises:
        FileFault: it can't be read; `Damaged`: its content is wrong.
        CheckpointError: something of quintet's in the folder is a link.
    """
    require_own(folder)
    path = folder / name
    if not path.exists():
        return None
    try:
        content = files.parse_json(files.read_bytes(path, most=_MOST_BYTES))
    except ValueError as fault:
        raise damaged(path, what, f"no JSON, {fault}") from fault
    if not isinstance(content, dict):
        raise damaged(path, what, f"a {type(content).__name__}")
    wrong = content_fault(model, content)
    if wrong is not None:
        raise damaged(path, what, wrong)
    return model.model_validate(content)


def write(folder: Path, name: str, journal: Journal) -> None:
    """Replaces the journal; raises OSError if it can't."""
    path = folder / name
    files.make_folder(path.parent)
    files.write_whole(path, json.dumps(journal.model_dump(mode="json"), indent=1).encode())


def damaged(path: Path, what: str, how: str) -> Damaged:
    """The error for a journal with a wrong content; `how`: which."""
    return Damaged(f"{path} is a damaged journal of a {what} ({how}): give another --run-dir")


def as_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a journal gives them back."""
    values_read: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return values_read
