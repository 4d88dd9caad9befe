"""``quintet eval``: episodes with a trained policy."""

import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

import tyro
from tyro.conf import Positional, arg

from quintet.algorithms.elsewhere import OF_EVALUATIONS
from quintet.envs.config import BackendName
from quintet.errors import ConfigError, QuintetError
from quintet.options.command import mapping
from quintet.system.files import shown
from quintet.system.places import run_path
from quintet.system.printing import say
from quintet.system.trust import TRUST_HELP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quintet.policies.evaluation import Scores
    from quintet.policies.policy import Policy


def main(arguments: list[str]) -> int:
    for word in arguments:
        name = word.removeprefix("--").partition("=")[0].replace("_", "-")
        if word.startswith("--") and name in OF_EVALUATIONS:
            raise ConfigError(f"--{name} is no option of quintet eval; {OF_EVALUATIONS[name]}")
    tyro.cli(Evaluate, prog="quintet eval", args=arguments).execute()
    return 0


@final
@dataclass(frozen=True)
class Evaluate:
    """Plays episodes with a trained policy."""

    run: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """run folder, checkpoint, or saved policy"""
    env: str | None = None
    """environment to play in, if not the one of training"""
    episodes: int = 100
    """number of whole episodes to play"""
    seed: int = 10_000
    """first environment seed"""
    checkpoint: str = "latest"
    """best, latest, or a checkpoint's name or path"""
    max_steps: Annotated[
        str,
        arg(
            help="steps after which an episode is cut and counts with its return so far; none: no "
            "bound; auto: 1,000 or more, by the length of training episodes, or the time limit",
            metavar="N|auto|none",
        ),
    ] = "auto"
    stochastic: bool = False
    """sample actions instead of taking the likeliest"""
    random: bool = False
    """play uniformly random actions instead of the policy's: the score to beat"""
    against: Annotated[str | None, arg(metavar="RUN")] = None
    """run or policy that plays the other agents, or random; episodes are then games"""
    video: str | None = None
    """.mp4 file for a video of one more episode, with the first seed"""
    as_json: Annotated[bool, arg(name="json")] = False
    """print one JSON object"""
    encoder: Annotated[str | None, arg(name="model.encoder")] = None
    """import string of the policy's encoder, if it is your own"""
    kwargs: Annotated[str | None, arg(name="env.kwargs", metavar="JSON")] = None
    """arguments of the environment, if not those of training"""
    max_episode_steps: Annotated[int | None, arg(name="env.max-episode-steps")] = None
    """steps after which episodes are truncated, if not as in training"""
    backend: Annotated[BackendName | None, arg(name="env.backend")] = None
    """backend, if not the one of training"""
    success: Annotated[str | None, arg(name="env.success")] = None
    """rule by which episodes are won, if not training's"""
    metrics: Annotated[str | None, arg(name="env.metrics")] = None
    """numbers of info, as KEY:REDUCTION, ..., if not training's"""
    num_processes: Annotated[int | None, arg(name="env.num-processes")] = None
    """number of processes that step Python environments"""
    device: Annotated[str, arg(metavar="D")] = "cpu"
    """device that computes the actions, in float32: cpu, cuda or cuda:N"""
    trust: Annotated[bool, arg(help=TRUST_HELP)] = False

    def execute(self) -> None:
        """Plays, and prints the scores."""
        idle = "--stochastic" if self.stochastic else "--device" if self.device != "cpu" else ""
        if self.random and idle:
            raise ConfigError(f"{idle} has no effect with --random: leave one of them out")
        policy, other = self._loaded()
        from quintet.policies.evaluation import evaluate

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "there is no video", RuntimeWarning)  # told below
            scores = evaluate(
                policy,
                self.env,
                self.episodes,
                self.seed,
                deterministic=not self.stochastic,
                random=self.random,
                against=other,
                env_options=self._env_options,
                max_steps=_steps(self.max_steps),
                device=self.device,
                video=self.video,
            )
        how = {"deterministic": not self.stochastic and not self.random, "random": self.random}
        say(json.dumps(_scores_as_json(scores) | how) if self.as_json else _scores_in_words(scores))
        if scores.film_fault is not None:
            raise QuintetError(f"there is no video, but the scores are valid: {scores.film_fault}")

    def _loaded(self) -> "tuple[Policy, Policy | Literal['random'] | None]":
        """The policy, and its opponent; raises ConfigError without a run."""
        if self.run is None:
            raise ConfigError("quintet eval needs a run: quintet eval RUN [--episodes N] ...")
        from quintet.checkpoints.checkpoint import none_at

        run = run_path(self.run)
        if not run.exists():
            raise none_at(run)
        from quintet.policies.policy import load

        policy = load(run, self.checkpoint, trust=self.trust, encoder=self.encoder)
        if self.against is None or self.against == "random":
            return policy, "random" if self.against else None
        return policy, load(self.against, trust=self.trust)

    @property
    def _env_options(self) -> dict[str, Any]:
        """The environment options that were typed."""
        typed = {
            "backend": self.backend,
            "success": self.success,
            "metrics": self.metrics,
            "num_processes": self.num_processes,
            "max_episode_steps": self.max_episode_steps,
            "kwargs": None if self.kwargs is None else mapping("--env.kwargs", self.kwargs),
        }
        return {name: value for name, value in typed.items() if value is not None}


