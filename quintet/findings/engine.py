"""The engine of findings: rows declare the facts that they need, and are evaluated by the facts
that are known at a moment.

Rows are in sets, which other packages add by entry points ``quintet.findings``.
"""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeVar, final

from quintet.errors import ConfigError
from quintet.findings.record import Finding
from quintet.system.plugins import Catalog

Found = Iterator[Finding]
Subject = Literal["choices", "environment", "run", "options", "start"]
"""The subject of a set of rows: an automatic choice, an environment, a run's reports, its options,
or its start.  Rows about a start are remarks and name no causes."""

_Find = TypeVar("_Find", bound=Callable[..., Found])


class Row(NamedTuple):
    """A function that yields findings.

    names, weight: of its findings, the first one of those that have none.
    facts: names of its parameters; needs: facts without which it is not called.
    rows: least number of rows of data.
    unless: names of findings beside which it says nothing new.
    factor: the fact that weights are multiplied by; "": none.
    """

    names: tuple[str, ...]
    find: Callable[..., Found]
    facts: tuple[str, ...]
    needs: frozenset[str]
    rows: int
    unless: frozenset[str]
    weight: float
    factor: str

    def findings(self, facts: object) -> Found:
        factor = _fact(facts, self.factor) if self.factor else 1.0
        for each in self.find(**{name: _fact(facts, name) for name in self.facts}):
            name, weight = each.name or self.names[0], each.weight or self.weight
            yield replace(each, name=name, weight=weight * factor)


@final
class Rows:
    """A set of rows about a subject; decorates the functions that it gets.

    The parameters of a function are the facts that it needs, by their names in the record of facts,
    which is itself `seen`; it is called where none of them is None, except those with a default.

    names: of findings about the subject that no row has.
    factor: the fact that weights are multiplied by; "": none.
    """

    def __init__(self, subject: Subject, *names: str, factor: str = "") -> None:
        self.subject, self.rows = subject, list[Row]()
        self._names, self._factor = names, factor

    def __call__(
        self,
        *names: str,
        weight: float = 0.0,
        needs: str = "",
        rows: int = 0,
        unless: Iterable[str] = (),
    ) -> Callable[[_Find], _Find]:
        """Declares a row, see `Row`; needs: a fact that is no parameter."""

        def declared(find: _Find) -> _Find:
            own = inspect.signature(find).parameters
            must = {name for name, each in own.items() if each.default is each.empty}
            must |= {*needs.split()}
            only = frozenset(must), rows, frozenset(unless)
            self.rows.append(Row(names, find, (*own,), *only, weight, self._factor))
            return find

        return declared

    @property
    def names(self) -> set[str]:
        return {*self._names, *(name for row in self.rows for name in row.names)}


SETS = Catalog(
    "quintet.findings",
    "set of findings",
    Rows,
    {
        name: f"quintet.findings.{name}:finding"
        for name in ("choices", "rewards", "environment", "learning", "scores", "start")
    }
    | {"options": "quintet.findings.learning:option"},
    "quintet.jobs.imports:import_apart",
)
"""The sets of rows, in the order in which equal weights are ranked."""

_OWN: dict[Subject, tuple[str, ...]] = {
    "choices": ("choices",), "environment": ("rewards", "environment"),
    "run": ("learning", "scores"), "options": ("options",), "start": ("start",),
}  # fmt: skip


def evaluate(subject: Subject, facts: object) -> list[Finding]:
    """The findings of all rows about a subject whose facts are known.

    facts: a record of facts, None if they are not known; `rows`: the number of rows of data.
    """
    sets = [SETS.find(name) for name in _OWN[subject]]
    sets += [other for _, other in SETS.usable(own=False) if other.subject == subject]
    found: list[Finding] = []
    for row in (row for own in sets for row in own.rows):
        known = all(_fact(facts, name) is not None for name in row.needs)
        enough = known and getattr(facts, "rows", 0) >= row.rows
        if enough and row.unless.isdisjoint(each.name for each in found):
            try:
                found += row.findings(facts)
            except Exception as error:
                if row.find.__module__.startswith("quintet."):
                    raise
                from quintet.system.files import warn_on_stderr
                from quintet.system.user_code import raised  # imports Gymnasium

                where = f"{row.find.__module__}.{row.find.__qualname__}"
                warn_on_stderr(f"findings of {where} are left out, as it {raised(error)}: mend it")
    return found


def _fact(facts: object, name: str) -> Any:
    return facts if name == "seen" else getattr(facts, name, None)


_SAID_ANYHOW = {"not-learning"}  # says where to look further if the cause is another


def ranked(found: Iterable[Finding]) -> list[Finding]:
    """The findings, the likeliest first, each name and subject once."""
    best: dict[tuple[str, str], Finding] = {}
    for each in found:
        key = each.name, each.subject
        if key not in best or each.weight > best[key].weight:
            best[key] = each
    return sorted(best.values(), key=lambda each: -each.weight)


