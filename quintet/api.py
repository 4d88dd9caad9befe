"""`quintet.train`: its arguments become one layer of a run's configuration.

What can be refused without a network is refused before PyTorch is imported.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from quintet.algorithms import registry
from quintet.envs.env_source import GIVEN, EnvLike, EnvSource, can_be_made_again, settle
from quintet.errors import ConfigError, GroupFault
from quintet.options.command import require_minutes
from quintet.options.layers import Layer, canonical, flatten, hint, listed, named_here, options
from quintet.options.resolve import Loaded, check_spaces
from quintet.options.saved import Unusable, load_config, load_seeds
from quintet.system.importing import Given, named, require_no_import
from quintet.system.trust import is_trusted_by_options

if TYPE_CHECKING:
    from quintet.models.custom import Maker
    from quintet.policies.policy import Policy
    from quintet.run.callbacks import Callbacks, OnReport
    from quintet.run.launch import Result


@overload
def train(
    algo: str,
    env: EnvLike,
    total_steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    on_report: "OnReport | None" = None,
    *,
    callbacks: "Callbacks | None" = None,
    model: "Maker | None" = None,
    lr_schedule: Callable[[float], float] | None = None,
    curriculum: object = None,
    cluster: str | None = None,
    trust: bool = False,
    overwrite: bool = False,
    minutes: float | None = None,
    jobs: int | None = None,
) -> "Result": ...


@overload
def train(
    algo: str,
    env: EnvLike,
    total_steps: int | None = None,
    seed: None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    on_report: None = None,
    *,
    callbacks: None = None,
    model: "Maker | None" = None,
    lr_schedule: Callable[[float], float] | None = None,
    curriculum: object = None,
    cluster: str | None = None,
    trust: bool = False,
    overwrite: bool = False,
    minutes: float | None = None,
    seeds: Sequence[int],
    jobs: int | None = None,
) -> "list[Result]": ...


def train(
    algo: str,
    env: EnvLike,
    total_steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    on_report: "OnReport | None" = None,
    *,
    callbacks: "Callbacks | None" = None,
    model: "Maker | None" = None,
    lr_schedule: Callable[[float], float] | None = None,
    curriculum: object = None,
    cluster: str | None = None,
    trust: bool = False,
    overwrite: bool = False,
    minutes: float | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    **others: object,
) -> "Result | list[Result]":
    """Trains a policy, or resumes the run in `run_dir`.

    Args:
        algo: the learner's name, in any case; ``auto``: a race over learners and settings for
            `minutes`, whose result is the winner's run. It has no `total_steps`, `seeds`,
            `on_report` and `callbacks`; Ctrl-C raises KeyboardInterrupt, and the same call goes on.
        env: an environment's id, a callable that makes environments, a vector environment, or an
            environment of `gymnasium.make`, which is copied, as for `quintet.make_vector_env`. A
            given vector environment that can't be copied has no evaluations during training, and a
            warning says so.
        total_steps: agent decisions over all streams; None: the preset's, else 1,000,000.
        run_dir: None: ``runs/ALGO-ENV-sSEED``; with `seeds`, the folder that holds the folders
            ``sSEED``.
        config: any other option, nested or by dotted name: ``{"learning_rate": 1e-3,
            "env.num_streams": 4}``.  ``eval.env.id``, the environment of the evaluations, may be
            everything that `env` may be except a vector environment.
        on_report: called with every report, at intervals of ``report.interval_s``; once it returns
            True, the run stops as by Ctrl-C. An error that it raises also ends the run, after a
            checkpoint.
        callbacks: functions that are called at other moments of the run.
        model: an encoder of your own, see `quintet.models.custom`: a class, or a function that
            makes a module.  Its import string is stored in ``model.encoder``; an encoder without
            one (a lambda, a class made inside a function) has to be given again to resume the run,
            and to `quintet.load` as `encoder`.
        lr_schedule: a function of the fraction of the budget that is done, which returns the factor
            of the learning rate.  Its import string is stored in ``lr_schedule``; a function
            without one has to be given again to resume the run.
        curriculum: a curriculum of your own, see `quintet.envs.curriculum`: an object, of which the
            run takes copies, or a class or function that makes one; else as `lr_schedule`.
        cluster: ``auto`` or the address of a Ray cluster, on whose nodes the workers run.
        trust: whether any code that the run in `run_dir` names may be imported and called. False:
            only code that is also given here, or any code if this user made the run on this
            machine.
        overwrite: starts a new run if `run_dir` holds a run, whose folder is kept as
            ``RUN_DIR.old-1``, ``-2``, ...
        minutes: time of a new run, in place of `total_steps`: the speed is measured when it begins,
            and the number of env_steps that fits is stored; of a seed group, the time of each run.
        seeds: trains a seed group: runs that differ in their seed, each in its own process.
        jobs: number of runs at the same time, which share the cores; None: cores divided by
            ``runtime.threads``.
        others: none; each name is refused with the option that it stands for.

    Returns:
        A result, whose status is "stopped" after Ctrl-C; with `seeds` a list of results in their
        order, without runs that never started because the group was stopped.

    Raises:
        ConfigError: lists all faults of the configuration.
        UntrustedError: the run in `run_dir` names code that may not run.
        GroupFault: with `seeds`, some runs failed; the others ran to their ends.
    """
    require_no_import("quintet.train")
    racing = isinstance(algo, str) and algo.lower() == "auto"
    algo = registry.DEFAULT if racing else registry.canonical(algo)
    if others:
        raise ConfigError(listed([_argument_fault(algo, name, x) for name, x in others.items()]))
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config must be a mapping of options, got {config!r}")
    if on_report is not None:
        _check_call("on_report", on_report, "one report")
    if callbacks is not None:
        _check_callbacks(callbacks)
    given = {"total_env_steps": total_steps, "seed": seed, "run_dir": run_dir}
    values = _with_arguments(algo, config or {}, given | {"cluster.address": cluster})
    require_minutes(minutes, values)
    if model is not None:
        from quintet.models.custom import encoder_name

        _settle("model", values, {"model.encoder": encoder_name(model)})
    if lr_schedule is not None:
        _check_call("lr_schedule", lr_schedule, "the share of the budget that is done")
        _settle("lr_schedule", values, {"lr_schedule": named("lr_schedule", lr_schedule)})
    if curriculum is not None:
        from quintet.envs.curriculum import record_of

        _settle("curriculum", values, {"env.curriculum": record_of(curriculum)})
    _settle_evaluated(values)
    source = _settle_env(env, values)
    command = Layer("call", values)
    if racing:
        unfit = {"on_report": on_report, "callbacks": callbacks, "seeds": seeds}
        return _race(unfit, minutes, (command,), jobs, source, trust, overwrite)
    if seeds is None:
        if jobs is not None:
            raise ConfigError(f"jobs={jobs} has no effect without seeds; leave it out")
        loaded = load_config(algo, [], command, source, trust=trust, overwrite=overwrite)
        check_spaces(loaded)
        if minutes is None:
            from quintet.run.launch import run

            return run(loaded, on_report, callbacks)
        from quintet.search.minutes import train as train_for

        return train_for(loaded, minutes, on_report, callbacks)
    vector = source if isinstance(source, GIVEN) else None
    alone = {"on_report": on_report, "callbacks": callbacks, "a vector environment": vector}
    for what in (name for name, x in alone.items() if x is not None):
        raise ConfigError(
            f"{what} is not possible with seeds, each of which trains in its own process: "
            "leave one of them out, or call train for each seed"
        )
    group = load_seeds(algo, [], command, seeds, source, trust=trust, overwrite=overwrite)
    return _train_group(group, jobs, minutes)


def _train_group(
    group: Sequence[Loaded | Unusable], jobs: int | None, minutes: float | None
) -> "list[Result]":
    """The results of the runs of a seed group; raises GroupFault if some failed."""
    from quintet.run.launch import Result
    from quintet.search.seed_group import run_seeds

    outcomes = run_seeds(group, jobs, minutes)
    failed = [f"seed {each.seed}: {each.error}" for each in outcomes if each.status == "failed"]
    if failed:
        raise GroupFault(f"{len(failed)} of {len(outcomes)} runs failed\n" + "\n".join(failed))
    found: list[Result] = []
    for each, mine in zip(outcomes, group, strict=True):
        if isinstance(mine, Loaded) and (each.status == "finished" or each.status == "stopped"):
            # An encoder that was given as a function stays one.
            values = mine.config.flat() | {"model.encoder": mine.config.model.encoder}
            policy = _trained_policy(each.run_dir, values)
            found.append(Result(each.run_dir, policy, each.metrics, each.status))
    return found


def _race(unfit: Mapping[str, object], *given: Any) -> "Result":
    """The winner's run of a race.

    unfit: arguments that a race has not; given: fields of `Asked`.
    """
    for name in (name for name, x in unfit.items() if x is not None):
        raise ConfigError(f"{name} does not belong to a race: leave it out")
    from quintet.observe.run_summary import read_summary
    from quintet.run.launch import Result
    from quintet.search.race import race
    from quintet.search.race_asked import Asked

    asked = Asked(*given)
    if race(asked).state != "finished":
        raise KeyboardInterrupt(f"the race in {asked.folder} was stopped; the same call goes on")
    run_dir = asked.folder
    metrics = dict((read_summary(run_dir).reports or [{}])[-1])
    return Result(run_dir, _trained_policy(run_dir, asked.values), metrics, "finished")


_ARGUMENTS = ("total_env_steps", "seed", "run_dir", "lr_schedule")
"""Options that `train` has as arguments, too."""


def _argument_fault(algo: str, name: str, value: object) -> str:
    """Advice on an argument that `train` does not have."""
    if name in options(algo):
        given = f"give config={{{name!r}: {value!r}}}"
        if callable(value):
            given = f"give its first value in config={{{name!r}: NUMBER}}"
            if name.endswith(("learning_rate", "_lr")):
                given += (
                    ", and lr_schedule=FUNCTION, an argument of train, which maps the fraction of "
                    "the budget that is done (not left) to a factor of the rate"
                )
        return f"{name} is an option, not an argument of train; {given}"
    told = hint(algo, name)
    if {*(named_here(algo, name) or ())} & {*_ARGUMENTS}:
        whose = ", an argument of train"
    elif "total_env_steps" in told:
        whose = ", which is total_steps in train"
    else:
        whose = ", an option of config" if told.startswith(("; here", "; did")) else ""
    return f"unknown argument {name!r}{told}{whose}"


def _trained_policy(run_dir: Path, values: Mapping[str, Any]) -> "Policy":
    """The policy of a run in another process.  The caller's options are trusted in place of a
    signature, for which there may be no key.
    """
    from quintet.policies.folders import find_policy
    from quintet.policies.policy import load

    description, *_ = find_policy(run_dir)
    trusted = is_trusted_by_options(description, values)
    own = values.get("model.encoder")
    return load(run_dir, trust=trusted, encoder=own if isinstance(own, Given) else None)


def _check_callbacks(callbacks: "Callbacks") -> None:
    """Refuses callbacks that can't be called with their arguments, before training begins."""
    from quintet.run.callbacks import Callbacks

    if not isinstance(callbacks, Callbacks):
        raise ConfigError(
            f"callbacks must be quintet.Callbacks(evaluation=..., ...), got {callbacks!r}"
        )
    given = {
        "begin": "the run",
        "evaluation": "the run and the scores",
        "report": "the run and the report",
        "checkpoint": "the run and the path",
        "end": "the run and the status",
    }
    for name, what in given.items():
        function = getattr(callbacks, name)
        if function is not None:
            _check_call(f"callbacks.{name}", function, what)


