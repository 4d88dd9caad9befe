"""The process of a trial: a run of a seed group, sweep or race, or a measurement of its speed."""

import pickle
import traceback
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quintet.jobs import work
from quintet.jobs.job import BLAMELESS
from quintet.system.printing import note

if TYPE_CHECKING:
    from quintet.options.resolve import Loaded

_MAX_ERROR_CHARACTERS = 2_000


def main() -> int:
    """Calls the function that the payload names, with the run and the payload, and answers with its
    result, which has a status, or with its error, and whether a disk is full; returns the exit
    status of ``quintet train``.
    """
    pickled, tell = work.receive(orderly=True)
    payload: dict[str, Any] = pickle.loads(pickled)
    from quintet.errors import ConfigError, QuintetError
    from quintet.jobs import user_state
    from quintet.system.files import disk_is_full

    def failed(error: Exception, said: str) -> None:
        blameless = {BLAMELESS: True} if disk_is_full(error) else {}
        tell({"error": said[:_MAX_ERROR_CHARACTERS], **blameless})

    try:
        loaded = overwriting_once(user_state.work_of(payload["run"]), payload["inode"])
        module, _, name = payload["train"].partition(":")
        found: dict[str, Any] = getattr(import_module(module), name)(loaded, payload)
    except KeyboardInterrupt:
        return 130
    except QuintetError as error:
        note(f"error: {error}")
        failed(error, str(error))
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        note(traceback.format_exc())
        failed(error, f"{type(error).__name__}: {error}")
        return 1
    tell(found)
    return 130 if found["status"] == "stopped" else 0


def overwriting_once(loaded: "Loaded", inode: int | None) -> "Loaded":
    """The configuration for a process that may not be the first of its run: what an earlier one has
    moved aside is not moved again.

    inode: inode of the run's folder before the first process.
    """
    from quintet.system import files

    moved = loaded.overwrite and files.inode(loaded.config.run_dir) != inode
    return replace(loaded, overwrite=False) if moved else loaded
