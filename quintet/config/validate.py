"""Builds a configuration from merged values; every fault is listed, one sentence each."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quintet.algorithms import registry
from quintet.config.population import first_values, tuned_shaping
from quintet.config.run import PARTS, TOP, RunConfig, prefix_of
from quintet.envs.config import EnvConfig
from quintet.errors import ConfigError
from quintet.observe.metrics import OF_RUNS
from quintet.population.scores import MEANS

M = TypeVar("M", bound=BaseModel)
Parts = dict[str, BaseModel | None]
"""The parts of a configuration by name; None for a part that can't be made."""


def build(algo: str, values: dict[str, Any], faults: list[str]) -> tuple[Parts, RunConfig | None]:
    """The parts of a configuration, each built once from the merged values, and the whole, if all
    parts can be made; invalid options have their defaults.

    faults: receives every fault of a part, one sentence each.
    """
    if "env.id" not in values:
        faults.append(
            "env must name an environment, got none: give it by --env ID (quintet envs lists them)"
        )
        values = values | {"env.id": "none"}
    parts: Parts = {}
    for name, model, prefix, mine in _of_parts(algo, values):
        whole = RunConfig.model_fields[name].default
        parts[name] = _built(model, prefix, mine, faults) if mine or name == "learner" else whole
    top = {name: values[name] for name in TOP if name in values}
    sound = {name: part for name, part in parts.items() if part is not None}
    stand_ins = dict.fromkeys(("learner", "env"), _NO_ENV)  # for options of the run alone
    config = _built(RunConfig, "", stand_ins | sound | top, faults)
    return parts, config if len(sound) == len(parts) else None


def has_wrong_value(algo: str, values: dict[str, Any]) -> bool:
    """Whether a value of the learner or of a part is invalid by itself, whatever the others are."""
    for _, model, _, mine in _of_parts(algo, values):
        try:
            if mine:
                model(**mine)
        except ValidationError as error:
            if any(item["loc"] for item in error.errors()):
                return True
    return False


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
        items = error.errors()
    faults += [item["msg"].removeprefix("Value error, ") for item in items if not item["loc"]]
    faults += _told(prefix, [item for item in items if item["loc"]])
    wrong = {item["loc"][0] for item in items if item["loc"]}
    try:
        return model(**{name: value for name, value in mine.items() if name not in wrong})
    except ValidationError:
        return None


def combination_faults(config: RunConfig) -> list[str]:
    """Faults of options of several parts, one sentence each."""
    faults = []
    if config.resume == "exact" and config.runtime.kind == "async":
        faults.append(
            "resume=exact must have a run that gives the same bytes twice, got runtime.kind=async: "
            "use --resume latest"
        )
    faults += [*_sharing_faults(config), *_population_faults(config)]
    check = registry.find(config.algo).check
    steps, policies = config.total_env_steps, config.population.size
    found = check(config.learner, config.model, config.env.num_streams, steps)
    if not found and policies > 1:
        found = [
            f"{fault} (of {steps:,} env_steps each of the {policies} policies has its share)"
            for fault in check(
                config.learner, config.model, config.env.num_streams, steps // policies
            )
        ]
    return faults + found


def _population_faults(config: RunConfig) -> list[str]:
    """Faults of a population, one sentence each."""
    population, learners = config.population, config.runtime.num_learners
    if not population.several:
        return []
    faults: list[str] = []
    if config.self_play.on:
        faults.append(
            f"self_play.past_frac={config.self_play.past_frac:g} must have population.size=1, got "
            f"{population.size}: leave one of them out"
        )
    if learners > 1:
        faults.append(
            f"population.size={population.size} must have runtime.num_learners=1, got {learners}: "
            "leave one of them out"
        )
    share = config.total_env_steps // population.size
    for name in ("start_env_steps", "period_env_steps", "window_env_steps"):
        steps = getattr(population, name)
        if steps is not None and steps >= share:
            faults.append(
                f"population.{name} must be below the env_steps of each policy, {share:,} of the "
                f"budget of {config.total_env_steps:,}, got {steps:,}: no policy would be "
                "considered; lower it or raise total_env_steps, or use population.pbt=false"
            )
    try:
        first_values(config)
        shaping = tuned_shaping(config)
    except ConfigError as error:
        return [*faults, str(error), *_objective_faults(config)]
    if shaping and population.pbt and population.objective == _RETURN:
        faults.append(
            f"population.objective={_RETURN} can't rank policies of which each weighs its "
            f"rewards in another way ({', '.join(shaping)}); use episode/success_rate with "
            "env.success, or eval/return_mean with runtime.kind=async: evaluations play by "
            "env.reward_shaping"
        )
    return faults + _objective_faults(config)


