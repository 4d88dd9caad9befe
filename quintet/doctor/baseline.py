"""A run's returns beside those of a rule of the user's own."""

import time
from contextlib import closing
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from quintet.doctor.run import seen_of
from quintet.envs.make import make_group_env
from quintet.errors import ConfigError
from quintet.findings.record import Finding
from quintet.observe.run_summary import RunSummary
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.system.importing import code_of
from quintet.system.user_code import no_exit

_EPISODES, _MOST_STEPS, _MOST_S = 20, 50_000, 30.0
_LEAST = 3  # episodes
_FAR = 3.0  # times what the rule gains over the beginning
_CLEARLY = 2.0  # standard errors


@final
class Beside(NamedTuple):
    """finding: present if the policy gains several times as much as the rule, which suggests that
        it exploits the reward.
    said: the returns of both; "" if they are not known.
    below: whether the run is clearly below the rule.
    """

    finding: Finding | None = None
    said: str = ""
    below: bool = False


def beside_rule(run: RunSummary, rule: str) -> Beside:
    """Plays episodes of the rule in the run's environment.

    rule: ``module:function``, from an observation to an action.

    Raises:
        ConfigError: the rule can't be imported, or the environment is not stepped one by one.
        UntrustedError: the run names code that may not be imported.
    """
    choose = code_of("--baseline", rule, "observation")
    seen = next(iter(seen_of(run)), None)
    first, end = (None, None) if seen is None else (seen.first_level, seen.last_level)
    returns = _played(run, choose)
    if first is None or end is None or len(returns) < _LEAST:
        return Beside()
    mean, error = float(returns.mean()), float(returns.std()) / len(returns) ** 0.5
    below = end.mean < mean - _CLEARLY * (error**2 + end.error**2) ** 0.5
    text = (
        f"the rule: mean return {mean:.4g} of {len(returns)} episodes; the run in training, at "
        f"its end: {end.mean:.4g}{', which is below the rule' if below else ''}"
    )
    usual = max(mean - first.mean, float(returns.std()), 1e-9)
    if end.mean <= returns.max() or end.mean - mean <= _FAR * usual:
        return Beside(None, text, below)
    finding = Finding(
        f"the returns, {end.mean:.4g}, are far above all {len(returns)} episodes of the rule, "
        f"whose best is {returns.max():.4g}: the policy may exploit a gap in the reward",
        {"mean": end.mean, "mean of the rule": mean, "at first": first.mean},
        "look at episodes (quintet eval RUN --video FILE), and at what is rewarded in them",
        weight=0.5,
        name="reward-exploited",
    )
    return Beside(finding, text, below)


def _played(run: RunSummary, choose: Any) -> NDArray[np.float64]:
    """Returns of the rule's episodes in the run's environment."""
    loaded = load_config(run.learner, [], Layer("doctor", {"run_dir": str(run.folder)}))
    returns, begin = list[float](), time.monotonic()
    with closing(make_group_env(loaded.env, loaded.env.streams_of(1))) as made, no_exit():
        singles = loaded.env.singles(made)
        if not singles:
            raise ConfigError(
                f"--baseline must have an environment that is stepped one by one, got backend "
                f"{loaded.env.config.backend}: train with --env.backend gymnasium"
            )
        env, steps = singles[0], 0
        while len(returns) < _EPISODES:
            obs, _ = env.reset(seed=len(returns))
            whole, over = 0.0, False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(choose(obs))
                whole, over, steps = whole + float(reward), terminated or truncated, steps + 1
                if steps >= _MOST_STEPS or time.monotonic() - begin > _MOST_S:
                    return np.array(returns)
            returns.append(whole)
    return np.array(returns)
