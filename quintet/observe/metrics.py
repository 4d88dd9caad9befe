"""The declared metrics: every name that a report may hold, with its unit and meaning.

All learners and runtimes use these names, so that runs can be compared.  A metric without a value
is absent from a report, never NaN.
"""

import difflib
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

from quintet.errors import ConfigError, QuintetError


class Metric(NamedTuple):
    """Unit ("1" for pure numbers) and one-line meaning of a metric."""

    unit: str
    meaning: str


_REWARD = "reward units"
_STEPS = "env_steps"
_ACTIONS = "half the action range"

OF_RUNS: Mapping[str, Metric] = {
    "env_steps": Metric(_STEPS, "agent decisions learned from so far, over all streams"),
    "env_frames": Metric("frames", "env_steps times the action repeat"),
    "wall_s": Metric("s", "wall time of training so far, over all resumptions"),
    "updates": Metric("updates", "optimizer steps made so far"),
    "iterations": Metric("iterations", "fresh batches so far"),
    "version": Metric("updates", "version of the weights, by batches or optimizer steps"),
    "process/resident_bytes": Metric("bytes", "resident memory of the learner's process"),
    "episode/return_mean": Metric(_REWARD, "mean raw return of episodes since the last report"),
    "episode/return_std": Metric(_REWARD, "standard deviation of those returns"),
    "episode/return_min": Metric(_REWARD, "lowest raw return of those episodes"),
    "episode/return_max": Metric(_REWARD, "highest raw return of those episodes"),
    "episode/length_mean": Metric(_STEPS, "mean length of those episodes"),
    "episode/count": Metric("episodes", "number of those episodes"),
    "episode/success_rate": Metric("1", "share of those episodes that succeeded, where defined"),
    "episode/cut_frac": Metric("1", "share of executed env_steps in episodes that restarts cut"),
    "eval/return_mean": Metric(_REWARD, "mean raw return over the last evaluation"),
    "eval/return_std": Metric(_REWARD, "standard deviation of returns in the last evaluation"),
    "eval/return_min": Metric(_REWARD, "lowest raw return in the last evaluation"),
    "eval/return_max": Metric(_REWARD, "highest raw return in the last evaluation"),
    "eval/length_mean": Metric(_STEPS, "mean episode length in the last evaluation"),
    "eval/success_rate": Metric("1", "share of evaluation episodes that succeeded, where defined"),
    "eval/entropy": Metric("nats", "mean entropy of the policy over the last evaluation"),
    "eval/episodes": Metric("episodes", "episodes of the last evaluation"),
    "eval/cut_episodes": Metric("episodes", "evaluation episodes that eval.max_steps cut"),
    "throughput/env_steps_per_s": Metric("env_steps/s", "env_steps per second since last report"),
    "throughput/updates_per_s": Metric("updates/s", "optimizer steps per second since last report"),
    "machine/cores_used": Metric("cores", "cores that this process and its children kept busy"),
    "machine/cores_used_by_others": Metric("cores", "cores of this process that others kept busy"),
    "machine/memory_bytes": Metric("bytes", "private memory of these processes (Linux)"),
    "machine/cores_waited_for": Metric("cores", "cores that these processes waited for (Linux)"),
    "time/stepping_frac": Metric("1", "share of time spent in environments"),
    "time/making_frac": Metric("1", "share of time spent making and resetting all environments"),
    "time/acting_frac": Metric("1", "share of time spent choosing actions"),
    "time/learning_frac": Metric("1", "share of time spent in updates"),
    "time/replay_frac": Metric("1", "share of time spent storing in replay and drawing from it"),
    "time/waiting_frac": Metric("1", "share of time spent waiting for another process"),
    "time/checkpoint_frac": Metric("1", "share of time spent writing checkpoints"),
    "time/evaluation_frac": Metric("1", "share of time spent evaluating"),
    "time/other_frac": Metric("1", "share of time spent on everything else"),
    "policy_lag/min": Metric("updates", "lowest age of the weights that acted, since last report"),
    "policy_lag/mean": Metric("updates", "mean age of the weights that acted, since last report"),
    "policy_lag/max": Metric("updates", "highest age of the weights that acted, since last report"),
    "data/env_processes": Metric("processes", "processes that step environments for the run"),
    "data/valid_frac": Metric("1", "share of rows of the batch whose action was executed"),
    "data/discarded_columns": Metric(
        "columns", "streams' unrolls dropped so far: too old, or left by a restart"
    ),
    "data/executed_env_steps": Metric(_STEPS, "all steps of environments, learned from or not"),
    "data/discarded_env_steps": Metric(
        _STEPS, "executed steps never learned from: too old, past the budget, or lost in a restart"
    ),
    "data/worker_restarts": Metric("restarts", "sampler processes replaced since the start"),
    "population/objective": Metric("1", "objective by which a population ranks policies"),
    "population/copies": Metric("copies", "times that the policy became a copy of another"),
    "data/waiting_batches": Metric("batches", "assembled batches that wait for the learner"),
    "data/nodes": Metric("nodes", "nodes of the cluster that take part"),
    "data/lost_nodes": Metric("nodes", "nodes that were lost since the start"),
    "replay/size": Metric("transitions", "transitions held in replay"),
    "replay/draws_per_env_step": Metric("1", "transitions trained on per env_step so far"),
}
"""Metrics of every run, whatever the learner."""

