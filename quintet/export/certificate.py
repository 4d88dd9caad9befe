"""``certificate.json``: what was compared, and the hashes of an export's files."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field

from quintet.checkpoints import signature
from quintet.checkpoints.manifest import content_fault
from quintet.errors import ExportError, FileFault
from quintet.export.compare import MOST_TOLERANCE, TIE, Comparison
from quintet.export.interface import Interface, Size, Strict, Text
from quintet.system import files, memory

CERTIFICATE, DESCRIPTION = "certificate.json", "policy.json"
PURPOSE = "quintet export 1"
"""Purpose of a certificate's signature."""

_MOST_BYTES = 2**25
"""Most bytes of a JSON file of an export."""

Held = TypeVar("Held", bound=Strict)


@final
class Entry(Strict):
    """A file's size in bytes, and its hash."""

    size: Size
    sha256: Annotated[str, Field(min_length=64, max_length=64)]

    @classmethod
    def of(cls, data: bytes) -> "Entry":
        return cls(size=len(data), sha256=hashlib.sha256(data).hexdigest())


@final
class Certificate(Strict):
    """The content of ``certificate.json``.

    rows, streams: T and B of the recorded steps; episodes: number of episodes that begin in them.
    observations: source of the observations.
    compared: the comparison of the program with the policy, when the export was made.
    tolerance, tie: see `quintet.export.compare`.
    versions: versions of the packages that computed both.
    signature: signature of all entries before it, if there was a key; see
        `quintet.checkpoints.signature`.
    sha256: hash of everything else in the file.
    """

    format_version: Literal[1]
    rows: Annotated[int, Field(ge=1, le=10**7)]
    streams: Annotated[int, Field(ge=1, le=10**6)]
    episodes: Size
    observations: Text
    seed: Size
    compared: Comparison
    tolerance: Annotated[float, Field(ge=0, le=MOST_TOLERANCE)]
    tie: Annotated[float, Field(ge=TIE, le=TIE)]
    versions: dict[Text, Text]
    files: dict[Text, Entry]
    signature: Text | None
    sha256: Text


def as_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON file's content."""
    return (json.dumps(content, indent=1) + "\n").encode()


def sealed(content: Mapping[str, Any]) -> bytes:
    """The file's content from all entries but the last two."""
    signed = {**content, "signature": signature.sign(PURPOSE, as_bytes(content))}
    return as_bytes({**signed, "sha256": hashlib.sha256(as_bytes(signed)).hexdigest()})


def parsed(model: type[Held], data: bytes, file: Path) -> Held:
    """The content of an export's JSON file; raises ExportError if quintet writes it otherwise."""
    way_out = "it is damaged or was changed; export the policy again"
    if len(data) > _MOST_BYTES:
        raise ExportError(
            f"{file} must have at most {_MOST_BYTES:,} bytes, got {len(data):,}: give the "
            "environment smaller spaces, or bounds that are equal in all dimensions"
        )
    try:
        content = files.parse_json(data)
        written = as_bytes(content) if isinstance(content, dict) else b""
    except (ValueError, TypeError) as fault:
        said = " ".join(str(fault).split())[:200]
        raise ExportError(f"{file} must be valid JSON, got {said}: {way_out}") from fault
    fault_told = content_fault(model, content) if isinstance(content, dict) else "it is no object"
    if fault_told is not None:
        raise ExportError(f"{file} must hold what quintet wrote, got {fault_told}: {way_out}")
    if written != data:
        raise ExportError(f"{file} must be in the form that quintet writes: {way_out}")
    return model.model_validate(content)


def _read(file: Path, most: int) -> bytes:
    """A file's content; raises ExportError if it can't be read or is larger than `most` bytes."""
    try:
        size = file.stat().st_size
        if size > most:
            raise ExportError(
                f"{file} must have at most {most:,} bytes, got {size:,}: it is damaged or was "
                "changed; export the policy again"
            )
        memory.require(size, str(file), "verify it on a larger machine")
        return files.read_bytes(file)
    except (OSError, ValueError) as fault:  # ValueError: a name that no file can have
        raise ExportError(str(files.cannot_read(file, fault))) from fault
    except FileFault as fault:
        raise ExportError(str(fault)) from fault


@final
class Read:
    """The verified files of an export.

    not_own: why the certificate has no valid signature of this user, after "it"; None: it has.
    """

    def __init__(self, folder: Path):
        """Raises ExportError if a file is missing, damaged or was changed."""
        if not folder.is_dir() or not (folder / CERTIFICATE).exists():
            raise ExportError(
                f"DIR must be a folder that quintet export wrote, got {folder}, which has no "
                f"{CERTIFICATE}: give its path"
            )
        data = _read(folder / CERTIFICATE, _MOST_BYTES)
        self.certificate = parsed(Certificate, data, folder / CERTIFICATE)
        rest = files.parse_json(data)
        given = rest.pop("sha256")
        if hashlib.sha256(as_bytes(rest)).hexdigest() != given:
            raise ExportError(
                f"{folder / CERTIFICATE} must match the SHA-256 that it holds, got other "
                "content: it was changed or is damaged; export the policy again"
            )
        mark = rest.pop("signature")
        self.not_own = signature.fault(PURPOSE, as_bytes(rest), mark)
        self.files = {}
        for name, entry in self.certificate.files.items():
            if os.sep in name or name.startswith(".") or "\0" in name:
                raise ExportError(f"{folder / CERTIFICATE} must list plain names, got {name!r}")
            self.files[name] = self._verified(folder / name, entry)
        if DESCRIPTION not in self.files:
            raise ExportError(f"{folder / CERTIFICATE} must list {DESCRIPTION}, it does not")
        path = folder / DESCRIPTION
        self.interface = parsed(Interface, self.files[DESCRIPTION], path)
        for name, digest in self.interface.sha256.items():
            listed = self.certificate.files.get(name)
            if listed is None or listed.sha256 != digest:
                raise ExportError(
                    f"{path} must have the SHA-256 that the certificate lists for {name}, got "
                    "another: export the policy again"
                )

    def _verified(self, file: Path, entry: Entry) -> bytes:
        """The content of a file; raises ExportError unless it is as the certificate lists."""
        data = _read(file, entry.size)
        if Entry.of(data) != entry:
            raise ExportError(
                f"{file} must have the {entry.size:,} bytes and the SHA-256 that the "
                f"certificate lists, got {len(data):,} bytes of other content: it is damaged "
                "or was changed; export the policy again"
            )
        return data

    def file(self, name: str) -> bytes:
        """The content of a file; raises ExportError if the certificate does not list it."""
        if name not in self.files:
            raise ExportError(f"the certificate must list {name}, it does not: export again")
        return self.files[name]