def _check_call(name: str, function: object, what: str) -> None:
    """Refuses an object that can't be called with the arguments that `what` names, joined by
    "and"."""
    if callable(function):
        try:
            inspect.signature(function).bind(*what.split(" and "))
            return
        except ValueError:  # some built-in callables don't tell
            return
        except TypeError:
            pass
    raise ConfigError(f"{name} must be a function of {what}, got {function!r}")


def _settle_env(env: EnvLike, values: dict[str, Any]) -> EnvSource | None:
    """Adds the options that the environment determines to `values`; returns its source."""
    says, source = settle(env)
    if source is not None and ":<" in says["id"] and "run_dir" not in values:
        raise ConfigError(
            "run_dir must be given with an environment that has no name of its own (a lambda, a "
            "partial, a vector environment), got none: runs of two such environments would share "
            "one folder; give run_dir or a named function"
        )
    _settle("env", values, {f"env.{name}": value for name, value in says.items()})
    own = values.get("eval.env.id") not in (None, says["id"])
    if not can_be_made_again(source) and not own:  # evaluation needs environments of its own
        way_out = "give a function with a parameter num_envs that makes such environments"
        if values.setdefault("eval.episodes", 0) != 0:
            raise ConfigError(
                "eval.episodes must be 0 if the training environment is the only one, got "
                f"{values['eval.episodes']}; {way_out}"
            )
        warnings.warn(
            "no evaluation while training, and no best policy: the vector environment that is "
            f"given is the only one; to have both, {way_out}",
            stacklevel=3,
        )
    return source


