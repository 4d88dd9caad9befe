"""Reasons why a run may not learn, each said once while it trains."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from quintet.checkpoints.spaces_as_json import as_json
from quintet.doctor.run import examine_runs
from quintet.envs.evidence import Evidence
from quintet.envs.vector import coarse
from quintet.errors import QuintetError
from quintet.findings.choices import Chosen, Learning
from quintet.findings.engine import evaluate, is_known
from quintet.findings.learning import health_name
from quintet.findings.record import LIKELY, Finding
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.leaves import normalized_leaves
from quintet.observe.log import RunLog
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import RunSummary
from quintet.options.run import RunConfig
from quintet.protocols import Part
from quintet.run.folder import RunFolder
from quintet.runtime.delivery import Batch
from quintet.system.files import shown
from quintet.system.user_code import described
from quintet.types import Spaces

_FIRST_ROWS = 512  # rows before the data are first judged; each later time needs twice as many
_LEAST_ROWS, _FRAC = 20_000, 0.1  # data are looked at in this part of the budget
_LOOKS = (0.25, 0.5, 0.75, 1.0)  # fractions of the budget after which reports are looked at
_SAID_BY_OTHERS = ("health-",)


@final
class Findings:
    """Evaluates findings about a run when its spaces are known, by its first data, and by the
    reports in its folder, as the doctor does; without such reports (`report.sinks`) it says nothing
    of these.

    choices, marks: sentences so far about doubtful choices, and about likely causes; lists that
        others may keep.
    """

    def __init__(
        self, config: RunConfig, asked: ModelConfig, spaces: Spaces, folder: RunFolder, log: RunLog
    ):
        """config: resolved; asked: the network's options as they were given."""
        self.config, self.spaces, self.folder, self.log = config, spaces, folder, log
        self.choices, self.marks = list[str](), list[str]()
        self._chosen = Chosen(
            asked,
            resolve_model(asked, spaces),
            spaces,
            Learning.of(config.algo, config.learner),
            config.total_env_steps // config.population.size,
        )
        self._evidence: Evidence | None = Evidence(spaces.observation)
        self._passed, self._next = 0, _FIRST_ROWS  # env_steps
        self._last = max(_LEAST_ROWS, int(_FRAC * config.total_env_steps))
        self._looks = list(_LOOKS)
        self._reported: set[tuple[str, str]] = set()

    def judged(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts of the learner whose state is shown: those that the user does not know."""
        known = self.config.doctor.known
        return tuple(each for each in parts if not is_known(known, health_name(each.name)))

    def resumes(self) -> None:
        """Takes the doubts that an earlier start has said."""
        found = [
            Finding(each.said, {}, each.option, name=each.choice.replace("_", "-"))
            for each in self.folder.choices
        ]
        self.choices += map(str, self._new(found))

    def spaces_known(self, env_steps: int) -> None:
        """Says the doubts about choices that the spaces show."""
        self._say_choices(self._chosen, env_steps)

    def rows(self, batch: Batch, env_steps: int) -> None:
        """Says the doubts that batches show so far, at a few moments of the run's first tenth."""
        if not self._passed:
            self._warn_of_precision(batch)
        evidence, rollout = self._evidence, batch.rollout
        if evidence is None:
            return
        self._passed += batch.env_steps
        if rollout.valid.device.type != "cpu" and self._passed < self._next:
            return  # a look waits for the device
        rows = rollout.valid.numel()
        obs = {name: x[:-1].reshape(rows, *x.shape[2:]) for name, x in rollout.obs.items()}
        terminated, reward = (x.numpy(force=True) for x in (rollout.terminated, rollout.reward))
        arrays = {name: x.numpy(force=True) for name, x in obs.items()}
        valid = rollout.valid.reshape(rows).numpy(force=True)
        evidence.add(arrays, reward.reshape(rows), valid)
        over = (rollout.terminated | rollout.truncated).reshape(rows).numpy(force=True)
        evidence.ends.add({name: x[valid] for name, x in arrays.items()}, over[valid])
        for each in batch.episodes:
            if each.row >= 0:
                by_end = bool(terminated[each.row, each.column])
                last = float(reward[each.row, each.column])
                evidence.ended(each.length, each.return_, by_end, last)
        if self._passed < self._next:
            return
        self._next = max(2 * self._next, self._passed)
        if self._passed >= self._last:
            self._evidence = None
        chosen = replace(self._chosen, model=self.config.model, evidence=evidence)
        self._say_choices(chosen, env_steps)

    def report(self, env_steps: int) -> None:
        """Says the likely causes that the reports show; called after every one."""
        done = env_steps / self.config.total_env_steps
        if done < self._looks[0]:
            return
        self._looks = [each for each in self._looks if each > done] or [2.0]
        try:
            reports = read_metrics(self.folder.path, lambda _: None)
        except (QuintetError, OSError):
            return
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
            self.log.say(f"doctor: it could not examine the reports: {described(error)}")
            return
        for each in self._new([each for each in found if each.weight >= LIKELY]):
            if not each.name.startswith(_SAID_BY_OTHERS):
                self.marks.append(f"{each.said} ({each.name})")
                pointer = f"quintet doctor {shown(self.folder.path)}"
                self.log.say(f"doctor: {self.marks[-1]}; {pointer} says more")

    def _warn_of_precision(self, batch: Batch) -> None:
        """Warns of what float32 loses of a batch's observations."""
        on = getattr(self.config.learner, "normalize_observations", False)
        normalized = normalized_leaves(self.spaces.observation) if on else {}
        for name, x in batch.rollout.obs.items():
            values = x.flatten(0, 1).numpy(force=True)
            if values.size:
                ends = values.min(0), values.max(0)
                rounding = coarse(name, *ends, self.spaces, normalized=name in normalized)
                if rounding is not None:
                    self.log.warn(rounding)

    def _say_choices(self, chosen: Chosen, env_steps: int) -> None:
        doubts = self._new(evaluate("choices", chosen))
        for each in doubts:
            self.log.say(f"choice: {each}")
        self.choices += map(str, doubts)
        self.folder.add_choices(doubts, env_steps)

    def _new(self, found: Sequence[Finding]) -> list[Finding]:
        """The findings that the user does not know and that were not said before."""
        new = [
            each
            for each in found
            if (each.name, each.subject) not in self._reported
            and not is_known(self.config.doctor.known, each.name, each.subject)
        ]
        self._reported |= {(each.name, each.subject) for each in found}
        return new
