"""What would make a run faster, given what limits it: never what it does already."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from quintet.observe.shares import Load
from quintet.observe.timing import Phase

if TYPE_CHECKING:  # imports PyTorch, which plots have no use for
    from quintet.protocols import UpdateAdvice

_BUSY = 0.9  # of all cores, from which on none is idle


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the speed of a run depends on: of its resolved configuration and of its machine.

    source: what environments come from: an id; a maker of single ones; a maker of groups, which are
        vector environments; a vector environment that was given, whose size is the run's.
    single_only: they must be single ones of Gymnasium, as masks from their info are.
    env_threads: of each pool of environments in C++; 1 where environments are stepped in Python.
    auto_env_threads: what it would be if it were left out.
    envpool: whether EnvPool has the environment under this id; absent: EnvPool isn't installed.
    large_network: large enough to be worth threads and a GPU (pictures).
    compiles: acts and updates are compiled; may_compile: it would be worth it; compiler: there is
        one.
    gpu: PyTorch sees one, or one for each learner.
    batch_steps: env_steps that an update learns from.
    update: what the learner says of its speed.
    kind, num_workers, lag, inference, inference_batch_max: of the runtime, as configured; no
        workers in the serial one.
    num_learners: processes that share every batch; each has `threads`.
    actor_threads: where actions are computed, beside those of the learner, `threads`.
    sinks: reports are written anywhere; callback: they go to the user's code.
    """

    env: str
    source: Literal["id", "maker", "group maker", "vector environment"] = "id"
    single_only: bool = False
    backend: str
    envpool: Literal["has it", "lacks it", "absent"]
    num_streams: int
    num_groups: int
    auto_num_groups: int
    env_threads: int
    auto_env_threads: int
    large_network: bool
    device: str
    threads: int
    cores: int
    gpu: bool
    compiles: bool
    may_compile: bool
    compiler: bool
    batch_steps: int
    update: "UpdateAdvice"
    kind: Literal["serial", "lockstep", "async"] = "serial"
    num_workers: int = 0
    num_learners: int = 1
    lag: int = 0
    inference: Literal["local", "server"] = "local"
    inference_batch_max: int = 512
    actor_threads: int = 1
    eval_episodes: int = 0
    report_interval_s: float = 1.0
    sinks: bool = False
    callback: bool = False


def all_busy(load: Load, setting: Setting) -> bool:
    return sum(load.cores) / setting.cores >= _BUSY


