"""Options of runs in environments whose tensors stay on their device, found without a tensor."""

from quintet.config.layers import is_free
from quintet.config.run import RunConfig

FOR_TENSORS = "resolved (the environment's tensors stay on their device)"
"""Source of options that such an environment determines."""


def host_needed(config: RunConfig) -> str:
    """The options because of which tensors must pass through the host at every step; "" if they
    can stay on their device.
    """
    serial = config.runtime.kind == "serial"
    needed = "" if serial else f"runtime.kind={config.runtime.kind}"
    return " and ".join(filter(None, (needed, _host_needed(config))))


def _host_needed(config: RunConfig) -> str:
    """The same without ``runtime.kind``."""
    env, streams = config.env, config.env.num_streams
    needs = {
        f"runtime.num_learners={config.runtime.num_learners}": config.runtime.num_learners > 1,
        f"cluster.address={config.cluster.address}": config.cluster.address is not None,
        f"population.size={config.population.size}": config.population.several,
        f"self_play.past_frac={config.self_play.past_frac}": config.self_play.on,
        f"env.frame_stack={env.frame_stack}": env.frame_stack > 1,
        "env.observe_last=true": env.observe_last,
        f"env.streams_per_group={env.streams_per_group}": env.streams_per_group
        not in (None, streams),
    }
    return " and ".join(name for name, given in needs.items() if given)


def in_one_process(config: RunConfig, sources: dict[str, str]) -> RunConfig:
    """The configuration with the kind serial, where tensors stay on their device, unless the user
    chose another kind, or other options need the host.
    """
    by = sources.get("runtime.kind", "default")
    if config.runtime.kind == "serial" or not is_free(by) or _host_needed(config):
        return config
    sources["runtime.kind"] = FOR_TENSORS
    return config.changed("runtime", {"kind": "serial"})