def _objective_faults(config: RunConfig) -> list[str]:
    """Faults of the metric by which policies are ranked."""
    name, kind = config.population.objective, config.runtime.kind
    own = registry.find(config.algo).reported()
    evaluated = [x for x in OF_RUNS if x.startswith("eval/")]
    known = [*MEANS, *evaluated, *own]
    if not any(name == x or (x.endswith("/") and name.startswith(x)) for x in known):
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "see the names in metrics.jsonl"
        return [
            f"population.objective must be a metric of the policies of {config.algo}, got {name}: "
            f"{hint}"
        ]
    if name in evaluated and config.eval.episodes == 0:
        return [f"population.objective={name} must have eval.episodes > 0, got 0: raise it"]
    if name not in MEANS and kind != "async":
        return [
            f"population.objective={name} must have runtime.kind=async, got {kind}, in which no "
            f"clock decides anything, and reports follow the clock: use {' or '.join(MEANS)}, or "
            "--runtime.kind async"
        ]
    return []


def _sharing_faults(config: RunConfig) -> list[str]:
    """Faults if several learners can't share batches evenly."""
    learners, shared = config.runtime.num_learners, registry.find(config.algo).shared
    if learners == 1:
        return []
    if shared is None:
        able = ", ".join(name for name, one in registry.LEARNERS.usable() if one.shared)
        return [
            f"runtime.num_learners={learners} must have an algorithm whose learners can share "
            f"their batches ({able}), got {config.algo}: leave it out"
        ]
    option, given, unit = shared(config.learner, config.model, config.env.num_streams)
    if given % (unit * learners) == 0:
        return []
    even = -(-given // (unit * learners)) * unit * learners
    return [
        f"runtime.num_learners={learners} must divide {option} evenly, got "
        f"{given}: use {option} {even}, or another number of learners"
    ]


def _in_our_words(message: str) -> str:
    """pydantic's own messages in lower case; messages of quintet's validators unchanged."""
    own = message.removeprefix("Value error, ")
    if "exceeded maximum size" in message:  # of integers that pydantic reads
        return f"{_SHOULD_BE}a whole number of far fewer digits"
    # Bounds of floats, which pydantic writes with all their digits.
    return own if own != message else _DIGITS.sub(lambda n: f"{float(n[0]):g}", message.lower())


def _shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    try:
        told = repr(value)
    except ValueError:  # Python writes no longer numbers
        return "a number of more than 4,300 digits"
    return told if len(told) <= _LONG else f"{told[:_LONG]}... ({len(told):,} characters)"


_NO_ENV = EnvConfig(id="none")
_RETURN = "episode/return_mean"
_SHOULD_BE = "input should be "
_LONG = 200
_DIGITS = re.compile(r"\d{20,}")
_AS_JSON = """write it as JSON, with names in double quotes, as in '{"length": 1}'"""


def _told(prefix: str, items: Sequence[ErrorDetails]) -> list[str]:
    """One sentence for every invalid value: the kinds of values that its option may have, the
    value, and what to do.
    """
    faults: dict[tuple[str, str], list[ErrorDetails]] = {}
    for item in items:
        faults.setdefault((str(item["loc"][0]), _shown(item["input"])), []).append(item)
    found = []
    for (name, given), about in faults.items():
        words = [_in_our_words(item["msg"]).partition(", unable")[0] for item in about]
        rest = "".join(f" or {each.removeprefix(_SHOULD_BE)}" for each in words[1:])
        fault = f"{prefix}{name}: {words[0]}{rest}, got {given}"
        if words[0].startswith(_SHOULD_BE):
            mapping = any(item["type"] == "dict_type" for item in about)
            fault += f"; {_AS_JSON if mapping else 'give such a value, or leave it out'}"
        found.append(fault)
    return found
