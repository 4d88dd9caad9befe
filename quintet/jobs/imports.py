"""The import of a package that nobody has named, in a process with a time limit."""

import pickle
from contextlib import suppress

from quintet.jobs import work
from quintet.jobs.child_process import how_ended
from quintet.jobs.group import run_one
from quintet.jobs.job import Job, Limits

IMPORT_S = 20.0
"""Seconds in which a package must be imported."""


def import_apart(point: tuple[str, str, str]) -> str:
    """Imports an entry point (name, value, group) in another process; returns how that failed to
    end by itself, else "".
    """
    job = Job("imports", __name__, pickle.dumps(point), limits=Limits(IMPORT_S))
    ended = run_one(job, lambda _: None)
    if "imported" in (ended.answer or {}):
        return ""
    return f"had not ended after {IMPORT_S:g} s" if ended.late else how_ended(ended.status or 0)


def main() -> int:
    """Imports in the process; returns 0."""
    from importlib.metadata import EntryPoint

    payload, tell = work.receive()
    with suppress(Exception, SystemExit):  # told by the process that has asked, which imports too
        EntryPoint(*pickle.loads(payload)).load()
    tell({"imported": True})
    return 0
