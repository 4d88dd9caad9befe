"""The checkpoints of a run: when one is written, its contents, and the resume from it."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from quintet.checkpoints import checkpoint, run_record, saved_options
from quintet.checkpoints.checkpoint import Checkpoint
from quintet.envs.own_state import States, decoded
from quintet.errors import CheckpointError, ConfigError, QuintetError
from quintet.options.bounds import MOST_STREAMS
from quintet.options.run import CHANGE_ROUNDING, RunConfig
from quintet.options.saved import require_same
from quintet.policies.folders import ENVIRONMENTS, LEADER, POLICIES
from quintet.run.folder import RunFolder
from quintet.run.policy_run import PolicyRun, leader
from quintet.runtime import loop
from quintet.system import provenance

if TYPE_CHECKING:
    from quintet.population.self_play import PastWeights
    from quintet.run.policy_replay import RunReplay
    from quintet.run.population import Population

_WITHOUT_END = 10
"""Divisor of the budget: after this fraction a notice says that no episode has ended."""

_TIME_FRAC = 0.01
"""Fraction of a run's time above which checkpoints that are merely due are skipped."""


def _kind(value: Any) -> Any:
    """An option's value; of a device without its number, since one of each kind rounds alike."""
    return value.partition(":")[0] if isinstance(value, str) else value


