"""``quintet plot``: pictures of runs."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import say


@final
@dataclass(frozen=True)
class Plot:
    """Draws learning curves or final scores of runs."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN...")] = ()
    """run folders, or folders that hold run folders"""
    out: str | None = None
    """file of the picture: .png, .svg or .pdf"""
    kind: Literal["curve", "bars"] = "curve"
    """curve: mean over seeds; bars: interquartile mean of final scores; 95% bootstrap intervals"""
    x: Literal["env_steps", "wall_s"] | None = None
    """horizontal axis of curves; None: env_steps"""
    lineage: bool = False
    """draw a population's copies and hyperparameters"""
    metric: Annotated[
        str | None,
        arg(
            help="name of a metric in metrics.jsonl; None: the success rate if all runs have one, "
            "else the mean return (curve: of training, bars: of evaluations)"
        ),
    ] = None

    def execute(self) -> None:
        """Draws, and prints the file's name."""
        if not self.runs or self.out is None:
            raise ConfigError(
                "quintet plot must get at least one run and a file: quintet plot RUN... --out "
                "FILE.png"
            )
        if self.kind == "bars" and self.x is not None:
            raise ConfigError(f"--x {self.x} has no effect on --kind bars: leave it out")
        from quintet.algorithms import registry
        from quintet.observe.run_summary import find_runs, learner_of

        out, places = given_path(self.out), [run_path(run) for run in self.runs]
        inside = {place: [] if self.lineage else find_runs(place) for place in places}
        found = [run for place in places for run in inside[place] or [place]]
        registry.declare_of(map(learner_of, found))  # gives the metrics their units
        if self.lineage:
            if len(places) > 1 or self.x or self.metric is not None or self.kind != "curve":
                raise ConfigError(
                    "--lineage must have one run and no --x, --metric or --kind: leave these out"
                )
            from quintet.observe.lineage import plot_lineage

            say(shown(plot_lineage(places[0], out)))
            return
        from quintet.observe.plots import plot_runs

        say(shown(plot_runs(found, out, self.kind, self.x or "env_steps", self.metric)))
