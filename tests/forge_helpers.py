"""Run folders whose files say something hostile, with hashes that fit, drawn by a seed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

DEEP = "deep"
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 0.5, -1e-300, 1e308, float("nan"), float("inf"), 2**31, 2**63,
    -(2**63) - 1, 10**400, 10**12, "", " ", "x", "latest", "../../x", "$\\foo$", "a\nb\x1b[31m",
    "\ud800", "9" * 400, "A" * 100_000, [], [1], [None], {}, {"": 0}, {"kind": "box"}, [[0.5, "x"]],
    [0] * 1_000, DEEP, "ppo", "float32", "object", ["a", "a"],
]  # fmt: skip


def place_in(document: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    """The place of a value, drawn level by level: as likely in a small part as in a large one."""
    at: tuple[Any, ...] = ()
    while isinstance(document, dict | list) and document and (not at or rng.integers(10)):
        names = list(document) if isinstance(document, dict) else range(len(document))
        at = (*at, names[int(rng.integers(len(names)))])
        document = document[at[-1]]
    return at


def replaced(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """The same document with another value at one place."""
    if not at:
        return value
    changed = document.copy()
    changed[at[0]] = replaced(document[at[0]], at[1:], value)
    return changed


def as_text(document: Any) -> bytes:
    text = json.dumps(document)
    return text.replace(json.dumps(DEEP), "[" * 90 + "]" * 90).encode("utf-8", "surrogatepass")


def files_of(folder: Path) -> list[Path]:
    """All files of a run that hold values by name."""
    kinds = ("meta.json", "run.json", "population.jsonl", "metrics.jsonl", "config.yaml")
    return sorted(path for path in folder.rglob("*") if path.name in kinds)


def documents(file: Path) -> list[Any]:
    if file.suffix == ".yaml":
        return [yaml.safe_load(file.read_text())]
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return [json.loads(file.read_text())]


def write(file: Path, documents: list[Any]) -> None:
    """Writes a file with hashes that fit."""
    if file.suffix == ".yaml":
        file.write_bytes(as_text(documents[0]))  # JSON is YAML
        return
    data = b"\n".join(as_text(each) for each in documents)
    file.write_bytes(data + b"\n" * (file.suffix == ".jsonl"))
    manifest = file.with_name("manifest.json")
    if manifest.exists():
        said = json.loads(manifest.read_text())
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        said["files"]["meta.json"] = entry
        manifest.write_text(json.dumps(said))


def forge(folder: Path, rng: np.random.Generator) -> str:
    """Puts a hostile value, or none, in place of one value of a run's files; says which."""
    files = files_of(folder)
    if rng.integers(2):  # what a resume reads
        files = [file for file in files if file.parent.parent.name == "checkpoints"]
    file = files[int(rng.integers(len(files)))]
    found = documents(file)
    which = int(rng.integers(len(found)))
    at = place_in(found[which], rng)
    told = f"{file.relative_to(folder)}[{which}] {'.'.join(map(str, at))}"
    if rng.integers(10) == 0:
        inner = found[which]
        for step in at[:-1]:
            inner = inner[step]
        del inner[at[-1]]
        write(file, found)
        return f"{told} removed"
    value = HOSTILE[int(rng.integers(len(HOSTILE)))]
    found[which] = replaced(found[which], at, value)
    write(file, found)
    return f"{told} = {str(value)[:30]!r}"
