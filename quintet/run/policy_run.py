"""One policy of a run: its learner, counters, scores, and its part of checkpoints and reports.

A run has one policy, or several that share its streams; the trainer directs them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from pydantic import BaseModel
from torch import Tensor

from quintet.checkpoints import saved_options
from quintet.checkpoints.checkpoint import Checkpoint, not_finite, require_finite
from quintet.checkpoints.spaces_as_json import other_spaces
from quintet.errors import CheckpointError, ConfigError, NonFiniteError
from quintet.models.config import uses_pictures
from quintet.observe.metrics import EpisodeStats, policy_prefix, signed
from quintet.options.declaration import require_tunable
from quintet.options.run import RunConfig
from quintet.policies.folders import LEARNER, POLICY
from quintet.policies.policy import LEAST_BOUND, Policy, describe, misfit
from quintet.population.scores import MOST_WINDOWS, Record, compared
from quintet.protocols import DataPlan, Learner
from quintet.run.card import card
from quintet.run.folder import RunFolder
from quintet.run.policy_folder import BEST, PolicyFolder, cut_at
from quintet.runtime.batch import Episode
from quintet.runtime.delivery import Batch
from quintet.runtime.loop import Counters
from quintet.runtime.torch_settings import OwnTorch
from quintet.system import trust
from quintet.types import REWARD_SHAPING, LearnerState, Publication, Spaces

if TYPE_CHECKING:
    from quintet.policies.evaluation import Scores
    from quintet.run.policy_replay import RunReplay


@dataclass
class PolicyCounters:
    """Counters of one policy; their sums are the run's `Counters`.  iterations: its batches."""

    iterations: int = 0
    env_steps: int = 0
    ended_episodes: int = 0


def automatic_bound(steps: int) -> int:
    """The automatic limit of evaluation episodes: LEAST_BOUND, or LEAST_BOUND times the greatest
    power of 10 with which it is at most `steps`.  It changes seldom, since episodes that were cut
    by different limits can't be compared.
    """
    bound = LEAST_BOUND
    while 10 * bound <= steps:
        bound *= 10
    return bound


_COMPARED = ("greedy", "max_steps", "episodes")
"""Options of evaluations whose scores are not compared with those of other values."""


