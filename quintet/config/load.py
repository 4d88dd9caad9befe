"""Merges the layers of a configuration and keeps the source of each value.

Layers, later wins: defaults < the learner's own defaults < preset < file < saved run < command line
(or the caller).  After the merge everything is validated at once, and every fault is listed.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quintet.algorithms import presets, registry
from quintet.config.idle import early_facts, judged, nobody_gave
from quintet.config.run import ALIASES, PARTS, TOP, RunConfig, prefix_of
from quintet.config.validate import build, combination_faults
from quintet.envs.config import EnvConfig
from quintet.envs.evaluated import evaluated_env
from quintet.envs.given import EnvSource
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.errors import ConfigError, FileFault
from quintet.options import about
from quintet.system.files import given_path, read_yaml
from quintet.types import Spaces


@dataclass(frozen=True)
class Layer:
    """Values from one source, by dotted option name."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Loaded:
    """A valid configuration and the source of each of its options.

    env: its environment, resolved.
    eval_env: that of its evaluations, if they have one of their own.
    spaces: those of the environment, if one with the same options was made for its kind.
    notes: messages for the person about the run folder.
    overwrite: whether a run in its folder is moved aside.
    """

    config: RunConfig
    sources: dict[str, str]
    env: ResolvedEnv
    spaces: Spaces | None = None
    notes: tuple[str, ...] = ()
    overwrite: bool = False
    eval_env: ResolvedEnv | None = None

    @property
    def evaluated(self) -> ResolvedEnv:
        """The environment of its evaluations."""
        return self.eval_env or self.env

    @property
    def plays_elsewhere(self) -> bool:
        """Whether it has evaluations, in another environment than that of training or with other
        arguments.
        """
        of = [
            (env.source, env.config.id, env.config.kwargs, env.config.backend)
            for env in (self.env, self.evaluated)
        ]
        return self.config.eval.episodes > 0 and of[0] != of[1]


def options(algo: str) -> dict[str, FieldInfo]:
    """Every option of a learner's run by its dotted name."""
    fields = {name: RunConfig.model_fields[name] for name in TOP}
    fields |= registry.find(algo).config.model_fields
    for part, model in PARTS.items():
        fields |= {prefix_of(part) + name: info for name, info in model.model_fields.items()}
    return fields