OF_LEARNERS: Mapping[str, Metric] = {
    "loss/total": Metric("1", "weighted sum of all terms"),
    "loss/total_abs": Metric("1", "sum of the absolute values of the weighted terms"),
    "loss/policy": Metric("1", "policy term, to be minimised"),
    "loss/value": Metric("1", "value term: half the squared error, with its weight"),
    "loss/entropy": Metric("1", "entropy term: minus the entropy, with its weight"),
    "loss/kl": Metric("1", "KL penalty: beta times the mean KL"),
    "loss/l2": Metric("1", "penalty on squared kernels"),
    "optim/learning_rate": Metric("1", "learning rate of the last optimizer step"),
    "optim/grad_norm": Metric("1", "global gradient norm before clipping, mean over updates"),
    "optim/grad_clip_frac": Metric("1", "share of updates whose gradient was clipped"),
    "optim/epochs": Metric("passes", "passes over the batch that were made"),
    "policy/entropy": Metric("nats", "mean entropy of the policy"),
    "policy/clip_frac": Metric("1", "share of samples whose ratio was outside the clip range"),
    "policy/ratio_mean": Metric("1", "mean of pi over mu"),
    "policy/ratio_min": Metric("1", "lowest pi over mu"),
    "policy/ratio_max": Metric("1", "highest pi over mu"),
    "policy/ratio_first_max_error": Metric("1", "largest |ratio - 1| before the first step"),
    "policy/approx_kl": Metric("nats", "KL(mu, pi) estimated by ratio - 1 - log ratio"),
    "policy/kl": Metric(
        "nats",
        "mean exact KL(mu, pi) of a batch: of the updated policy, or over all passes where the "
        "loss has it",
    ),
    "policy/mean_mean": Metric(_ACTIONS, "mean of the means of continuous actions"),
    "policy/mean_min": Metric(_ACTIONS, "lowest mean of a continuous action"),
    "policy/mean_max": Metric(_ACTIONS, "highest mean of a continuous action"),
    "policy/std_mean": Metric(_ACTIONS, "mean standard deviation of continuous actions"),
    "policy/std_min": Metric(_ACTIONS, "lowest standard deviation of a continuous action"),
    "policy/std_max": Metric(_ACTIONS, "highest standard deviation of a continuous action"),
    "policy/mode_saturation_frac": Metric(
        "1", "share of likeliest continuous actions within 0.01 of a bound"
    ),
    "policy/mode_probability_mean": Metric("1", "mean probability of the likeliest option"),
    "policy/mode_probability_min": Metric("1", "lowest probability of a likeliest option"),
    "policy/mode_probability_max": Metric("1", "highest probability of a likeliest option"),
    "policy/entropy_min": Metric("nats", "lowest entropy of the policy in a row"),
    "policy/entropy_max": Metric("nats", "highest entropy of the policy in a row"),
    "policy/logp_abs_max": Metric(
        "nats", "largest |log-probability| of an allowed option, or executed continuous action"
    ),
    "policy/rho_clip_frac": Metric("1", "share of ratios that V-trace's errors or the policy clip"),
    "policy/c_clip_frac": Metric("1", "share of ratios that V-trace's or Retrace's traces clip"),
    "value/prediction_mean": Metric(_REWARD, "mean predicted value"),
    "value/target_mean": Metric(_REWARD, "mean value target"),
    "value/change_mean": Metric(_REWARD, "mean |value - value when the row was collected|"),
    "value/change_max": Metric(_REWARD, "largest |value - value when the row was collected|"),
    "value/explained_variance": Metric("1", "1 - var(target - prediction) / var(target)"),
    "value/error_frac": Metric("1", "mean squared error of values over mean squared target"),
    "advantage/mean": Metric(_REWARD, "mean advantage before normalising"),
    "advantage/std": Metric(_REWARD, "standard deviation of advantages before normalising"),
    "reward/mean": Metric(_REWARD, "mean reward per valid row, before normalising"),
    "reward/normalized_mean": Metric("1", "mean normalised reward per valid row"),
    "normalizer/observation_mean_min": Metric("observation units", "lowest running mean"),
    "normalizer/observation_mean_max": Metric("observation units", "highest running mean"),
    "normalizer/observation_std_min": Metric("observation units", "lowest running std"),
    "normalizer/observation_std_max": Metric("observation units", "highest running std"),
    "normalizer/observation_clip_frac": Metric("1", "share of normalised observations clipped"),
    "normalizer/observation_unlike_frac": Metric(
        "1",
        "share of a leaf's floats that now spread over 5 times or under a fifth of the running std",
    ),
    "normalizer/reward_clip_frac": Metric("1", "share of normalised rewards clipped"),
    "normalizer/reward_std": Metric(_REWARD, "running std by which rewards are divided"),
}
"""Metrics that several learners report; the registry lists each learner's metrics."""

