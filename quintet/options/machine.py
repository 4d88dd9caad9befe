"""Automatic options, resolved for this machine and the spaces of a run's environment.

PyTorch is imported only if GPUs or the processor's number formats matter, or a network is made.
"""

from typing import Any

from quintet.algorithms import registry
from quintet.algorithms.parts.options import reads_values
from quintet.envs.resolved import ResolvedEnv
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, is_wide, resolve_model, uses_pictures
from quintet.options.bounds import MOST_TASKS
from quintet.options.layers import is_free
from quintet.options.run import RunConfig
from quintet.options.runtime import RuntimeConfig
from quintet.system import memory
from quintet.system.compiler import compiler_fault, cuda_compiler_fault
from quintet.system.cpus import usable_cores
from quintet.types import Spaces

COMPILE_FROM_UPDATES, COMPILE_FROM_UPDATES_OF_PICTURES = 30_000, 3_000
"""Number of optimizer steps from which compiling is worth its 10 to 30 seconds: it saves about one
millisecond per step, and ten on pictures.
"""

_COPIES = 5
"""Copies of a policy's weights: the learner's, their gradients, two moments, and a publication."""


def automatic(config: RunConfig, env: ResolvedEnv, spaces: Spaces) -> RunConfig:
    """The configuration with every automatic option resolved for this machine."""
    size = streams_per_group(config, env)
    model = resolve_model(config.model, spaces)
    pictures = uses_pictures(model, spaces)
    device = _resolve_device(config.runtime, pictures)
    if not env.of_tensors:  # tensors are on the learner's device, which is known later
        for name in ("deterministic", "tf32"):
            for value in ("on", "off"):
                _require_cuda(config.runtime, device, name, value)
    threads = _threads(config.runtime, pictures or is_wide(model), config.runtime.num_learners)
    inference = _inference(config, env, device, pictures)
    serial = config.runtime.kind == "serial"
    beside = not serial and inference == "local"
    # Actors work in turn with the learners, or on the other half of the cores.
    of_one = _threads(config.runtime, pictures, 1)
    actor_threads = config.runtime.actor_threads or (1 if beside else of_one)
    compile_ = _compile(config, model, spaces, device)
    precision = config.runtime.precision
    if precision == "auto":
        # A user's own module may need the number format that it was written for.
        precision = "bf16" if pictures and not model.custom and _fast_bf16(device) else "fp32"
    actor_precision = config.runtime.actor_precision
    if actor_precision == "auto":
        # Actors follow the learner, but a CPU beside a GPU may have to emulate bf16.
        acts_beside = device != "cpu" and inference == "local"
        slow = acts_beside and precision == "bf16" and not _fast_bf16("cpu")
        actor_precision = "fp32" if slow else precision
    return config.model_copy(
        update={
            "model": model,
            "env": config.env.model_copy(update={"streams_per_group": size}),
            "runtime": config.runtime.model_copy(
                update={
                    "num_workers": None if serial else num_workers(config, size),
                    "device": device,
                    "inference": inference,
                    "threads": threads,
                    "actor_threads": actor_threads,
                    "compile": compile_,
                    "precision": precision,
                    "actor_precision": actor_precision,
                }
            ),
        }
    )


def _inference(config: RunConfig, env: ResolvedEnv, device: str, pictures: bool) -> str:
    """The place where actions are computed, as configured or by a fixed rule."""
    runtime = config.runtime
    if runtime.inference != "auto":
        _require_cuda(runtime, device, "inference", "device")
        return runtime.inference
    alone = runtime.kind == "serial" and env.num_agents == 1
    return "device" if alone and pictures and device.startswith("cuda") else "local"