def flatten(values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Nested or dotted names as dotted ones; aliases replaced; dashes as underscores.

    A mapping that is an option's own value (``env.kwargs``) stays whole.
    """
    names = set(known)
    flat: dict[str, Any] = {}

    def add(prefix: str, items: Mapping[str, Any]) -> None:
        for key, value in items.items():
            name = f"{prefix}{key}".replace("-", "_")
            if isinstance(value, Mapping) and name not in names:
                add(f"{name}.", value)
            else:
                flat[ALIASES.get(name, name)] = value

    add("", values)
    return flat


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError if it can't be read or holds none."""
    try:
        values = read_yaml(path, pipe=True)
    except FileFault as error:
        raise ConfigError(f"--config requires a readable YAML file, got {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"--config requires a YAML file of 'option: value' lines, {path} holds "
            f"{type(values).__name__}"
        )
    return values


def preset_layers(
    algo: str, env_id: str | None, name: str, kind: Callable[[], str | None] = lambda: None
) -> list[Layer]:
    """The layers of a preset.

    ``auto`` is the preset of the environment's id, or of its kind where no id fits; a named preset
    comes after that one. The name of a kind is this kind's preset alone.

    kind: returns the environment's kind, None: it is unknown; called only where no id fits.

    Raises:
        ConfigError: no preset of that name.
    """
    if name == "none":
        return []
    environments, of_kind, named = presets.read(algo).values()
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
    """What a message says of an unknown option: the options of the same meaning, if it is a name of
    another library, else the one that is spelled most alike.
    """
    known = options(algo)
    ours = named_here(algo, name)
    if ours is None:
        return _nearest(name, known)
    if not ours:
        return f"; {algo} has no option for that"
    short = {target: alias for alias, target in ALIASES.items()}
    told = [f"{short.get(each, each)!r} ({_meaning(known[each])})" for each in ours]
    return f"; here {'it is' if len(ours) == 1 else 'these are'} {' and '.join(told)}"


def named_here(algo: str, name: str) -> list[str] | None:
    """The options of a learner that mean what `name` means in another library, which are several
    where it is split here; none if the learner has no such option; None for a name of no library.
    """
    theirs = {name.lower(), name.lower().rpartition(".")[2]}

    def of(each: str) -> list[str]:
        return [ours for ours, info in options(each).items() if theirs & {*about(info).also}]

    if found := of(algo):
        return found
    return [] if any(of(each) for each in registry.LEARNERS.names()) else None


def _meaning(info: FieldInfo) -> str:
    """An option's description up to its first stop."""
    said = re.split(r"[;:.](?=\s|$)", info.description or "")[0]
    return said[:1].lower() + said[1:]


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(name, names, 1)
    if not near:  # the last part alone: "num_streams" for "env.num_streams"
        near = [n for n in names if n.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    return f"; did you mean {near[0]!r}?" if near else ""


def compose(algo: str, layers: Iterable[Layer], source: EnvSource | None = None) -> Loaded:
    """Merges layers, builds every part of the configuration once, and gives the source of every
    option.

    source: makes the environments, if not their id; then no backend need know the id.

    Raises:
        ConfigError: lists every unknown name, every bad value and every impossible combination.
    """
    values, sources, unknown = _merged(algo, layers)
    of_env: list[str] = []
    faults: list[str] = []
    parts, config = build(algo, values, faults)
    env = _resolve_env(parts["env"], source, of_env) if "env.id" in values else None
    eval_env = None
    if config is not None:
        config, idle = judged(config, sources, early_facts(config))
        faults += idle
        if env is not None and not unknown and "saved run" not in sources.values():
            # Whose code is not checked yet.
            config, env = _with_whole_games(config, env, sources)
            config = _with_whole_minibatches(config, sources)
        faults += combination_faults(config)
        if env is not None:
            try:
                eval_env = evaluated_env(env, config.eval_env)
            except ConfigError as error:
                of_env.append(f"eval.env: {error}")
    faults = [with_sources(fault, sources) for fault in of_env + faults]
    if unknown or faults:
        raise ConfigError(listed([*unknown, *faults]))
    assert config is not None
    assert env is not None
    told = {name: sources.get(name, "default") for name in config.flat()}
    return Loaded(config, told, env, eval_env=eval_env)


def _merged(algo: str, layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Values and their sources by option, and a sentence on each unknown one."""
    known = options(algo)
    values: dict[str, Any] = {"algo": algo}
    sources: dict[str, str] = {"algo": "given"}
    unknown: list[str] = []
    for layer in (learner_defaults(algo), *layers):
        for name, value in layer.values.items():
            if name in known:
                values[name] = meant(value, known[name])
                sources[name] = layer.source
            else:
                unknown.append(f"unknown option {name!r} ({layer.source}){hint(algo, name)}")
    return values, sources, unknown


NONE = ("none", "null")
"""Words for the absence of a value."""


def meant(value: Any, info: FieldInfo) -> Any:
    """A value as the option means it: ``none`` is a word if that is one of its choices, a path
    where it takes one, an empty list or mapping, else None; a truth value of an option that is
    ``on`` or ``off`` is that word; ``~`` in a path is the home folder.
    """
    if Path in kinds(info):
        return str(given_path(value)) if isinstance(value, str | os.PathLike) else value
    words = [w for kind in kinds(info) for w in get_args(kind) if get_origin(kind) is Literal]
    if {"on", "off"} <= {*words} and str(value).lower() in _TRUTH:
        return "on" if _TRUTH[str(value).lower()] else "off"
    if "none" in words or info.annotation is str:
        return "none" if value is None else value
    if isinstance(value, str) and value.lower() in NONE:
        value = None
    if value is None and type(None) not in kinds(info) and get_origin(info.annotation) in _EMPTY:
        return _EMPTY[get_origin(info.annotation)]()
    return value


_TRUTH = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_EMPTY: dict[Any, Any] = {tuple: tuple, dict: dict}


def kinds(info: FieldInfo) -> tuple[Any, ...]:
    """The annotation of a field and the members of its union, without their bounds."""
    parts = (info.annotation, *get_args(info.annotation))
    return tuple(get_args(x)[0] if get_origin(x) is Annotated else x for x in parts)


def with_sources(fault: str, sources: Mapping[str, str]) -> str:
    """The fault, and the options in it that a preset or the learner set."""
    named: dict[str, list[str]] = {}
    for name, source in sources.items():
        if nobody_gave(source) and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", fault):
            named.setdefault(source, []).append(name)
    if not named:
        return fault
    told = [f"{', '.join(names)} from the {source}" for source, names in named.items()]
    way_out = ", or use --preset none" if any(s.startswith("preset") for s in named) else ""
    return f"{fault} ({'; '.join(told)}; set it yourself{way_out})"


def listed(faults: list[str]) -> str:
    if len(faults) == 1:
        return faults[0]
    return f"{len(faults)} faults:\n" + "\n".join(f"  - {fault}" for fault in faults)


def _resolve_env(
    config: BaseModel | None, source: EnvSource | None, faults: list[str]
) -> ResolvedEnv | None:
    """The environment, even if other options are at fault."""
    if not isinstance(config, EnvConfig):
        return None
    try:
        return resolve_env(config, source)
    except ConfigError as error:
        faults.append(str(error))
        return None


def _with_whole_games(
    config: RunConfig, env: ResolvedEnv, sources: dict[str, str]
) -> tuple[RunConfig, ResolvedEnv]:
    """A number of streams that nobody gave as a multiple of the agents of a game."""
    by = sources.get("env.num_streams", "default")
    made = ":" in env.config.id or env.source is not None
    if not made or not _free(by):
        return config, env
    try:
        count = env.streams_of(env.config.num_streams)
    except ConfigError:  # which the run meets again, after all faults of options
        return config, env
    if count == env.config.num_streams:
        return config, env
    sources["env.num_streams"] = f"resolved ({by})"
    own = config.env.model_copy(update={"num_streams": count})
    return config.model_copy(update={"env": own}), env.with_options({"num_streams": count})


def _with_whole_minibatches(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """Options of the learner that nobody gave as its `suited` returns them."""
    algorithm = registry.find(config.algo)
    names = algorithm.config.model_fields
    free = frozenset(name for name in names if _free(sources.get(name, "default")))
    streams, learners = config.env.num_streams, config.runtime.num_learners
    changed = algorithm.suited(config.learner, config.model, streams, learners, free)
    for name in changed:
        sources[name] = f"resolved ({sources.get(name, 'default')})"
    learner = config.learner.model_copy(update=changed)
    return config.model_copy(update={"learner": learner})


def _free(source: str) -> bool:
    return source == "default" or nobody_gave(source)
