"""What a file may have imported and called: nothing, unless the caller says so as well.

Policies, checkpoints and ``config.yaml`` name their environment and their encoder.  An import
string (``module:name``) is code to run, and so may be a keyword argument that holds more than
numbers and plain words: some environments import what an argument names (highway-env does), others
open it as a file.  Such a name or argument of a file that quintet reads is used only if

- the file bears a signature of this user's on this machine (`quintet.system.signature`), or
- the caller gives the same name, or the same arguments, or
- the caller trusts the file (``--trust``, ``trust=True``).

What is typed, or stands in a file that is named by ``--config``, is the caller's.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from quintet.errors import UntrustedError
from quintet.system import signature

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_ +-]*")
"""Text that names no module's attribute, no file in another folder, no address."""

_Option = Literal["env", "model.encoder"]

_CALLED: tuple[tuple[_Option, str, str], ...] = (
    ("env", "env.id", "env.kwargs"),
    ("model.encoder", "model.encoder", "model.encoder_kwargs"),
)
"""What of a run's options is imported and called: how a name is given again, and the options of the
name and its arguments.
"""

_CONFIG = "quintet config 1"
_MARK = "# signature: "
_MOST_CHARACTERS = 200


@final
@dataclass(frozen=True)
class Call:
    """What a configuration has made: by a plain name of the library's, or by an import string.

    option: that holds the name, as it is given again.
    """

    option: _Option
    name: str
    kwargs: Mapping[str, Any]

    @property
    def imports(self) -> bool:
        """Whether the name itself is an import string."""
        return ":" in self.name

    @property
    def harmless(self) -> bool:
        """Whether nothing of it can run code that quintet does not know."""
        return not self.imports and is_plain(self.kwargs)


def is_plain(value: Any) -> bool:
    """Whether a value holds numbers, truth values and plain words only, however nested."""
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
    """Where a description comes from.

    place: the file or folder, for people.
    fault: why it is not this user's own, as it goes on after "it"; None: whatever it names may run.
    given: what the caller has named as well.
    """

    place: str
    fault: str | None
    given: tuple[Call, ...] = ()

    def check(self, call: Call) -> None:
        """Refuses what the description names, unless it may run.

        Raises:
            UntrustedError: it may not.
        """
        if self.fault is None or call.harmless:
            return
        given = [g for g in self.given if (g.option, g.name) == (call.option, call.name)]
        way_out = "give --trust (in Python trust=True) if you know who made it"
        if call.imports and not given:
            raise UntrustedError(
                f"code is run only from files that this user made on this machine; {self.place} "
                f"{self.fault}, and would import {_shown(call.name)} as {call.option} and call it "
                f"with {_shown(dict(call.kwargs))}; {way_out}, or name the same by --{call.option}"
            )
        if not is_plain(call.kwargs) and all(g.kwargs != call.kwargs for g in given):
            raise UntrustedError(
                "arguments that may name code or files are used only from files that this user "
                f"made on this machine; {self.place} {self.fault}, and would give "
                f"{_shown(call.name)} the arguments {_shown(dict(call.kwargs))}; {way_out}"
            )


OWN = Origin("this process", None)
"""Of what was put together here, from what the caller gave."""

TRUST_HELP = (
    "import and call what the folder names, whoever made it; without it only what this user made "
    "on this machine, or names as well by --env and --model.encoder"
)

UNSIGNED = (
    "to load it, or to go on with it by its folder alone, name the same --env and --model.encoder "
    "again, or give --trust"
)
"""What follows where a run that names code can't be signed."""

UNKNOWN = Origin(
    "a description without an origin", "is nobody's (give origin=quintet.system.trust.OWN)"
)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."


def calls_of(options: Mapping[str, Any]) -> tuple[Call, ...]:
    """What a whole configuration, by dotted option name, has imported and called."""
    return tuple(Call(option, options[name], options[kwargs]) for option, name, kwargs in _CALLED)


def vouched(description: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether all that a policy's description names is harmless, or in a configuration as well.

    Raises:
        KeyError, AttributeError: it is no description.
    """
    parts = ("env", "model")
    own = {f"{part}.{name}": x for part in parts for name, x in description[part].items()}
    return all(call.harmless or call in calls_of(options) for call in calls_of(own))


def calls_given(options: Mapping[str, Any]) -> tuple[Call, ...]:
    """What a caller has named in options by dotted name, some of which may be missing."""
    return tuple(
        Call(option, options[name], given if isinstance(given, Mapping) else {})
        for option, name, kwargs in _CALLED
        if isinstance(options.get(name), str)
        for given in [options.get(kwargs)]
    )


def all_harmless(options: Mapping[str, Any]) -> bool:
    """Whether a whole configuration needs nobody's leave."""
    return all(call.harmless for call in calls_of(options))


def signature_line(options: Mapping[str, Any]) -> str:
    """The last line of the ``config.yaml`` that holds these options: a comment that signs what they
    have imported and called.  Empty where that needs no signature, or there is no key.
    """
    signed = None if all_harmless(options) else signature.sign(_CONFIG, _signed_bytes(options))
    return "" if signed is None else f"{_MARK}{signed}\n"


def config_fault(text: str, options: Mapping[str, Any]) -> str | None:
    """Why a ``config.yaml`` of this text and these options is not this user's own; None: it is."""
    lines = [line for line in text.splitlines() if line.startswith(_MARK)]
    given = lines[-1].removeprefix(_MARK).strip() if lines else None
    return signature.fault(_CONFIG, _signed_bytes(options), given)


def _signed_bytes(options: Mapping[str, Any]) -> bytes:
    signed = {name: options[name] for _, *names in _CALLED for name in names}
    return json.dumps(signed, sort_keys=True).encode()
