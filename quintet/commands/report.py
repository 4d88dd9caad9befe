"""``quintet report``: one page about runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError, QuintetError
from quintet.observe.run_summary import find_runs, read_summary
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import say


@final
@dataclass(frozen=True)
class Report:
    """Writes one HTML file about runs, without scripts and outside resources."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN...")] = ()
    """run folders, or folders that hold run folders"""
    out: str | None = None
    """file of the page: .html"""
    title: str = "Runs"
    """title of the page"""

    def execute(self) -> None:
        """Writes the page, and prints its name."""
        if not self.runs or self.out is None:
            raise ConfigError(
                "quintet report must get at least one run and a file: quintet report RUN... --out "
                "FILE.html"
            )
        page = given_path(self.out)
        if page.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"--out must end in .html, got {self.out}: give such a name")
        # One run under two names is listed once.
        places: dict[Path, Path] = {}
        for run in self.runs:
            found = find_runs(run_path(run))
            if not found:
                raise QuintetError(
                    f"RUN must be a run folder, or a folder with runs, got {run} with none: leave "
                    "it out, or correct its name"
                )
            places |= {each.resolve(): each for each in found}
        from quintet.algorithms import registry
        from quintet.doctor.run import examine_runs
        from quintet.observe.report_page import write_page

        summaries = [read_summary(each) for each in places.values()]
        registry.declare_of(each.learner for each in summaries)  # gives the metrics their units
        marks = examine_runs(summaries, policies=True)
        say(shown(write_page(summaries, self.title, page, marks)))
