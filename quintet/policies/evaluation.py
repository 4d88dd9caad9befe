"""Evaluates policies on whole episodes."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from quintet import spaces
from quintet.checkpoints import spaces_as_json
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import EnvLike, settle
from quintet.envs.eval_env import OWN_OPTIONS, EvalEnvConfig, of_another
from quintet.envs.film import make_filmed_env
from quintet.envs.own_state import begin_with
from quintet.envs.owners import made_for
from quintet.envs.random_play import UniformActor
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.settled import keys_in_info, with_metrics
from quintet.envs.vector import EnvDescription, ObsArrays, VectorEnv
from quintet.errors import ConfigError, QuintetError
from quintet.observe.metrics import ENV
from quintet.observe.video import VideoWriter, check_video
from quintet.options.bounds import MOST_COUNT
from quintet.options.declaration import Facts, idle
from quintet.options.machine import lacking
from quintet.policies.episodes import Found, Games, How, play
from quintet.policies.policy import LEAST_BOUND, Policy
from quintet.runtime.spread import Spreading, make_streams, spread_envs
from quintet.system.files import given_path
from quintet.system.importing import same_code, settle_search_path, way_to_script
from quintet.system.trust import calls_of
from quintet.system.user_code import known_arguments, no_exit

MaxSteps = int | Literal["auto"] | None

MAX_STREAMS = 25
"""Most environments that an evaluation steps at the same time."""

MAX_FPS = 60.0
"""Most pictures per second of a video; a faster environment is shown at the right speed by leaving
out steps.
"""


@final
@dataclass(frozen=True)
class Film:
    """The episode of a video: its return in raw reward units, its length in env_steps.

    env: the filmed environment; `remark` says why if it is not the evaluated one.
    """

    path: Path
    env: EnvDescription
    seed: int
    episode_return: float
    length: int
    remark: str


@final
@dataclass(frozen=True)
class Scores:
    """Episodes in the order (stream, time): returns in raw reward units, lengths in env_steps.

    env: the environment, its backend, and the rule by which episodes are won.
    success: whether each episode was won; None where ``env.success`` was not set.
    film: the extra episode of the video; None without a video.
    entropy: mean entropy of the policy's distribution over all steps, in nats (of a density for
        continuous actions); None for policies without a distribution.
    games: results against other players, whose episodes are not counted here; None if the policy
        played alone.
    complete: whether all requested episodes, or games, were played.
    cut_episodes: number of episodes cut after `max_steps`, with their return so far.
    max_steps: the step limit; None: no limit.
    film_fault: why a requested video is missing; None without a fault.
    metrics: the environment's own numbers by name, as in ``env.metrics``, one per episode; NaN
        where an episode had none.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    env: EnvDescription
    film: Film | None = None
    success: NDArray[np.bool_] | None = None
    entropy: float | None = None
    games: Games | None = None
    complete: bool = True
    cut_episodes: int = 0
    max_steps: int | None = None
    film_fault: str | None = None
    metrics: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def cut_told(self) -> str:
        """A sentence about the episodes that were cut; empty if none was."""
        if not self.cut_episodes:
            return ""
        return (
            f"{self.cut_episodes} of {len(self.returns)} episodes had no end within "
            f"{self.max_steps:,} steps and were cut; their returns so far count"
        )

    @property
    def statistics_told(self) -> str:
        """A sentence about wrappers whose statistics began anew; empty without one."""
        if not self.env.statistics:
            return ""
        return (
            f"{' and '.join(self.env.statistics)} began anew, without training's statistics, so "
            "these scores are not the policy's; train without wrappers that keep statistics"
        )

    @property
    def success_rate(self) -> float | None:
        """Fraction of episodes won; None if success isn't defined."""
        if self.success is None or not len(self.success):
            return None
        return float(self.success.mean())

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Population standard deviation of the returns."""
        return float(self.returns.std())

    def reported(self) -> dict[str, float]:
        """``eval/*`` by declared name."""
        found = {
            "eval/return_mean": self.mean,
            "eval/return_std": self.std,
            "eval/return_min": float(self.returns.min()),
            "eval/return_max": float(self.returns.max()),
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": float(len(self.returns)),
            "eval/cut_episodes": None if self.max_steps is None else float(self.cut_episodes),
            "eval/success_rate": self.success_rate,
            "eval/entropy": self.entropy,
        }
        numbers = {f"eval/{ENV}{k}": x[~np.isnan(x)] for k, x in self.metrics.items()}
        own = {name: float(x.mean()) for name, x in numbers.items() if len(x)}
        return {name: value for name, value in found.items() if value is not None} | own


_ELSEWHERE = {
    **dict.fromkeys(("n_eval_episodes", "n_episodes", "num_episodes"), "episodes"),
    **dict.fromkeys(("render", "render_mode", "record_video"), "video, a file"),
    **dict.fromkeys(("kwargs", "env_kwargs"), "env_options={'kwargs': ...}"),
    "callback": "stop",
    "greedy": "deterministic",
    "max_episode_steps": "max_steps",
    "return_episode_rewards": "none; the scores have returns and lengths",
}


@no_exit()
@known_arguments(_ELSEWHERE)
def evaluate(
    policy: Policy,
    env: EnvLike | None = None,
    episodes: int = 100,
    seed: int = 10_000,
    *,
    deterministic: bool = True,
    stop: Callable[[], bool] | None = None,
    video: str | Path | None = None,
    random: bool = False,
    against: Policy | Literal["random"] | None = None,
    env_options: Mapping[str, Any] | None = None,
    max_steps: MaxSteps = "auto",
    device: str = "cpu",
) -> Scores:
    """Plays `episodes` whole episodes; rewards are raw, neither clipped nor normalised.  In an
    environment of several agents these are games, in which each agent has its own episodes.

    Every stream plays a fixed share of the episodes, so short episodes do not count more often than
    long ones.  Stream i begins with environment seed ``seed + i``.

    Args:
        env: an environment other than training's: an id, a callable that makes environments, or a
            vector environment, as for `quintet.make_vector_env`; a vector environment determines
            how many are stepped at the same time.  An environment with another name gets
            neither ``env.kwargs`` nor ``env.reward_shaping``: to pass arguments, give a callable.
            Of ``env.success``, it keeps a rule about rewards and loses one about info.  None:
            training's environment, whose code is used only under the rules of
            `quintet.system.trust`.
        deterministic: whether to take the mode of the policy; False samples.
        stop: called at every step; True ends the evaluation with the episodes so far.
        video: an .mp4 file of one episode of at most `max_steps`, with its step and return so far
            in the corner; see `quintet.envs.film`.  The episode is played before the others, in a
            separate environment with the seed `seed`, and isn't counted: scores are the same with
            and without a video.  If `stop` ends it, there is no file.  If its environment or the
            file fails during the episode, a warning and the scores say so.
        random: whether to play uniformly random actions, for a baseline score.
        against: player of the other agents in an environment of several: another policy, or
            uniformly random actions.  The policy plays every second agent of a game, and in every
            second game the other half.
        env_options: other values of ``env.*`` than in training, by name: ``kwargs`` (as a held-out
            split), ``backend``, ``success``, ``metrics``, ``num_processes``, ``num_threads``.
        max_steps: steps after which an episode is cut and counts with its return so far; None: no
            limit; auto: no limit if the environment has a known time limit, else 1,000, or the
            greatest power of ten up to ten times the longest training episode.
        device: cpu, or a GPU that computes the actions, in float32: ``cuda``, ``cuda:1``. A policy
            with private state, as of correlated noise, computes on the CPU.

    Raises:
        ConfigError: the environment's spaces are not the policy's, a number is wrong, the device is
            not there, or the environment can't be filmed.
        UntrustedError: another user made the policy, and it names code for its environment.
        QuintetError: no package to write videos is installed, or none of the policy's agents joined
            a game.
    """
    for given in (policy, *([] if against in (None, "random") else [against])):
        if not isinstance(given, Policy):
            raise ConfigError(
                f"a policy must be a quintet.Policy, got {given!r}; give quintet.load(path)"
            )
    episodes, seed = _checked(episodes, seed, device, max_steps)
    settle_search_path()
    path = None if video is None else given_path(video)
    if path is not None:
        check_video(path)
    chosen, num_streams = _choose_env(policy, env, episodes, _options(env_options or {}))
    actor = UniformActor(policy.spaces.action, seed) if random else policy.player_on(device)
    how = How(actor, episodes, seed, deterministic, stop, threads=policy.threads)
    if against is not None:
        if chosen.num_agents == 1:
            raise ConfigError(
                f"against must have an environment of several agents, got {chosen.config.id} "
                "with one: leave it out"
            )
        chance = UniformActor(policy.spaces.action, seed, player=1)
        other = against.player_on(device) if isinstance(against, Policy) else chance
        how = replace(how, others=(other,))
        both = min(how.episodes, 2) * chosen.num_agents  # equally many games of each seating
        num_streams = -(-num_streams // both) * both
    with _streams(policy, chosen, num_streams, how, max_steps) as (vector, about, how):
        if isinstance(against, Policy):
            _check_spaces(against, vector, "the opponent")
        film, film_fault = None, None
        try:
            film = None if path is None else _film(policy, chosen, how, path)
        except ConfigError:
            raise
        except QuintetError as fault:  # a fault of the video costs no scores
            film_fault = str(fault)
            warnings.warn(f"there is no video: {fault}", RuntimeWarning, stacklevel=3)
        found = play(vector, how, chosen.num_agents)
    if found.complete and not found.played:  # the policy's agents were in none of the games
        raise QuintetError(
            "an evaluation must have an episode of one of the policy's agents, but "
            f"{chosen.config.id} had none in {episodes} games; raise episodes"
        )
    scores = _scores(found, about, how)
    if "metrics" in (env_options or {}):
        _require_metrics(scores)
    return replace(scores, film=film, film_fault=film_fault)


def _require_metrics(scores: Scores) -> None:
    """Refuses a key of info that no episode had, unless one was cut."""
    lacks = [name for name, x in scores.metrics.items() if np.isnan(x).all()]
    if lacks and len(scores.returns) and not scores.cut_episodes:
        raise ConfigError(
            f"env.metrics must name numbers that {scores.env.id} has in info, got "
            f"{', '.join(lacks)}, which none of {len(scores.returns)} episodes had: correct it"
        )


def _check_device(device: str) -> None:
    """Raises ConfigError if no actions can be computed there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device must be cpu, cuda or cuda:N, got {device!r}: leave it out")
    fault = lacking(f"device={device}", device, torch.cuda, 1, "CUDA GPU")
    if device != "cpu" and fault is not None:
        raise ConfigError(f"{fault}: leave it out")


def evaluate_in(policy: Policy, env: ResolvedEnv, how: How, max_steps: MaxSteps = "auto") -> Scores:
    """Evaluates a policy of a run in that run's environment; `max_steps` as for `evaluate`."""
    raw = env.with_options({"reward_clip": "none"})
    num_streams = env.streams_of(min(how.episodes, MAX_STREAMS))
    with _streams(policy, raw, num_streams, how, max_steps) as (vector, about, how):
        return _scores(play(vector, how, env.num_agents), about, how)


def _checked(episodes: int, seed: int, device: str, max_steps: MaxSteps) -> tuple[int, int]:
    whole = all(isinstance(number, (int, np.integer)) for number in (episodes, seed))
    if not whole or not 1 <= episodes <= MOST_COUNT or not 0 <= seed < 2**31 - MAX_STREAMS:
        raise ConfigError(
            f"episodes must be in 1 .. {MOST_COUNT} and seed in 0 .. "
            f"{2**31 - MAX_STREAMS - 1}, got episodes={episodes!r}, seed={seed!r}"
        )
    _check_device(device)
    if max_steps not in (None, "auto") and (
        isinstance(max_steps, bool) or not isinstance(max_steps, int | np.integer) or max_steps < 1
    ):
        raise ConfigError(
            f"max_steps must be a whole number from 1 on, auto or none, got {max_steps!r}"
        )
    return int(episodes), int(seed)


def _scores(found: Found, env: EnvDescription, how: How) -> Scores:
    played = found.played
    steps = sum(each.length for each in played)
    entropies = [each.entropy for each in played if each.entropy is not None]
    return Scores(
        returns=np.array([each.return_ for each in played]),
        lengths=np.array([each.length for each in played], np.int64),
        env=env,
        success=None if env.success is None else np.array([x.success for x in played], np.bool_),
        entropy=sum(entropies) / steps if entropies and steps else None,
        games=found.games,
        complete=found.complete,
        cut_episodes=sum(each.cut for each in played),
        max_steps=how.max_steps,
        metrics={
            name: np.array([each.metrics[k] for each in played])
            for k, name in enumerate(env.metrics)
        },
    )


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the environment that an evaluation may change, validated."""
    unknown = sorted(set(given) - set(OWN_OPTIONS))
    if unknown:
        raise ConfigError(
            f"env_options must be some of {', '.join(OWN_OPTIONS)}, got {', '.join(unknown)}"
        )
    try:
        config = EnvConfig(id="", **given)
    except ValidationError as error:
        faults = "; ".join(f"env.{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"env_options must be valid options of a run: {faults}") from error
    return {name: getattr(config, name) for name in given}


def _choose_env(
    policy: Policy, env: EnvLike | None, episodes: int, own: Mapping[str, Any]
) -> tuple[ResolvedEnv, int]:
    """The environment with the evaluation's `own` options, and the number of them that step at the
    same time; raises UntrustedError if the policy's folder names code for it that may not run.
    """
    config, source = policy.env.model_copy(update={"reward_clip": "none"}), None
    says: dict[str, Any] = {} if env is None else {"id": env}
    if env is not None and env != config.id:
        says, source = settle(env)
        config = of_another(config, says)
    config = config.model_copy(update=dict(own))
    # The caller vouches for the arguments, and for a name only where it is given or no code.
    vouched = {**({} if ":" in config.id else {"id": config.id}), **says, **own}
    given = calls_of({f"env.{name}": value for name, value in vouched.items()})
    origin = replace(policy.origin, given=(*policy.origin.given, *given))
    for call in calls_of({f"env.{name}": value for name, value in config}):
        origin.check(call)
    resolved = resolve_env(config, source)
    if "metrics" in own:
        resolved = with_metrics(resolved, keys_in_info)
    # Effects depend on the environment's maker, which is found later where no option is given.
    known = {name: x for name, x in own.items() if name in EvalEnvConfig.model_fields}
    still = own and idle(EvalEnvConfig.model_construct(**known), Facts(evaluated=resolved))
    for name in [*(own.keys() & still), *(own.keys() & says.keys() - {"id"})]:
        raise ConfigError(
            f"env.{name}={own[name]!r} has no effect on {resolved.config.id} "
            f"({resolved.config.backend}); leave it out"
        )
    return resolved, resolved.streams_of(says.get("num_streams", min(episodes, MAX_STREAMS)))


@contextmanager
def environment_of(policy: Policy, env: EnvLike | None, num_streams: int) -> Iterator[VectorEnv]:
    """The policy's environment, or `env`, see `evaluate`, for the block: at least this many streams
    of it.

    Raises:
        ConfigError: the environment's spaces are not the policy's.
        UntrustedError: the policy's folder names code for it that may not run.
    """
    settle_search_path()
    chosen, count = _choose_env(policy, env, num_streams, {})
    how = How(policy.actor, 1, 0, True, None)
    with _streams(policy, chosen, count, how, None) as (vector, *_):
        yield vector


@contextmanager
def _streams(
    policy: Policy, env: ResolvedEnv, num_streams: int, how: How, max_steps: MaxSteps
) -> Iterator[tuple[VectorEnv, EnvDescription, How]]:
    """New environments with the policy's spaces for the block, see `_begin_as_trained`, and `how`
    with their step limit; the error for a name that can't be imported says where the environment
    was defined.
    """
    name, script = env.config.id, policy.description.get("script")
    env = env.numbered(first=env.config.num_streams + 1)
    try:
        with made_for("an evaluation"):
            made = make_streams(env, num_streams, Spreading(timeout_s=how.timeout_s))
    except ConfigError as error:
        if env.source is not None:
            raise
        way = ""
        if ":<" in name:
            way = "give the function of the training as env=, or an import string of one as --env"
        else:
            way = way_to_script({"env": name}, script, Path(policy.origin.place))
        if not way:
            raise
        raise ConfigError(way if script else f"{error}; {way}") from error
    with closing(made):
        for each in spread_envs([made]):
            each.tell(how.say, how.notice)
        _check_spaces(policy, made)
        about = _begin_as_trained(policy, env, made, how)
        if max_steps == "auto":
            bound = int(policy.description.get("eval_max_steps", LEAST_BOUND))
            max_steps = bound if about.max_steps is None else None
        yield made, about, replace(how, max_steps=max_steps)


def _begin_as_trained(
    policy: Policy, env: ResolvedEnv, vector: VectorEnv, how: How
) -> EnvDescription:
    """Gives new environments of training's kind the state of its first one; their description,
    without the wrappers whose statistics so go on.
    """
    about = vector.description
    same = env.can_be_made_again and same_code(policy.env.id, about.id)
    given = same and begin_with(vector, policy.own_state, how.say)
    return replace(about, statistics=()) if given else about


def _check_spaces(policy: Policy, vector: VectorEnv, who: str = "the policy") -> None:
    way_out = "give one that was trained on such spaces, or another environment"
    theirs = spaces.without_leaves(vector.spaces, policy.critic_leaves)  # acting needs these
    own = spaces_as_json.as_json(policy.acting_spaces)
    spaces_as_json.require_same(own, theirs, who, vector.description.id, way_out)


def _film(policy: Policy, env: ResolvedEnv, how: How, path: Path) -> Film | None:
    """Films one episode; None if it was stopped before its end."""
    check = partial(_check_spaces, policy)
    # The filmed environment may have another info, and its episode isn't counted.
    filmed = make_filmed_env(
        env.with_options({"success": None, "metrics": "none"}), how.seed, check
    )
    shown: Film | None = None
    every = ceil(filmed.steps_per_s / MAX_FPS)
    try:
        with VideoWriter(path, filmed.steps_per_s / every) as writer:

            def watch(obs: ObsArrays, so_far: float, step: int, over: bool) -> None:
                nonlocal shown
                if shown is not None:
                    return
                if step % every == 0 or over:
                    number = f"{so_far:.0f}" if so_far == round(so_far) else f"{so_far:.2f}"
                    writer.add(filmed.picture(obs), f"return {number}\nstep {step}")
                if over:
                    about = filmed.env.description
                    shown = Film(path, about, how.seed, so_far, step, filmed.remark)

            def ends() -> bool:
                return shown is not None or (how.stop is not None and how.stop())

            _begin_as_trained(policy, env, filmed.env, how)
            # Random players of the scores draw what they would without a film.
            actor, *others = (
                deepcopy(x) if isinstance(x, UniformActor) else x for x in (how.actor, *how.others)
            )
            games = filmed.env.num_streams // env.num_agents
            of_film = replace(how, actor=actor, others=tuple(others), episodes=games, stop=ends)
            played = play(filmed.env, of_film, env.num_agents, watch)
            if shown is None:
                writer.discard()
                if played.complete:  # the game ended, but not for its first agent
                    raise ConfigError(
                        f"a video must show an episode of the first agent, got none in the game of "
                        f"{env.config.id} with seed {how.seed}; choose another seed"
                    )
        return shown
    finally:
        filmed.env.close()
