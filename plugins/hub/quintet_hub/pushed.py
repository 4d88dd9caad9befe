"""The files that are uploaded, none of which is a pickle or holds a secret."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintet.checkpoints import manifest, run_record, saved_options
from quintet.checkpoints.checkpoint import CARD
from quintet.checkpoints.links import require_own
from quintet.errors import ExportError, QuintetError
from quintet.export.certificate import CERTIFICATE, Read
from quintet.observe.report_files import JSONL_FILE
from quintet.observe.run_summary import read_summary
from quintet.policies.folders import ENVIRONMENTS, POLICY, find_policy
from quintet.run.card import OWN
from quintet.system import files

_MOST_BYTES = 2**31  # the largest file
_VIDEO = "replay.mp4"  # the hub shows a video of this name

_FILE = re.compile(r"file [^)]*")
"""A file in the source of an option's value."""

_EXPORT = "\n## Export\n"
"""Title of the card's part about an export."""

_USE = re.compile(
    r'(quintet\.load\("|quintet (?:eval|export) )(?:policy|hf:[\w./-]+)(?:("\))  # this folder)?'
)
"""The folder in the card's commands."""

_SECRET = re.compile(
    rb"\b(?:hf_|gh[pousr]_|sk-(?:proj-)?|AKIA)\w{15,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY"
    rb"|://[^/\s:@\"']+:[^/\s@\"']+@"
    rb"|(?i:password|passwd|secret|api_?key|(?:access|auth|api|hf|wandb)_?token)\w*"
    rb"[\"']?\s*[:=]\s*[\"']?[^\s\"',}]{6,}"
)
"""Tokens by their prefix, private keys, passwords in addresses, and values of names that tell."""


def parts_of(run: Path, repo: str, export: Path | None = None) -> dict[str, bytes]:
    """The content of each file by its name in the repository; raises QuintetError if the run is not
    finished, or a file must not leave this machine.
    """
    require_own(run)
    folder = _policy_folder(run)
    description, _, _ = find_policy(folder)  # whole, finite, of this version
    parts = {CARD: b"", manifest.MANIFEST: _read(folder / manifest.MANIFEST)}
    with manifest.opened(folder) as handle:
        entries, _ = manifest.read_manifest(handle, folder)
        assert handle is not None
        for name, entry in entries.items():
            parts[name] = manifest.read_verified(handle, folder / name, entry, _MOST_BYTES)
    tensors = (f"{POLICY}.safetensors", f"{ENVIRONMENTS}.safetensors")
    if other := parts.keys() - {CARD, manifest.MANIFEST, manifest.META, *tensors}:
        raise QuintetError(
            f"RUN must be a finished run or a saved policy, got {run}, which holds "
            f"{sorted(other)[0]}: give the run's folder"
        )
    parts |= _reports(run)
    proof = ""
    if export is not None or (run / "export" / CERTIFICATE).exists():
        place = export or run / "export"
        exported, proof = _export(place, description)
        parts |= exported
    films = sorted(run.glob("*.mp4"), key=lambda film: film.lstat().st_mtime)
    if films:
        parts[_VIDEO] = _read(films[-1])
    parts[CARD] = (_card(folder, description, repo) + proof).encode()
    for name, data in parts.items():
        if not name.endswith((tensors[0], ".mp4", ".onnx", ".npz")):
            _require_no_secret(name, data)
    return parts


def _policy_folder(run: Path) -> Path:
    """The folder of the policy: the run's final one, of several the leader's."""
    if (run / manifest.MANIFEST).exists():
        return run
    summary = read_summary(run, newest=True)
    folder = run / POLICY
    if summary.state != "finished" or not (folder / manifest.MANIFEST).exists():
        state = "has no policy" if summary.state == "finished" else f"is {summary.state}"
        told = f"which {state}" if run.exists() and summary.options else "where there is none"
        raise QuintetError(
            f"RUN must be a finished run or a saved policy, got {run}, {told}: train to the end, "
            "or write its policy by quintet.load(RUN).save(DIR) and give DIR"
        )
    return folder


def _read(path: Path) -> bytes:
    if path.is_symlink():
        raise QuintetError(f"{path} must be a file to be pushed, got a link: put the file there")
    return files.read_bytes(path, most=_MOST_BYTES)


def _reports(run: Path) -> dict[str, bytes]:
    """Files that reports and comparisons read, without names of places on this machine."""
    record = run_record.read(run)
    if record is None:
        return {}
    summary = read_summary(run, newest=True)
    kept = record.model_dump(include={"state", "env_steps", "choices"})
    kept["system"] = dict(summary.system)
    kept["sources"] = {k: _FILE.sub("file", source) for k, source in record.sources.items()}
    options = {name: x for name, x in summary.options.items() if name not in OWN}
    found = {
        run_record.FILE: json.dumps(kept, indent=1).encode(),
        saved_options.FILE: files.dump_yaml(options, sort_keys=False).encode(),
    }
    if (run / JSONL_FILE).exists():
        found[JSONL_FILE] = _read(run / JSONL_FILE)
    return found


def _export(folder: Path, description: Mapping[str, Any]) -> tuple[dict[str, bytes], str]:
    """The files of an export, and the card's part about it."""
    read = Read(folder)  # verifies every hash
    made = read.interface
    if made.format == "torch":
        raise ExportError(
            f"--export must be a program that runs no code when it is read, got {folder} of format "
            "torch: export with --format onnx or numpy"
        )
    names = ("observation_space", "action_space")
    if made.algo != description["algo"] or any(
        getattr(made, name) != description[name] for name in names
    ):
        raise ExportError(
            f"--export must be an export of the policy, got {folder} of another learner or other "
            "spaces: export the run again"
        )
    proof = (
        f"{_EXPORT}\n`export/` is an {made.format} program. Its certificate: "
        f"{read.certificate.compared.summary()}, of the exported policy and the program, on "
        f"{read.certificate.rows:,} recorded rows of {read.certificate.streams:,} streams. After "
        "`quintet pull`, `quintet verify DIR/export` repeats it.\n"
    )
    own = {name: _read(folder / name) for name in (CERTIFICATE, *read.files)}
    return {f"export/{name}": data for name, data in own.items()}, proof


def _card(folder: Path, description: Mapping[str, Any], repo: str) -> str:
    """The card of the run with commands that use the repository; a short one without any."""
    if (folder / CARD).exists():
        text = _read(folder / CARD).decode(errors="replace").partition(_EXPORT)[0]
        return _USE.sub(rf"\1hf:{repo}\2", text)
    algo, env = description["algo"], description["env"]["id"]
    tags = ["reinforcement-learning", "deep-reinforcement-learning", algo, env]
    header = {"library_name": "quintet", "pipeline_tag": "reinforcement-learning", "tags": tags}
    return (
        f"---\n{files.dump_yaml(header, sort_keys=False)}---\n\n# {algo} on {env}\n\nThe score is "
        f"not known. `quintet eval hf:{repo}` measures it.\n"
    )


def _require_no_secret(name: str, data: bytes) -> None:
    if found := _SECRET.search(data):
        told = found[0].decode(errors="replace")[:12].split("=")[0]
        raise QuintetError(
            f"{name} must hold no password, key or token, got text that looks like one "
            f"({told!r}...): let the environment read it from a variable, and train again"
        )
