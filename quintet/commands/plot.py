"""``quintet plot``: pictures of runs."""

from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.system.files import given_path, shown
from quintet.system.printing import say


def main(arguments: list[str]) -> int:
    def draw(
        runs: Annotated[
            Positional[tuple[str, ...]],
            arg(help="run folders, or folders that hold run folders", metavar="RUN..."),
        ] = (),
        out: Annotated[str | None, arg(help="file of the picture: .png, .svg or .pdf")] = None,
        kind: Annotated[
            Literal["curve", "bars"],
            arg(
                help="curve: mean over seeds with a 95% bootstrap band; bars: interquartile mean "
                "of final scores with its 95% bootstrap interval"
            ),
        ] = "curve",
        x: Annotated[
            Literal["env_steps", "wall_s"] | None,
            arg(help="horizontal axis of curves; None: env_steps"),
        ] = None,
        lineage: Annotated[
            bool, arg(help="draw a population's copies and hyperparameters")
        ] = False,
        metric: Annotated[
            str | None,
            arg(
                help="name of a metric in metrics.jsonl; None: the success rate if all runs have "
                "one, else the mean return (curve: of training, bars: of evaluations)"
            ),
        ] = None,
    ) -> None:
        if not runs or out is None:
            raise ConfigError(
                "quintet plot must get at least one run and a file: quintet plot RUN... --out "
                "FILE.png"
            )
        if kind == "bars" and x is not None:
            raise ConfigError(f"--x {x} has no effect on --kind bars: leave it out")
        from quintet.algorithms import registry
        from quintet.observe.run_summary import find_runs, learner_of

        places = [given_path(run) for run in runs]
        inside = {place: [] if lineage else find_runs(place) for place in places}
        found = [run for place in places for run in inside[place] or [place]]
        registry.declare_of(map(learner_of, found))  # gives the metrics their units
        if lineage:
            if len(runs) > 1 or x is not None or metric is not None or kind != "curve":
                raise ConfigError(
                    "--lineage must have one run and no --x, --metric or --kind: leave these out"
                )
            from quintet.observe.lineage import plot_lineage

            say(shown(plot_lineage(places[0], given_path(out))))
            return
        from quintet.observe.plots import plot_runs

        say(shown(plot_runs(found, given_path(out), kind, x or "env_steps", metric)))

    description = "Draws learning curves or final scores of runs."
    tyro.cli(draw, prog="quintet plot", description=description, args=arguments)
    return 0
