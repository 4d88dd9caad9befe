"""Options of a run that is over in a moment, and its task; the base of most tests' runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintet.checkpoints import checkpoint

TOY = "quintet.envs.toy:Contextual"
SMALL: dict[str, Any] = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.progress": False,
    "eval.episodes": 0,
}


def save_options(run_dir: Path, values: Mapping[str, Any]) -> None:
    """A folder as a run that was trained with these options leaves it, as far as a configuration
    goes.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in values.items() if name != "run_dir"}
    meta = {"config": kept, "iteration": 1}
    checkpoint.write(run_dir / "checkpoints", "000000001", {}, meta)


def newest(folder: Path, **choice: Any) -> checkpoint.Checkpoint:
    """The newest whole checkpoint of a run.

    choice: which, as for `checkpoint.latest`.
    """
    found = checkpoint.latest(folder / "checkpoints", warn=print, **choice)
    assert found is not None
    return found


def hashes(folder: Path) -> dict[str, str]:
    """Of the tensors of a run's newest whole checkpoint, by name."""
    return checkpoint.tensor_hashes(newest(folder))
