"""The task of a run's environments: its curriculum, and values that callbacks set."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quintet.envs.curriculum import Ended, Levels, make_curriculum
from quintet.envs.own_state import decoded
from quintet.envs.tasks import packed, task_text
from quintet.errors import CheckpointError, ConfigError, QuintetError
from quintet.options.run import RunConfig
from quintet.protocols import DataPlan, Learner
from quintet.runtime.batch import known
from quintet.runtime.delivery import Batch
from quintet.runtime.loop import Sampling
from quintet.types import Rollout

_SAVED = "tasks"
"""Key of a checkpoint's meta."""


@final
class RunTasks:
    """The curriculum of a run, if it has one, in the run's process.  Its decisions change between
    iterations, and reach environments with the unrolls that begin then.
    """

    def __init__(self, config: RunConfig, plan: DataPlan, say: Callable[[str], None]):
        """say: receives what the curriculum plays, as it changes.

        Raises ConfigError if its code makes none, or the learner has no scores for it.
        """
        record, self.say, self.fresh = config.env.curriculum, say, config.env.fresh_at_checkpoints
        self.curriculum = None if record is None else make_curriculum(record)
        self.values: dict[str, tuple[int, Any]] = {}  # number and value, by name
        self._sampling: Sampling | None = None
        self._names = config.env.metric_names
        self._text, self._said = b"", ""
        self._running: dict[int, tuple[float, int]] = {}  # sum and rows of scores, by stream
        given, able = self.curriculum, plan.gives_advantage and config.runtime.num_learners == 1
        self._scored = given if isinstance(given, Levels) and given.scored else None
        if self._scored is not None and not able:
            raise ConfigError(
                "env.curriculum of kind levels must have one learner that estimates advantages of "
                f"whole batches, which {config.algo} does not with these options: give score none, "
                "or one of the learners that docs/curriculum.md names"
            )

    def begin(self, sampling: Sampling) -> None:
        """Tells the environments what there is, before they are reset for the first time."""
        self._sampling = sampling
        self._tell()

    def set_value(self, name: str, value: Any) -> None:
        """Sets a value in the environments."""
        if self.fresh:
            raise ConfigError(
                "set_env must have environments that live as long as the run, got "
                "env.fresh_at_checkpoints=true: leave that out"
            )
        before, number = self.values, 1 + max((n for n, _ in self.values.values()), default=0)
        self.values = {**before, name: (number, packed(value, "the value of set_env"))}
        try:
            self._tell()
        except QuintetError:
            self.values = before  # no checkpoint holds a value that environments refuse
            raise

    def learned(self, batch: Batch, learner: Learner, env_steps: int) -> None:
        """Tells the curriculum what was learned from."""
        if (curriculum := self.curriculum) is None:
            return
        scores: Any = None
        if self._scored is not None and (advantage := learner.advantage) is not None:  # type: ignore[attr-defined]
            gain = self._scored.score_of(advantage.detach().cpu().double().numpy())
            scores = self._scores(batch.rollout, gain)
        others = [each for _, own in sorted(batch.others.items()) for each in own]
        for place, each in enumerate((*batch.episodes, *others)):
            here = scores is not None and place < len(batch.episodes) and each.row >= 0
            score = float(scores[each.row, each.column]) if here else None
            own = zip(self._names, each.metrics, strict=False)  # an episode may have none
            metrics = {name: x for name, x in own if not math.isnan(x)}
            of = each.options, each.return_, each.length, each.success
            curriculum.ended(Ended(*of, env_steps, score, metrics))
        curriculum.at(env_steps)
        self._tell()

    def _tell(self) -> None:
        if self.curriculum is not None and (said := self.curriculum.said) != self._said:
            self._said = said
            self.say(f"curriculum: {said}")
        text = self._now()
        if text != self._text and self._sampling is not None:
            self._text = text
            self._sampling.set_task(text)

    def _now(self) -> bytes:
        """The text that environments are told."""
        state = None
        if self.curriculum is not None:
            state = packed(self.curriculum.state(), "state() of env.curriculum")
        return task_text(state, self.values)

    def _scores(self, rollout: Rollout, gain: NDArray[np.float64]) -> Any:
        """Each episode's mean score per row, correct in the row where it ends ``[T, B]``; the sums
        of unfinished episodes are kept.
        """
        flags = known(rollout)
        valid, firsts = flags.valid.numpy(), rollout.is_first[:-1].cpu().numpy()
        ends = (flags.terminated | flags.truncated).numpy()
        found = np.zeros(valid.shape)
        for column, stream in enumerate(flags.stream_id.tolist()):
            episode = firsts[:, column].cumsum()  # 0: it began in an earlier batch
            of_valid = valid[:, column].astype(np.float64)
            rows = np.bincount(episode, of_valid)
            sums = np.bincount(episode, np.where(valid[:, column], gain[:, column], 0.0))
            before_sum, before_rows = self._running.get(stream, (0.0, 0))
            sums[0] += before_sum
            rows[0] += before_rows
            found[:, column] = (sums / np.maximum(rows, 1.0))[episode]
            last = episode[-1]
            over = ends[episode == last, column].any()
            self._running[stream] = (0.0, 0) if over else (float(sums[last]), int(rows[last]))
        return found

    def metrics(self) -> dict[str, float]:
        found: Mapping[str, float] = {} if self.curriculum is None else self.curriculum.metrics()
        return {f"curriculum/{name}": x for name, x in found.items()}

    def saved(self) -> dict[str, str]:
        """Entries of a checkpoint's meta."""
        return {_SAVED: self._now().decode()}

    def load(self, meta: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; raises CheckpointError if it is damaged."""
        try:
            saved = decoded(meta[_SAVED].encode())
            self.values = {str(name): (int(n), x) for name, (n, x) in saved["values"].items()}
            if self.curriculum is not None and saved["state"] is not None:
                self.curriculum.load(saved["state"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"saved {_SAVED} must be those of a run, got {error}") from error
