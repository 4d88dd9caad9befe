"""Layers of a configuration: their values, and the meaning of names and values.

Layers, each overriding the earlier ones: defaults < the learner's own defaults < preset, or the
saved run < file < command line (or the caller).
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from quintet.algorithms import registry
from quintet.errors import ConfigError, FileFault
from quintet.options.declaration import about, kinds
from quintet.options.run import ALIASES, PARTS, TOP, RunConfig, prefix_of
from quintet.system.files import given_path, read_yaml
from quintet.system.places import is_elsewhere


@dataclass(frozen=True)
class Layer:
    """Values from one source, by dotted option name."""

    source: str
    values: Mapping[str, Any]


def options(algo: str) -> dict[str, FieldInfo]:
    """Every option of a learner's run by its dotted name."""
    fields = {name: RunConfig.model_fields[name] for name in TOP}
    fields |= registry.find(algo).config.model_fields
    for part, model in PARTS.items():
        fields |= {prefix_of(part) + name: info for name, info in model.model_fields.items()}
    return fields


def flatten(values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Turns nested or dotted names into dotted names, aliases into names, and dashes into
    underscores.

    A mapping that is the value of one option (``env.kwargs``) stays whole.

    Raises:
        ConfigError: two names are of one option.
    """
    names = set(known)
    flat: dict[str, Any] = {}
    given: dict[str, str] = {}

    def add(prefix: str, items: Mapping[str, Any]) -> None:
        for key, value in items.items():
            name = f"{prefix}{key}".replace("-", "_")
            if isinstance(value, Mapping) and name not in names:
                add(f"{name}.", value)
                continue
            target = ALIASES.get(name, name)
            if target in flat:
                raise ConfigError(
                    f"{target} must be given once, got it as {given[target]!r} and as "
                    f"{prefix + key!r}; leave one out"
                )
            flat[target], given[target] = value, f"{prefix}{key}"

    add("", values)
    return flat


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError if it can't be read or is not a mapping."""
    try:
        values = read_yaml(path, pipe=True)
    except FileFault as error:
        raise ConfigError(f"--config must be a readable YAML file, got none: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"--config must be a YAML file of 'option: value' lines, got {path} with "
            f"{type(values).__name__}"
        )
    return values


def preset_layers(
    algo: str, env_id: str | None, name: str, kind: Callable[[], str | None] = lambda: None
) -> list[Layer]:
    """The layers of a preset.

    ``auto`` is the preset of the environment's id, else of its kind; a named preset is applied
    after it. The name of a kind selects this kind's preset alone.

    kind: returns the environment's kind, None if unknown; called only if no id fits.

    Raises:
        ConfigError: no preset of that name.
    """
    if name == "none":
        return []
    environments, of_kind, named, _ = registry.presets_of(algo).values()
    if name not in ("auto", *of_kind, *named):
        raise ConfigError(
            f"preset must be auto, none or one of {', '.join((*named, *of_kind))}; got {name!r}"
            + _nearest(name, (*named, *of_kind))
        )
    chosen: dict[str, Mapping[str, Any]] = {}
    fitting = (pattern for pattern in environments if fnmatch(str(env_id), pattern))
    if name in of_kind:
        chosen[name] = of_kind[name]
    elif (pattern := next(fitting, None)) is not None:
        chosen[pattern] = environments[pattern]
    elif of_kind and (found := kind()) is not None:
        chosen[found] = of_kind.get(found, {})
    if name in named:
        chosen[name] = named[name]
    return [Layer(f"preset {key}", flatten(chosen[key], options(algo))) for key in chosen]


def learner_defaults(algo: str) -> Layer:
    values = registry.find(algo).defaults
    parts = ("env.", "model.", "runtime.")
    wrong = values.keys() - {name for name in options(algo) if name.startswith(parts)}
    assert not wrong, f"defaults of {algo} must be options under {', '.join(parts)}: {wrong}"
    return Layer(f"default of {algo}", values)


def hint(algo: str, name: str) -> str:
    """Hint on an unknown option: the options of the same meaning, or what to do, if it is a name of
    another library; else the option whose name is nearly the same.
    """
    from quintet.algorithms.elsewhere import FACTORS, INSTEAD, SHORT

    known = options(algo)
    if re.search(r"[^\w.]", name.lstrip("-")):  # dashes of options are underscores here
        return "; options begin with --, as in --env CartPole-v1"
    name = SHORT.get(name.lstrip("-"), name) if name.startswith("-") else name
    ours, plain = named_here(algo, name), name.lower().rpartition(".")[2]
    if ours is None:
        help_ = f"; `quintet train {algo} --help all` lists the options"
        return f"; {INSTEAD[plain]}" if plain in INSTEAD else _nearest(name, known) or help_
    if not ours:
        return f"; {algo} has no option for that"
    short = {target: alias for alias, target in ALIASES.items()}
    names = [f"{short.get(each, each)!r} ({_meaning(known[each])})" for each in ours]
    differs = f"; {FACTORS[plain]}" if plain in FACTORS else ""
    return f"; here {'it is' if len(ours) == 1 else 'these are'} {' and '.join(names)}{differs}"


def named_here(algo: str, name: str) -> list[str] | None:
    """The options of a learner that mean what `name` means in another library; several if quintet
    splits the option, none if the learner lacks it, None if no library has the name.
    """
    names = {name.lower(), name.lower().rpartition(".")[2]}
    names |= {each.removeprefix("no_") for each in names}

    def of(each: str) -> list[str]:
        return [ours for ours, info in options(each).items() if names & {*about(info).also}]

    if found := of(algo):
        return found
    others = (each for each, _ in registry.LEARNERS.usable() if each != algo)
    return [] if any(of(each) or name in options(each) for each in others) else None


def _meaning(info: FieldInfo) -> str:
    """An option's description up to its first full stop or semicolon."""
    said = re.split(r"[;:.](?=\s|$)", info.description or "")[0]
    return said[:1].lower() + said[1:]


def _nearest(name: str, known: Iterable[str]) -> str:
    """A question about the known name that is most alike; "" if none is."""

    def likeness(ours: str) -> tuple[float, float]:
        """The last part counts alone too: "num_streams" for "env.num_streams"."""
        whole = SequenceMatcher(None, ours, name).ratio()
        last = SequenceMatcher(None, ours.rpartition(".")[2], name.rpartition(".")[2]).ratio()
        return max(whole, last), whole

    near = max(known, key=likeness, default="")
    return f"; did you mean {near!r}?" if likeness(near)[0] >= _SAME else ""


_SAME = 0.85
"""Likeness from which a name is taken for a slip of another; less would name options of another
meaning."""


def merged(algo: str, layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Values and sources by option, and a sentence for each unknown option."""
    known = options(algo)
    values: dict[str, Any] = {"algo": algo}
    sources: dict[str, str] = {"algo": "given"}
    unknown: list[str] = []
    for layer in (learner_defaults(algo), *layers):
        for name, value in layer.values.items():
            if name in known:
                values[name] = canonical(value, known[name])
                sources[name] = layer.source
            else:
                unknown.append(f"unknown option {name!r} ({layer.source}){hint(algo, name)}")
    return values, sources, unknown


NONE = ("none", "null")
"""Words that mean the absence of a value."""


_SWITCHES = dict.fromkeys(("true", "yes", "on"), "on") | dict.fromkeys(
    ("false", "no", "off"), "off"
)


def canonical(value: Any, info: FieldInfo) -> Any:
    """A value as the option means it: ``none`` is a word if that is one of its choices, a path if
    it takes one, an empty list or mapping, else None; a truth value becomes ``on`` or ``off`` where
    these are the choices; ``~`` in a path becomes the home folder.
    """
    if Path in kinds(info):
        if not isinstance(value, str | os.PathLike):
            return value
        return str(value if is_elsewhere(value) else given_path(value))
    words = [w for kind in kinds(info) for w in get_args(kind) if get_origin(kind) is Literal]
    if {"on", "off"} <= {*words}:
        value = _SWITCHES.get(str(value).lower(), value)
    if "none" in words or info.annotation is str:
        return "none" if value is None else value
    if isinstance(value, str) and value.lower() in NONE:
        value = None
    kind = get_origin(info.annotation)
    return kind() if value is None and kind in (tuple, dict) else value


def nobody_gave(source: str) -> bool:
    """Whether the source is a preset or the learner, and not the user."""
    return source.startswith(("preset ", "default of "))


def is_free(source: str) -> bool:
    return source == "default" or nobody_gave(source)


def with_sources(fault: str, sources: Mapping[str, str]) -> str:
    """The fault, with the names of those of its options that a preset or the learner set."""
    named: dict[str, list[str]] = {}
    for name, source in sources.items():
        if nobody_gave(source) and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", fault):
            named.setdefault(source, []).append(name)
    if not named:
        return fault
    parts = [f"{', '.join(names)} from the {source}" for source, names in named.items()]
    way_out = ", or use --preset none" if any(s.startswith("preset") for s in named) else ""
    return f"{fault} ({'; '.join(parts)}; set it yourself{way_out})"


def listed(faults: list[str]) -> str:
    if len(faults) == 1:
        return faults[0]
    return f"{len(faults)} faults:\n" + "\n".join(f"  - {fault}" for fault in faults)
