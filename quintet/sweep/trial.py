"""One trial of a sweep: the process that `search` starts for each."""

import sys
from typing import TYPE_CHECKING, Any

from quintet.run import member

if TYPE_CHECKING:
    from quintet.config.resolve import Loaded
    from quintet.sweep.watch import Watch


def main() -> int:
    """Trains by the payload until the end, or until other trials show that it is not worth it."""
    return member.serve(_train)


def _train(loaded: "Loaded", payload: dict[str, Any]) -> dict[str, Any]:
    from quintet.run.launch import run
    from quintet.sweep.watch import Watch

    watch = Watch(**payload["watch"])
    assert loaded.config.run_dir is not None
    if not loaded.overwrite and watch.reread(loaded.config.run_dir):
        return _answer("pruned", watch)
    result = run(loaded, watch.hear)
    if watch.pruned and result.status == "stopped":
        print("ends here: others were better at this point", file=sys.stdout)
        return _answer("pruned", watch)
    return _answer(result.status, watch)


def _answer(status: str, watch: "Watch") -> dict[str, Any]:
    return {
        "status": status,
        "score": watch.score,
        "curve": list(watch.curve.items()),
        "attrs": watch.attrs(),
    }
