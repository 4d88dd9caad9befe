"""Options without effect on a run, given its spaces, its network and its backend.

`quintet.config.load` refuses options that other options leave without effect, before there is an
environment; the checks here need one.
"""

from dataclasses import replace

from quintet.algorithms import registry
from quintet.algorithms.parts.options import Idle
from quintet.config.load import Loaded, dropped, nobody_gave
from quintet.config.run import RunConfig
from quintet.envs.config import IN_PYTHON
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, idle_options
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
    if config.env.backend in IN_PYTHON:
        pools = "env.backend=envpool or ale, which step in threads"
        idle["env.num_threads"] = Idle(None, f"{pools}, {config.env.id} is of {config.env.backend}")
    if config.runtime.kind != "serial" and config.eval.episodes == 0:
        steps = "runtime.kind=serial or evaluations (in others runtime.num_workers step)"
        idle["env.num_processes"] = Idle(None, steps)
    elif not loaded.env.can_be_spread:
        python = "environments that are written in Python and can be made one by one"
        idle["env.num_processes"] = Idle(None, f"{python}, {config.env.id} is of another kind")
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
