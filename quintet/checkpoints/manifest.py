"""Folders with a manifest of their files' sizes and hashes, so that damage is noticed.

This module needs no PyTorch: it lists a run's checkpoints, and reads and checks their `meta.json`.
`quintet.checkpoints.checkpoint` describes, writes and reads the folders themselves.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from quintet.checkpoints import signature
from quintet.errors import CheckpointError, FileFault
from quintet.system import files

FORMAT_VERSION = 1

MANIFEST = "manifest.json"
META = "meta.json"
PURPOSE = "quintet checkpoint 1"
"""Purpose of a manifest's signature."""

_MOST_BYTES = 2**26  # largest manifest and meta.json
REPLACED = ".old-"


class Found(NamedTuple):
    """A checkpoint's verified ``meta.json``; `not_own`: why it has no signature of this user."""

    path: Path
    meta: dict[str, Any]
    not_own: str | None


def numbered(root: Path) -> list[str]:
    """Names of a run's checkpoints, whole or not, oldest first; raises CheckpointError."""
    try:
        names = {name.removeprefix(REPLACED) for name in os.listdir(root)}
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise CheckpointError(
            f"{root} must be a readable folder of checkpoints: {files.reason(fault)}; "
            f"{files.advice(fault)}"
        ) from fault
    return sorted((name for name in names if name.isascii() and name.isdigit()), key=int)


def newest(root: Path, notice: Callable[[str], None] = lambda _: None) -> Found | None:
    """The newest intact checkpoint, tensors unchecked; `notice` receives faults of newer ones."""
    for name in reversed(numbered(root)):
        try:
            return read_meta(root, name)
        except CheckpointError as fault:
            notice(str(fault))
    return None


def read_meta(root: Path, name: str) -> Found:
    """Meta of the checkpoint ``root/name``.  Its hash is verified; of the other files, which may be
    large, only the sizes.  Raises CheckpointError, which names the file.
    """
    path = root / name
    with opened(current_or_previous(path)) as folder:
        entries, mark = read_manifest(folder, path)
        assert folder is not None
        for listed, entry in entries.items():
            _check_bytes(path / listed, _size(folder, path / listed), entry)
        meta = as_meta(read_verified(folder, path / META, entries[META], _MOST_BYTES), path / META)
    check_name(path, meta)
    return Found(path, meta, signature.fault(PURPOSE, signed_bytes(entries), mark))


def check_name(path: Path, meta: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a run's checkpoint has another checkpoint's name."""
    iteration = meta.get("iteration")
    if iteration is not None and iteration != int(path.name):
        raise CheckpointError(
            f"{path} holds the checkpoint of iteration {iteration}: name its folder after this"
        )


def as_meta(data: bytes, file: Path) -> dict[str, Any]:
    """Parses ``meta.json``; raises CheckpointError unless it is a JSON object that fits."""
    try:
        meta = files.parse_json(data)
    except ValueError as fault:
        raise CheckpointError(f"{file} is not valid JSON: {fault}") from fault
    if not isinstance(meta, dict):
        raise CheckpointError(f"{file} must hold an object, it holds a {type(meta).__name__}")
    wrong = content_fault(Meta, meta)
    if wrong is not None:
        raise CheckpointError(f"{file} holds invalid data ({wrong})")
    return meta


def current_or_previous(path: Path) -> Path:
    """`path`, or the previous version if a crash interrupted its replacement."""
    replaced = path.with_name(f"{REPLACED}{path.name}")
    return replaced if not os.path.lexists(path) and os.path.lexists(replaced) else path


@contextmanager
def opened(folder: Path) -> Iterator[int | None]:
    """A handle to a folder, valid also after a rename; None without such a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        yield None
        return
    except OSError as fault:
        raise CheckpointError(str(files.cannot_read(folder, fault))) from fault
    try:
        yield handle
    finally:
        os.close(handle)


def signed_bytes(listed: Mapping[str, Any]) -> bytes:
    """The hashes of all files, as bytes to sign."""
    return json.dumps(listed, sort_keys=True).encode()


def read_manifest(folder: int | None, path: Path) -> tuple[dict[str, dict[str, Any]], Any]:
    """Size and hash of every file of the checkpoint at `path` by its name, and the signature or
    None; raises CheckpointError.
    """
    if folder is None:
        raise CheckpointError(f"there is no checkpoint at {path}")
    file = path / MANIFEST
    data = _read(folder, file, _MOST_BYTES)
    try:
        manifest = files.parse_json(data)
        version, listed = manifest["format_version"], manifest["files"]
        entries = {str(name): dict(entry) for name, entry in listed.items()}
        mark = manifest.get("signature")
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise CheckpointError(f"{file} is damaged: {fault!r}") from fault
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {version!r}, this quintet reads {FORMAT_VERSION}: use the "
            "version of quintet that wrote it"
        )
    for name in entries:
        check_file_name(name, f"a file listed in {file}")
    if META not in entries:
        raise CheckpointError(f"{file} lists no {META}: this is not a checkpoint")
    return entries, mark


