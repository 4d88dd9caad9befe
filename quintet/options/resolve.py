"""One pass from layers and facts to the configuration of a run.

`compose` builds every part once and checks the conditions of options that are known without an
environment; `resolve` checks the rest and fills automatic options.  PyTorch is imported only where
GPUs or the processor's number formats matter, or a network is made, so that most options that the
spaces rule out are refused before.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.checkpoints.spaces_as_json import as_json, require_same
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import EnvSource
from quintet.envs.eval_env import evaluated_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.settled import keys_in_info, settled, with_metrics
from quintet.errors import ConfigError
from quintet.models.config import critic_leaves
from quintet.options.bounds import MOST_STEPS
from quintet.options.declaration import Facts, default_of, idle
from quintet.options.declaration import faults as faults_of
from quintet.options.facts import facts, spaces_of
from quintet.options.layers import Layer, canonical, is_free, listed, merged, options, with_sources
from quintet.options.machine import automatic, in_one_process, require_agents, require_networks
from quintet.options.placing import Placing
from quintet.options.population import chosen_faults, population_faults
from quintet.options.run import AUTOMATIC, MAY_CHANGE_ON_RESUME, PARTS, TOP, RunConfig, prefix_of
from quintet.spaces import in_float64, without_leaves
from quintet.types import Spaces

FOR_CLUSTER = "resolved (a cluster needs workers, and serial has none)"
"""Source of a `runtime.kind` that was chosen because the run uses a cluster."""

FOR_MANY = "resolved (for many streams)"
_SAVED = "saved run"
_NO_ENV = EnvConfig(id="none")

M = TypeVar("M", bound=BaseModel)
Parts = dict[str, BaseModel | None]
"""The parts of a configuration by name; None for a part that can't be made."""


@dataclass(frozen=True)
class Loaded:
    """A valid configuration and the source of each of its options.

    env: its environment, resolved.
    eval_env: the environment of evaluations, if it differs from training's.
    placing: the cluster on one of whose nodes the whole run is placed.
    spaces: spaces of the environment, if one with the same options was made to find its kind.
    overwrite: whether an existing run in its folder is moved aside.
    """

    config: RunConfig
    sources: dict[str, str]
    env: ResolvedEnv
    spaces: Spaces | None = None
    overwrite: bool = False
    eval_env: ResolvedEnv | None = None
    placing: Placing | None = None

    @property
    def evaluated(self) -> ResolvedEnv:
        """The environment of evaluations."""
        return self.eval_env or self.env

    @property
    def plays_elsewhere(self) -> bool:
        """Whether evaluations are played in another environment than training's, or with other
        arguments.
        """
        of = [
            (env.source, env.config.id, env.config.kwargs, env.config.backend)
            for env in (self.env, self.evaluated)
        ]
        return self.config.eval.episodes > 0 and of[0] != of[1]


def compose(algo: str, layers: Iterable[Layer], source: EnvSource | None = None) -> Loaded:
    """Merges layers, builds every part of the configuration once, and finds the source of every
    option.

    source: makes the environments in place of their id, which then no backend needs to know.

    Raises:
        ConfigError: lists every unknown name, every bad value and every impossible combination.
    """
    values, sources, unknown = merged(algo, layers)
    of_env: list[str] = []
    faults: list[str] = []
    parts, config = build(algo, values, faults)
    env = eval_env = None
    if isinstance(parts["env"], EnvConfig) and "env.id" in values:
        try:  # even if other options are at fault
            env = resolve_env(parts["env"], source)
        except ConfigError as error:
            of_env.append(str(error))
    if config is not None:
        config = _with_workers(config, sources)
        if env is not None and env.of_tensors:
            config = in_one_process(config, sources)
        config, idle = without_idle_options(config, sources, facts(config))
        faults += idle
        if env is not None and not unknown and _SAVED not in sources.values():
            # A saved run is left out: nothing has checked its code yet.
            config, env = _with_whole_games(config, env, sources)
            config = _for_many_streams(config, sources)
            config = _with_fitted_rows(config, sources)
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
    origins = {name: sources.get(name, "default") for name in config.flat()}
    return Loaded(config, origins, env, eval_env=eval_env)


