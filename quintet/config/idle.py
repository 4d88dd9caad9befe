"""What has no effect on a run, seen by what it trains on: its spaces, its network, who steps it.

`quintet.config.load` refuses what options leave without effect by themselves, before there is an
environment; what is found here takes one.
"""

from dataclasses import replace

from quintet.algorithms import registry
from quintet.algorithms.parts.options import Idle
from quintet.config.load import Loaded, dropped
from quintet.config.run import RunConfig
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, idle_options
from quintet.types import Spaces


def without_idle_defaults(loaded: Loaded, spaces: Spaces) -> Loaded:
    """Without what the learner's own defaults say of layers and actions that are not there: who
    gives no such option can't leave it out.
    """
    sources, changes = dict(loaded.sources), {}
    for option in idle_options(loaded.config.model, spaces):
        name = f"model.{option}"
        if sources[name].startswith("default of "):
            changes[option] = ModelConfig.model_fields[option].get_default(
                call_default_factory=True
            )
            sources[name] = dropped(sources[name])
    model = loaded.config.model.model_copy(update=changes)
    config = loaded.config.model_copy(update={"model": model})
    return replace(loaded, config=config, sources=sources)


def without_idle(loaded: Loaded, config: RunConfig, spaces: Spaces) -> Loaded:
    """`config`, what `loaded` is resolved to, with every idle option at the value that says so.

    Who has set such an option himself is refused.  What a preset or a default says is replaced; a
    run that has begun goes on with what it began with.

    Raises:
        ConfigError: lists the options that were given and have no effect.
    """
    learner = registry.find(config.algo).idle_in(config.learner, config.model, spaces)
    idle = dict(learner)
    if config.env.backend == "gymnasium":
        pools = "env.backend=envpool or ale, which step in threads"
        idle["env.num_threads"] = Idle(None, f"{pools}, {config.env.id} is of gymnasium")
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
