"""The check of a cluster's node before it is given whole runs: a job whose process looks around
there, and makes an environment."""

import importlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quintet.jobs import shared, work


class Check(NamedTuple):
    """Questions to a node.

    run: pickled configuration of one of the runs.
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


def main() -> int:
    """Answers with versions and processor of the node, or with why it can't have a run of the
    group; returns 0.
    """
    payload, tell = work.receive()
    tell(_answer(pickle.loads(payload)))
    return 0


def _answer(check: Check) -> dict[str, Any]:
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
