"""Evaluations during training: when they are due, and their time."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quintet.options.resolve import Loaded
from quintet.options.run import RunConfig
from quintet.policies.policy import Policy
from quintet.system import printing

if TYPE_CHECKING:
    from quintet.policies.evaluation import Scores

EVALUATION_SEED = 20_000
"""First environment seed of evaluations during training; published results use other seeds."""

_LEAST_EPISODES = 3  # fewer can't tell greedy from sampled actions
_AT = "evaluated_steps"
_TIME_FRAC = 0.05  # share of a run's time above which automatic evaluations are skipped


@final
class Evaluations:
    """Plays the policies of a run.

    evaluated_steps: env_steps of the run at the last evaluation, or at the start.
    elsewhere: name of the environment in which they play, if it is not training's.
    """

    def __init__(
        self,
        config: RunConfig,
        loaded: Loaded,
        say: Callable[[str], None] = printing.say,
        notice: Callable[[str], None] = printing.say,
    ):
        """say: receives output of environment processes; notice: reasons of long waits."""
        self.config, self.say, self.notice = config, say, notice
        self.env = loaded.evaluated
        self.elsewhere = ""
        if loaded.plays_elsewhere:
            own = self.env.config
            kwargs = f" {own.kwargs}" if own.kwargs else ""
            self.elsewhere = f"{own.id}{kwargs} ({own.backend})"
        if self.env.config.curriculum is not None and config.eval.episodes > 0:
            from quintet.envs.curriculum import final_said

            id_ = self.elsewhere or f"{config.env.id} ({self.env.config.backend})"
            self.elsewhere = f"{id_} {final_said(self.env.config.curriculum)}"
        self.evaluated_steps = 0
        self._seconds = 0.0
        self._cut_reported = self._gap_reported = False

    @property
    def _device(self) -> str:
        """The GPU if the run's actions are computed there, else the CPU."""
        runtime = self.config.runtime
        on_gpu = runtime.inference != "local" and runtime.device.startswith("cuda")
        return runtime.device if on_gpu else "cpu"

    def saved(self) -> dict[str, int]:
        """Entries of a checkpoint's meta."""
        return {_AT: self.evaluated_steps}

    def resumes(self, meta: Mapping[str, Any], env_steps: int) -> None:
        """Goes on from a checkpoint's meta after `env_steps`: an evaluation that a stop left out is
        due at once."""
        at = meta.get(_AT)
        self.evaluated_steps = at if isinstance(at, int) else env_steps

    def left_out(self, env_steps: int) -> bool:
        """Whether a run that has ended after `env_steps` was not evaluated there."""
        return self.config.eval.episodes > 0 and self.evaluated_steps < env_steps

    def due(self, env_steps: int, wall_s: float) -> bool:
        """Whether to evaluate now: at each interval and at the end, if the time allows."""
        config = self.config.eval
        if config.episodes == 0:
            return False
        total, finished = self.config.total_env_steps, env_steps >= self.config.total_env_steps
        steps = max(total // 20 if config.interval == "auto" else config.interval, 1)
        if config.interval == "auto" and not finished and self._seconds > _TIME_FRAC * wall_s:
            return False
        return finished or env_steps // steps > self.evaluated_steps // steps

    def compare(self, scores: "Scores", sampled: Sequence[float], who: str) -> None:
        """Reports once if greedy actions score far less than training's actions."""
        if self._gap_reported or self.elsewhere or not self.config.eval.greedy:
            return
        notice = far_apart(scores, sampled)
        if notice is not None:
            self._gap_reported = True
            self.say(f"{who}{notice}")

    def play(
        self, policies: Sequence[Policy], index: int, env_steps: int, stop: Callable[[], bool]
    ) -> "Scores | None":
        """The scores of a policy after `env_steps`, of its own agent if each agent has a policy;
        None if `stop` ended the evaluation, or none of the policy's agents joined a game.
        """
        from quintet.policies.episodes import How
        from quintet.policies.evaluation import evaluate_in

        begin = time.perf_counter()
        config = self.config.eval
        policy, team = policies[index], self.config.population.assignment == "agent"
        others = [*policies[index + 1 :], *policies[:index]] if team else []
        how = How(
            policy.player_on(self._device),
            config.episodes,
            EVALUATION_SEED,
            config.greedy,
            stop,
            self.config.runtime.worker_timeout_s,
            self.say,
            self.notice,
            others=tuple(each.player_on(self._device) for each in others),
            agent=index,
            threads=policy.threads,
        )
        scores = evaluate_in(policy, self.env, how, config.max_steps)
        self._seconds += time.perf_counter() - begin
        if not scores.complete:
            return None
        if index == len(policies) - 1:  # a stop before leaves out some, which are due again
            self.evaluated_steps = env_steps
        if not len(scores.returns):
            self.say(
                f"the evaluation of policy {index} has no scores: none of its agents ended an "
                f"episode in {config.episodes} games; raise eval.episodes"
            )
            return None
        if scores.cut_told and not self._cut_reported:
            self._cut_reported = True  # the metric goes on telling it
            self.say(f"evaluation: {scores.cut_told}; eval.max_steps is the bound")
        return scores


def far_apart(greedy: "Scores", sampled: Sequence[float]) -> str | None:
    """A sentence where greedy actions score far less than sampled ones in the last episodes: by
    more than twice the larger standard deviation, and by a quarter of the larger number.
    """
    if min(len(greedy.returns), len(sampled)) < _LEAST_EPISODES:
        return None
    mean, spread = float(np.mean(sampled)), max(float(np.std(sampled)), greedy.std)
    gap = mean - greedy.mean
    if gap <= max(2.0 * spread, 0.25 * max(abs(mean), abs(greedy.mean))):
        return None
    return (
        f"greedy actions score {greedy.mean:,.4g} in evaluations, sampled ones {mean:,.4g} in the "
        f"last {len(sampled)} episodes of training: the best checkpoint is chosen by the greedy "
        "ones; --eval.greedy false evaluates and chooses by sampled ones, and quintet eval "
        "--stochastic plays them"
    )