METRICS: dict[str, Metric] = {**OF_RUNS, **OF_LEARNERS}
"""Every declared metric by name; `declare` adds metrics of a single learner."""

HISTOGRAM = "histogram/"
"""Prefix of histograms, which only some sinks can show."""

ENV = "env/"
"""Prefix of the environment's own numbers in reports; those of evaluations have it after
``eval/``."""

NODE = "node/"
"""Prefix of the metrics of a cluster's nodes; the node's number follows."""

PREFIXES: dict[str, Metric] = {
    ENV: Metric("its own", "mean of a number of env.metrics over episodes since the last report"),
    f"eval/{ENV}": Metric("its own", "mean of a number of env.metrics over the last evaluation"),
    HISTOGRAM: Metric("1", "distribution of a value over rows or parameters, never a number"),
    "health/": Metric("1", "a part of the learner: 1 reliable, -1 doubtful, 0 not known yet"),
    "hyperparameter/": Metric("1", "value of an option that a population tunes"),
    "curriculum/": Metric(
        "1",
        "the curriculum: stage, from 1, of stages, and metric_mean, which the bar is for; values "
        "of a schedule; levels_seen_frac and score_mean; metrics of a curriculum of your own",
    ),
    "user/": Metric("1", "value that a callback has logged, in its own unit"),
    "server/": Metric("1", "share of the inference server's time by phase; streams of an act"),
    NODE: Metric(
        "1",
        "facts of a cluster's node, by its number: workers, env_steps_per_s, in_bytes_per_s and "
        "out_bytes_per_s of the learner, waiting_frac of its workers, weights_age_s of unrolls",
    ),
    "worker/": Metric("1", "share of a sampler process's time, by its number and by phase"),
}
"""Families of metrics: any name with this prefix is declared."""