@final
class Saving:
    """Writes and reads the checkpoints of a run with all its policies.

    interval: iterations between two checkpoints.
    unrepeatable: why no resume is exact, as `quintet.envs.repeating` says it; "": it may be.
    on_path: whether the run so far has the bytes of an uninterrupted run; True for async runs.
    notes, warnings: messages about the folder, printed once the log is open.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        policies: Sequence[PolicyRun],
        system: Mapping[str, str],
        population: "Population | None" = None,
        past: "PastWeights | None" = None,
    ) -> None:
        self.config, self.folder, self.policies, self.system = config, folder, policies, system
        self.population, self.past = population, past
        self.options = {k: v for k, v in config.flat().items() if k != "run_dir"}
        plan = policies[0].learner.plan
        batch_steps = plan.unroll_steps * plan.columns_per_batch
        self.iterations = -(-config.total_env_steps // batch_steps)
        self.interval = config.checkpoint.interval(self.iterations)
        self.unrepeatable, self.on_path = "", True
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self._seconds = 0.0
        self.sampling: loop.Sampling | None = None
        self._environments: States = {}  # last seen, or of the checkpoint
        self._forgets = False  # environments are made anew where the run goes on
        self._discarded_columns: list[int] = []

    def replay_holds(self, iterations: int) -> bool:
        """Whether every replay has the rows for a checkpoint from this many iterations ago."""
        return all(replay.holds(iterations) for replay in self._replays)

    @property
    def _replays(self) -> "list[RunReplay]":
        return [each.replay for each in self.policies if each.replay is not None]

    def due(self, counters: loop.Counters, wall_s: float) -> bool:
        """Whether a checkpoint is due and worth writing."""
        passed = counters.iteration - counters.checkpoint_iteration
        return passed >= self.interval and self.worth_writing(counters, wall_s)

    def worth_writing(self, counters: loop.Counters, wall_s: float) -> bool:
        """Whether to write a checkpoint that is merely due."""
        # A replay keeps the rows that a checkpoint needs for one interval and no longer.
        automatic = self.config.checkpoint.interval_iterations == "auto" and not self._replays
        costly = self._seconds > _TIME_FRAC * wall_s
        return not (automatic and costly) or self._is_milestone(counters)

    def _is_milestone(self, counters: loop.Counters) -> bool:
        return self.config.checkpoint.is_milestone(
            self.iterations, counters.checkpoint_iteration, counters.iteration
        )

    def write(
        self,
        counters: loop.Counters,
        exact: bool,
        said: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> Path:
        """Writes a checkpoint and prunes older ones; `said`: further entries of its meta."""
        begin = time.perf_counter()
        milestone = self._is_milestone(counters)
        counters.checkpoint_iteration = counters.iteration
        tensors, exact = self._save_environments(exact, warn)
        parts: list[dict[str, Any]] = []
        for policy in self.policies:
            own, part = policy.save()
            tensors |= own
            parts.append(part)
        more = parts[0]
        if len(parts) > 1:
            more = {POLICIES: parts, LEADER: leader(self.policies).folder.index}
        if self.past is not None:
            own, more["self_play"] = self.past.save()
            tensors |= own
        if self.population is not None:
            more["population"] = self.population.controller.save()
        meta = {
            # Only these can be resumed from with the bytes of the uninterrupted run.
            "exact": exact and self.on_path,
            "total_env_steps": self.config.total_env_steps,
            "milestone": milestone,
            "iteration": counters.iteration,
            "env_steps": counters.env_steps,
            "counters": dataclasses.asdict(counters),
            saved_options.CONFIG: self.options,
            provenance.SYSTEM: self.system,
            "discarded_columns": self._columns(),
            **said,
            **more,
        }
        # Named by iterations, which always grow, unlike updates.
        self.folder.check()
        name, signed = f"{counters.iteration:09d}", self.folder.signed
        path = checkpoint.write(self.folder.checkpoints, name, tensors, meta, signed=signed)
        keep = self.config.checkpoint.keep
        self.folder.prune(keep, lambda kept: bool(kept.get("milestone")), warn)
        self._seconds += time.perf_counter() - begin
        return path

    def _columns(self) -> list[int]:
        """Number of columns dropped so far, by policy."""
        if self.sampling is None:
            return self._discarded_columns
        return [queue.dropped_columns for queue in self.sampling.delivery.queues]

    def _save_environments(
        self, exact: bool, warn: Callable[[str], None]
    ) -> tuple[dict[str, dict[str, Tensor]], bool]:
        """The state that environments offer, and whether an exact checkpoint is exact with it."""
        try:
            states = self.look_at_environments()
        except QuintetError as error:
            warn(f"a checkpoint lacks the state of the environments: {error}")
            return {}, False
        found = {
            f"{group}/{index}": torch.from_numpy(np.frombuffer(state, np.uint8).copy())
            for group, own in states.items()
            for index, state in enumerate(own)
            if state
        }
        return ({ENVIRONMENTS: found} if found else {}), exact

    def look_at_environments(self) -> States:
        """The state that environments offer; copies of the policies get that of the first."""
        if self.sampling is not None:
            self._environments = self.sampling.save_environments()
        for policy in self.policies:
            policy.own_state = next(iter(self._environments.get(0, ())), b"")
        return self._environments

    def goes_on(self, sampling: loop.Sampling) -> None:
        """Gives the sampling what it had in earlier processes of the run: the state of its
        environments, and the numbers of columns dropped.
        """
        self.sampling = sampling
        sampling.load_environments({} if self._forgets else self._environments)
        queues = sampling.delivery.queues
        for queue, columns in zip(queues, self._discarded_columns, strict=False):
            queue.dropped_columns = columns

    def restore(self) -> tuple[Checkpoint | None, loop.Counters]:
        """Resumes from the folder's newest checkpoint; None for a new run.  Raises
        CheckpointError if none that fits can be read, ConfigError if the budget is smaller than the
        steps trained.
        """
        exact = self.config.resume == "exact"
        passed_over: list[str] = []
        found = self.folder.newest(exact, passed_over.append)
        steps = 0 if found is None else found.meta.get("env_steps") or 0
        loss = None if exact else run_record.lost(self.folder.path, steps)
        if loss is not None and not passed_over:
            self.warnings.append(f"{loss}; what came after is trained again")
        if found is None:
            return None, loop.Counters()
        self.warnings += passed_over
        try:
            counters = self._load(found)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            lacks = "it lacks " * isinstance(error, KeyError)
            raise CheckpointError(
                f"{found.path} must hold a run's own checkpoint, got none "
                f"({lacks}{' '.join(str(error).split())}); remove it to resume from the one "
                "before, or give another --run-dir"
            ) from error
        if passed_over:
            self.warnings.append(
                f"what was trained after {counters.env_steps:,} env_steps is trained again"
            )
        trained, asked = counters.env_steps, self.config.total_env_steps
        if trained > asked:
            raise ConfigError(
                f"total_env_steps must be at least the {trained:,} that {self.folder.path} has "
                f"trained, got {asked:,}: leave it out or raise it"
            )
        if exact:
            self.notes += self.folder.remove_newer(found.path)
        asked = found.meta.get(saved_options.CONFIG, {}).get("eval.interval")
        same = asked == self.config.eval.interval != "auto"  # "auto" goes by the clock
        if self.config.runtime.kind == "async" or not (self.on_path and same):
            # The same evaluations need not come again.
            for policy in self.policies:
                policy.take_newer_best(found)
        return found, counters

    def _load(self, found: Checkpoint) -> loop.Counters:
        """Puts the run into a checkpoint's state; returns the counters."""
        meta, asked = found.meta, self.config.total_env_steps
        require_same(found.path, meta.get(saved_options.CONFIG, {}), self.options)
        for policy in self.policies:
            self.warnings += policy.load(found)
        if self.population is not None:
            self.population.controller.load(meta["population"])
            self.population.shape()
        if self.past is not None:
            self.past.load(found.tensors, meta["self_play"])
        for policy in self.policies:
            self._load_replay(policy, found)
        self._discarded_columns = list(meta["discarded_columns"])
        self._environments = _environments(found.tensors.get(ENVIRONMENTS, {}))
        self._forgets = self.config.env.fresh_at_checkpoints and bool(meta.get("exact"))
        self.look_at_environments()
        counters, total = loop.Counters.of(meta), meta["total_env_steps"]
        _ = meta["wall_s"]
        free = self.config.runtime.kind == "async"
        rounding = self._changed_rounding(found)
        same = total == asked and not rounding and not self.unrepeatable
        self.on_path = free or (meta.get("exact", False) and same)
        path = "" if self.on_path else "; results will differ from the uninterrupted run's"
        updates = sum(policy.learner.updates for policy in self.policies)
        self.notes.append(
            f"resumed at update {updates:,}, {counters.env_steps:,} env_steps, "
            f"from {found.path}{path}"
        )
        if not free:
            self.warnings += provenance.warnings(found.path, meta, dict(self.system))
        if counters.env_steps < asked and total != asked:
            at_once = "rises" if asked > total else "falls further"
            self.notes.append(
                f"the budget was {total:,} env_steps and is {asked:,} now: schedules follow the "
                f"share of the new budget that is done, so a falling rate {at_once} at once"
            )
        return counters

    def _changed_rounding(self, found: Checkpoint) -> bool:
        """Whether the run resumes with other rounding, reported, or refused by ``resume=exact``."""
        was = found.meta.get(saved_options.CONFIG, {})
        changed = [
            f"{name} was {was[name]} and is {self.options[name]}"
            for name in CHANGE_ROUNDING
            if name in was and _kind(was[name]) != _kind(self.options[name])
        ]
        if changed and self.config.resume == "exact":
            raise ConfigError(
                f"resume=exact must have the options of {found.path}, got others "
                f"({'; '.join(changed)}); leave it out, or use --resume latest"
            )
        if changed:
            self.notes.append(f"{'; '.join(changed)}: the run continues with other rounding")
        return bool(changed)

    def _load_replay(self, policy: PolicyRun, found: Checkpoint) -> None:
        """Takes the checkpoint's rows; shortens an interval that exceeds the slack of the rings."""
        if policy.replay is None:
            return
        saved = policy.folder.part(found.meta)["replay"]
        policy.replay.load(found.path, saved, [*self.warnings, *self.notes])
        most = policy.replay.reach
        if saved["rows"] is not None and self.interval > most:
            self.notes.append(
                f"checkpoints are written every {most:,} iterations, not every "
                f"{self.interval:,}: the replay has no room for the rows of more iterations"
            )
            self.interval = most