def _compile(config: RunConfig, model: ModelConfig, spaces: Spaces, device: str) -> str:
    """The kind of graphs that acts and updates are, as configured or by fixed rules.

    Raises:
        ConfigError: the machine or the encoder does not allow it.
    """
    runtime, on_cuda = config.runtime, device.startswith("cuda")
    if runtime.compile == "auto" and on_cuda:
        able = model.traits.one_graph and not model.custom and not reads_values(config.learner)
        return "graph" if able and _planned_updates(config) else "off"
    if runtime.compile == "auto":
        worth = worth_compiling(config, model, spaces, device)
        return "on" if worth and has_compiler() else "off"
    _require_cuda(runtime, device, "compile", "graph")
    if runtime.compile == "on" and not has_compiler():
        raise ConfigError(
            "runtime.compile=on needs a PyTorch and a C++ compiler that can compile acts and "
            f"updates: {compiler_fault()}, or begin another run with "
            "--runtime.compile off (a run that began compiled stays so)"
        )
    if runtime.compile == "on" and on_cuda and (fault := cuda_compiler_fault()):
        raise ConfigError(
            f"runtime.compile=on needs the tools by which PyTorch compiles for a GPU: {fault}, or "
            "begin another run with --runtime.compile graph, which needs none of it"
        )
    if runtime.compile != "off" and not model.traits.one_graph:
        raise ConfigError(
            f"runtime.compile={runtime.compile} must have an encoder that compiles to one graph, "
            f"got {model.encoder}, which reads each mission only once and so does different work "
            "in every batch: use --runtime.compile off"
        )
    return runtime.compile


def _require_cuda(runtime: RuntimeConfig, device: str, option: str, value: str) -> None:
    """Raises ConfigError if an option of a new run has this value, and runtime.device auto found
    no GPU.
    """
    if getattr(runtime, option) == value and runtime.device == "auto" and device == "cpu":
        raise ConfigError(
            f"runtime.{option}={value} needs a CUDA GPU, but runtime.device=auto chose the "
            f"CPU: leave runtime.{option} out, or give --runtime.device cuda"
        )


