"""``quintet save``: makes a running run write a checkpoint."""

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from tyro.conf import Positional, arg

from quintet.checkpoints import manifest
from quintet.checkpoints.links import require_own
from quintet.checkpoints.lock import Holder, holder_of
from quintet.errors import CheckpointError, ConfigError
from quintet.observe.run_summary import find_runs
from quintet.system.files import given_path, shown
from quintet.system.printing import say

_POLL_S = 0.1


@final
@dataclass(frozen=True)
class Save:
    """Makes the process that trains in a run folder write a checkpoint at the end of its iteration,
    and waits for it.  The results of an exact run stay the same.
    """

    run: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """folder of a running run"""
    wait_s: float = 600.0
    """seconds to wait for the checkpoint"""

    def execute(self) -> None:
        """Saves, and prints what was saved."""
        if self.run is None:
            raise ConfigError("quintet save needs a run: quintet save RUN")
        if not self.wait_s > 0:
            raise ConfigError(f"--wait-s must be above 0, got {self.wait_s}")
        say(save(given_path(self.run), self.wait_s))


def save(run_dir: Path, wait_s: float) -> str:
    """Requests a checkpoint and waits for it; returns a sentence.  Raises CheckpointError if no
    process trains there, it can't be reached from here, or it wrote none in that time.
    """
    require_own(run_dir)
    holder = _required_holder(run_dir)
    checkpoints = run_dir / "checkpoints"
    before = manifest.newest(checkpoints)
    try:
        os.kill(holder.pid, signal.SIGUSR1)
    except PermissionError as fault:
        raise CheckpointError(
            f"{run_dir} is trained by process {holder.pid} of another user: let that user run "
            "quintet save"
        ) from fault
    except ProcessLookupError as fault:
        raise _nobody(run_dir) from fault
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        ended = holder_of(run_dir) is None
        now = manifest.newest(checkpoints)
        if now is not None and (before is None or now.path != before.path):
            return f"saved {_shown(now)}"
        if ended:
            raise CheckpointError(
                f"{run_dir} has no new checkpoint, since its process {holder.pid} has ended; "
                f"{_newest(run_dir)}; see {run_dir / 'log.txt'}"
            )
        time.sleep(_POLL_S)
    raise CheckpointError(
        f"{run_dir} has no new checkpoint after {wait_s:g} s; process {holder.pid} writes it at "
        "the end of its iteration, or of the evaluation that it plays; wait longer with --wait-s"
    )


def _required_holder(run_dir: Path) -> Holder:
    """The process that trains in a folder; raises CheckpointError if it can't be signalled."""
    if not run_dir.is_dir():
        raise CheckpointError(f"RUN must be the folder of a run, got {run_dir}: give its path")
    holder = holder_of(run_dir)
    if holder is None:
        raise _nobody(run_dir)
    here = socket.gethostname()
    if holder.host != here:
        raise CheckpointError(
            f"{run_dir} is trained by process {holder.pid} on "
            f"{holder.host or 'an unknown machine'}, not on this one ({here}): run quintet save "
            "there"
        )
    if not _catches(holder.pid):
        raise CheckpointError(
            f"process {holder.pid} of {run_dir} does not handle SIGUSR1: it is starting or ending, "
            "or trains outside of its main thread; try again, or give --checkpoint.interval-s"
        )
    return holder


def _nobody(run_dir: Path) -> CheckpointError:
    runs = [shown(run) for run in find_runs(run_dir) if run != run_dir]
    of_group = f"; give one of the runs in it, as {runs[0]}" if runs else ""
    return CheckpointError(
        f"no process trains in {run_dir} ({_newest(run_dir)}): nothing was saved, and nothing is "
        f"lost{of_group}"
    )


def _catches(pid: int) -> bool:
    """Whether a process handles SIGUSR1, which would end it otherwise."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def _newest(run_dir: Path) -> str:
    found = manifest.newest(run_dir / "checkpoints")
    return "it has no checkpoint" if found is None else f"its newest is {_shown(found)}"


def _shown(found: manifest.Found) -> str:
    return f"{shown(found.path)}, {found.meta.get('env_steps') or 0:,} env_steps"