def _numbers(values: "NDArray[np.float64]") -> dict[str, float]:
    """Mean, standard deviation and, if known, the 95% interval of the mean of an environment's own
    numbers ``[episodes]``; NaN does not count, and without a number there is only their count.
    """
    from quintet.observe.intervals import mean_interval

    own = values[values == values]
    if not len(own):
        return {"episodes": 0}
    mean, std = float(own.mean()), float(own.std())
    found: dict[str, float] = {"episodes": len(own), "mean": mean, "std": std}
    interval = mean_interval(mean, std, float(own.min()), float(own.max()), len(own))
    return found if interval is None else found | {"low": interval[0], "high": interval[1]}


def _in_words(own: dict[str, float]) -> str:
    if "mean" not in own:
        return "no episode has it"
    interval = f" (95% interval {own['low']:.4g} to {own['high']:.4g})" if "low" in own else ""
    return f"{own['mean']:.4g} +- {own['std']:.4g}{interval}"


def _steps(text: str) -> Any:
    """The step limit of episodes, as typed."""
    if text.lower() == "none":
        return None
    short = len(text) <= 20  # Python reads no number of thousands of digits
    return int(text) if short and text.isdecimal() else text


def _scores_as_json(scores: "Scores") -> dict[str, Any]:
    record = {
        "env": scores.env.id,
        "backend": scores.env.backend,
        "episodes": len(scores.returns),
        "return_mean": scores.mean,
        "return_std": scores.std,
        "return_min": float(scores.returns.min()),
        "return_max": float(scores.returns.max()),
        "length_mean": float(scores.lengths.mean()),
        "returns": scores.returns.tolist(),
        "cut_episodes": scores.cut_episodes,
        "max_steps": scores.max_steps,
    }
    if scores.env.curriculum:
        record["curriculum"] = scores.env.curriculum
    if scores.env.statistics:
        record["statistics_anew"] = list(scores.env.statistics)
    if scores.success is not None:
        record |= {
            "success": scores.env.success,
            "success_rate": scores.success_rate,
            "successes": scores.success.tolist(),
        }
    if scores.metrics:
        record["metrics"] = {
            name: _numbers(values) | {"values": [None if x != x else x for x in values.tolist()]}
            for name, values in scores.metrics.items()
        }
    if scores.entropy is not None:
        record["entropy"] = scores.entropy
    if scores.games is not None:
        games = scores.games
        record["games"] = {"won": games.won, "drawn": games.drawn, "lost": games.lost}
        record["games"] |= {"own": games.own.tolist(), "theirs": games.theirs.tolist()}
    if scores.film_fault is not None:
        record["video_error"] = scores.film_fault
    if scores.film is not None:
        record["video"] = asdict(scores.film) | {"path": str(scores.film.path)}
    return record


def _scores_in_words(scores: "Scores") -> str:
    from quintet.observe.pace import percent

    won = ""
    if scores.success_rate is not None:
        won = f"success {percent(scores.success_rate)} ({scores.env.success}), "
    entropy = "" if scores.entropy is None else f"entropy {scores.entropy:.2f} nats, "
    at = f" {scores.env.curriculum}" if scores.env.curriculum else ""
    text = (
        f"{scores.env.id} ({scores.env.backend}){at}: {won}return {scores.mean:.2f} +- "
        f"{scores.std:.2f} (min {scores.returns.min():.2f}, max {scores.returns.max():.2f}), "
        f"length {scores.lengths.mean():.1f}, {entropy}over {len(scores.returns)} episodes"
    )
    for name, values in scores.metrics.items():
        text += f"\nenv/{name}: {_in_words(_numbers(values))}"
    if scores.statistics_told:
        text += f"\n{scores.statistics_told}"
    if scores.cut_told:
        text += f"\n{scores.cut_told} (--max-steps)"
    if scores.games is not None:
        games = scores.games
        text += (
            f"\ngames: {games.won} won, {games.drawn} drawn, {games.lost} lost; mean return "
            f"{games.own.mean():.2f} against {games.theirs.mean():.2f}"
        )
    film = scores.film
    if film is not None:
        remark = f" ({film.remark})" if film.remark else ""
        text += (
            f"\n{shown(film.path)}: an episode of {film.env.id} ({film.env.backend}), "
            f"seed {film.seed}: return {film.episode_return:.2f}, length {film.length}{remark}"
        )
    return text