@final
class PolicyRun:
    """The K-th policy of a run.

    config: the run's configuration with this policy's learner options, which `configure` replaces.
    device: device of the learner's batches.
    best: the highest score of an evaluation, by checkpoint.best_by.
    best_cut_at: the step limit that cut some of its episodes; None: none was cut.
    longest_episode: env_steps of the longest episode that ended; 0 before the first.
    scores: ``eval/*`` of the last evaluation that was not yet reported.
    reward_shaping: weights of rewards in environments while it plays, by sorted name;
        empty: the configuration's.
    """

    def __init__(
        self,
        learner: Learner,
        config: RunConfig,
        spaces: Spaces,
        folder: PolicyFolder,
        device: torch.device,
    ):
        self.learner, self.config, self.spaces, self.folder = learner, config, spaces, folder
        self.device = device
        self.counters = PolicyCounters()
        numbers = config.env.metric_names
        self.episodes = EpisodeStats(names=numbers)
        self.longest_episode = 0
        self.own_state = b""  # the first environment's, see `Saving.look_at_environments`
        longest = MOST_WINDOWS * config.population.window(config.total_env_steps)
        self.record = Record(longest, numbers)
        self.replay: RunReplay | None = None
        self.best: float | None = None
        self.best_cut_at: int | None = None
        self.scores: dict[str, float] = {}
        self.reward_shaping: tuple[float, ...] = ()
        self._reported_updates = learner.updates
        self._reported: dict[str, float] = {}  # metrics by the last report
        self._reported_objective = 0  # env_steps of the last report that had the objective
        self._own_since = 0  # version from which on its weights are not another policy's

    @property
    def alone(self) -> bool:
        return self.folder.num_policies == 1

    @property
    def plan(self) -> DataPlan:
        return self.learner.plan

    @property
    def description(self) -> dict[str, Any]:
        config, runtime = self.config, self.config.runtime
        about = describe(config.algo, config.learner, config.model, config.env, self.spaces)
        # Beside workers an actor has one thread, which is too few for a policy of pictures alone.
        pictures = uses_pictures(config.model, self.spaces)
        threads = runtime.threads if pictures else runtime.actor_threads
        # Without an end so far, what each stream has played.
        seen = 10 * self.longest_episode or self.counters.env_steps // config.env.num_streams
        return about | {"threads": threads, "eval_max_steps": automatic_bound(seen)}

    @OwnTorch()
    def publication(self) -> Publication:
        """The publication for actors and environments."""
        own = self.learner.publication()
        if not self.reward_shaping:
            return own
        values = torch.tensor(self.reward_shaping, dtype=torch.float64)
        return replace(own, tensors={**own.tensors, REWARD_SHAPING: values})

    @OwnTorch()
    def policy(self) -> Policy:
        """A copy of the current policy."""
        current = self.learner.publication()
        tensors = {name: x.detach().cpu().clone() for name, x in current.tensors.items()}
        publication = Publication(current.version, tensors)
        return Policy(self.description, publication, trust.OWN, own_state=self.own_state)

    @OwnTorch()
    def warm_start(self) -> str | None:
        """Gives the learner the weights of `init_from`, if any; returns a note."""
        path, keys = self.config.init_from, self.config.init_from_keys
        if path is None:
            return None
        from quintet.run.warm_start import donated

        weights, note = donated(path, keys, self.learner, self.description)
        self.learner.warm_start(weights)
        return note

    def add(self, batch: Batch) -> None:
        """Counts a batch that the learner used, and its episodes."""
        self.counters.iterations += 1
        self.counters.env_steps += batch.env_steps
        self.add_episodes(batch.episodes)

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Counts whole episodes that it played."""
        self.counters.ended_episodes += len(episodes)
        self.longest_episode = max([self.longest_episode, *(each.length for each in episodes)])
        mine = [episode for episode in episodes if episode.version >= self._own_since]
        for episode in episodes:
            recent = episode.version >= self._own_since
            own = episode.return_, episode.length, episode.success, recent
            self.episodes.add(*own, episode.metrics)
        if not self.alone:
            self.record.add(self.counters.env_steps, mine)

    @property
    def reported(self) -> float | None:
        """The objective in the last report that had it, unless it is an objective of episodes."""
        return self._reported.get(signed(self.config.population.objective)[0])

    @property
    def measured_env_steps(self) -> int:
        """Env_steps when its objective was measured."""
        of_episodes = self.config.population.of_episodes
        return self.counters.env_steps if of_episodes else self._reported_objective

    @OwnTorch()
    def become(self, donor: "PolicyRun", options: BaseModel) -> None:
        """Takes another policy's weights and optimizer memory, and these options; keeps its own
        counters. Its objective is measured again.
        """
        self.configure(donor.config.learner)  # a schedule may go on from the donor's rate
        given = donor.learner.save()  # tensors may be the donor's own
        tensors = {name: x.clone() for name, x in given.tensors.items()}
        self.learner.load(replace(given, tensors=tensors), counters=False)
        self.learner.metrics()  # drops metrics of the former weights: nobody is ranked by them
        self.configure(options)
        self.episodes.forget_recent()
        self.record.begin_anew()
        self._own_since, self.scores, self._reported = self.learner.version, {}, {}

    def fault(self, whole: bool = False) -> str | None:
        """Sign of divergence in weights or statistics; `whole`: also in those only for learning."""
        try:
            tensors = (self.learner.save() if whole else self.learner.publication()).tensors
        except NonFiniteError as error:
            return str(error)
        found = not_finite(tensors, self.config.model.encoder)
        if found is None:
            return None
        updates = self.learner.updates
        return f"weights and statistics must be finite, got {found} after update {updates}"

    def score(self, policy: Policy, scores: "Scores") -> str:
        """Stores the scores of an evaluation; writes `policy` to ``best/`` if it is the best, or if
        the best one's episodes were cut where its own went on, so that their returns can't be
        compared.  Returns a sentence about that, or "".
        """
        self.scores = scores.reported()
        if not self.config.checkpoint.save_best:
            return ""
        name, sign = signed(self.config.checkpoint.best_by)
        found = self.scores.get(name, self.scores.get(f"eval/{name}"))
        if found is None:
            if self.best is None:
                raise ConfigError(
                    f"checkpoint.best_by must be a metric of evaluations, {', '.join(self.scores)},"
                    f" got {self.config.checkpoint.best_by}: correct it"
                )
            return ""
        score = sign * found
        was, longest = self.best_cut_at, int(scores.lengths.max())
        incomparable = self.best is not None and was is not None and longest > was
        if self.best is None or incomparable or score > self.best:
            cut = scores.max_steps if scores.cut_episodes else None
            self.folder.write(BEST, policy, score=score, cut=cut)
            self.best, self.best_cut_at = score, cut
        if not incomparable:
            return ""
        return (
            f"this evaluation's policy counts as the best, since returns can't be compared: the "
            f"best score so far is of episodes cut after {was:,} steps, and this evaluation's "
            f"lasted up to {longest:,}; --eval.max-steps N sets one bound for all"
        )

    @OwnTorch()
    def configure(self, options: BaseModel) -> None:
        """Takes these options; raises ConfigError if one can't change during a run."""
        require_tunable(self.config.learner, options)
        self.learner.configure(options)
        self.config = self.config.model_copy(update={"learner": options})

    @contextmanager
    def named(self) -> Iterator[None]:
        """Adds the policy's index, if there are several, to errors of divergence in the block."""
        try:
            yield
        except NonFiniteError as error:
            if self.alone:
                raise
            raise NonFiniteError(f"policy {self.folder.index}: {error}") from error

    # A policy's part of a checkpoint

    @OwnTorch()
    def save(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """This policy's tensors and meta for a checkpoint."""
        with self.named():
            state, publication = self.learner.save(), self.learner.publication()
        rest = {k: v for k, v in state.tensors.items() if k not in publication.tensors}
        part: dict[str, Any] = {
            "version": publication.version,
            "best": self.best,
            "best_cut_at": self.best_cut_at,
            "best_mark": None if self.best is None else self.folder.best_mark(),
            "learner": state.scalars,
            "policy": self.description,
            "episodes": self.episodes.save(),
            "longest_episode": self.longest_episode,
            "replay": None if self.replay is None else self.replay.replay.save(),
        }
        if not self.alone:
            part["counters"] = asdict(self.counters)
            part["record"] = self.record.save()
            part["objective"] = self.reported
            part["reported_objective"] = self._reported_objective
        return self.folder.named(publication.tensors, rest), part

    @OwnTorch()
    def load(self, found: Checkpoint) -> list[str]:
        """Restores a checkpoint; returns warnings for the user.

        Raises:
            CheckpointError: it does not fit, or its weights are not finite.
            ConfigError: options that can't change during a run have changed.
        """
        part = self.folder.part(found.meta)
        self._require_spaces(found.path, part["policy"])
        tensors = self.folder.tensors(found, LEARNER) | self.folder.tensors(found, POLICY)
        mine = self.learner.weights()
        weights = {name: x for name, x in tensors.items() if name in mine}
        require_finite(found.path, weights, self.config.model.encoder)
        if not self.alone:  # a population may have changed its options
            saved = part["policy"]["learner"]
            self.configure(type(self.config.learner).model_validate(saved))
        _require_alike(found.path, part["learner"], self.learner.save().scalars)
        try:
            self.learner.load(LearnerState(tensors, part["learner"]))
        except (RuntimeError, TypeError) as error:
            raise misfit(self.config.model.encoder, error) from error
        run = Counters.of(found.meta)
        self.counters = (
            PolicyCounters(run.iteration, run.env_steps, run.ended_episodes)
            if self.alone
            else PolicyCounters(**part["counters"])
        )
        self._reported_updates = self.learner.updates
        self.episodes.load(part.get("episodes"))
        self.longest_episode = int(part.get("longest_episode", 0))
        if not self.alone:
            self.record.load(part["record"])
            if part["objective"] is not None:
                objective = signed(self.config.population.objective)[0]
                self._reported[objective] = part["objective"]
            self._reported_objective = part["reported_objective"]
        self.best, self.best_cut_at = part["best"], cut_at(part)
        ended = run.env_steps >= self.config.total_env_steps
        notes = []
        if (fault := self.folder.best_fault(part)) is not None:
            after = "use the final one" if ended else "the next evaluation writes it again"
            notes.append(f"the best policy is lost ({fault}); {after}")
        if not ended and self.best is not None and (other := self._evaluated_otherwise(found)):
            notes.append(
                f"the best score so far, {self.best:,.4g}, is of {other}; the next evaluation "
                "chooses the best policy"
            )
        if notes and not ended:
            self.best = self.best_cut_at = None
        return notes

    def take_newer_best(self, found: Checkpoint) -> None:
        """Takes over the score in ``best/`` if its policy is newer than the checkpoint, as after a
        kill, so that no worse policy replaces it.
        """
        if self._evaluated_otherwise(found):
            return
        newer = self.folder.newer_best(self.folder.part(found.meta))
        if newer is not None:
            self.best, self.best_cut_at = newer

    def _evaluated_otherwise(self, found: Checkpoint) -> str:
        """Words for how the run that wrote a checkpoint evaluated otherwise; "" if it did not, or
        no evaluation follows."""
        if self.config.eval.episodes == 0:
            return ""
        was = found.meta.get(saved_options.CONFIG, {})
        own = self.config.eval_env
        now = {"id": own.id, "kwargs": own.kwargs, "backend": own.backend}
        if any(was.get(f"eval.env.{name}") != value for name, value in now.items()):
            return "another environment than eval.env names now"
        if was.get("checkpoint.best_by", by := self.config.checkpoint.best_by) != by:
            return "another checkpoint.best_by"
        others = {name: getattr(self.config.eval, name) for name in _COMPARED}
        changed = [name for name, x in others.items() if was.get(f"eval.{name}", x) != x]
        return f"evaluations with another eval.{changed[0]}" if changed else ""

    def _require_spaces(self, path: Path, saved: Mapping[str, Any]) -> None:
        """Refuses other spaces: a leaf of equal size would get the weights of another leaf."""
        for what, (was, now) in other_spaces(saved, self.description).items():
            raise CheckpointError(
                f"{self.config.env.id} must have the run's {what} {was}, got {now}: restore the "
                f"environment of {path}, or give another --run-dir"
            )

    # A policy's part of a report

    @OwnTorch()
    def report(self, passed_s: float) -> dict[str, float]:
        """The policy's metrics since the last report, by declared name without prefix."""
        learner, updates = self.learner, self.learner.updates
        with self.named():
            version, measured = learner.publication().version, learner.metrics()
        if not self.counters.iterations:  # numbers of updates, of which there was none
            measured = {}
        report = {
            "updates": float(updates),
            "version": float(version),
            "throughput/updates_per_s": (updates - self._reported_updates) / passed_s,
            **self.episodes.report(),
            **measured,
            **({} if self.replay is None else self.replay.replay.metrics()),
            **self.scores,
        }
        if not self.alone:  # else they are the run's
            report["env_steps"] = float(self.counters.env_steps)
            report["iterations"] = float(self.counters.iterations)
        self.scores = {}
        self._reported_updates = updates
        self._reported |= report
        if signed(self.config.population.objective)[0] in report:
            self._reported_objective = self.counters.env_steps
        return report


def objectives(policies: Sequence[PolicyRun]) -> list[float | None]:
    """Objectives by which policies are ranked; None: not yet known; -inf: not finite."""
    first = policies[0].config
    own, total = first.population, first.total_env_steps
    name, sign = signed(own.objective)
    if own.of_episodes:
        records = [each.record for each in policies]
        found = compared(records, name, own.window(total), own.min_episodes)
    else:
        found = [each.reported for each in policies]
    return [x if x is None else sign * x if math.isfinite(x) else -math.inf for x in found]


def _require_alike(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuses saved values of other types than the learner's own; KeyError if one is missing."""
    for name, now in own.items():
        was = saved[name]
        # A value that begins as None may have been set, but not to a text.
        if type(was) is not type(now) and (now is not None or isinstance(was, str)):
            raise CheckpointError(
                f"{path} holds invalid data (learner.{name} must be {type(now).__name__}, got "
                f"{ascii(was)[:60]})"
            )


def leader(policies: Sequence[PolicyRun]) -> PolicyRun:
    """The policy with the highest objective; the first of equal ones, so that it rarely changes."""
    if len(policies) == 1:
        return policies[0]
    found = [-math.inf if x is None else x for x in objectives(policies)]
    return policies[found.index(max(found))]


def write_policies(
    policies: Sequence[PolicyRun], run: RunFolder, report: Mapping[str, float]
) -> None:
    """Writes the final policies, and the best of several as the run's own; report: the last."""
    count = len(policies)
    for each in policies:
        text = card(each.config, report, policy_prefix(each.folder.index, count))
        each.folder.write(POLICY, each.policy(), text)
    if count > 1:
        first = leader(policies)
        text = card(first.config, report, policy_prefix(first.folder.index, count))
        PolicyFolder(run).write(POLICY, first.policy(), text)


def holds_policies(policies: Sequence[PolicyRun], run: RunFolder) -> bool:
    """Whether the folder holds the final policies: a kill may have come between the last
    checkpoint and them."""
    written = [(each.folder, each.learner.version) for each in policies]
    if len(written) > 1:
        written.append((PolicyFolder(run), leader(policies).learner.version))
    return all(folder.holds(version) for folder, version in written)
