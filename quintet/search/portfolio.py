"""The entries that may run in a race, and the findings about an environment that change them.

Each learner names its own entries, also one of an installed package: in the part ``race`` of its
presets, by name, with ``place`` (those with lower numbers come first), ``why``, the ``kinds`` of
environments that it is for (none: all), and ``options``.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from pydantic import Field

from quintet.algorithms import registry
from quintet.algorithms.registry import DEFAULT
from quintet.checkpoints.manifest import Checked, content_fault
from quintet.errors import ConfigError
from quintet.findings.record import LIKELY
from quintet.options.command import parse
from quintet.options.layers import flatten, options
from quintet.search.race_journal import Runner

_LEFT = ("total_env_steps", "run_dir", "runtime.", "env.", "report.", "eval.", "checkpoint.")
"""Options that a finding may not change: the race's own, and what the task is."""

_BESIDE = ("model.core",)
"""Options that cost so much time that an entry with another value runs beside the one without."""


class _Listed(Checked):
    """An entry in a file."""

    place: int
    why: str
    kinds: list[str] = Field(default=[])
    options: dict[str, Any] = Field(default={})


@final
class Entry(NamedTuple):
    """An entry of a race; options: those in which it differs from the learner's presets."""

    name: str
    algo: str
    options: Mapping[str, Any]
    why: str


class Change(NamedTuple):
    """A finding about the environment that changes entries.

    options: values that its command gives; said: the finding.
    """

    name: str
    said: str
    options: Mapping[str, Any]


def entries(kind: str) -> list[Entry]:
    """The entries for a kind of environment, the most promising first; those of broken packages are
    left out.

    Raises ConfigError if the presets of a learner can't be read.
    """
    found: dict[str, tuple[int, Entry]] = {}
    for algo, _ in registry.LEARNERS.usable():
        for name, content in registry.presets_of(algo)["race"].items():
            one = _read(algo, name, content)
            if name in found:
                raise ConfigError(
                    f"candidates of a race must have different names, got {name} of {algo} and of "
                    f"{found[name][1].algo}: rename one"
                )
            if not one.kinds or kind in one.kinds:
                found[name] = one.place, _entry(algo, name, one)
    return [each for _, each in sorted(found.values(), key=lambda x: (x[0], x[1].name))]


def _read(algo: str, name: str, content: Mapping[str, Any]) -> _Listed:
    _require(_Listed, algo, name, content)
    return _Listed.model_validate(content)


def _entry(algo: str, name: str, one: _Listed) -> Entry:
    own = flatten(one.options, options(algo))
    # A race is not begun if its journal could not hold the entry, since it could not go on.
    _require(Runner, algo, name, {"name": name, "algo": algo, "options": own, "why": one.why})
    return Entry(name, algo, own, one.why)


def _require(model: type[Checked], algo: str, name: str, content: Mapping[str, Any]) -> None:
    fault = content_fault(model, content)
    if fault is not None:
        raise ConfigError(
            f"candidate {name} of {algo} for a race must be valid, got {fault}: mend it"
        )


def changes(findings: Iterable[Mapping[str, Any]]) -> list[Change]:
    """Changes by the likely ones of these findings of `quintet.doctor.apart.examine_apart`."""
    found = []
    for each in findings:
        words = shlex.split(each["command"], comments=True)
        if each["weight"] < LIKELY or words[:2] != ["quintet", "train"]:
            continue
        given = parse("train", words[2:]).options.values
        own = {name: x for name, x in given.items() if may_change(DEFAULT, name, x)}
        if own:
            found.append(Change(each["name"], each["said"], own))
    return found


def may_change(algo: str, name: str, value: Any) -> bool:
    """Whether a finding may give this value of an option to an entry of a learner: no size, which
    may take any memory, and nothing that belongs to the race or the task.
    """
    kind = type(value)
    return (
        name in options(algo)
        and not name.startswith(_LEFT)
        and (name.startswith("model.") or name in registry.find(algo).config.model_fields)
        and kind in (bool, float, str)
    )


def is_twin(name: str, own: Mapping[str, Any], first: str) -> bool:
    """Whether it is the name of the entry that `changed` adds beside the entry `first`.

    own: its options.
    """
    return bool(own.keys() & {*_BESIDE}) and name == _twin(first, own)


def _twin(first: str, own: Mapping[str, Any]) -> str:
    return "-".join([first, *(str(own[each]) for each in _BESIDE if each in own)])


def changed(
    listed: Sequence[Entry], found: Sequence[Change], typed: Mapping[str, Any]
) -> tuple[list[Entry], list[str]]:
    """The entries as the findings change them, and a sentence about each change.

    A change is made in every entry whose learner has the option, if the user did not set it. One
    that costs much time adds an entry beside the first that it fits.
    """
    sentences: list[str] = []
    for change in found:
        own = {name: x for name, x in change.options.items() if name not in typed}
        value = ", ".join(f"{name}={x}" for name, x in own.items())
        fits = [each for each in listed if own and own.keys() <= options(each.algo).keys()]
        fits = [each for each in fits if any(each.options.get(k) != x for k, x in own.items())]
        if not fits:
            continue
        why = f"{change.name}: {change.said}"
        if own.keys() & {*_BESIDE}:
            first = fits[0]
            twin = Entry(_twin(first.name, own), first.algo, {**first.options, **own}, why)
            if twin.name in [each.name for each in listed]:  # added by an earlier finding
                continue
            place = listed.index(first) + 1
            listed = [*listed[:place], twin, *listed[place:]]
            sentences.append(f"{twin.name} runs too, with {value}, since {change.said}")
        else:
            listed = [
                each._replace(options={**each.options, **own}) if each in fits else each
                for each in listed
            ]
            names = ", ".join(each.name for each in fits)
            sentences.append(f"{names}: {value}, since {change.said}")
    return list(listed), sentences
