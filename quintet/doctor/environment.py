"""Examination of an environment: measurements in stages, and the findings after each."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from time import perf_counter

import gymnasium

from quintet.algorithms import registry
from quintet.doctor.curves import threshold_of
from quintet.doctor.fits import LEAST_ROWS, fit
from quintet.doctor.pairs import AFTER, AGAIN, LEAST_RESETS, compare, has_one_mask, remembers
from quintet.doctor.play import play
from quintet.doctor.seen import Options, Seen
from quintet.envs.check import check_env
from quintet.envs.env_source import EnvSource
from quintet.envs.evidence import Evidence
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.settled import settled
from quintet.envs.vector import VectorEnv, allocate_obs
from quintet.findings.choices import Chosen, Learning
from quintet.findings.engine import Again, env_words, evaluate, is_known, ranked
from quintet.findings.record import Finding
from quintet.models.config import resolve_model
from quintet.options.command import parse
from quintet.options.resolve import Loaded
from quintet.options.saved import load_config, name_in_folder
from quintet.spaces import observation_leaves
from quintet.system.user_code import no_exit
from quintet.types import ACTION_MASK, Spaces

_STREAMS = 12
_PLAY_STEPS = 2_500  # steps of each stream
_FURTHER_STEPS = 10_000  # until an episode ends, if none has
_CHECK_STEPS = 1_000
_MASKED, _SLOW = "its mask is of another kind of actions", "its steps take too long"

Stage = tuple[str, Callable[[], None]]


def examine(
    loaded: Loaded, options: Options, seed: int, most_s: float, begun: Callable[[str], None]
) -> Iterator[tuple[Seen, list[Finding]]]:
    """Measures stage by stage; yields what was seen and found after each.

    most_s: seconds for all stages together, about.
    begun: is called with the name of a stage before it begins.

    Raises:
        ConfigError: the environment can't be made.
        EnvironmentFault: it raised an error, which names the step and the line.
    """
    seen = Seen(options)
    begin = perf_counter()
    for name, measure in _stages(loaded, seen, seed, most_s):
        if perf_counter() - begin > most_s:
            seen.unmade[name] = "no time was left"
        else:
            begun(name)
            with no_exit():
                measure()
        yield seen, findings(seen)


def findings(seen: Seen) -> list[Finding]:
    """All findings about what was seen that the user does not know, the likeliest first."""
    found = ranked([*seen.choices, *evaluate("environment", seen)])
    options = seen.options
    return [
        replace(each, command=options.again.command(each))
        for each in found
        if not is_known(options.known, each.name, each.subject)
    ]


def _stages(loaded: Loaded, seen: Seen, seed: int, most_s: float) -> Iterator[Stage]:
    """The stages of an examination in order, each of which fills a part of `seen`."""
    env = loaded.env

    def check() -> None:
        seen.check = check_env(env, _CHECK_STEPS, seed, 0.2 * most_s)
        seen.choices = _choices(loaded, seen.check.spaces, seen.check.evidence)
        seen.threshold = threshold_of(gymnasium.registry.get(env.config.id.rpartition(":")[2]))

    def played() -> None:
        assert seen.check is not None
        with closing(_make_env(env)) as made:
            singles = env.singles(made)
            if singles and seen.threshold is None:
                seen.threshold = threshold_of(getattr(singles[0].unwrapped, "spec", None))
                seen.wrapped = seen.threshold is not None
            limited = seen.check.env.max_steps is not None
            further = 0 if limited else _FURTHER_STEPS
            seen.played = play(made, _PLAY_STEPS, seed, 0.25 * most_s, further)
        evidence = seen.played.evidence
        if evidence is not None and evidence.rows > seen.check.evidence.rows:
            seen.choices = _choices(loaded, seen.check.spaces, evidence)

    def pairs() -> None:
        if env.num_agents > 1:
            seen.unmade["pairs"] = "its agents step together"
            return
        # Each comparison begins with a reset of all streams, which may make them anew.
        reset_s = 0.0 if seen.check is None else seen.check.reset_s
        if _STREAMS * (seen.step_s * 2 * AFTER + LEAST_RESETS * reset_s) > 0.2 * most_s:
            seen.unmade["pairs"] = _SLOW
            return
        with closing(_make_env(env)) as made:
            if made.description.one_seed:
                seen.unmade["pairs"] = "its streams can't have the same seed"
                return
            seen.pairs = compare(made, seed, 0.2 * most_s)

    def again() -> None:
        if env.num_agents > 1 or seen.step_s * 3 * AGAIN > 0.1 * most_s:
            seen.unmade["remembers"] = _SLOW if env.num_agents == 1 else "its agents step together"
            return
        with closing(make_group_env(env, env.streams_of(1))) as made:
            made.restart(
                [seed] * made.num_streams,
                allocate_obs(made.spaces.observation, (made.num_streams,)),
            )
            singles = env.singles(made)
            masked = ACTION_MASK in observation_leaves(made.spaces.observation)
            if masked and singles and not has_one_mask(singles[0].action_space):
                seen.unmade["remembers"] = _MASKED
            elif singles:
                try:
                    seen.remembers = remembers(singles[0], seed)
                except NotImplementedError:  # raised by the environment
                    seen.unmade["remembers"] = "it lacks a method that this needs"
            else:
                seen.unmade["remembers"] = "its environments are not stepped one by one"

    def fitted() -> None:
        if seen.played is None or seen.played.rows < LEAST_ROWS:
            seen.unmade["predict"] = f"there were fewer than {LEAST_ROWS} rows"
            return
        seen.fits = fit(seen.played)

    yield "check", check
    yield "play", played
    yield "pairs", pairs
    yield "remembers", again
    yield "predict", fitted


def _make_env(env: ResolvedEnv) -> VectorEnv:
    streams = env.streams_of(_STREAMS)
    with closing(make_group_env(env, env.streams_of(1))) as first:
        env = settled(env, first.spaces)
    return make_group_env(env, streams)


def _choices(loaded: Loaded, spaces: Spaces, evidence: Evidence) -> list[Finding]:
    config = loaded.config
    learning = Learning.of(config.algo, config.learner)
    budget = config.total_env_steps // config.population.size
    model = resolve_model(config.model, spaces)
    return evaluate("choices", Chosen(config.model, model, spaces, learning, budget, evidence))


def load(algo: str, words: list[str], source: EnvSource | None = None) -> Loaded:
    """The configuration of a run in the environment, from words as for ``quintet train``; source:
    makes it in place of its id.
    """
    parsed = parse("config", [algo, *words])
    return load_config(
        parsed.algo, parsed.files, parsed.options, source, trust=parsed.trust, beside=True
    )


def options_of(loaded: Loaded, words: str) -> Options:
    """The options that findings depend on.

    words: the typed options, for commands.
    """
    config = loaded.config
    name, learning = shlex.quote(config.env.id), Learning.of(config.algo, config.learner)
    recurrent = "model.core" not in registry.find(config.algo).needs
    command = Again(
        f"quintet train {config.algo} --env {name}{words}",
        f"runs/{config.algo}-{name_in_folder(config.env.id)}-",
        f"quintet check-env {name}{env_words(config.env.model_dump())}",
    )
    return Options(
        command,
        learning.gamma,
        config.model.core != "none" or config.env.frame_stack > 1,
        "--model.core lstm" if recurrent else "--env.frame-stack 4",
        learning.normalizes,
        config.env.observe_last,
        config.total_env_steps,
        config.doctor.known,
    )