def _environments(tensors: Mapping[str, Tensor]) -> dict[int, list[bytes]]:
    """The states that `Saving.write` stored, by group; raises ValueError if they are damaged."""
    found: dict[int, list[bytes]] = {}
    places = sorted(tuple(map(int, name.split("/"))) for name in tensors)
    for group, index in places:
        state = tensors[f"{group}/{index}"].numpy().tobytes()
        decoded(state)
        own = found.setdefault(group, [])
        if index >= MOST_STREAMS:
            raise ValueError(f"environment {index}")
        own += [b""] * (index - len(own)) + [state]
    return found


@final
class LongEpisodes:
    """Notices, each given once per process."""

    def __init__(
        self,
        total_env_steps: int,
        interval: int,
        max_cut_frac: float | None,
        replay_holds: Callable[[int], bool] = lambda _: True,
    ):
        """interval: iterations from one exact checkpoint to the next; max_cut_frac: see
        `loop.Budget`; replay_holds: returns whether replay has the rows of a checkpoint that many
        iterations ago.
        """
        self.total_env_steps, self.interval = total_env_steps, interval
        self.max_cut_frac, self._replay_holds = max_cut_frac, replay_holds
        self._reported = set[str]()

    def goes_back_exactly(self, counters: loop.Counters) -> bool:
        """Whether a run can resume from the last exact checkpoint."""
        since = counters.iteration - counters.exact_iteration
        return counters.exact_iteration > 0 and self._replay_holds(since)

    def notices(self, counters: loop.Counters) -> dict[str, str]:
        """New sentences by kind: ``endless``, and others about exact resumes."""
        found, steps, budget = dict[str, str](), counters.env_steps, self.total_env_steps
        if steps * _WITHOUT_END >= budget and counters.ended_episodes == 0:
            found["endless"] = (
                f"no episode has ended in the first {steps:,} env_steps of {budget:,}, so there is "
                "no return to report yet; if they take longer than that, raise --total-steps or "
                "lower --env.num-streams; if they never end, give the environment a time limit"
            )
        if counters.exact_iteration > 0 and not self.goes_back_exactly(counters):
            since = counters.iteration - counters.exact_iteration
            found["out of reach"] = (
                f"the last exact checkpoint is {since:,} iterations old: replay no longer holds "
                "its rows, and until the next one --resume exact is refused"
            )
        elif counters.exact_iteration == 0 and counters.iteration >= self.interval:
            running = counters.running_env_steps
            if self.max_cut_frac is not None and running > (most := self.max_cut_frac * budget):
                found["inexact"] = (
                    "a resume is not exact so far: an exact checkpoint would cut all running "
                    f"episodes, which have {running:,} env_steps, "
                    f"and checkpoint.max_cut_frac={self.max_cut_frac:g} allows {int(most):,} of "
                    f"{budget:,}"
                )
        new = {name: text for name, text in found.items() if name not in self._reported}
        self._reported |= found.keys()
        return new
