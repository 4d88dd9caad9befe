"""The check whether episodes repeat, in a process of its own, which the environment may end."""

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import closing

from quintet.envs.resolved import ResolvedEnv
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
    state, payload = user_state.capture(), pickle.dumps((sendable(env), timeout_s))
    job = Job("check", __name__, payload, state=state)
    job = job._replace(preload=process.PRELOAD, environ=process.ENVIRON)
    answer = run_one(job, lambda line: say(f"[check] {line}")).answer or {}
    if "error" in answer:
        raise ConfigError(answer["error"])
    for each in answer.get("notes", ()):
        note(each)
    return str(answer.get("found", ""))


def main() -> int:
    """Answers with what `unrepeatable` finds and says; returns 0, or 1 where it can't."""
    payload, tell = work.receive()
    from quintet.envs.make import make_group_env
    from quintet.envs.owners import made_for
    from quintet.envs.repeating import unrepeatable

    pickled, timeout_s = pickle.loads(payload)
    env: ResolvedEnv = user_state.work_of(pickled)
    notes: list[str] = []
    try:
        with made_for("the check whether its episodes repeat"):
            made = make_group_env(env, env.streams_of(1))
        late = threading.Timer(timeout_s + _CHECK_S, os._exit, [1])
        late.daemon = True
        late.start()
        with closing(made):
            found = unrepeatable(env, made, notes.append)
        tell({"found": found, "notes": notes})
    except ConfigError as error:
        tell({"error": str(error)})
    except Exception:  # the workers meet it again, and say where
        return 1
    return 0
