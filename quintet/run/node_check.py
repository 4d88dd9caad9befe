"""The check of a cluster's node before it is given work: a job whose process looks around there,
and makes an environment.
"""

import importlib
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.jobs import shared, work

if TYPE_CHECKING:
    from quintet.envs.resolved import ResolvedEnv
    from quintet.jobs.roster import Questions


class Check(NamedTuple):
    """Questions to a node.

    run: pickled work of a node, of which `env` is the environment.
    backend: name of the environment's backend; simulators: packages that it has imported, by
        module.
    folders: folders of the run folders, and the tokens of `SharedFolder` in them.
    who: names the node in the folders.
    """

    run: bytes
    backend: str
    simulators: Mapping[str, str]
    folders: Sequence[tuple[Path, str]]
    who: str


class Part(NamedTuple):
    """Work of nodes that have workers of a run."""

    env: "ResolvedEnv"
    spec: object


def questions(
    run: bytes, env: "ResolvedEnv", exact: bool, folders: Sequence[Path] = ()
) -> "Questions":
    """The check of nodes for this work, of which `env` is the environment; see `Questions`."""
    from quintet.jobs import user_state
    from quintet.jobs.job import Job
    from quintet.jobs.roster import Questions
    from quintet.system import provenance

    packages, backend = env.backend.packages.items(), env.config.backend
    simulators = {module: name for module, name in packages if module in sys.modules}
    state = user_state.capture()

    def check(tokens: Sequence[tuple[Path, str]], who: str) -> Job:
        payload = pickle.dumps(Check(run, backend, simulators, tokens, who))
        return Job("check", "quintet.run.node_check", payload, state=state)

    facts = provenance.system(backend, "cpu", simulators)
    return Questions(check, facts, exact, os.getcwd(), folders)


def main() -> int:
    """Answers with the node's versions and processor, or why it can't have the work; returns 0."""
    payload, tell = work.receive()
    tell(_answer(pickle.loads(payload)))
    return 0


def _answer(check: Check) -> dict[str, Any]:
    """The node's ``facts``, or the ``fault`` for which it can't have the run."""
    from quintet.cluster.node import refusal
    from quintet.jobs import user_state
    from quintet.options.facts import spaces_of
    from quintet.system import provenance

    try:
        for module in check.simulators:
            importlib.import_module(module)
        spaces_of(user_state.work_of(check.run).env)
    except Exception as error:  # users' code runs here
        return {"fault": refusal(error)}
    for folder, token in check.folders:
        if (fault := shared.fault_there(folder, token, check.who)) is not None:
            return {"fault": fault}
    return {"facts": provenance.system(check.backend, "cpu", check.simulators)}
