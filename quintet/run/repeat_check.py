"""Looks whether episodes repeat, and which numbers are in info, in a process of its own, since
the environment may end its process.
"""

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from quintet.envs.resolved import ResolvedEnv
from quintet.envs.settled import KeysInInfo
from quintet.errors import ConfigError
from quintet.jobs import user_state, work
from quintet.jobs.group import run_one
from quintet.jobs.job import Job
from quintet.runtime.processes import process
from quintet.runtime.processes.workers import sendable
from quintet.system.printing import say

_CHECK_S = 6.0
"""Seconds for the check itself, in addition to those of one step."""


def unrepeatable_apart(env: ResolvedEnv, timeout_s: float, note: Callable[[str], None]) -> str:
    """Does what `quintet.envs.repeating.unrepeatable` does, in a process like workers'; "" where
    the environment hangs, or ends the process: the workers meet it again, and say where.

    timeout_s: seconds that a step may take.
    """
    answer = _answer(env, timeout_s, keys=False)
    for each in answer.get("notes", ()):
        note(each)
    return str(answer.get("found", ""))


def keys_apart(timeout_s: float, env: ResolvedEnv) -> KeysInInfo:
    """Does what `quintet.envs.settled.keys_in_info` does, likewise."""
    answer = _answer(env, timeout_s, keys=True)
    return KeysInInfo(tuple(answer.get("ending", ())), tuple(answer.get("seen", ())))


def _answer(env: ResolvedEnv, timeout_s: float, *, keys: bool) -> dict[str, Any]:
    """The answer of the process; empty without one."""
    state, payload = user_state.capture(), pickle.dumps((sendable(env), timeout_s, keys))
    job = Job("check", __name__, payload, state=state)
    job = job._replace(preload=process.PRELOAD, environ=process.ENVIRON)
    answer = run_one(job, lambda line: say(f"[check] {line}")).answer or {}
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer


def main() -> int:
    """Answers with what was found; returns 0, or 1 where that can't be."""
    payload, tell = work.receive()
    from quintet.envs.make import make_group_env
    from quintet.envs.owners import made_for
    from quintet.envs.repeating import unrepeatable
    from quintet.envs.settled import keys_in_info

    pickled, timeout_s, keys = pickle.loads(payload)
    env: ResolvedEnv = user_state.work_of(pickled)
    notes: list[str] = []
    late = threading.Timer(timeout_s + _CHECK_S, os._exit, [1])
    late.daemon = True
    try:
        if keys:
            late.start()
            tell(keys_in_info(env)._asdict())
            return 0
        with made_for("the check whether its episodes repeat"):
            made = make_group_env(env, env.streams_of(1))
        late.start()
        with closing(made):
            found = unrepeatable(env, made, notes.append)
        tell({"found": found, "notes": notes})
    except ConfigError as error:
        tell({"error": str(error)})
    except Exception:  # the workers meet it again, and say where
        return 1
    return 0
