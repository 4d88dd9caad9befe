"""Checkpoints: folders that are written completely or not at all, and hold no code.

A checkpoint is a folder ``root/NAME/`` with one ``KEY.safetensors`` per group of tensors,
``meta.json`` and ``manifest.json`` (format version; size and SHA-256 of every file; perhaps their
signature).  It is written in a hidden folder next to its place, synced to the disk, and renamed, so
a crash at any moment leaves either the old state or the new one.  While it is replaced, the old one
is for an instant named ``.old-NAME``, and is read in that instant, or after a crash in it.
Checkpoints of a run are named by a growing number (``000000123``); `latest` and `prune` ignore
other names (``best``).
"""

from __future__ import annotations  # options need no PyTorch at run time

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from safetensors import SafetensorError

from quintet.checkpoints import signature
from quintet.checkpoints.links import is_ours
from quintet.checkpoints.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    META,
    PURPOSE,
    REPLACED,
    as_meta,
    check_file_name,
    check_name,
    current_or_previous,
    numbered,
    opened,
    read_manifest,
    read_meta,
    read_verified,
    signed_bytes,
)
from quintet.errors import CheckpointError
from quintet.options.bounds import Count, CountFrom0, Fraction, Seconds, Steps
from quintet.options.declaration import Options, option
from quintet.system import files

if TYPE_CHECKING:
    from torch import Tensor

CARD = "README.md"

_OF_HEADERS = (LookupError, TypeError, ValueError, RuntimeError, AssertionError)
"""Errors of the safetensors library for headers of strange types and shapes."""

_SUFFIX = ".safetensors"
_AUTO_PARTS = 20  # checkpoints over a run with `interval_iterations = "auto"`
_READ_ATTEMPTS = 10  # a read during a replacement starts again


