"""Options without effect on a run, given its spaces, its network and its backend.

`quintet.config.load` refuses options that other options leave without effect, before there is an
environment; the checks here need one.
"""

from dataclasses import replace

from quintet.algorithms import registry
from quintet.algorithms.parts.options import Idle
from quintet.config.load import Loaded, dropped, nobody_gave
from quintet.config.run import RunConfig
from quintet.envs.backends import BACKENDS
from quintet.envs.evaluated import without_effect
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, idle_options
from quintet.spaces import float64_leaves
from quintet.types import Spaces


def without_idle_defaults(loaded: Loaded, spaces: Spaces) -> Loaded:
    """Drops the learner's own defaults for layers and actions that the run does not have, and a
    preset's where the user has changed the network.

    Otherwise a preset's stay, and are refused: it does not fit the spaces.
    """
    sources, changes = dict(loaded.sources), {}
    own = any(
        not (nobody_gave(source) or source.startswith("default"))
        for name, source in sources.items()
        if name.startswith("model.")
    )
    for option in idle_options(loaded.config.model, spaces):
        name = f"model.{option}"
        if sources[name].startswith("default of ") or (own and nobody_gave(sources[name])):
            changes[option] = ModelConfig.model_fields[option].get_default(
                call_default_factory=True
            )
            sources[name] = dropped(sources[name])
    model = loaded.config.model.model_copy(update=changes)
    config = loaded.config.model_copy(update={"model": model})
    return replace(loaded, config=config, sources=sources)


def without_idle(loaded: Loaded, config: RunConfig, spaces: Spaces) -> Loaded:
    """`loaded` with the resolved `config`, in which every idle option has its idle value.

    Idle values of presets and defaults are replaced; those of a saved run stay.

    Raises:
        ConfigError: lists the options that the user set and that have no effect.
    """
    learner = registry.find(config.algo).idle_in(config.learner, config.model, spaces)
    idle = dict(learner)
    if loaded.env.backend.in_python:
        others = [name for name, one in BACKENDS.usable().items() if not one.in_python]
        pools = f"env.backend={' or '.join(others)}, which step in threads"
        idle["env.num_threads"] = Idle(None, f"{pools}, {config.env.id} is of {config.env.backend}")
    evaluates, own = config.eval.episodes > 0, config.eval_env.given
    stepped = [loaded.env] if config.runtime.kind == "serial" else []
    stepped += [loaded.evaluated] if evaluates and "num_processes" not in own else []
    if not stepped:
        steps = "runtime.kind=serial or evaluations (in others runtime.num_workers step)"
        idle["env.num_processes"] = Idle(None, steps)
    elif not any(env.can_be_spread for env in stepped):
        python = "environments that are written in Python and can be made one by one"
        kind = f"{python}, {stepped[0].config.id} is of another kind"
        idle["env.num_processes"] = Idle(None, kind)
    for name in own if not evaluates else without_effect(loaded.evaluated, own):
        theirs = f"an environment of another kind, {loaded.evaluated.config.id} has no use for it"
        idle[f"eval.env.{name}"] = Idle(None, theirs if evaluates else "eval.episodes > 0")
    if not float64_leaves((spaces.own or spaces).observation):
        idle["env.observation_dtype"] = Idle("float32", "observations of float64")
    values, sources = config.flat(), dict(loaded.sources)
    faults, changes = [], {}
    for name, (rest, required) in idle.items():
        source, value = loaded.sources[name], values[name]
        if value == rest or source == "saved run":
            continue
        if source.startswith("preset"):
            sources[name] = f"resolved (that of {source} has no effect here)"
        elif not source.startswith("default"):
            faults.append(f"{name}={value} has no effect without {required}")
            continue
        changes[name] = rest
    if faults:
        raise ConfigError("; ".join(faults) + "; leave it out")
    ours = {name: rest for name, rest in changes.items() if name in learner}
    config = config.model_copy(update={"learner": config.learner.model_copy(update=ours)})
    return replace(loaded, config=config, sources=sources)
