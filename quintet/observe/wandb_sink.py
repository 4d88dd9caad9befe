"""Reports to Weights & Biases.

Project, entity, mode and server come from wandb's own settings: its environment variables
(``WANDB_PROJECT``, ``WANDB_MODE=offline``, ...) and its login.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from quintet.errors import ConfigError, QuintetError
from quintet.observe.report_files import Kept
from quintet.system import files

PROJECT = "quintet"
"""Project, unless the variable WANDB_PROJECT names one."""

ID_FILE = "wandb.json"
"""File in the run's folder with the id that a resumed run continues."""


def require_wandb() -> None:
    """Raises ConfigError if wandb is not installed."""
    found = find_spec("wandb")
    if found is None or found.origin is None:  # a mere folder of that name, as wandb itself makes
        raise ConfigError(
            "report.sinks=wandb needs wandb, which is not installed: pip install "
            '"quintet-rl[wandb]", or leave it out'
        )


@final
class WandbSink:
    """A wandb run for a quintet run, over all its starts."""

    def __init__(self, run_dir: Path, options: Mapping[str, Any]) -> None:
        """options: the run's options by dotted name, shown as its configuration."""
        import wandb  # takes a second

        self._wandb: Any = wandb
        self._run_dir, self._options = run_dir, dict(options)
        self._run: Any = None

    def begin(self, kept: Kept) -> None:
        """Begins a wandb run or continues the folder's; raises QuintetError if wandb refuses."""
        self.close()
        wandb, path = self._wandb, self._run_dir / ID_FILE
        run_id = _id_in(path) if kept.env_steps >= 0 else None
        if run_id is None:
            run_id = secrets.token_hex(8)
            files.write_whole(path, json.dumps({"id": run_id}).encode())
        # The terminal is quintet's, and so are signals.
        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False)
        try:
            self._run = wandb.init(
                id=run_id,
                resume="allow",
                dir=str(self._run_dir),
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=self._run_dir.name,
                config=self._options,
                settings=settings,
            )
        except Exception as error:  # raised by the login, the server, or the disk
            raise QuintetError(
                f"wandb can't start a run: {error}; log in by wandb login, set "
                "WANDB_MODE=offline, or leave wandb out of report.sinks"
            ) from error
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, report: Mapping[str, float]) -> None:
        self._run.log(dict(report))

    def write_histograms(self, env_steps: int, histograms: Mapping[str, np.ndarray]) -> None:
        shown = {name: self._wandb.Histogram(x) for name, x in histograms.items()}
        self._run.log({**shown, "env_steps": env_steps})

    def sync(self) -> None:
        """Does nothing, since no resume needs wandb's data."""

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def _id_in(path: Path) -> str | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(files.read_bytes(path))["id"]
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found):
            return str(found)
    return None