@final
class CheckpointConfig(Options):
    """Schedule of checkpoints, and the number of checkpoints that are kept."""

    interval_iterations: Literal["auto"] | Steps = option(
        "auto",
        also="interval_updates save_freq save_interval checkpoint_freq checkpoint_frequency",
    )
    """iterations (fresh batches) between checkpoints; auto: 1/20 of the run, skipped while
    checkpoints have taken more than 1% of the time
    """
    interval_s: Seconds | None = option(None, also="save_every_sec", on_resume="free")
    """seconds between further checkpoints, in addition to interval_iterations; they cut no episode.
    `quintet save RUN` and SIGUSR1 ask for one at once
    """
    max_cut_frac: Fraction = 0.05
    """largest fraction of env_steps in episodes that exact checkpoints cut; all environments are
    reset at an exact checkpoint, so it waits until unfinished episodes hold few steps; 1: every
    checkpoint is exact
    """
    keep: Count = option(3, also="keep_checkpoints")
    """number of newest checkpoints that are kept"""
    milestones: CountFrom0 = option(0, also="save_milestones_sec")
    """number of checkpoints, evenly spaced over a run, that are never deleted"""
    save_best: bool = option(True, also="best_model_save_path save_best_metric save_best_every_sec")
    """keep the policy with the best evaluation too, under the name best"""
    best_by: str = option(
        "eval/return_mean",
        needs=("checkpoint.save_best", "eval.episodes > 0"),
        on_resume="free",
    )
    """metric of evaluations by which the best policy is chosen, the highest, as eval/success_rate
    or env/KEY (a number of env.metrics); -NAME: the lowest
    """

    def interval(self, total_iterations: int) -> int:
        """Iterations between two checkpoints of a run of `total_iterations`."""
        if self.interval_iterations == "auto":
            return max(1, total_iterations // _AUTO_PARTS)
        return self.interval_iterations

    def is_milestone(self, total_iterations: int, before: int, iteration: int) -> bool:
        """Whether the checkpoint at `iteration`, the first one since `before`, is never deleted:
        the k-th of n is the first at or after ``total_iterations * k / n``.
        """

        def due(at: int) -> int:  # milestones at or before an iteration
            return min(at * self.milestones // total_iterations, self.milestones)

        return due(iteration) > due(before)


@final
@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified.

    tensors: by key and name, in alphabetical order; on the CPU, contiguous, without shared memory.
    not_own: reason why its manifest has no valid signature of this user (see
        `quintet.checkpoints.signature`).
    """

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]
    not_own: str | None


def write(
    root: Path,
    name: str,
    tensors: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    *,
    signed: bool = False,
    card: str | None = None,
) -> Path:
    """Writes the checkpoint ``root/name``, replacing one of that name, and returns its path.

    When it returns, the checkpoint survives a power cut.  `root` is made if it is missing, but not
    its parent folder.  Tensors may be on any device, be views, or share memory; each is stored by
    value.  `meta` must be JSON-able.

    signed: whether it gets this user's signature, if there is a key.
    card: a text for people, ``README.md``, which may be changed later; nothing reads it.

    Raises CheckpointError if it can't be written (full disk, no permission, no folder); nothing of
    it is left behind and older checkpoints are untouched.
    """
    check_file_name(name, "the name of a checkpoint's or policy's folder")
    contents = _serialise(tensors, meta, signed)
    if card is not None:
        contents[CARD] = card.encode()
    temporary = root / f"{files.TEMPORARY}{name}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        if not root.is_dir():
            # Without parents: a folder that was moved or removed meanwhile isn't made again.
            root.mkdir(exist_ok=True)
            files.sync_folder(root.parent)
        temporary.mkdir()
        _write_files(temporary, contents)
        _put_in_place(temporary, root / name)
    except OSError as fault:
        remove(temporary)
        needed = sum(len(data) for data in contents.values())
        raise CheckpointError(_cannot_write(root, name, needed, fault)) from fault
    except BaseException:  # Ctrl-C in the middle of it
        remove(temporary)
        raise
    return root / name


def read(path: Path) -> Checkpoint:
    """Reads the checkpoint at `path` and verifies every size and hash; raises CheckpointError."""
    for attempt in range(_READ_ATTEMPTS):
        with opened(current_or_previous(path)) as folder:
            try:
                return _read_folder(folder, path)
            except CheckpointError:
                now = None
                with suppress(OSError):
                    now = os.stat(current_or_previous(path)).st_ino
                # another process may have replaced the folder while we read it
                replaced = folder is None or os.fstat(folder).st_ino != now
                if not replaced or attempt == _READ_ATTEMPTS - 1:
                    raise
    raise AssertionError("unreachable")


def none_at(path: Path) -> CheckpointError:
    """The error for a path without a policy."""
    runs = sorted(str(each.parent) for each in path.glob("*/checkpoints"))
    holds = "holds no checkpoint yet" if path.exists() else "does not exist"
    if (path / "policy" / MANIFEST).exists():
        holds = f"holds a final policy only: give {path / 'policy'}"
    if path.is_file():
        holds = "is a file: give a folder that quintet wrote; models of other libraries can't be "
        holds += "loaded, train again (docs/coming-from.md)"
    elif any_of_run(path):
        holds = f"holds the checkpoints of a run: give the run's folder, {path.absolute().parent}"
    if runs:
        holds = f"holds several runs; give one of them: {', '.join(runs)}"
    return CheckpointError(
        f"a path must be a run folder, a checkpoint or a policy folder, got {path}, which {holds}"
    )


def any_of_run(root: Path) -> bool:
    """Whether a run has a checkpoint, readable or not."""
    return bool(numbered(root))


def latest(
    root: Path, *, exact_only: bool = False, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The newest readable checkpoint of a run; None when there is none yet.  Raises CheckpointError
    if no suitable one can be read and some are damaged: the user must decide what to do.

    exact_only: whether ``meta["exact"]`` must be true.
    warn: receives a message for each damaged checkpoint that was skipped.
    """
    found, faults = find(root, exact_only=exact_only)
    if found is not None:
        for fault in faults:
            warn(f"skipped a damaged checkpoint: {fault}. Using {found.path} instead")
        return found
    if faults:
        kind = "exact checkpoint" if exact_only else "checkpoint"
        raise CheckpointError(
            f"no {kind} in {root} can be read: {'; '.join(faults)}. Restore one from a copy"
        )
    return None


def find(root: Path, *, exact_only: bool = False) -> tuple[Checkpoint | None, list[str]]:
    """The newest readable checkpoint of a run, if any, and the faults of damaged newer ones."""
    faults: list[str] = []
    for name in reversed(numbered(root)):
        try:
            found = read(root / name)
            check_name(found.path, found.meta)
        except CheckpointError as fault:
            faults.append(str(fault))
            continue
        if not exact_only or found.meta.get("exact", False):
            return found, faults
    return None, faults


def prune(
    root: Path,
    keep: int,
    protect: Callable[[dict[str, Any]], bool],
    warn: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Deletes old checkpoints and returns their names.

    It keeps the newest `keep`, checkpoints whose meta `protect` accepts, and the newest exact one,
    which an exact resume needs.  A damaged one stays, does not count, and is named by `warn`;
    tensors are not read for that.
    """
    deleted: list[str] = []
    exact_kept, age = False, -1
    for name in reversed(numbered(root)):
        try:
            meta = read_meta(root, name).meta
        except CheckpointError as fault:
            warn(f"passed over a damaged checkpoint: {fault}; remove {root / name}")
            continue
        age += 1
        newest_exact = bool(meta.get("exact", False)) and not exact_kept
        exact_kept |= newest_exact
        if age < keep or newest_exact or protect(meta):
            continue
        if not _removable(current_or_previous(root / name)):
            warn(f"{root / name} holds more than a checkpoint, so it stays; move the rest away")
            continue
        # renamed first: a crash while deleting must not leave a torn checkpoint under its name
        doomed = root / f"{files.TEMPORARY}{name}-deleted-{os.urandom(4).hex()}"
        with suppress(FileNotFoundError):
            os.rename(current_or_previous(root / name), doomed)
        remove(doomed)
        deleted.append(name)
    return deleted


def clean_temporary(root: Path) -> None:
    """Removes unfinished files of crashed writers from `root`; called under the run's lock."""
    if not root.is_dir():
        return
    for entry in sorted(root.iterdir()):
        if entry.name.startswith(files.TEMPORARY):
            if entry.is_file() and is_ours(entry.name.removeprefix(files.TEMPORARY)):
                with suppress(OSError):
                    entry.unlink()
            else:
                remove(entry)
        elif entry.name.startswith(REPLACED):
            place = root / entry.name.removeprefix(REPLACED)
            if place.exists():
                remove(entry)
            else:
                os.rename(entry, place)


def remove(folder: Path) -> bool:
    """Removes a checkpoint, a policy, or an unfinished one, unless it holds other files; returns
    whether it did."""
    if not _removable(folder):
        return False
    try:
        # The manifest goes last, so that remains after a crash can be recognised as ours.
        for name in sorted(os.listdir(folder), key=lambda name: name == MANIFEST):
            os.unlink(folder / name)
        os.rmdir(folder)
    except OSError:
        return False
    return True


def _removable(folder: Path) -> bool:
    """Whether a folder holds only files of a checkpoint."""
    try:
        with os.scandir(folder) as listed:
            return all(
                entry.is_file(follow_symlinks=False)
                and (entry.name in (MANIFEST, META, CARD) or entry.name.endswith(_SUFFIX))
                for entry in listed
            )
    except OSError:
        return False


def take_away(folder: Path) -> str | None:
    """Removes a checkpoint or policy; what has no manifest, or holds more, is kept at the place
    that is returned.
    """
    if os.path.lexists(folder / MANIFEST) and remove(folder):
        return None
    return str(files.set_aside(folder))


def tensor_hashes(checkpoint: Checkpoint) -> dict[str, str]:
    """SHA-256 of every tensor (dtype, shape and bytes) by ``KEY/NAME``."""
    import torch

    hashes = {}
    for key, group in checkpoint.tensors.items():
        for name, tensor in group.items():
            digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            # one dimension first: a tensor without dimensions can't be viewed as bytes
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
            hashes[f"{key}/{name}"] = digest.hexdigest()
    return hashes


def _serialise(
    tensors: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any], signed: bool
) -> dict[str, bytes]:
    """The contents of all files by name, the manifest last."""
    from safetensors.torch import save as save_safetensors

    contents = {}
    for key, group in tensors.items():
        check_file_name(key, "a key of the tensors")
        # Copies: safetensors stores no memory twice.
        own = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in group.items()}
        contents[f"{key}{_SUFFIX}"] = save_safetensors(own)
    try:
        contents[META] = json.dumps(meta, indent=1).encode()
    except (TypeError, ValueError) as fault:
        raise CheckpointError(f"a checkpoint's meta must be storable as JSON: {fault}") from fault
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in contents.items()
    }
    manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, "files": listed}
    mark = signature.sign(PURPOSE, signed_bytes(listed)) if signed else None
    if mark is not None:
        manifest["signature"] = mark
    contents[MANIFEST] = json.dumps(manifest, indent=1).encode()
    return contents


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes all files, then syncs them, so that the file system commits them together."""
    handles: list[int] = []
    try:
        for name, data in contents.items():
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            handles.append(handle)
            files.write_all(handle, data)
        for handle in handles:
            os.fsync(handle)
    finally:
        for handle in handles:
            os.close(handle)
    files.sync_folder(folder)


def _put_in_place(temporary: Path, place: Path) -> None:
    """Renames a new checkpoint to `place`; what was there is replaced, or kept aside if foreign."""
    replaced = place.with_name(f"{REPLACED}{place.name}")
    if place.exists() and not (os.path.lexists(place / MANIFEST) and _removable(place)):
        files.set_aside(place)
    elif place.exists():
        if os.path.lexists(replaced) and not remove(replaced):
            files.set_aside(replaced)
        os.rename(place, replaced)
    try:
        os.rename(temporary, place)
    except OSError:
        if replaced.exists():
            os.rename(replaced, place)
        raise
    files.sync_folder(place.parent)
    remove(replaced)


def _cannot_write(root: Path, name: str, needed: int, fault: OSError) -> str:
    """The message about a failed write, with the last good checkpoint."""
    free = "unknown"
    with suppress(OSError):
        free = f"{shutil.disk_usage(root).free:,}"
    last = None
    with suppress(CheckpointError, OSError):
        last = latest(root, warn=lambda _: None)
    remains = f"The last good checkpoint is {last.path}. " if last else ""
    return (
        f"can't write checkpoint {name} to {root}: {files.reason(fault)} "
        f"({needed:,} bytes needed, {free} bytes free); {files.advice(fault)}. {remains}"
        "Then give the same command again, or give another folder"
    )


def _read_folder(folder: int | None, path: Path) -> Checkpoint:
    """The checkpoint of an open folder; raises CheckpointError, which names the file."""
    from safetensors.torch import load as load_safetensors

    entries, mark = read_manifest(folder, path)
    assert folder is not None
    contents = {name: read_verified(folder, path / name, entry) for name, entry in entries.items()}
    tensors = {}
    for name, data in contents.items():
        if not name.endswith(_SUFFIX):
            continue
        try:
            loaded = load_safetensors(data)
        except (SafetensorError, *_OF_HEADERS) as fault:
            said = f"{type(fault).__name__}: {fault}"
            raise CheckpointError(f"{path / name} is not a safetensors file: {said}") from fault
        for key, x in loaded.items():
            if x.is_floating_point() and x.dtype.itemsize == 1:  # PyTorch can't compare these
                raise CheckpointError(f"{path / name} has {x.dtype} in {key}, which no run writes")
        # cloned to memory of torch's own alignment, on which the last bit of a sum may depend
        tensors[name.removesuffix(_SUFFIX)] = {k: loaded[k].clone() for k in sorted(loaded)}
    not_own = signature.fault(PURPOSE, signed_bytes(entries), mark)
    return Checkpoint(path, tensors, as_meta(contents[META], path / META), not_own)


def require_finite(path: Path, tensors: Mapping[str, Tensor], encoder: str) -> None:
    """Raises CheckpointError where weights or statistics out of a file hold a NaN or an infinity.

    encoder: ``model.encoder``; a user's encoder may hold infinities, as in a mask.
    """
    fault = not_finite(tensors, encoder, f" of {path}")
    if fault is not None:
        raise CheckpointError(
            f"weights and statistics must be finite, got {fault}: the training diverged, or the "
            "file was changed; give an earlier checkpoint, or train again"
        )


def not_finite(tensors: Mapping[str, Tensor], encoder: str, where: str = "") -> str | None:
    """Number and tensor of NaN or infinities, see `require_finite`; None if all are finite."""
    for name, x in tensors.items():
        if not x.is_floating_point() or bool(x.isfinite().all()):
            continue
        nans = int(x.isnan().sum())
        if not nans and ":" in encoder and "encoder" in name:
            continue
        what = f"{nans:,} NaN" if nans else f"{int(x.isinf().sum()):,} infinite values"
        return f"{what} in {x.numel():,} of {name}{where}"
    return None
