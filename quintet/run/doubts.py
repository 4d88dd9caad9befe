"""Reasons why a run may not learn, each said once: doubtful choices, and findings of the doctor."""

from collections.abc import Sequence
from typing import final

from quintet.config import choices
from quintet.config.choices import Doubt, Learning
from quintet.config.run import RunConfig, is_known
from quintet.doctor.run import examine_runs
from quintet.doctor.run_learning import health_name
from quintet.envs.evidence import Evidence
from quintet.envs.vector import coarse
from quintet.errors import QuintetError
from quintet.models.config import ModelConfig
from quintet.models.leaves import normalized_leaves
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import RunSummary
from quintet.protocols import Part
from quintet.run.folder import RunFolder
from quintet.runtime.delivery import Batch
from quintet.spaces_as_json import as_json
from quintet.system.files import shown
from quintet.system.user_code import described
from quintet.types import Obs, Spaces

_FIRST_ROWS = 512  # rows before the data are first judged; each later time needs twice as many
_LEAST_ROWS, _FRAC = 20_000, 0.1  # data are looked at in this part of the budget
_LOOKS = (0.25, 0.5, 0.75, 1.0)  # fractions of the budget after which reports are looked at
_SAID_BY_OTHERS = ("health-",)


@final
class Doubts:
    """Looks at a run's options and at its first data.

    said: the doubts so far, as sentences; a list that others may keep.
    """

    def __init__(self, config: RunConfig, asked: ModelConfig, spaces: Spaces):
        """config: resolved; asked: the network's options as they were given."""
        self.config, self.asked, self.spaces = config, asked, spaces
        self.said: list[str] = []
        self._learning = Learning.of(config.algo, config.learner)
        self._seen: Evidence | None = Evidence(spaces.observation)
        self._passed, self._next = 0, _FIRST_ROWS  # env_steps
        self._last = max(_LEAST_ROWS, int(_FRAC * config.total_env_steps))
        self._known: set[str] = set()

    def knows(self, choice: str, said: str) -> None:
        """Takes a doubt that an earlier start has said."""
        self._known.add(choice)
        if not is_known(self.config.doctor.known, choice.replace("_", "-")):
            self.said.append(said)

    def begin(self) -> list[Doubt]:
        """Doubts that the spaces show."""
        share = self.config.total_env_steps // self.config.population.size
        return self._new(choices.before(self.asked, self.spaces, share))

    def look(self, batch: Batch) -> list[Doubt]:
        """Doubts that the batches so far show, at a few moments of the run's first tenth."""
        seen, rollout = self._seen, batch.rollout
        if seen is None:
            return []
        self._passed += batch.env_steps
        if rollout.valid.device.type != "cpu" and self._passed < self._next:
            return []  # a look waits for the device
        rows = rollout.valid.numel()
        obs = {name: x[:-1].reshape(rows, *x.shape[2:]) for name, x in rollout.obs.items()}
        terminated, reward = (x.numpy(force=True) for x in (rollout.terminated, rollout.reward))
        arrays = {name: x.numpy(force=True) for name, x in obs.items()}
        valid = rollout.valid.reshape(rows).numpy(force=True)
        seen.add(arrays, reward.reshape(rows), valid)
        over = (rollout.terminated | rollout.truncated).reshape(rows).numpy(force=True)
        seen.ends.add({name: x[valid] for name, x in arrays.items()}, over[valid])
        for each in batch.episodes:
            if each.row >= 0:
                by_end = bool(terminated[each.row, each.column])
                last = float(reward[each.row, each.column])
                seen.ended(each.length, each.return_, by_end, last)
        if self._passed < self._next:
            return []
        self._next = max(2 * self._next, self._passed)
        if self._passed >= self._last:
            self._seen = None
        return self._new(choices.during(self.config.model, self.spaces, self._learning, seen))

    def lost_precision(self, obs: Obs) -> list[str]:
        """Sentences about what float32 loses of a batch's observations."""
        on = getattr(self.config.learner, "normalize_observations", False)
        normalized = normalized_leaves(self.spaces.observation) if on else {}
        found = []
        for name, x in obs.items():
            values = x.flatten(0, 1).numpy(force=True)
            if values.size:
                ends = values.min(0), values.max(0)
                found.append(coarse(name, *ends, self.spaces, normalized=name in normalized))
        return [each for each in found if each is not None]

    def _new(self, doubts: list[Doubt]) -> list[Doubt]:
        """The doubts about choices that were not doubted before."""
        known = self.config.doctor.known
        new = [
            each
            for each in doubts
            if each.choice not in self._known and not is_known(known, each.choice.replace("_", "-"))
        ]
        self._known |= {each.choice for each in new}
        self.said += map(str, new)
        return new


@final
class Marks:
    """Examines the reports in a run's folder a few times, as the doctor does; without such reports
    (`report.sinks`) it says nothing.

    said: sentences about likely causes so far; a list that others may keep.
    """

    def __init__(self, config: RunConfig, spaces: Spaces, folder: RunFolder) -> None:
        self.config, self.spaces, self.folder = config, spaces, folder
        self.said: list[str] = []
        self._looks = list(_LOOKS)
        self._known: set[tuple[str, str]] = set()

    def judged(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts of the learner whose state is shown: those that the user does not know."""
        known = self.config.doctor.known
        return tuple(each for each in parts if not is_known(known, health_name(each.name)))

    def look(self, env_steps: int) -> list[str]:
        """Lines about likely causes that were not said before; called after every report."""
        done = env_steps / self.config.total_env_steps
        if done < self._looks[0]:
            return []
        self._looks = [each for each in self._looks if each > done] or [2.0]
        try:
            reports = read_metrics(self.folder.path, lambda _: None)
        except (QuintetError, OSError):
            return []
        run = RunSummary(
            self.folder.path,
            "finished" if done >= 1.0 else "running",
            options=self.config.flat(),
            sources=self.folder.sources,
            spaces=as_json(self.spaces),
            choices=self.folder.choices,
            reports=reports,
        )
        try:
            (found,) = examine_runs([run]).values()
        except Exception as error:  # a fault of the doctor must not end the run
            return [f"doctor: it could not examine the reports: {described(error)}"]
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
