"""The hyperparameters of a population: their names, bounds and first values; and its faults."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.envs.config import EnvConfig
from quintet.errors import ConfigError
from quintet.observe.metrics import ENV, OF_RUNS, signed
from quintet.options.declaration import Facts, bounds_of, faults, idle, tunable
from quintet.options.run import RunConfig
from quintet.population.scores import MEANS

if TYPE_CHECKING:
    from quintet.population.pbt import Rules

SHAPING = "reward_shaping."
"""Prefix of the names of tuned values of the environment (`EnvConfig.reward_shaping`)."""

_RETURN = "episode/return_mean"


def rules(config: RunConfig) -> "Rules":
    """Rules of mutations; raises ConfigError if an option can't be tuned."""
    from quintet.population.pbt import Bounds, Rules

    named, shaping = config.population.tuned, tuned_shaping(config)
    names: tuple[str, ...] = ()
    if not shaping or len(shaping) < len(named):
        own = [name for name in named if name not in shaping]
        names = tuned_options(config.learner, own)
    first = {name: float(getattr(config.learner, name)) for name in names} | shaping
    bounds = {name: Bounds(*pair) for name, pair in bounds_of(config.learner, names).items()}
    return Rules(config.population, first, bounds, tunable(type(config.learner)))


def tuned_options(options: BaseModel, named: Sequence[str]) -> tuple[str, ...]:
    """Options that a population tunes: the named options, else the learner's usual ones except
    options that are 0, none or without effect.

    Raises:
        ConfigError: a named option is not a number that can change during a run.
    """
    ways, given, idle_options = tunable(type(options)), options.model_dump(), idle(options, Facts())
    able = [
        name
        for name in ways
        if isinstance(given[name], float) and given[name] != 0.0 and name not in idle_options
    ]
    wrong = [
        f"{name}={given[name]}" if name in given else name for name in named if name not in able
    ]
    if wrong:
        raise ConfigError(
            "population.tuned must name options that have an effect, can change during a run, and "
            f"are neither whole numbers nor 0 (in this run {', '.join(sorted(able))}), got "
            f"{', '.join(wrong)}: leave them out"
        )
    return tuple(named) or tuple(name for name in able if ways[name].usual)


def tuned_shaping(config: RunConfig) -> dict[str, float]:
    """First values of reward shaping by tuned name; raises ConfigError if one has none."""
    given = {f"{SHAPING}{name}": x for name, x in config.env.reward_shaping.items()}
    named = [x for x in config.population.tuned if x.startswith(SHAPING)]
    wrong = [name for name in named if not given.get(name)]
    if wrong:
        form = ", ".join(f'"{name.removeprefix(SHAPING)}": ...' for name in wrong)
        raise ConfigError(
            f"population.tuned needs first values other than 0 for {', '.join(wrong)}: give "
            f"them by --env.reward-shaping '{{{form}}}'"
        )
    return {name: given[name] for name in named}


def shaping_of(env: EnvConfig, values: Mapping[str, float]) -> tuple[float, ...]:
    """All values of a policy's reward shaping, sorted by name; () if none is tuned."""
    if not any(name.startswith(SHAPING) for name in values):
        return ()
    given = sorted(env.reward_shaping.items())
    return tuple(values.get(f"{SHAPING}{name}", x) for name, x in given)


def first_values(config: RunConfig) -> None:
    """Raises ConfigError if the policies can't begin with the given values."""
    from quintet.population.pbt import with_initial

    going_by, initial = rules(config), config.population.initial
    first = going_by.first
    others = sorted(set(initial) - set(first))
    if others:
        raise ConfigError(
            f"population.initial must name options that are tuned ({', '.join(first)}), got "
            f"{', '.join(others)}: leave them out, or name them in population.tuned if they have "
            "an effect here"
        )
    stuck = [n for n, x in first.items() if going_by.near_1(n) and x == 1.0 and n not in initial]
    if stuck and config.population.pbt:
        raise ConfigError(
            f"population.tuned must have first values below 1 for {', '.join(stuck)}, got 1: "
            "mutations multiply the distance to 1, which would stay 0; lower them, or give "
            "population.initial"
        )
    for name, values in initial.items():
        if 0.0 in values:
            raise ConfigError(
                "population.initial must have values that are not 0, got "
                f"{name}={list(values)}: 0 would remove the term from the loss; give a small "
                "number"
            )
    for policy in range(config.population.size):
        try:
            with_values(config.learner, with_initial(first, policy, going_by))
        except ConfigError as error:
            raise ConfigError(f"population.initial: {error}") from error


