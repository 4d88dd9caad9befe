"""The process of a job: it receives its payload, and answers."""

import json
import math
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quintet.checkpoints.lock import ORPHAN_GRACE_S
from quintet.jobs import entry
from quintet.system.signals import Ended

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables of a process: the threads of NumPy and PyTorch wait for each other on a busy machine;
with two, a fit took seven times as long.
"""

Tell = Callable[[dict[str, Any]], None]
"""Answers with the values of some keys, JSON-able."""


def receive(*, orderly: bool = False) -> tuple[bytes, Tell]:
    """The payload of this process's job, and what answers; its limit of memory holds from here on.

    orderly: whether the process stops in good order: it gets a SIGTERM, and time, when its parent
        has ended; SIGTERM and SIGINT end it with status 130 until it handles them itself.
    """

    def end(*_: object) -> None:
        raise Ended(130)  # a plain exit would be taken for one of users' code

    for number in (signal.SIGINT, signal.SIGTERM) if orderly else ():
        signal.signal(number, end)
    when_orphaned = _end_in_good_order if orderly else lambda: os._exit(130)
    nbytes, state, payload = pickle.loads(entry.receive(when_orphaned))
    if math.isfinite(nbytes):
        with suppress(ValueError, OSError):  # a lower limit of the user's stays
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (int(nbytes), hard))
        with suppress(ValueError, OSError):  # a crash leaves no file in the user's folder
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The state of users' code replaces the arguments.
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    if state is not None:
        from quintet.jobs import user_state

        user_state.restore(state)

    def tell(content: dict[str, Any]) -> None:
        out.write(json.dumps(content) + "\n")
        out.flush()

    return payload, tell


def _end_in_good_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(130)
