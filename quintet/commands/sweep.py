"""``quintet sweep``: a search for good options."""

from dataclasses import replace
from typing import Annotated, Literal

import tyro
from tyro.conf import UseAppendAction, arg

from quintet.errors import ConfigError, QuintetError
from quintet.options.command import parse
from quintet.search.sweep_asked import Asked
from quintet.system.files import shown
from quintet.system.printing import say
from quintet.system.signals import INTERRUPTED

DESCRIPTION = (
    "Searches for good options of a learner: quintet sweep ALGO --env ID --trials N.  All options "
    "of quintet train may be given too, for all trials; the same command resumes a sweep."
)


def main(arguments: list[str]) -> int:
    """Returns 0 if the sweep is finished, 130 if it was stopped."""
    asked = read(arguments)
    asked.require()
    from quintet.search.sweep import sweep

    found = sweep(asked)
    from quintet.search.sweep_files import lines, write

    say("\n".join(lines(found)))
    for name in write(found):
        say(shown(found.folder / name) if " " not in name else name)
    if found.status == "stopped":
        say("stopped; the same command resumes the sweep")
        return INTERRUPTED
    if found.winner is None:
        first = next((each.error for each in found.trials if each.error), "all were pruned")
        raise QuintetError(f"no trial trained to its end; the first reason: {first}")
    return 0


def read(arguments: list[str]) -> Asked:
    """The sweep of a command line; raises ConfigError for words that can't be parsed."""

    def ask(
        trials: Annotated[int | None, arg(help="number of trials", metavar="INT")] = None,
        minutes: Annotated[
            float | None, arg(help="minutes, with reruns on fresh seeds", metavar="FLOAT")
        ] = None,
        jobs: Annotated[
            int,
            arg(help="number of trials at the same time, on this machine or with --cluster"),
        ] = 1,
        search: Annotated[
            UseAppendAction[tuple[str, ...]],
            arg(
                help="an option to search, once or several times: NAME=LOW..HIGH, "
                "NAME=LOW..HIGH:log, NAME=A,B,C, NAME alone for a range around its value, or "
                "a YAML file of these (none: the learner's usual options)",
                metavar="NAME=...",
            ),
        ] = (),
        sampler: Annotated[
            Literal["tpe", "random"], arg(help="Optuna's sampler of new values")
        ] = "tpe",
        pruner: Annotated[
            Literal["median", "hyperband", "none"],
            arg(help="Optuna's rule by which trials end early"),
        ] = "median",
        metric: Annotated[
            str | None,
            arg(
                help="the score, the higher the better, such as env/KEY, a number of env.metrics; "
                "-NAME: the lower the better (none: eval/return_mean, without evaluations "
                "episode/return_mean)",
                metavar="NAME",
            ),
        ] = None,
        best: Annotated[int, arg(help="number of best trials that are trained again")] = 3,
        seeds_of_best: Annotated[int, arg(help="number of fresh seeds for each of them")] = 3,
    ) -> Asked:
        own = (trials, minutes, jobs, search, sampler, pruner, metric, best, seeds_of_best)
        return Asked(*own)

    asked, rest = tyro.cli(
        ask,
        prog="quintet sweep ALGO --env ID",
        description=DESCRIPTION,
        args=arguments,
        return_unknown_args=True,
    )
    run = parse("sweep", rest)
    if run.overwrite:
        raise ConfigError("--overwrite does not belong to quintet sweep: give another --run-dir")
    layers = (*run.files, run.options)
    return replace(asked, algo=run.algo, layers=layers, trust=run.trust)