def with_values(options: BaseModel, values: Mapping[str, float]) -> BaseModel:
    """The learner's options, with the values that belong to them; raises ConfigError if a value is
    out of bounds.
    """
    own = {name: x for name, x in values.items() if not name.startswith(SHAPING)}
    try:
        return type(options).model_validate(options.model_dump() | own)
    except ValidationError as error:
        raise ConfigError(
            f"a policy can't have these values: {'; '.join(faults(error))}"
        ) from error


def population_faults(config: RunConfig) -> list[str]:
    """Faults of a population, one sentence each."""
    population = config.population
    if not population.several:
        return []
    faults: list[str] = []
    share = config.total_env_steps // population.size
    for name in ("start_env_steps", "period_env_steps", "window_env_steps"):
        steps = getattr(population, name)
        if steps is not None and steps >= share:
            faults.append(
                f"population.{name} must be below {share:,}, each policy's share of the "
                f"{config.total_env_steps:,} env_steps, got {steps:,}: no policy would be "
                "considered; lower it or raise total_env_steps, or use population.pbt=false"
            )
    try:
        first_values(config)
        shaping = tuned_shaping(config)
    except ConfigError as error:
        return [*faults, str(error), *_objective_faults(config)]
    if shaping and population.pbt and population.objective == _RETURN:
        faults.append(
            f"population.objective={_RETURN} can't rank policies with different reward shaping "
            f"({', '.join(shaping)}); use episode/success_rate with env.success, or "
            "eval/return_mean with runtime.kind=async: evaluations use env.reward_shaping"
        )
    return faults + _objective_faults(config)


def chosen_faults(config: RunConfig) -> list[str]:
    """Faults of the metrics by which policies are chosen: of the best one's, and those that are no
    numbers of the environment, where these are settled.
    """
    chosen = {"checkpoint.best_by": (by := config.checkpoint.best_by)}
    if config.population.several:
        chosen["population.objective"] = config.population.objective
    found = [fault for each in chosen.items() if (fault := number_fault(*each, config.env))]
    name, _ = signed(by)
    if name.removeprefix("eval/").startswith(ENV) or (name in OF_RUNS and name.startswith("eval/")):
        return found
    return [
        f"checkpoint.best_by must be a metric of evaluations, got {by}: give eval/return_mean, "
        "eval/success_rate, another eval/..., or env/KEY",
        *found,
    ]


def number_fault(option: str, objective: str, env: EnvConfig) -> str:
    """A sentence if an objective is a number of the environment that env.metrics does not name."""
    name = signed(objective)[0].removeprefix("eval/")
    settled = env.metrics != "auto" and "*" not in env.metrics
    if not name.startswith(ENV) or not settled or name.removeprefix(ENV) in env.metric_names:
        return ""
    return (
        f"{option}={objective} must name a number in env.metrics, got {env.metrics}: add it there"
    )


def _objective_faults(config: RunConfig) -> list[str]:
    """Faults of the metric by which policies are ranked."""
    (name, _), kind = signed(config.population.objective), config.runtime.kind
    own = registry.find(config.algo).reported()
    evaluated = [x for x in OF_RUNS if x.startswith("eval/")]
    known = [*MEANS, *evaluated, *own, ENV, f"eval/{ENV}"]
    if not any(name == x or (x.endswith("/") and name.startswith(x)) for x in known):
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "see the names in metrics.jsonl"
        return [
            f"population.objective must be a metric of the policies of {config.algo}, got {name}: "
            f"{hint}"
        ]
    if name.startswith("eval/") and config.eval.episodes == 0:
        return [f"population.objective={name} must have eval.episodes > 0, got 0: raise it"]
    rule = config.env.success or (config.eval_env.success if name in evaluated else None)
    if name.endswith("/success_rate") and rule is None:
        return [
            f"population.objective={name} needs env.success: give a rule, as "
            "--env.success 'reward>0', or another objective"
        ]
    if not config.population.of_episodes and kind != "async":
        return [
            f"population.objective={name} must have runtime.kind=async, got {kind}, in which the "
            f"clock decides nothing, but it decides when {name} is reported: use "
            f"{' or '.join(MEANS)}, or --runtime.kind async"
        ]
    return []