def wanted_cores(load: Load, setting: Setting) -> float:
    """Cores that the run's threads would keep busy; a process that waits for another wants none."""
    if not setting.num_workers:
        threads = max(setting.threads, setting.env_threads * setting.num_groups)
        return min(threads + _of_other_learners(load, setting), setting.cores)
    serves, on_cpu = setting.inference == "server", setting.device == "cpu"
    pools = 1 if setting.backend == "gymnasium" else -(-setting.num_groups // setting.num_workers)
    of_pools = setting.env_threads * pools
    of_worker = max(1 if serves else setting.actor_threads, of_pools)
    wanted: float = (1 - load.learner.get("waiting", 0.0)) * (setting.threads if on_cpu else 1)
    wanted += _of_other_learners(load, setting)
    for worker in load.workers or [{}] * setting.num_workers:
        away = worker.get("waiting", 0.0) + (worker.get("acting", 0.0) if serves else 0.0)
        wanted += (1 - away) * of_worker
    if serves:
        acts = 1 - load.server.get("waiting", 0.0)
        wanted += acts * (setting.actor_threads if on_cpu else 1)
    return min(wanted, setting.cores)


def _of_other_learners(load: Load, setting: Setting) -> float:
    """Cores of those that have nothing to do but to learn with the first."""
    threads = setting.threads if setting.device == "cpu" else 1
    return (setting.num_learners - 1) * load.learner.get("learning", 0.0) * threads


def idle_cores(load: Load, setting: Setting) -> int:
    """Cores that nobody uses."""
    used = sum(load.cores) if load.cores.used else wanted_cores(load, setting)
    return max(0, math.floor(setting.cores - used + 0.25))  # a busy core is never quite busy


def _faster_environment(setting: Setting) -> list[str]:
    """For one that is stepped in Python."""
    if setting.backend != "gymnasium":
        return []
    if setting.single_only or setting.source in ("group maker", "vector environment"):
        return ["a faster step() of it"]
    if setting.source == "maker":
        return ["a faster step() of it, or a function that makes a vector environment of it,"]
    if setting.envpool == "has it":
        return ["the same id in C++ (--env.backend envpool)"]
    if setting.envpool == "absent":
        return ["EnvPool, if it has this id in C++ (see quintet envs)"]
    return [f"a faster backend, if there is one (quintet envs {setting.env.split('-')[0]}),"]


def _stepping(setting: Setting) -> list[str]:
    if setting.backend == "gymnasium":
        return _faster_environment(setting)
    if setting.env_threads < setting.auto_env_threads:
        return [_unthrottled(setting)]
    if setting.num_groups > setting.auto_num_groups:
        fewer = groups(setting.auto_num_groups)
        return [f"{fewer} (leave --env.streams-per-group out)"]
    if setting.env_threads * setting.num_groups >= setting.cores > 1:
        return ["more CPU cores"]
    return [_more_streams(setting)]


def _unthrottled(setting: Setting) -> str:
    return f"{setting.auto_env_threads} threads a pool (leave --env.num-threads out)"


def _acting(setting: Setting) -> list[str]:
    advice = [*_compiling(setting), *_threads(setting)]
    if setting.num_groups > 1:
        advice.append(f"one group (--env.streams-per-group {setting.num_streams})")
    return [*advice, _more_streams(setting)]


def _lighter_update(setting: Setting) -> list[str]:
    advice = _compiling(setting)
    if setting.num_learners > 1 and not setting.large_network:  # an exchange takes longer
        advice.append("one learner (--runtime.num-learners 1)")
    advice += setting.update.less_work
    if setting.large_network and setting.device == "cpu":
        advice.append("the GPU (--runtime.device cuda)" if setting.gpu else "a GPU")
    return advice


def _evaluation(setting: Setting) -> list[str]:
    fewer = [f"fewer episodes (--eval.episodes below {setting.eval_episodes})"]
    return ["a longer --eval.interval", *(fewer if setting.eval_episodes > 1 else [])]


def _other(setting: Setting) -> list[str]:
    advice = ["a quicker on_report"] if setting.callback else []
    if setting.report_interval_s < 1:
        now = f"{setting.report_interval_s:g}"
        advice.append(f"fewer reports (--report.interval-s 1, it is {now})")
    return advice or (["fewer --report.sinks"] if setting.sinks else [])


ADVICE: Mapping[Phase, Callable[[Setting], list[str]]] = {
    "stepping": _stepping,
    "acting": _acting,
    "learning": lambda setting: [*_lighter_update(setting), *_threads(setting, learning=True)],
    "waiting": lambda _: ["a faster environment or more CPU cores"],
    "evaluation": _evaluation,
    "checkpoint": lambda _: ["a longer --checkpoint.interval-updates or a faster disk"],
    "other": _other,
}
"""What would help where one process does all, by the phase that takes most of its time."""


def _learning_beside_workers(load: Load, setting: Setting) -> list[str]:
    advice = _lighter_update(setting)
    at_length = setting.device == "cpu" and setting.large_network
    learners = setting.num_learners
    more = min(setting.cores // learners, setting.threads + idle_cores(load, setting) // learners)
    if at_length and more > setting.threads:
        advice.append(f"more threads (--runtime.threads {more})")
    if not at_length:  # else its rows are what takes time
        advice += setting.update.larger_batches
    return advice or ["a faster machine"]


def _stepping_beside_learner(load: Load, setting: Setting) -> list[str]:
    advice = _faster_environment(setting)
    if setting.env_threads < setting.auto_env_threads:
        advice.append(_unthrottled(setting))
    return [*advice, *_more_at_once(load, setting)]


def _acting_beside_learner(load: Load, setting: Setting) -> list[str]:
    advice = [*_compiling(setting), _larger_groups(setting)]
    if setting.large_network:
        options = "--runtime.inference server"
        if setting.device == "cpu":
            options += " --runtime.device cuda"
        advice.append(f"the GPU ({options})" if setting.gpu else "a GPU")
    return [*advice, *(more for more in _more_at_once(load, setting) if more not in advice)]


def _serving(load: Load, setting: Setting) -> list[str]:
    exact = setting.kind == "lockstep"
    # Graphs are compiled for one size of batch, and the free server's differ.
    advice = [*_compiling(setting), _larger_groups(setting)] if exact else []
    if not exact and setting.num_streams > setting.inference_batch_max:
        advice.append(f"larger batches (--runtime.inference-batch-max {setting.num_streams})")
    if setting.device == "cpu":
        advice.append("acting in the workers (--runtime.inference local)")
        if setting.large_network:
            advice.append("the GPU (--runtime.device cuda)" if setting.gpu else "a GPU")
            more = min(setting.cores, setting.actor_threads + idle_cores(load, setting))
            if more > setting.actor_threads:
                advice.append(f"more threads for it (--runtime.actor-threads {more})")
    return advice or ["a faster machine"]


def _answering(_: Load, setting: Setting) -> list[str]:
    local = setting.device == "cpu" or not setting.large_network
    here = ["acting in the workers (--runtime.inference local)"] if local else []
    return [*here, _larger_groups(setting)]


BESIDE_WORKERS: Mapping[str, Callable[[Load, Setting], list[str]]] = {
    "learning": _learning_beside_workers,
    "stepping": _stepping_beside_learner,
    "acting": _acting_beside_learner,
    "server": _serving,
    "answers": _answering,
    "turns": lambda *_: ["sampling during updates (--runtime.lag 1)"],
    "balance": lambda _, setting: [
        *_compiling(setting),
        *_faster_environment(setting),
        "a faster machine",
    ],
}
"""The same where processes sample while another one learns, by what the others wait for."""


def _compiling(setting: Setting) -> list[str]:
    if not setting.may_compile or setting.compiles:
        return []
    if not setting.compiler:
        return ["a C++ compiler (g++), which --runtime.compile needs,"]
    return ["compiling it (--runtime.compile on)"]


def _threads(setting: Setting, learning: bool = False) -> list[str]:
    """More of PyTorch's threads; small networks are slower with a second one."""
    on_cpu = setting.device == "cpu" or not learning  # acting is always on the CPU
    most = setting.cores // setting.num_learners
    if on_cpu and setting.large_network and setting.threads < most:
        return [f"more threads (--runtime.threads {most})"]
    return []


def _more_streams(setting: Setting) -> str:
    """A call has a fixed cost, which more streams share."""
    streams = 2 * setting.num_streams
    if setting.source == "vector environment":  # what it says of its size can't be changed
        return f"more streams (a vector environment of {streams})"
    return f"more streams (--env.num-streams {streams})"


def _more_at_once(load: Load, setting: Setting) -> list[str]:
    """A worker more for every idle core, as far as the streams can be shared out evenly."""
    idle, streams = idle_cores(load, setting), setting.num_streams
    if idle == 0:
        return ["more CPU cores"]
    now, most = setting.num_workers, setting.num_workers + idle
    even = next((n for n in range(min(most, streams), now, -1) if streams % n == 0), None)
    if even is None:
        if setting.source == "vector environment":
            return [_more_streams(setting)]
        size = streams // setting.num_groups
        streams = most * size * -(-setting.num_groups // now)
        return [f"more workers (--runtime.num-workers {most} --env.num-streams {streams})"]
    options = f"--runtime.num-workers {even}"
    if setting.num_groups % even:
        options += f" --env.streams-per-group {streams // even}"
    return [f"more workers ({options})"]


def _larger_groups(setting: Setting) -> str:
    """Of fewer acts, where every worker keeps a group of its own."""
    streams = setting.num_streams  # of as many groups, or a few more, of the same size
    size = streams // next(n for n in range(setting.num_workers, streams + 1) if streams % n == 0)
    if size > setting.num_streams // setting.num_groups:
        return f"larger groups (--env.streams-per-group {size})"
    return _more_streams(setting)


def groups(number: int) -> str:
    return "one group" if number == 1 else f"{number} groups"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_of(advice: list[str]) -> str:
    joined = " or ".join(filter(None, [", ".join(advice[:-1]), advice[-1]])).replace(",,", ",")
    return joined[0].upper() + joined[1:]