def by_cause(found: Sequence[Finding]) -> list[Finding]:
    """The findings, without those that another one explains: it takes their place if they are
    before it, and names them.
    """
    left, present = list(found), {each.name for each in found} - _SAID_ANYHOW
    for cause in sorted(found, key=lambda each: -len(each.explains & present)):
        explains = cause.explains - _SAID_ANYHOW
        own = [each for each in left if each.name in explains and each is not cause]
        if cause not in left or not own:
            continue
        names = sorted({each.name for each in own})
        missing = not all(each in cause.said for each in names)
        whole = replace(
            cause,
            said=cause.said + (f"; it explains {', '.join(names)}" if missing else ""),
            weight=max(each.weight for each in (cause, *own)),
            explains=frozenset(names),
        )
        left = ranked([whole, *(each for each in left if each not in (cause, *own))])
    return left


def option_in(advice: str) -> str:
    """The option (``--name value``) in a text of advice, shell-quoted; "" if it has none.  The text
    may come from an untrusted file, and users paste the result.
    """
    found = re.search(r"(?:^|, )(--[a-z].*)", advice)
    try:
        words = shlex.split(found[1])[:2] if found else []
    except ValueError:  # an apostrophe
        words = found[1].split()[:2] if found else []
    return shlex.join(words)


class Again(NamedTuple):
    """Beginnings of commands: one that trains again, the name of its run folder, and the command
    that looks again at the subject."""

    train: str
    folder: str
    look: str = ""

    def command(self, found: Finding) -> str:
        """The command of a finding.  A finding with an option trains again with it in a new run
        folder, or has "" if such trainings have not helped often enough (`TRIED`).  Others have
        their own command; without one, an option of None looks again, and any other gives "".
        """
        if not found.option:
            return found.command or ("" if found.option is not None else self.look)
        if not helps(found.name):
            return ""
        command = f"{self.train} {found.option}"
        if "--run-dir" in self.train:
            return command
        place = f"{self.folder}{found.name}" + f"-{found.subject}" * bool(found.subject)
        return f"{command} --run-dir {shlex.quote(place)}"


def env_words(options: Mapping[str, Any]) -> str:
    """The options by which ``quintet check-env`` makes the same environment, each after a
    space.

    options: of the environment, by name.
    """
    words = list[str]()
    if options.get("kwargs"):
        words += ["--env.kwargs", json.dumps(options["kwargs"], default=str)]
    if options.get("backend", "auto") != "auto":
        words += ["--env.backend", str(options["backend"])]
    if (limit := options.get("max_episode_steps")) is not None:
        words += ["--env.max-episode-steps", str(limit)]
    if (masks := options.get("mask_from_info", "auto")) != "auto":
        words += ["--env.mask-from-info", str(masks).lower()]
    return "".join(f" {shlex.quote(word)}" for word in words)


class Tried(NamedTuple):
    """Number of runs that were trained again, and of those that ended better and worse by more than
    a fifth of the healthy run's rise."""

    runs: int
    helped: int
    harmed: int


TRIED: dict[str, Tried] = {
    "budget-short": Tried(6, 6, 0),
    "few-updates": Tried(6, 6, 0),
    "gamma": Tried(1, 1, 0),
    "option-far": Tried(65, 61, 0),
    "option-other": Tried(4, 4, 0),
}
"""Records of commands by the name of their finding: how often they helped where runs with a planted
fault were trained again by them (`python benchmarks/doctor.py remedies`)."""

_LEAST, _HELPED, _HARMED = 4, 0.75, 0.05  # runs in TRIED, and shares of them


def helps(name: str) -> bool:
    """Whether the command of a finding of this name has helped often enough, and seldom harmed."""
    tried = TRIED.get(name)
    if tried is None or tried.runs < _LEAST:
        return False
    return tried.helped >= _HELPED * tried.runs and tried.harmed <= _HARMED * tried.runs


def is_known(known: Any, name: str, subject: str = "") -> bool:
    """Whether a finding is among the known ones, which may be from a file of others."""
    known_names = known if isinstance(known, list | tuple | set | frozenset) else ()
    return name in known_names or (bool(subject) and f"{name}:{subject}" in known_names)


def names() -> set[str]:
    """The names of all findings."""
    return {name for _, own in SETS.usable() if own.subject != "start" for name in own.names}


def no_finding(name: str) -> str:
    """A reason why a name names no finding, with the nearest one; "" if it does."""
    own, known = name.partition(":")[0], names()
    if own in known:
        return ""
    near = get_close_matches(own.replace("_", "-"), sorted(known), 1, 0.5)
    way = f"did you mean {near[0]}?" if near else "docs/not-learning.md lists them"
    return f"must name findings, got {name}: {way}"


def require_names(option: str, given: Sequence[str]) -> None:
    """Raises ConfigError for the first name that names no finding."""
    for each in given:
        if fault := no_finding(each):
            raise ConfigError(f"{option} {fault}")
