"""Rules for code that files name: it is not imported or called unless the caller allows it.

Policies and checkpoints name their environment and their encoder, and perhaps a schedule of the
user's own.  An import string (``module:name``) is code to run.  A keyword
argument with more than numbers and plain words may be code to run too: some environments import
an argument (highway-env does), others open it as a file.  A name or argument of that kind, in a
file that quintet reads, is used only if

- the file has a signature of this user on this machine (`quintet.checkpoints.signature`), or
- the caller gives the same name, or the same arguments, or
- the caller trusts the file (``--trust``, ``trust=True``).

Names on the command line or in files of ``--config`` are given by the caller.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from quintet.errors import UntrustedError
from quintet.system.importing import of_script

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_ +-]*")
"""Text that can't name an attribute of a module, a file in another folder, or an address."""

_Option = Literal["env", "model.encoder"]

_CALLED: tuple[tuple[_Option, str, str], ...] = (
    ("env", "env.id", "env.kwargs"),
    ("model.encoder", "model.encoder", "model.encoder_kwargs"),
)
"""Options of a run that are imported and called: the option with which a user repeats the name, the
option that holds the name, and the option of its arguments.
"""

_SCHEDULE = "_schedule"
"""Suffix of the names of learners' schedules, which are called only if they are import strings."""

_MOST_CHARACTERS = 200


@final
@dataclass(frozen=True)
class Call:
    """A call by a configuration; `option`: the option that can give its name again."""

    option: str
    name: str
    kwargs: Mapping[str, Any]

    @property
    def imports(self) -> bool:
        """Whether the name itself is an import string."""
        return ":" in self.name

    def names(self, stored: str) -> bool:
        """Whether it names the code that a file names, perhaps in a script."""
        return self.name == stored or of_script(stored, self.name)

    @property
    def harmless(self) -> bool:
        """Whether it runs no code that quintet does not know."""
        return not self.imports and is_plain(self.kwargs)


def is_plain(value: Any) -> bool:
    """Whether a value holds only numbers, truth values and plain words, at any depth."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            left += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            left += each
        elif isinstance(each, str):
            if not _PLAIN_WORD.fullmatch(each):
                return False
        elif each is not None and not isinstance(each, bool | int | float):
            return False
    return True


@final
@dataclass(frozen=True)
class Origin:
    """The origin of a description.

    place: the file or folder, for messages.
    fault: reason why it is not this user's, as text after "it"; None: all code that it names may
        run.
    given: calls that the caller also named.
    """

    place: str
    fault: str | None
    given: tuple[Call, ...] = ()

    def check(self, call: Call) -> None:
        """Raises UntrustedError unless the call may run."""
        if self.fault is None or call.harmless:
            return
        given = [g for g in self.given if g.option == call.option and g.names(call.name)]
        way_out = "give --trust (in Python trust=True) if you know who made it"
        if call.imports and not given:
            raise UntrustedError(
                f"code is run only from files that this user made on this machine; {self.place} "
                f"{self.fault}, and would import {_shown(call.name)} as {call.option} and call it "
                f"with {_shown(dict(call.kwargs))}; {way_out}, or name the same by "
                f"--{call.option.replace('_', '-')}"
            )
        if not is_plain(call.kwargs) and all(g.kwargs != call.kwargs for g in given):
            raise UntrustedError(
                "arguments that may name code or files are used only from files that this user "
                f"made on this machine; {self.place} {self.fault}, and would give "
                f"{_shown(call.name)} the arguments {_shown(dict(call.kwargs))}; {way_out}"
            )


OWN = Origin("this process", None)
"""The origin of descriptions made in this process from the caller's options."""

TRUST_HELP = (
    "import and call any code that the folder names; without this, only if this user made the "
    "folder on this machine, or if --env, --eval.env, --model.encoder or a schedule names it too"
)

UNSIGNED = (
    "to load it, or to continue it by its folder alone, name the same --env and --model.encoder "
    "again, or give --trust"
)
"""Advice if a run that names code can't be signed."""

UNKNOWN = Origin(
    "a description without an origin", "has no known author (give origin==quintet.system.trust.OWN)"
)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."


def calls_of(options: Mapping[str, Any]) -> tuple[Call, ...]:
    """The calls in options by dotted name: of a whole configuration, or of some that are given."""
    calls = [
        Call(option, options[name], given if isinstance(given, Mapping) else {})
        for option, name, kwargs in _CALLED
        if isinstance(options.get(name), str)
        for given in [options.get(kwargs)]
    ]
    calls += _evaluated_of(options) + _schedules_of(options)
    # Options of resets may name code or files as arguments do.
    if isinstance(record := options.get("env.curriculum"), Mapping):
        rest = {name: x for name, x in record.items() if name != "kind"}
        calls.append(Call("env.curriculum", str(record.get("kind")), rest))
    return tuple(calls)


def _evaluated_of(options: Mapping[str, Any]) -> list[Call]:
    """The environment of a run's evaluations, if it or its arguments differ from training's."""
    name, kwargs = (options.get(f"eval.env.{each}") for each in ("id", "kwargs"))
    own = options.get("env.id") if name is None else name
    if own is None or (name is None and kwargs is None):
        return []
    if kwargs is None:
        kwargs = options.get("env.kwargs", {}) if own == options.get("env.id") else {}
    return [Call("eval.env", own, kwargs if isinstance(kwargs, Mapping) else {})]


def _schedules_of(options: Mapping[str, Any]) -> list[Call]:
    found = sorted((name, x) for name, x in options.items() if name.endswith(_SCHEDULE))
    return [Call(name, x, {}) for name, x in found if isinstance(x, str) and ":" in x]


def is_trusted_by_options(description: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether every call of a policy's description is harmless or also in a configuration; raises
    KeyError or AttributeError if it is not a description.
    """
    parts = ("env", "model")
    own = {f"{part}.{name}": x for part in parts for name, x in description[part].items()}
    return all(call.harmless or call in calls_of(options) for call in calls_of(own))


def names_no_code(options: Mapping[str, Any]) -> bool:
    """Whether all calls of a whole configuration are harmless."""
    return all(call.harmless for call in calls_of(options))
