"""Options without effect: refused where the user gave them, else put to rest."""

from quintet.algorithms import registry
from quintet.config.run import AUTOMATIC, MAY_CHANGE_ON_RESUME, PARTS, RunConfig, prefix_of
from quintet.envs.backends import BACKENDS
from quintet.envs.resolved import ResolvedEnv
from quintet.models.config import facts_of
from quintet.options import Facts, default_of, idle
from quintet.spaces import float64_leaves
from quintet.types import Spaces


def early_facts(config: RunConfig) -> Facts:
    """What is known before there is an environment."""
    return Facts(**_parts(config), **facts_of(config.model, None))


def facts(
    config: RunConfig, env: ResolvedEnv, evaluated: ResolvedEnv | None, spaces: Spaces
) -> Facts:
    """What is known of a run whose environment was made.

    evaluated: the environment of its evaluations, if it is another.
    """
    stepped = [env] if config.runtime.kind == "serial" else []
    if config.eval.episodes > 0 and config.eval_env.num_processes is None:
        stepped.append(evaluated or env)
    return Facts(
        **_parts(config),
        **facts_of(config.model, spaces),
        env=env,
        evaluated=evaluated or env,
        stepped=stepped,
        pools=" or ".join(n for n in BACKENDS.own if not BACKENDS.find(n).in_python),
        float64=bool(float64_leaves((spaces.own or spaces).observation)),
    )


def _parts(config: RunConfig) -> dict[str, object]:
    names = ("learner", "runtime", "eval", "population", "self_play")
    return {name: getattr(config, name) for name in names}


def judged(config: RunConfig, sources: dict[str, str], known: Facts) -> tuple[RunConfig, list[str]]:
    """The configuration with options without effect at rest, and a sentence on each that the user
    gave.  What a run began with stays, unless a resume may change it.

    sources: of the values, by dotted name; those of options that are put to rest change.
    """
    faults: list[str] = []
    needs = registry.find(config.algo).needs.items()
    for part in ("", *PARTS, "learner"):
        options = getattr(config, part) if part else config
        prefix = prefix_of(part) if part in PARTS else ""
        others = {n.removeprefix(prefix): need for n, need in needs if n.startswith(prefix)}
        while True:
            still = {
                name: one
                for name, one in idle(options, known, prefix, others).items()
                if getattr(options, name) not in (one.rest, AUTOMATIC.get(prefix + name, one.rest))
            }
            resting = [n for n in still if _may_rest(prefix + n, sources.get(prefix + n))]
            if not resting:
                break
            for name in resting:
                default = still[name].rest == default_of(type(options), name)
                _tell(sources, prefix + name, default)
            # Which may give another option an effect.
            options = options.model_copy(update={name: still[name].rest for name in resting})
            config = config.model_copy(update={part: options}) if part else options
        faults += [
            f"{prefix}{n}={getattr(options, n)} has no effect without {one.needs}; leave it out"
            for n, one in still.items()
            if sources.get(prefix + n) != "saved run"
        ]
    return config, faults


def _may_rest(name: str, source: str | None) -> bool:
    """Whether the user did not give an option, nor has a run begun with it that keeps it."""
    if source == "saved run":
        return name in MAY_CHANGE_ON_RESUME
    return source is None or source == "default" or nobody_gave(source)


def nobody_gave(source: str) -> bool:
    """Whether the source is a preset or the learner, not the user."""
    return source.startswith(("preset ", "default of "))


def _tell(sources: dict[str, str], name: str, default: bool) -> None:
    """Tells that a value, which may be the default, replaces one without effect."""
    if (source := sources.get(name, "default")) != "default":
        who = source.removeprefix("default of ")
        word = "default" if default else "resolved"
        sources[name] = f"{word} (that of {who} has no effect here)"