def build(algo: str, values: dict[str, Any], faults: list[str]) -> tuple[Parts, RunConfig | None]:
    """The parts of a configuration, each built once from the merged values, and the whole, if all
    parts can be made; invalid options have their defaults.

    faults: receives every fault of a part, one sentence each.
    """
    if "env.id" not in values:
        faults.append("there is no environment: give one by --env ID (quintet envs lists them)")
        values = values | {"env.id": "none"}
    parts: Parts = {}
    for name, model, prefix, mine in _of_parts(algo, values):
        whole = RunConfig.model_fields[name].default
        parts[name] = _built(model, prefix, mine, faults) if mine or name == "learner" else whole
    top = {name: values[name] for name in TOP if name in values}
    made = {name: part for name, part in parts.items() if part is not None}
    stand_ins = dict.fromkeys(("learner", "env"), _NO_ENV)  # the run's options need neither
    config = _built(RunConfig, "", stand_ins | made | top, faults)
    return parts, config if len(made) == len(parts) else None


def valid_values(algo: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values as their options hold them; None if an option is unknown, or a value of the
    learner or of a part is invalid by itself, whatever the others are.
    """
    known = options(algo)
    if not values.keys() <= known.keys():
        return None
    found = {name: canonical(value, known[name]) for name, value in values.items()}
    for _, model, prefix, mine in list(_of_parts(algo, found)):
        try:
            if mine:
                made = model(**mine).model_dump(mode="json")
                found |= {prefix + name: made[name] for name in mine}
        except ValidationError as error:
            if any(item["loc"] for item in error.errors()):
                return None
    return found


def _of_parts(
    algo: str, values: dict[str, Any]
) -> Iterator[tuple[str, type[BaseModel], str, dict[str, Any]]]:
    """Name, model and prefix of each part, and its values by field name."""
    for name, model in {"learner": registry.find(algo).config, **PARTS}.items():
        prefix = prefix_of(name) if name in PARTS else ""
        mine = {n: values[prefix + n] for n in model.model_fields if prefix + n in values}
        yield name, model, prefix, mine


def _built(model: type[M], prefix: str, mine: dict[str, Any], faults: list[str]) -> M | None:
    """One part of the configuration, with defaults for invalid fields."""
    try:
        return model(**mine)
    except ValidationError as error:
        faults += faults_of(error, prefix)
        wrong = {item["loc"][0] for item in error.errors() if item["loc"]}
    try:
        return model(**{name: value for name, value in mine.items() if name not in wrong})
    except ValidationError:
        return None


def combination_faults(config: RunConfig) -> list[str]:
    """Faults of options of several parts, one sentence each."""
    faults = []
    if config.resume == "exact" and config.runtime.kind == "async":
        faults.append(
            "resume=exact must have a run that gives identical results twice, got "
            "runtime.kind=async: use --resume latest"
        )
    if config.cluster.address is not None and config.runtime.inference == "server":
        faults.append(
            "runtime.inference must be local where workers run on a cluster, got server: use "
            "--runtime.inference local"
        )
    steps, policies = config.total_env_steps, config.population.size
    found = size_faults(config, steps) or [
        f"{fault} (each of the {policies} policies has its share of {steps:,} env_steps)"
        for fault in size_faults(config, steps // policies)
    ]
    return [*faults, *population_faults(config), *chosen_faults(config), *found]


def batch_steps(config: RunConfig) -> int:
    """Number of env_steps of an iteration; 1 if the learner's options don't set it."""
    return math.prod(_value(config, name) for name in registry.find(config.algo).batch)


def _value(config: RunConfig, name: str) -> Any:
    return attrgetter(name if "." in name else f"learner.{name}")(config)


def size_faults(config: RunConfig, budget: int) -> list[str]:
    """Faults of the learner's sizes with a budget of one policy, one sentence each."""
    algorithm, learners = registry.find(config.algo), config.runtime.num_learners
    steps, option = batch_steps(config), algorithm.shared
    faults = algorithm.check(config.learner, config.model, config.env.num_streams, budget)
    if budget < steps:
        faults = [
            f"total_env_steps must be at least one batch of {' x '.join(algorithm.batch)} = "
            f"{steps}, got {budget}; raise it, or lower one of these",
            *faults,
        ]
    if option and learners > 1:
        rows = _value(config, option) or steps
        unit = algorithm.chunk(config.learner, config.model) * learners
        if rows % unit:
            faults.append(
                f"runtime.num_learners={learners} must divide {option} evenly, got {rows}: use "
                f"{option} {-(-rows // unit) * unit}, or another number of learners"
            )
    return faults


def _with_workers(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """Chooses lockstep for a run on a cluster that would be serial only by default."""
    by = sources.get("runtime.kind", "default")
    if config.cluster.address is None or config.runtime.kind != "serial" or not is_free(by):
        return config
    sources["runtime.kind"] = FOR_CLUSTER
    return config.changed("runtime", {"kind": "lockstep"})


def _with_whole_games(
    config: RunConfig, env: ResolvedEnv, sources: dict[str, str]
) -> tuple[RunConfig, ResolvedEnv]:
    """Rounds a default number of streams up to a multiple of the agents of a game."""
    by = sources.get("env.num_streams", "default")
    from_code = ":" in env.config.id or env.source is not None  # no registered id is a game
    if not from_code or not is_free(by):
        return config, env
    try:
        count = env.streams_of(env.config.num_streams)
    except ConfigError:  # the run meets it again, after all faults of options
        return config, env
    if count == env.config.num_streams:
        return config, env
    sources["env.num_streams"] = f"resolved ({by})"
    own = {"num_streams": count}
    return config.changed("env", own), env.with_options(own)


def _for_many_streams(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """Gives the learner the values that suit this number of streams, see
    `Algorithm.for_many_streams`; unchanged if the user gave one of them, or they do not fit.
    """
    streams = config.env.num_streams
    values = registry.find(config.algo).for_many_streams(config.learner, streams)
    if not values or not all(is_free(sources.get(name, "default")) for name in values):
        return config
    learner = config.learner.model_copy(update=values)
    found = config.model_copy(update={"learner": learner})
    if size_faults(found, MOST_STEPS):
        return config
    sources.update(dict.fromkeys(values, FOR_MANY))
    return found


def _with_fitted_rows(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """Lowers the option that sets the rows of an optimizer step to the largest value that fits, see
    `Algorithm.fitted`; unchanged if none of at least half of it does.
    """
    algorithm, learner = registry.find(config.algo), config.learner
    name = algorithm.shared
    by = sources.get(name, "default")
    size = getattr(learner, name) if algorithm.fitted and is_free(by) else None
    if size is None:
        return config
    most = min(size, batch_steps(config))
    for rows in range(most, (most - 1) // 2, -1):
        found = config.changed("learner", {name: rows})
        if not size_faults(found, MOST_STEPS):
            if rows != size:
                sources[name] = f"resolved ({by})"
            return found
    return config


def without_idle_options(
    config: RunConfig, sources: dict[str, str], known: Facts
) -> tuple[RunConfig, list[str]]:
    """The configuration with options without effect reset, and a sentence for each of them that the
    user gave.  Options that a run began with stay, unless a resume may change them.

    sources: sources of the values, by dotted name; changed for options that are reset.
    """
    faults: list[str] = []
    needs = registry.find(config.algo).needs.items()
    for part in ("", *PARTS, "learner"):
        options = getattr(config, part) if part else config
        prefix = prefix_of(part) if part in PARTS else ""
        others = {n.removeprefix(prefix): need for n, need in needs if n.startswith(prefix)}
        while True:
            unmet = {
                name: one
                for name, one in idle(options, known, prefix, others).items()
                if getattr(options, name) not in (one.rest, AUTOMATIC.get(prefix + name, one.rest))
            }
            by = {n: sources.get(prefix + n, "default") for n in unmet}
            # A resumed run keeps the options with which it began.
            resting = {
                n: unmet[n].rest
                for n, source in by.items()
                if is_free(source) or (source == _SAVED and prefix + n in MAY_CHANGE_ON_RESUME)
            }
            if not resting:
                break
            for n, rest in resting.items():
                if by[n] != "default":
                    word = "default" if rest == default_of(type(options), n) else "resolved"
                    who = by[n].removeprefix("default of ")
                    sources[prefix + n] = f"{word} (the value of {who} has no effect here)"
            # Resting options may give another one an effect.
            options = options.model_copy(update=resting)
            config = config.model_copy(update={part: options}) if part else options
        faults += [
            f"{prefix}{n}={getattr(options, n)} has no effect without {one.needs}; leave it out"
            for n, one in unmet.items()
            if by[n] != _SAVED
        ]
    return config, faults


def _with_own_encoder_alone(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """Removes hidden layers after a user's encoder unless the user gave them: presets and learners
    set hidden layers for quintet's own encoders.
    """
    names = [n for n in ("policy_hidden", "value_hidden") if getattr(config.model, n) is not None]
    dropped = [n for n in names if is_free(sources.get(f"model.{n}", "default"))]
    if not (config.model.custom and dropped):
        return config
    for name in dropped:
        who = sources[f"model.{name}"].removeprefix("default of ")
        sources[f"model.{name}"] = f"default (the value of {who} has no effect here)"
    return config.changed("model", dict.fromkeys(dropped))


def resolve(loaded: Loaded, spaces: Spaces) -> Loaded:
    """The configuration for an environment of these spaces on this machine: without options that
    have no effect, and with every automatic one resolved.

    Raises:
        ConfigError: the environment, the network or the machine does not allow it; names the preset
            that set a refused option.
    """
    registry.require_actions(loaded.config.algo, spaces.action)
    require_agents(loaded.config, loaded.env)
    sources = dict(loaded.sources)
    config = loaded.config.model_copy(update={"env": loaded.env.config})
    config = _with_own_encoder_alone(config, sources)
    config, idle = without_idle_options(
        config, sources, facts(config, loaded.env, loaded.eval_env, spaces)
    )
    idle += chosen_faults(config)
    try:
        if idle:
            raise ConfigError(listed(idle))
        return replace(loaded, config=automatic(config, loaded.env, spaces), sources=sources)
    except ConfigError as error:
        raise ConfigError(with_sources(str(error), loaded.sources)) from error


def check_spaces(loaded: Loaded) -> None:
    """Raises ConfigError for options that the spaces rule out, if the spaces are known or the
    backend knows them.  The run itself checks again after the import of PyTorch.
    """
    spaces = loaded.spaces
    if spaces is None and loaded.env.backend.tells_spaces:
        spaces = spaces_of(loaded.env)
    if spaces is not None:
        resolve(loaded, spaces)


def resolved(loaded: Loaded) -> tuple[dict[str, Any], dict[str, str]]:
    """Every option of a loaded configuration as a run would use it, and its source."""
    spaces = loaded.spaces or spaces_of(loaded.env)
    env = with_metrics(settled(loaded.env, spaces), keys_in_info)
    if env.config.mask_from_info != loaded.env.config.mask_from_info:
        spaces = spaces_of(env)
    elif env.config.observation_dtype == "float64":
        spaces = in_float64(spaces)
    loaded = with_observation_dtype(loaded, env)
    found = resolve(loaded, spaces)
    now = found.config
    from quintet.algorithms.parts.setup import PLAIN

    require_networks(now, spaces)
    require_evaluated(found, spaces)
    # Refuses spaces that the network can't read or act in.
    registry.find(now.algo).make_actor(now.learner, now.model, spaces, PLAIN)
    return found.config.flat(), sources_of(loaded, found)


def with_observation_dtype(loaded: Loaded, env: ResolvedEnv) -> Loaded:
    """The same configuration with this environment, whose automatic options are settled;
    evaluations use the same.
    """
    evaluated = loaded.eval_env
    if evaluated is not None:
        names = ("observation_dtype", "mask_from_info", "metrics")
        evaluated = evaluated.with_options({name: getattr(env.config, name) for name in names})
    return replace(loaded, env=env, eval_env=evaluated)


def sources_of(loaded: Loaded, found: Loaded) -> dict[str, str]:
    """Sources of the values of the resolved configuration `found`."""
    before, values = loaded.config.flat(), found.config.flat()
    return {
        name: source
        if values[name] == before[name] or source != loaded.sources[name]
        else f"resolved ({source})"
        for name, source in found.sources.items()
    }


def require_evaluated(loaded: Loaded, spaces: Spaces) -> None:
    """Raises ConfigError if policies can't play in the environment of evaluations; if it differs
    from training's, one is made for this check.
    """
    env, config = loaded.evaluated, loaded.config
    if not loaded.plays_elsewhere:
        return
    hidden = critic_leaves(config.model, spaces)  # evaluations do not need these
    require_same(
        as_json(without_leaves(spaces, hidden)),
        without_leaves(spaces_of(env), hidden),
        "the policy",
        env.config.id,
        "give eval.env.id an environment with such spaces, or leave it out",
    )
    require_agents(config, env)
