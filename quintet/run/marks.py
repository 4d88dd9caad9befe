"""Likely causes of a failure that the doctor finds in a run while it trains; each is said once."""

from collections.abc import Mapping
from typing import final

from quintet.config.run import RunConfig
from quintet.doctor.run import examine_runs
from quintet.observe.run_summary import RunSummary
from quintet.run.folder import RunFolder
from quintet.spaces import as_json
from quintet.system.files import shown
from quintet.system.user_code import described
from quintet.types import Spaces

_LOOKS = (0.25, 0.5, 0.75, 1.0)  # fractions of the budget after which reports are looked at
_MOST_REPORTS = 600
_SAID_BY_OTHERS = ("health-",)


@final
class Marks:
    """Looks at the reports of a run a few times.

    said: sentences about likely causes so far; a list that others may keep.
    """

    def __init__(self, config: RunConfig, spaces: Spaces, folder: RunFolder) -> None:
        self.config, self.spaces, self.folder = config, spaces, folder
        self.said: list[str] = []
        self._reports: list[Mapping[str, float]] = []
        self._looks = list(_LOOKS)
        self._known: set[tuple[str, str]] = set()

    def look(self, report: Mapping[str, float], env_steps: int) -> list[str]:
        """Adds a report; returns lines about likely causes that were not said before."""
        self._reports.append(report)
        if len(self._reports) > _MOST_REPORTS:  # every other, and the newest
            del self._reports[-2:0:-2]
        done = env_steps / self.config.total_env_steps
        if done < self._looks[0]:
            return []
        self._looks = [each for each in self._looks if each > done] or [2.0]
        run = RunSummary(
            self.folder.path,
            "finished" if done >= 1.0 else "running",
            options=self.config.flat(),
            sources=self.folder.sources,
            spaces=as_json(self.spaces),
            choices=self.folder.choices,
            reports=self._reports,
        )
        try:
            (found,) = examine_runs([run]).values()
        except Exception as error:  # which must not end the run
            return [f"doctor: it could not look at the reports: {described(error)}"]
        told = {each.choice.replace("_", "-") for each in run.choices}
        new = [
            each
            for each in found
            if each.degree == "likely"
            and (each.name, each.subject) not in self._known
            and each.name not in told
            and not each.name.startswith(_SAID_BY_OTHERS)
        ]
        self._known |= {(each.name, each.subject) for each in new}
        lines = [f"{each.said} ({each.name})" for each in new]
        self.said += lines
        pointer = f"quintet doctor {shown(self.folder.path)}"
        return [f"doctor: {line}; {pointer} says more" for line in lines]
