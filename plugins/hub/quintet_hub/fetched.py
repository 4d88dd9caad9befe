"""Folders from the hub: what may be downloaded, and the checks before it has its place."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from quintet.checkpoints import manifest
from quintet.errors import CheckpointError, ExportError, QuintetError, UntrustedError
from quintet.export.certificate import CERTIFICATE, Read
from quintet.observe.run_summary import read_summary
from quintet.system import files
from quintet.system.printing import note
from quintet.system.trust import calls_of
from quintet_hub import service

_MOST_BYTES = 2**32

_KNOWN: dict[str, Path] = {}
"""Folders that this process has fetched, so that it uses one commit throughout."""

_PICKLES = re.compile(r".*\.(pkl|pickle|joblib|dill|pt2?|pth|ckpt|bin|npy|zip)", re.I | re.S)
"""Names of files that may be pickles, or hold some."""


def fetch(what: str) -> Path:
    """The folder of ``NAME/MODEL`` or ``NAME/MODEL@REVISION`` in the hub's cache."""
    if what not in _KNOWN:
        _KNOWN[what] = _cached(*service.parsed(what))
    return _KNOWN[what]


def _cached(repo: str, revision: str | None) -> Path:
    from huggingface_hub import cached_assets_path

    root, name = Path(cached_assets_path("quintet", repo)), repo.rpartition("/")[2]
    if service.is_commit(revision) and (root / str(revision) / name).exists():
        return root / str(revision) / name
    found = service.look_up(repo, revision)
    place = root / found.commit / name
    if not place.exists():
        download(found, place, trust=True)  # readers decide about its code
    return place


def download(found: service.Found, place: Path, *, trust: bool) -> None:
    """Downloads a policy to a new folder, which is whole or absent.

    trust: whether it may name code, which is not run.
    """
    names = _wanted(found)
    size = sum(found.sizes[name] for name in names)
    note(f"{found.repo}@{found.commit[:7]}: {len(names)} files of {size:,} bytes")
    files.make_folder(place.parent)
    beside = Path(tempfile.mkdtemp(prefix=files.TEMPORARY, dir=place.parent))
    try:
        for name in names:
            service.get(found, name, beside)
        shutil.rmtree(beside / ".cache", ignore_errors=True)  # the hub's notes
        try:
            _check(found.repo, beside, trust)
        except (CheckpointError, ExportError) as fault:
            raise QuintetError(str(fault).replace(str(beside), found.repo)) from fault
        beside.chmod(0o755)
        try:
            os.rename(beside, place)
        except OSError:
            if not (place / manifest.MANIFEST).exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _wanted(found: service.Found) -> list[str]:
    """The files to download; raises QuintetError for a repository that is not to be touched."""
    for name in found.sizes:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise QuintetError(
                f"{found.repo} must hold files inside its folder, got {name!r:.100}: it is not safe"
            )
        if _PICKLES.fullmatch(name):
            raise QuintetError(
                f"{found.repo} must hold no files that may run code when they are read, got "
                f"{name!r:.100}: ask its owner for a policy that `quintet push` wrote"
            )
    names = sorted(name for name in found.sizes if service.OURS.fullmatch(name))
    if manifest.MANIFEST not in names:
        raise QuintetError(
            f"{found.repo} must hold a policy of quintet, got a repository without "
            f"{manifest.MANIFEST}: give one that `quintet push` wrote"
        )
    if (size := sum(found.sizes[name] for name in names)) > _MOST_BYTES:
        raise QuintetError(
            f"{found.repo} must have at most {_MOST_BYTES:,} bytes of a policy, got {size:,}: if "
            "you know who made it, download it by `hf download` and give the folder"
        )
    return names


def _check(repo: str, folder: Path, trust: bool) -> None:
    """Compares all files of the policy with its manifest, and those of an export with its
    certificate; what that does not list is removed.
    """
    if (export := folder / "export").is_dir():
        listed = {CERTIFICATE, *Read(export).files}
        for path in export.iterdir():
            if path.name not in listed:
                path.unlink()
    found = manifest.read_meta(folder.parent, folder.name)
    with manifest.opened(folder) as handle:
        entries, _ = manifest.read_manifest(handle, folder)
        assert handle is not None
        for name, entry in entries.items():
            manifest.read_verified(handle, folder / name, entry)
    meta = found.meta.get("policy") or {}
    parts = {part: meta.get(part) or {} for part in ("env", "model")}
    named = calls_of({f"{part}.{x}": parts[part][x] for part in parts for x in parts[part]})
    others = calls_of(read_summary(folder, newest=True).options)  # nobody has signed them
    allowed = named if found.not_own is None else ()
    code = [x for x in (*named, *others) if not x.harmless and x not in allowed]
    if code and not trust:
        raise UntrustedError(
            f"{repo} must name no code to be pulled, got {code[0].option} {code[0].name!r:.100}: "
            "give --trust if you know who made it"
        )