def declare(metrics: Mapping[str, Metric], whose: str) -> None:
    """Declares metrics of one learner; those whose names end with `/` are families.

    Raises:
        ConfigError: a metric of that name has another meaning.
    """
    for name, metric in metrics.items():
        known = PREFIXES if name.endswith("/") else METRICS
        if known.setdefault(name, metric) != metric:
            raise ConfigError(
                f"metric {name} of {whose} must have the meaning of the existing metric of "
                f"that name ({known[name].meaning}), got {metric.meaning}: rename it there"
            )


def by_node(report: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """The metrics of each node of a cluster under plain names; empty without a cluster."""
    own: dict[int, dict[str, float]] = {}
    for name, x in report.items():
        if name.startswith(NODE):
            index, _, rest = name.removeprefix(NODE).partition("/")
            own.setdefault(int(index), {})[rest] = x
    return dict(sorted(own.items()))


def policy_prefix(policy: int, num_policies: int) -> str:
    """Prefix of one policy's metrics and files in a run of several policies; "" for one policy."""
    return "" if num_policies == 1 else f"policy_{policy}/"


METRICS_ELSEWHERE = {
    "ep_rew_mean": "episode/return_mean",
    "episodic_return": "episode/return_mean",
    "episode_return_mean": "episode/return_mean",
    "ep_len_mean": "episode/length_mean",
    "episodic_length": "episode/length_mean",
    "mean_reward": "eval/return_mean",
    "mean_ep_length": "eval/length_mean",
    "fps": "throughput/env_steps_per_s",
    "SPS": "throughput/env_steps_per_s",
    "approx_kl": "policy/approx_kl",
    "clip_fraction": "policy/clip_frac",
    "clipfrac": "policy/clip_frac",
    "explained_variance": "value/explained_variance",
    "entropy_loss": "loss/entropy",
    "policy_gradient_loss": "loss/policy",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
}
"""Metrics by the last part of their names in other libraries."""

_POLICY_PREFIX = re.compile(r"^policy_(\d{1,9})/")


def by_policy(report: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """The metrics of each of several policies under plain names; empty for one policy."""
    own: dict[int, dict[str, float]] = {}
    for name, x in report.items():
        if found := _POLICY_PREFIX.match(name):
            own.setdefault(int(found[1]), {})[name[found.end() :]] = x
    return dict(sorted(own.items()))


def signed(name: str) -> tuple[str, float]:
    """The metric of an objective, and the factor with which it is the better the higher it is:
    ``-env/cost`` is the better the lower."""
    return (name[1:], -1.0) if name.startswith("-") else (name, 1.0)


def plain_name(name: str) -> str:
    """A metric's name without its policy."""
    return _POLICY_PREFIX.sub("", name)


def highest(report: Mapping[str, float], name: str) -> float | None:
    """A metric of a report, of several policies the highest; None without one.  ``-NAME``: minus
    the metric.
    """
    name, sign = signed(name)
    found = (sign * x[name] for x in (report, *by_policy(report).values()) if name in x)
    return max(found, default=None)


def newest(reports: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The last value of a metric in reports, of several policies the highest; None without one."""
    found = (highest(report, name) for report in reversed(reports))
    return next((x for x in found if x is not None), None)


def describe(name: str) -> Metric | None:
    """Unit and meaning of a metric of any policy; None if it is not declared."""
    name = plain_name(name)
    if name in METRICS:
        return METRICS[name]
    return next((m for prefix, m in PREFIXES.items() if name.startswith(prefix)), None)


def check(report: Iterable[str]) -> None:
    """Raises QuintetError if a name in the report is not declared."""
    unknown = [name for name in report if describe(name) is None]
    if unknown:
        near = difflib.get_close_matches(unknown[0], METRICS, n=1)
        hint = f" (nearest to the first: {near[0]})" if near else ""
        raise QuintetError(
            f"a report may hold declared metrics only, not {', '.join(unknown)}{hint}. "
            "Declare them in quintet/observe/metrics.py, or as a learner's own_metrics"
        )


def clean(report: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in report.items() if math.isfinite(value)}


@dataclass
class _Sums:
    """Sums over the episodes since a report; judged: number of episodes in which success is
    defined.

    return_squares: squares of the returns' distances from their mean.
    """

    count: int = 0
    return_sum: float = 0.0
    return_squares: float = 0.0
    return_min: float = math.inf
    return_max: float = -math.inf
    length_sum: int = 0
    judged: int = 0
    won: int = 0


_COUNT = "count/"  # prefix of counts in checkpoints, where `ENV` is that of sums


@final
class EpisodeStats:
    """Sums over finished episodes between reports; also keeps the last `window` episodes."""

    def __init__(self, window: int = 100, names: Sequence[str] = ()) -> None:
        """names: of the environment's own numbers."""
        self._new, self._names = _Sums(), names
        self._own: dict[str, list[float]] = {}  # sums and counts
        self._recent: deque[tuple[float, bool | None]] = deque(maxlen=window)

    def add(
        self,
        episode_return: float,
        length: int,
        success: bool | None = None,
        recent: bool = True,
        numbers: Sequence[float] = (),
    ) -> None:
        """Adds a finished episode: raw return in reward units, length in env_steps.

        recent: whether it counts among the last episodes; numbers: the environment's own, of which
            NaN does not count.
        """
        for name, x in zip(self._names, numbers, strict=False):
            if x == x:
                total = self._own.setdefault(name, [0.0, 0.0])
                total[0] += x
                total[1] += 1.0
        if recent:
            self._recent.append((episode_return, success))
        new = self._new
        far = episode_return - new.return_sum / max(new.count, 1)
        new.count += 1
        new.return_sum += episode_return
        # Not of the returns themselves: the digits of their spread would be lost.
        new.return_squares += far * (episode_return - new.return_sum / new.count)
        new.return_min = min(new.return_min, episode_return)
        new.return_max = max(new.return_max, episode_return)
        new.length_sum += length
        if success is not None:
            new.judged += 1
            new.won += success

    @property
    def recent_returns(self) -> list[float]:
        """Returns of the last episodes."""
        return [return_ for return_, _ in self._recent]

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return _mean(self.recent_returns)

    @property
    def recent_success(self) -> float | None:
        """Fraction of the last episodes that succeeded; None if success isn't defined."""
        return _mean([won for _, won in self._recent if won is not None])

    def forget_recent(self) -> None:
        """Drops the last episodes, which another policy played."""
        self._recent.clear()

    def report(self) -> dict[str, float]:
        """The ``episode/*`` and ``env/*`` values of the episodes since the last call, if any."""
        (new, own), self._new, self._own = (self._new, self._own), _Sums(), {}
        if not new.count:
            return {}
        values = {
            "episode/return_mean": new.return_sum / new.count,
            "episode/return_std": math.sqrt(max(new.return_squares, 0.0) / new.count),
            "episode/return_min": new.return_min,
            "episode/return_max": new.return_max,
            "episode/length_mean": new.length_sum / new.count,
            "episode/count": new.count,
        }
        values |= {f"{ENV}{name}": total / count for name, (total, count) in own.items()}
        return values | ({"episode/success_rate": new.won / new.judged} if new.judged else {})

    def save(self) -> dict[str, float] | None:
        """Sums since the last report, for a checkpoint; None if there are none."""
        if not self._new.count:
            return None
        own: dict[str, float] = {}
        for name, (total, count) in self._own.items():
            own |= {f"{ENV}{name}": total, f"{_COUNT}{name}": count}
        return asdict(self._new) | own

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Restores the result of `save`."""
        sums = {k: x for k, x in (saved or {}).items() if "/" not in k}
        self._new, self._own = _Sums(**sums), {}
        for name in self._names:
            if saved and f"{ENV}{name}" in saved:
                self._own[name] = [saved[f"{ENV}{name}"], saved[f"{_COUNT}{name}"]]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
