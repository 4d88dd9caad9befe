"""Run folders, and folders of several runs, whose files say something hostile, with hashes that
fit, drawn by a seed.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quintet.export.certificate import as_bytes

DEEP = "deep"
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 0.5, -1e-300, 1e308, float("nan"), float("inf"), 2**31, 2**63,
    -(2**63) - 1, 10**400, 10**12, "", " ", "x", "latest", "../../x", "$\\foo$", "a\nb\x1b[31m",
    "\ud800", "9" * 400, "A" * 100_000, [], [1], [None], {}, {"": 0}, {"kind": "box"}, [[0.5, "x"]],
    [0] * 1_000, DEEP, "ppo", "float32", "object", ["a", "a"], "canary:sing", ["wandb"],
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


JOURNALS = ("race.json", "sweep.json")
EXPORTS = ("policy.json", "certificate.json")


def files_of(folder: Path) -> list[Path]:
    """All files of a run that hold values by name."""
    kinds = ("meta.json", "run.json", "population.jsonl", "metrics.jsonl", "config.yaml")
    kinds += (*JOURNALS, *EXPORTS)
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
    certificate = file.with_name(EXPORTS[1])
    if file.name == EXPORTS[0] and certificate.exists():
        said = json.loads(certificate.read_text())
        said["files"][file.name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        write(certificate, [said])
    elif file.name == EXPORTS[1] and isinstance(documents[0], dict):
        with suppress(ValueError, TypeError):  # values that no JSON file of quintet's holds
            rest = as_bytes({k: x for k, x in documents[0].items() if k != "sha256"})
            seal = {"sha256": hashlib.sha256(rest).hexdigest()}
            file.write_bytes(as_bytes(json.loads(rest) | seal))
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
        files = [file for file in files if file.parent.parent.name == "checkpoints"] or files
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


# Folders of several runs

_DAMAGES = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}', b"1" * 5_000)
_NEW = (
    "race", "race/a", "race/x", "race/race.html", "trials", "trials/0009", "fresh", "fresh/0002",
    "fresh/0001/s1", "s1", "s2", "policy", "checkpoints", "best", "race/.tmp-race.json",
    ".tmp-sweep.json", ".tmp-journal.log", "journal.log", "trials.csv", ".lock", "log.txt",
)  # fmt: skip
_NAME = "\x1b[2J\x07\x9b1m\r\n"
_VALUES: list[tuple[str, Any]] = [
    ("state", "moving"), ("state", "finished"), ("winner", "x"), ("winner", "../../mine"),
    ("counts", []), ("rung", 99), ("jobs", 0), ("jobs", 10**6), ("leg_s", [1e300]), ("asked", []),
    ("runners", []), ("trials", []), ("spent_s", "long"), ("spent_s", -1.0), ("totals", {"a": 0}),
]  # fmt: skip
_OPTIONS = {
    "report.sinks": ["wandb"], "cluster.address": "10.0.0.1:6379", "model.encoder": "canary:sing",
    "env.id": "canary:sing", "init_from": "../mine", "unroll_steps": 10**9, "run_dir": "../mine",
    "model.policy_hidden": [10**6] * 4, "env.num_streams": 10**6,
    "learning_rate_schedule": "canary:sing",
}  # fmt: skip


def forge_folder(folder: Path, mine: Path, rng: np.random.Generator) -> str:
    """Forges the folder of a race, a sweep, a group of seeds or a population; says how.

    mine: a folder to which links lead.
    """
    journals = [path for name in JOURNALS for path in folder.rglob(name)]
    draw = int(rng.integers(11))
    if draw == 10:
        runs = [each for each in sorted(folder.iterdir()) if each.is_dir()] or [folder / "log.txt"]
        path = runs[int(rng.integers(len(runs)))]
        if path.exists():
            path.rename(path.with_name(f"{path.name}{_NAME}"))
        return f"{path.name} is called {path.name}{_NAME!r}"
    if draw < 4:
        return _linked(folder, mine, rng)
    if draw < 6 and journals:
        return _journal(journals[0], rng)
    if draw < 7:
        every = journals or files_of(folder)
        if (folder / EXPORTS[1]).exists():
            every = sorted(path for path in folder.iterdir() if path.is_file())
        file = every[int(rng.integers(len(every)))]
        data = bytearray(file.read_bytes())
        if rng.integers(2) and data:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        else:
            data = bytearray(_DAMAGES[int(rng.integers(len(_DAMAGES)))])
        file.write_bytes(data)
        return f"{file.relative_to(folder)} damaged"
    return forge(folder, rng)


def _linked(folder: Path, mine: Path, rng: np.random.Generator) -> str:
    """A link, a second name, a pipe or a socket in a place that a command may use."""
    there = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.name != "wandb"]
    places = [*map(Path, _NEW), *there]
    if rng.integers(2):  # places above files of runs
        places = [each for each in places if len(each.parts) < 3]
    place = folder / places[int(rng.integers(len(places)))]
    if os.path.lexists(place):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    targets = [mine, mine / "s1", mine / "thesis.txt", mine / "s1" / "metrics.jsonl", mine / "none"]
    target = targets[int(rng.integers(len(targets)))]
    kind = int(rng.integers(8))
    if kind == 0:
        os.mkfifo(place)
        said = "a pipe"
    elif kind == 1 and target.is_file():
        os.link(target, place)
        said = f"another name of {target.name}"
    elif kind == 2:
        place.symlink_to(os.path.relpath(target, place.parent))
        said = f"a relative link to {target.name}"
    else:
        place.symlink_to(target)
        said = f"a link to {target.name}"
    path = folder / "race" / "race.json"
    if place.parent == folder / "race" and path.is_file() and rng.integers(2):
        held = json.loads(path.read_text())
        path.write_text(json.dumps({**held, "state": "moving", "winner": place.name}))
        said += ", which is moved"
    return f"{place.relative_to(folder)} is {said}"


def _journal(path: Path, rng: np.random.Generator) -> str:
    held = json.loads(path.read_text())
    if held.get("runners") and rng.integers(2):
        names = sorted(_OPTIONS)
        name = names[int(rng.integers(len(names)))]
        held["runners"][0]["options"][name] = _OPTIONS[name]
        said = f"{name}={_OPTIONS[name]!r:.30}"
    else:
        name, value = _VALUES[int(rng.integers(len(_VALUES)))]
        held[name] = value
        said = f"{name}={value!r:.30}"
    path.write_text(json.dumps(held))
    return f"{path.name} with {said}"
