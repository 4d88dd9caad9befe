"""Finds the checkpoint or folder that holds a policy, and reads its parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.checkpoints import checkpoint, run_record
from quintet.checkpoints.links import require_own
from quintet.envs.own_state import decoded
from quintet.errors import CheckpointError
from quintet.system import files
from quintet.types import Publication

if TYPE_CHECKING:
    from torch import Tensor

POLICY, LEARNER = "policy", "learner"
"""Keys of a checkpoint's tensors: the publication's, and the tensors only for learning."""

ENVIRONMENTS, FIRST = "environments", "0/0"
"""Key of the environments' states, as bytes by ``GROUP/INDEX``; the first environment's place."""

POLICIES, LEADER = "policies", "leader"
"""Keys in the meta of a checkpoint of several policies: the policies' entries, and the index of the
policy with the highest objective.
"""


def _of_best(path: Path) -> Path:
    """The folder that holds ``best/``: the run's, or that of the policy with the best score."""
    newest = None
    if not (path / "best").exists():
        newest = checkpoint.latest(path / "checkpoints", warn=files.warn_on_stderr)
    parts = () if newest is None else newest.meta.get(POLICIES, ())
    scores = {k: part["best"] for k, part in enumerate(parts) if part["best"] is not None}
    if not scores:
        return path
    return path / f"{POLICY}_{max(scores, key=lambda k: float(scores[k]))}"


def find_policy_folder(path: Path, choice: str) -> checkpoint.Checkpoint:
    """The checkpoint or policy folder at a path; raises CheckpointError if there is none.

    which: see `quintet.policies.policy.load`.
    """
    if path.is_file():
        raise checkpoint.none_at(path)
    require_own(path)
    if (path / "manifest.json").exists():
        if choice != "latest":
            raise CheckpointError(
                f"--checkpoint {choice!r} must have a run folder, got {path}, a single "
                "checkpoint or policy: leave --checkpoint out"
            )
        return checkpoint.read(path)
    if choice == "best":
        path = _of_best(path)
        if not (path / "best").exists():
            if not checkpoint.any_of_run(path / "checkpoints"):
                raise checkpoint.none_at(path)
            raise CheckpointError(
                f"the run must have a best policy, but {path / 'best'} does not exist; "
                "evaluation may be off (--eval.episodes 0): use --checkpoint latest"
            )
        return checkpoint.read(path / "best")
    if choice != "latest":
        inside, given = path / "checkpoints" / choice, files.given_path(choice)
        if not inside.exists() and given.exists():
            require_own(given)
            inside = given
        return checkpoint.read(inside)
    found = checkpoint.latest(path / "checkpoints", warn=files.warn_on_stderr)
    if found is None:
        raise checkpoint.none_at(path)
    steps = found.meta.get("env_steps")
    if steps is not None and (loss := run_record.lost(path, steps)) is not None:
        files.warn_on_stderr(loss)
    return found


def find_policy(path: Path) -> tuple[dict[str, Any], Publication, dict[str, "Tensor"]]:
    """The description and the publication that `load` would load, without a network, and a
    checkpoint's tensors that are only for learning; raises CheckpointError if there is none.
    """
    found = find_policy_folder(path, "latest")
    try:
        description, publication, number = policy_parts(found)
        return description, publication, found.tensors.get(f"{LEARNER}{number}", {})
    except (KeyError, TypeError, ValueError) as error:
        raise no_policy(found, error) from error


def policy_parts(found: checkpoint.Checkpoint) -> tuple[dict[str, Any], Publication, str]:
    """The parts of a checkpoint; the third is the suffix of its tensors' names, with several
    policies the leading one's."""
    part, number = found.meta, ""
    if POLICIES in found.meta:
        index = int(found.meta[LEADER])
        part, number = found.meta[POLICIES][index], f"_{index}"
    publication = Publication(int(part["version"]), found.tensors[f"{POLICY}{number}"])
    checkpoint.require_finite(found.path, publication.tensors, part["policy"]["model"]["encoder"])
    return dict(part["policy"]), publication, number


def first_state(found: checkpoint.Checkpoint) -> bytes:
    """The state of training's first environment; raises ValueError if it is damaged."""
    stored = found.tensors.get(ENVIRONMENTS, {}).get(FIRST)
    if stored is None:
        return b""
    decoded(state := stored.numpy().tobytes())
    return bytes(state)


def no_policy(found: checkpoint.Checkpoint, error: Exception) -> CheckpointError:
    """The error for a checkpoint whose parts are of no policy."""
    return CheckpointError(
        f"{found.path} must hold a policy of this version of quintet, got none ({error}); "
        "give a run folder, a checkpoint or a saved policy"
    )