def _threads(runtime: RuntimeConfig, large: bool, learners: int) -> int:
    """Number of threads of each learner, as configured or by a fixed rule.

    Small networks get one thread, since a second one was measured to make training slower.
    With workers, learners share half of the cores.
    """
    if runtime.threads is not None:
        return runtime.threads
    most = usable_cores() if runtime.kind == "serial" else usable_cores() // 2
    return max(1, min(most // learners, 8)) if large else 1


def _fast_bf16(device: str) -> bool:
    import torch

    from quintet.models.precision import fast_bf16

    return fast_bf16(torch.device(device))


def _resolve_device(runtime: RuntimeConfig, pictures: bool) -> str:
    """The learner's device; raises ConfigError if it is missing or can't be used."""
    device, learners = runtime.device, runtime.num_learners
    if device == "auto" and not pictures:
        return "cpu"
    if device == "mps":
        raise ConfigError(
            "runtime.device must compute in float64, in which running statistics are kept, got "
            "mps, which can't: use --runtime.device cpu"
        )
    if device == "cpu":
        return device
    import torch

    if device.startswith("xpu"):
        if learners > 1:
            raise ConfigError(
                f"runtime.num_learners={learners} must have runtime.device=cuda or cpu, got "
                f"{device}: leave one of them out"
            )
        return _present(device, torch.xpu, 1, "Intel GPU")

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if learners > 1 and device != "cuda":
        raise ConfigError(
            f"runtime.num_learners={learners} must have runtime.device=cuda (one GPU per "
            f"learner, from cuda:0 on), got {device}: choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    return _present(device, torch.cuda, learners, "CUDA GPU")


def tensors_device(runtime: RuntimeConfig) -> str:
    """Device of environments whose tensors stay on their device, if they can choose it: the
    learner's; for auto a CUDA GPU if there is one.
    """
    if runtime.device != "auto":
        return _resolve_device(runtime, pictures=False)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _present(device: str, module: Any, learners: int, what: str) -> str:
    """The device; raises ConfigError if `module`, PyTorch's for its kind, sees too few of them."""
    fault = lacking(f"runtime.device={device}", device, module, learners, what)
    if fault is not None:
        raise ConfigError(f"{fault}: use --runtime.device cpu, or fewer learners")
    return device


def lacking(asked: str, device: str, module: Any, count: int, what: str) -> str | None:
    """A sentence on what PyTorch lacks for `device`, or for `count` of its kind; None: nothing.

    asked: the option and its value; module: PyTorch's module for these devices.
    """
    seen = module.device_count() if module.is_available() else 0
    _, _, index = device.partition(":")
    wanted = int(index) + 1 if index else count
    if wanted <= seen:
        return None
    return f"{asked} must have {wanted} {what}{'s' * (wanted > 1)} that PyTorch sees, got {seen}"


def require_networks(config: RunConfig, spaces: Spaces) -> None:
    """Raises ConfigError if the networks of a resolved configuration can't fit into memory."""
    from quintet.models.build import weights_bytes

    groups, policies = config.env.num_groups, config.population.size
    of_one = weights_bytes(config.model, spaces)
    memory.require(
        of_one * (_COPIES * policies + groups),
        f"a network of {of_one:,} bytes, with what training adds for {policies} policies and "
        f"{groups} groups of streams,",
        "choose smaller layers (model.policy_hidden and others under model.), fewer policies, or "
        "smaller observations and actions",
    )


def require_agents(config: RunConfig, env: ResolvedEnv) -> None:
    """Raises ConfigError if an environment has too few agents for policies that play one each."""
    policies = config.population.size
    if config.population.assignment == "agent" and policies > env.num_agents:
        raise ConfigError(
            f"population.assignment=agent must have an agent for each of the {policies} policies, "
            f"got {env.num_agents} of {env.config.id}: lower population.size, or give another "
            "environment"
        )


def streams_per_group(config: RunConfig, env: ResolvedEnv) -> int:
    """Number of streams in a group: as configured; else by the backend; with workers so that each
    has one group (two if a server acts and environments step in threads).  Several policies get
    equal numbers of groups, if the streams can be divided so.
    """
    sizes = {
        "num_streams": config.env.num_streams,
        "streams_per_group": config.env.streams_per_group or 0,
    }
    for name, size in sizes.items():
        if size % env.num_agents:
            raise ConfigError(
                f"env.{name} must be a multiple of {env.num_agents}, the number of agents of "
                f"{config.env.id}, each of which is a stream; got {size}: use "
                f"{env.streams_of(size)}, or leave it out"
            )
    if config.env.streams_per_group is not None:
        return env.group_size
    streams, policies = config.env.num_streams, config.population.size
    if config.runtime.kind == "serial":
        wanted = streams // env.group_size
    else:
        wanted = config.runtime.num_workers or _most_workers(config)
        if config.runtime.inference == "server" and not env.backend.in_python:
            wanted *= 2  # one group steps while the other waits for its actions
    # The fewest groups that give each worker one; the games must be divided evenly.
    games = streams // env.num_agents
    fitting = [n for n in range(wanted, games + 1) if games % n == 0] or [games]
    groups = next((n for n in fitting if n % policies == 0), fitting[0])
    return streams // groups


def num_workers(config: RunConfig, group_size: int) -> int:
    """Number of worker processes: as configured, else one per core, at most one per group; raises
    ConfigError if there are fewer groups.
    """
    groups = config.env.num_streams // group_size
    asked = config.runtime.num_workers
    if asked is not None and asked > groups:
        raise ConfigError(
            f"runtime.num_workers must be at most the number of groups, {groups} of "
            f"{group_size} streams, got {asked}; lower it, or raise "
            "env.num_streams, or lower env.streams_per_group"
        )
    return asked or min(_most_workers(config), groups)


def _most_workers(config: RunConfig) -> int:
    """One worker per core; nodes of a cluster count as machines like this one."""
    cluster = config.cluster
    nodes = (cluster.nodes_max or cluster.nodes_min) if cluster.address is not None else 1
    return min(usable_cores() * nodes, MOST_TASKS)


def has_compiler() -> bool:
    """Whether a working C++ compiler exists, which compiled acts and updates need."""
    return compiler_fault() is None


def worth_compiling(config: RunConfig, model: ModelConfig, spaces: Spaces, device: str) -> bool:
    """Whether a compiled update saves more time than it takes to compile, with a resolved model.
    Each policy of a run compiles its own.
    """
    if reads_values(config.learner):  # a graph hides values
        return False
    planned = _planned_updates(config)
    pictures = uses_pictures(model, spaces)
    enough = COMPILE_FROM_UPDATES_OF_PICTURES if pictures else COMPILE_FROM_UPDATES
    # A loop over steps takes minutes to compile, a user's module may not compile at all, and the
    # gain was measured on CPUs only.
    plain = device == "cpu" and model.core == "none" and not model.custom
    plain = plain and model.traits.one_graph
    return plain and planned >= enough


def _planned_updates(config: RunConfig) -> int:
    """Optimizer steps of one policy; 0 if none can be a graph."""
    share = config.total_env_steps // config.population.size
    planned_updates = registry.find(config.algo).planned_updates
    return planned_updates(config.learner, config.env.num_streams, share)


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
