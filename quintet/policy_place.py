"""Finds the checkpoint or folder that holds a policy."""

from pathlib import Path

from quintet import checkpoint
from quintet.errors import CheckpointError
from quintet.system import files, run_record
from quintet.system.inside import require_own

POLICY, LEARNER = "policy", "learner"
"""Keys of a checkpoint's tensors: the publication's, and the tensors only for learning."""

POLICIES, LEADER = "policies", "leader"
"""Keys in the meta of a checkpoint of several policies: the policies' entries, and the index of the
policy with the highest objective.
"""


def _of_best(path: Path) -> Path:
    """The folder that holds ``best/``: the run's, or the folder of the policy with the best
    score."""
    newest = None
    if not (path / "best").exists():
        newest = checkpoint.latest(path / "checkpoints", warn=files.warn_on_stderr)
    parts = () if newest is None else newest.meta.get(POLICIES, ())
    scores = {k: part["best"] for k, part in enumerate(parts) if part["best"] is not None}
    if not scores:
        return path
    return path / f"{POLICY}_{max(scores, key=lambda k: float(scores[k]))}"


def find_policy_folder(path: Path, which: str) -> checkpoint.Checkpoint:
    """The checkpoint or policy folder at a path; raises CheckpointError if there is none.

    which: see `quintet.policy.load`.
    """
    if path.is_file():
        raise checkpoint.none_at(path)
    require_own(path)
    if (path / "manifest.json").exists():
        if which != "latest":
            raise CheckpointError(
                f"--checkpoint {which!r} must have a run folder, got {path}, a single "
                "checkpoint or policy: leave --checkpoint out"
            )
        return checkpoint.read(path)
    if which == "best":
        path = _of_best(path)
        if not (path / "best").exists():
            if not checkpoint.any_of_run(path / "checkpoints"):
                raise checkpoint.none_at(path)
            raise CheckpointError(
                f"the run must have a best policy, but {path / 'best'} does not exist; "
                "evaluation may be off (--eval.episodes 0): use --checkpoint latest"
            )
        return checkpoint.read(path / "best")
    if which != "latest":
        inside, given = path / "checkpoints" / which, files.given_path(which)
        if not inside.exists() and given.exists():
            require_own(given)
            inside = given
        return checkpoint.read(inside)
    found = checkpoint.latest(path / "checkpoints", warn=files.warn_on_stderr)
    if found is None:
        raise checkpoint.none_at(path)
    steps = found.meta.get("env_steps")
    if steps is not None and (lost := run_record.lost(path, steps)) is not None:
        files.warn_on_stderr(lost)
    return found
