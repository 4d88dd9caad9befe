"""One run of a sweep, a trial or a best one again: the process that `search` starts for each."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.run import member
from quintet.system.printing import say

if TYPE_CHECKING:
    from quintet.config.resolve import Loaded


def main() -> int:
    """Trains by the payload until the end, or until other trials show that it is not worth it."""
    return member.serve(_train)


def _train(loaded: "Loaded", payload: dict[str, Any]) -> dict[str, Any]:
    from quintet.run.launch import run
    from quintet.sweep.watch import Watch

    loaded = resuming_or_anew(loaded)
    if "watch" not in payload:
        return {"status": run(loaded).status}
    watch = Watch(**payload["watch"])
    assert loaded.config.run_dir is not None
    if not loaded.overwrite and watch.reread(loaded.config.run_dir):
        return watch.answer("pruned")
    result = run(loaded, watch.hear)
    if watch.pruned and result.status == "stopped":
        say("ends here: others were better at this point")
        return watch.answer("pruned")
    return watch.answer(result.status)


def resuming_or_anew(loaded: "Loaded") -> "Loaded":
    """The configuration, which begins again if it should resume with the same bytes and can't.

    It is decided here since a run that lost its node has another folder than at its first start.
    """
    assert loaded.config.run_dir is not None
    if loaded.config.resume != "exact" or resumes_exactly(loaded.config.run_dir / "checkpoints"):
        return loaded
    config = loaded.config.model_copy(update={"resume": "latest"})
    return replace(loaded, config=config, overwrite=True)


def resumes_exactly(checkpoints: Path) -> bool:
    """Whether a run has no checkpoints, or goes on from one of them with the same bytes.

    Replay has the rows that the newest checkpoint needs, but may have none for an older one.
    """
    from quintet import checkpoint
    from quintet.errors import CheckpointError
    from quintet.policy_place import POLICIES

    try:
        if not checkpoint.any_of_run(checkpoints):
            return True
        newest, exact = (checkpoint.find(checkpoints, exact_only=x)[0] for x in (False, True))
    except CheckpointError:
        return False
    if newest is None or exact is None:
        return False
    parts = exact.meta.get(POLICIES) or [exact.meta]
    return newest.path == exact.path or all(part.get("replay") is None for part in parts)
