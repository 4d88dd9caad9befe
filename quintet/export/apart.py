"""Verification of a stranger's export in a process with limits of memory and time."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from quintet import errors
from quintet.errors import ConfigError, ExportError, QuintetError
from quintet.export.verification import verify
from quintet.jobs import work
from quintet.jobs.child_process import how_ended
from quintet.jobs.group import run_one
from quintet.jobs.job import Job, Limits

MOST_S, MOST_GIB = 60.0, 2.0
"""The default limits."""

_SIGNS = ("bad_alloc", "bad allocation", "Failed to allocate", "Unable to allocate", "MemoryError")
"""Words by which onnxruntime, NumPy and PyTorch report too little memory."""


@final
@dataclass(frozen=True)
class Proof:
    """A verified export as JSON-able values, and in a sentence."""

    as_json: dict[str, Any]
    said: str


def verify_apart(folder: Path, limits: Limits, *, trust: bool = False) -> Proof:
    """Does what `verify` does, within limits.

    Raises:
        ExportError, UntrustedError: as `verify` does, or it would pass the limits.
    """
    printed: list[str] = []

    def say(line: str) -> None:
        printed[:] = [line[:300]]

    payload = pickle.dumps((folder, trust))
    job = Job("verify", __name__, payload, None, limits, environ=work.ONE_THREAD)
    ended = run_one(job, say)
    last, gib = ended.answer or {}, limits.nbytes / 2**30
    bounds = f"{limits.seconds:g} s and {gib:g} GiB"
    if "proof" in last:
        return Proof(last["proof"], str(last["said"]))
    if last.get("short"):
        raise ExportError(
            f"verifying {folder} takes more memory than allowed ({bounds}): do not use it, or "
            "allow more by --most-gib if you know who made it"
        )
    if "error" in last:
        kind: type[QuintetError] = getattr(errors, last["kind"])
        raise kind(last["error"])
    if ended.late:
        raise ExportError(
            f"verifying {folder} must take at most {bounds}, but had not ended by then: do not "
            "use it, or allow more by --most-s if you know who made it"
        )
    after = f", after {printed[0]!r}" if printed else ""
    raise ExportError(
        f"verifying {folder} (at most {bounds}) failed: its process "
        f"{how_ended(ended.status or 0)}{after}: do not use it, or allow more by --most-gib and "
        "--most-s if you know who made it"
    )


def main() -> int:
    """Verifies in the process; returns 0, or 1 if the export was refused."""
    payload, tell = work.receive()
    folder, trust = pickle.loads(payload)
    try:
        found = verify(folder, trust=trust)
    except QuintetError as error:
        # Only a size that could not be had is no fault of the export or of the user.
        asked = type(error) is ConfigError
        short = asked or any(sign in str(error) for sign in _SIGNS)
        tell({"error": str(error), "kind": type(error).__name__, "short": short})
        return 1
    except MemoryError:
        tell({"short": True})
        return 1
    tell({"proof": found.as_json(), "said": found.summary()})
    return 0