def check_file_name(name: str, what: str) -> None:
    """Raises CheckpointError if a name could point outside its folder."""
    allowed = name.replace("_", "").replace("-", "").replace(".", "")
    if not (allowed.isascii() and allowed.isalnum()) or name.startswith("."):
        raise CheckpointError(
            f"{what} must be made of letters, digits, '_', '-' and '.', not {name!r}"
        )


def read_verified(
    folder: int, file: Path, entry: Mapping[str, Any], most: int | None = None
) -> bytes:
    """The content of a file, of at most `most` bytes; raises CheckpointError unless it matches the
    manifest."""
    # Looked at first, since the file of a stranger would fill the memory.
    _check_bytes(file, _size(folder, file), entry)
    data = _read(folder, file, most)
    _check_bytes(file, len(data), entry)
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise CheckpointError(f"{file} is corrupted: its SHA-256 is not the manifest's")
    return data


def _check_bytes(file: Path, size: int, entry: Mapping[str, Any]) -> None:
    if size != entry.get("bytes"):
        raise CheckpointError(
            f"{file} has {size} bytes where the manifest says {entry.get('bytes')}"
        )


def _size(folder: int, file: Path) -> int:
    try:
        return os.stat(file.name, dir_fd=folder).st_size
    except OSError as fault:
        raise CheckpointError(str(files.cannot_read(file, fault))) from fault


def _read(folder: int, file: Path, most: int | None = None) -> bytes:
    try:
        return files.read_bytes(file, folder=folder, most=most)
    except FileFault as fault:
        raise CheckpointError(str(fault)) from fault


# Models of ``meta.json`` of a checkpoint or a policy.  Nothing is required: a saved policy has less
# than a checkpoint, and who misses something says so.  What belongs to one learner is checked with
# its state, options where they are merged, and the replay's part where its layout is known.

_MOST = 2**53
"""The largest count: up to it a float holds every whole number."""

_MOST_SHOWN = 60  # characters of a wrong value


def _number(value: object) -> object:
    ours = isinstance(value, int | float) and not isinstance(value, bool)
    if not ours or value != value or (isinstance(value, int) and abs(value) > _MOST):
        raise ValueError("must be a number")
    return value


Count = Annotated[int, Field(ge=0, le=_MOST)]
Number = Annotated[Any, AfterValidator(_number)]
Word = Annotated[str, Field(max_length=200)]


class Checked(BaseModel):
    """Base class of entries in a file: types are not converted, further entries are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class Description(Checked):
    """A policy, see `quintet.policies.policy.describe`."""

    algo: Word
    learner: dict[str, Any]
    model: dict[str, Any]
    env: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    own: dict[str, Any] = {}
    threads: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    eval_max_steps: Annotated[int, Field(ge=1, le=_MOST)] = 1


class _Record(Checked):
    env_steps: Count
    since: Count
    sums: list[Annotated[list[Number], Field(min_length=6, max_length=1_000)]]


class _Policy(Checked):
    """A policy's part of a checkpoint."""

    version: Count = 0
    best: Number | None = None
    best_mark: Word | None = None
    learner: dict[str, Count | Number | bool | str | None] = {}
    policy: Description | None = None
    episodes: dict[str, Number] | None = None
    replay: dict[str, Any] | None = None
    counters: dict[str, Count] = {}
    record: _Record | None = None
    objective: Number | None = None
    reported_objective: Count = 0


class _Event(Checked):
    event: Word
    policy: Count
    objectives: list[Number | None] = []


class _Population(Checked):
    values: list[dict[str, Number]]
    considered: list[Count]
    events: list[_Event]
    generator: dict[str, Any]


class _SelfPlay(Checked):
    versions: list[Count]
    env_steps: Count


class Meta(_Policy):
    exact: bool = False
    milestone: bool = False
    total_env_steps: Count = 0
    iteration: Count | None = None
    env_steps: Count | None = None
    config: dict[str, Any] = {}
    system: dict[str, str] = {}
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    report_bytes: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    population: _Population | None = None
    self_play: _SelfPlay | None = None
    policies: Annotated[list[_Policy], Field(min_length=2)] | None = None
    leader: Count = 0
    discarded_columns: list[Count] = []

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for name in ("iteration", "env_steps"):
            own = getattr(self, name)
            if own is not None and self.counters.get(name, own) != own:
                raise ValueError(
                    f"{name} must equal that of counters, {self.counters[name]}, got {own}"
                )
        if self.policies is not None and self.leader >= len(self.policies):
            raise ValueError(f"leader must be one of {len(self.policies)} policies")
        return self


def content_fault(model: type[BaseModel], content: Mapping[str, Any]) -> str | None:
    """Fault in a file's content, in a few words; None if there is none."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ascii(".".join(map(str, first["loc"])))[1:-1]
        said = first["msg"].removeprefix("Value error, ")
        said = said[:1].lower() + said[1:]
        if not place:
            return said
        shown = ascii(first["input"])
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        return f"{place[:_MOST_SHOWN]}: {said}, got {shown}"
    return None