def _with_arguments(
    algo: str, config: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of `config` and the arguments that are given; refuses other values of these,
    however they are written."""
    known = options(algo)
    values = flatten(config, known)
    says = {name: canonical(x, known[name]) for name, x in given.items() if x is not None}
    values |= {name: canonical(values[name], known[name]) for name in says.keys() & values.keys()}
    _settle("argument", values, says)
    return values


def _settle_evaluated(values: dict[str, Any]) -> None:
    """Replaces an environment of evaluations that is given in Python by its options."""
    given = values.get("eval.env.id")
    if given is None or isinstance(given, str):
        return
    says, source = settle(given)
    if isinstance(source, GIVEN):
        raise ConfigError(
            "eval.env.id must be an id or a function that makes environments, got a vector "
            "environment: give a function with a parameter num_envs that makes such "
            "environments"
        )
    values["eval.env.id"] = says.pop("id") if source is None else named("eval.env.id", source)
    for name in ("backend", "kwargs", "num_threads") if source is None else ():
        if name in says:
            _settle("eval.env", values, {f"eval.env.{name}": says[name]})


def _settle(what: str, values: dict[str, Any], says: Mapping[str, Any]) -> None:
    """Adds the options that an argument determines; refuses other values of them."""
    for name, value in says.items():
        if values.setdefault(name, value) != value:
            raise ConfigError(
                f"{name} must be what the given {what} says, {value!r}; got "
                f"{values[name]!r}; leave it out"
            )
