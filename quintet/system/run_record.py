"""``run.json``: how a run ended, which no resume needs."""

from pathlib import Path
from typing import Literal

from quintet.errors import FileFault
from quintet.system import files, saved_meta
from quintet.system.saved_meta import Checked, Count

FILE = "run.json"


class Record(Checked):
    """env_steps: trained when it ended; None: it runs, or was killed.  error: by which it ended."""

    state: Literal["running", "finished", "stopped", "failed"]
    env_steps: Count | None = None
    error: str | None = None


def read(run_dir: Path) -> Record | None:
    """The record in a run folder; None where there is none that can be read."""
    try:
        held = files.parse_json(files.read_bytes(run_dir / FILE))
    except (FileFault, ValueError):
        return None
    wrong = not isinstance(held, dict) or saved_meta.fault(Record, held) is not None
    return None if wrong else Record.model_validate(held)


def lost(run_dir: Path, env_steps: int) -> str | None:
    """A sentence where the newest checkpoint of a run, at `env_steps`, is older than the one with
    which the run ended.
    """
    record = read(run_dir)
    if record is None or record.state not in ("finished", "stopped") or record.error is not None:
        return None
    if record.env_steps is None or record.env_steps <= env_steps:
        return None
    return (
        f"{run_dir} had a checkpoint of {record.env_steps:,} env_steps, with which the run "
        f"{'was finished' if record.state == 'finished' else 'was stopped'}; it is gone, and the "
        f"newest one is of {env_steps:,}"
    )
