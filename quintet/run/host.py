"""A node's side of a group of runs: its checks, and the process of one run, the same as in a group
on one machine."""

import importlib
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, final

from quintet.run import seed_group
from quintet.run.seed_group import Member, Outcome
from quintet.system import shared, user_state
from quintet.system.child import Child

_HEARD_S = 1.0


class Check(NamedTuple):
    """Questions to a node before it is given runs.

    payload: payload of one of the runs.
    working_folder: working folder of the command's process.
    backend: name of the environment's backend; simulators: packages that it has imported, by
        module.
    folders: folders of the run folders, and the tokens of `SharedFolder` in them.
    """

    payload: bytes
    working_folder: str
    backend: str
    simulators: Mapping[str, str]
    folders: Sequence[tuple[Path, str]]


class Heard(NamedTuple):
    """Lines of a run since the last ones, and its outcome once it has ended."""

    lines: Sequence[str]
    outcome: Outcome | None


@final
class Host:
    """A process on a node, which checks the node, or has one run that ends with it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._outcome: Outcome | None = None
        self._news = threading.Condition()
        self._child: Child | None = None
        self._ending: Callable[[Child], object] | None = None

    def check(self, asked: Check, who: str) -> Mapping[str, str] | str:
        """Versions and processor of the node by name, or why it can't have a run of the group.

        who: names the node in the folders.
        """
        from quintet.cluster.node import refusal
        from quintet.config.facts import spaces_of
        from quintet.system import provenance

        given: dict[str, Any] = pickle.loads(asked.payload)
        try:
            user_state.restore(user_state.moved(given["state"], asked.working_folder))
            for module in asked.simulators:
                importlib.import_module(module)
            spaces_of(user_state.work_of(given["run"]).env)
        except Exception as error:  # of users' code
            return refusal(error)
        for folder, token in asked.folders:
            if (fault := shared.fault_there(folder, token, who)) is not None:
                return fault
        return provenance.system(asked.backend, "cpu", asked.simulators)

    def begin(self, module: str, member: Member, working_folder: str) -> bool:
        """Begins the run; True."""
        given: dict[str, Any] = pickle.loads(member.payload)
        given["state"] = user_state.moved(given["state"], working_folder)
        own = member._replace(payload=pickle.dumps(given))
        threading.Thread(target=self._run, args=(module, own), daemon=True).start()
        return True

    def _run(self, module: str, member: Member) -> None:
        try:
            with TemporaryFile() as answer:
                child = seed_group.begun(module, member, answer.fileno(), self._say)
                with self._news:
                    self._child = child
                    if self._ending is not None:  # which was asked for meanwhile
                        self._ending(child)
                status = child.wait()
                outcome = Outcome(status, seed_group.answer_in(answer))
        except OSError as fault:
            outcome = seed_group.cannot_begin(fault)
        with self._news:
            self._outcome = outcome
            self._news.notify_all()

    def _say(self, line: str) -> None:
        with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def heard(self) -> Heard:
        """News of the run; waits a second for some."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self._outcome, _HEARD_S)
            lines, self._lines = self._lines, []
            return Heard(lines, self._outcome)

    def stop(self) -> None:
        """Makes the run stop in an orderly way."""
        self._end(methodcaller("terminate"))

    def kill(self) -> None:
        """Ends the run at once."""
        self._end(methodcaller("kill"))

    def _end(self, how: Callable[[Child], object]) -> None:
        with self._news:
            self._ending = how
            if self._child is not None:
                how(self._child)
