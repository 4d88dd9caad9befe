"""What limits the speed of a run, in one sentence, and what to do about it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from quintet.observe.timing import PHASES, Phase

WINDOW_S = 30.0
"""Seconds over which shares are "now": some iterations even of a slow run."""

# Of all cores: that others take, that are busy in all; of the cores that a run wants: that it has.
_CROWDED, _BUSY, _UNHINDERED = 0.2, 0.9, 0.9
_BALANCED = 0.4  # below, halving the largest part makes the run less than a quarter faster


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
    gpu: PyTorch sees one.
    passes, minibatch_steps: over and of a batch of `batch_steps` env_steps, where the learner makes
        several; None: it has no such option, or the minibatch is the batch.
    chunk_steps: steps that a minibatch keeps together, so its size is a multiple of them.
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
    passes: int | None = None
    minibatch_steps: int | None = None
    chunk_steps: int = 1
    eval_episodes: int = 0
    report_interval_s: float = 1.0
    sinks: bool = False
    callback: bool = False


class Cores(NamedTuple):
    """How many cores were busy, with this process and with others."""

    used: float = 0.0
    by_others: float = 0.0


_UNMEASURED = Cores()


def limit(
    shares: Mapping[Phase, float],
    setting: Setting,
    *,
    starting: bool = False,
    cores: Cores = _UNMEASURED,
) -> str:
    """Where most of the time goes and what would change that, never what the run does already.

    shares: of the time, by phase, summing to 1.
    starting: they include the first acts and the first update, which are compiled then.
    """
    if not shares:
        return ""
    if crowded(cores, setting):
        return _told_of_others(cores, setting)
    first = max(shares, key=lambda phase: shares[phase])
    percent = f"{100 * shares[first]:.0f}%"
    compiling = shares.get("acting", 0.0) + shares.get("learning", 0.0)
    if starting and setting.compiles and compiling >= shares[first]:
        return (
            f"Compiling took most of the time so far ({100 * compiling:.0f}% acting and learning): "
            "once at every start, so that all later acts and updates are faster."
        )
    if starting and first == "other":
        return f"Starting took most of the time so far ({percent}): files and libraries are opened."
    advice = _ADVICE[first](setting)
    help_ = f"{_one_of(advice) if advice else 'A faster machine'} would help"
    if shares[first] < _BALANCED:
        largest = sorted(shares, key=lambda phase: -shares[phase])[:3]
        parts = ", ".join(f"{100 * shares[phase]:.0f}% {phase}" for phase in largest)
        return f"Nothing alone limits the speed: {parts}. {help_} most."
    return f"{_told(first, percent, setting)} {help_}."


def crowded(cores: Cores, setting: Setting) -> bool:
    """Whether others take cores that the run wants."""
    others, busy = cores.by_others / setting.cores, sum(cores) / setting.cores
    wanted = min(max(setting.threads, setting.env_threads * setting.num_groups), setting.cores)
    return others >= _CROWDED and busy >= _BUSY and cores.used < _UNHINDERED * wanted


def _told_of_others(cores: Cores, setting: Setting) -> str:
    advice = ["waiting until they end"]
    # Threads that wait for each other at every layer, with cores for some of them, lose more than
    # their share.
    left = max(1, round(setting.cores - cores.by_others))
    if setting.threads > left:
        advice.append(f"fewer threads (--runtime.threads {left})")
    return (
        f"Other processes limit the speed: they take {cores.by_others:.1f} of "
        f"{_count(setting.cores, 'core')}. {_one_of(advice)} would help."
    )


def _told(phase: Phase, percent: str, setting: Setting) -> str:
    size = setting.num_streams // setting.num_groups
    groups = _groups(setting.num_groups)
    minibatches = (
        f" in minibatches of {setting.minibatch_steps:,}" if setting.minibatch_steps else ""
    )
    passes = f" ({setting.passes} passes{minibatches})" if setting.passes else ""
    return {
        "stepping": f"Environments limit the speed: {percent} of the time goes into stepping "
        f"{setting.env} ({setting.backend}).",
        "acting": f"Choosing actions limits the speed: {percent} of the time goes into acting, for "
        f"{groups} of {_count(size, 'stream')} at a time.",
        "learning": f"The update limits the speed: {percent} of the time goes into learning on "
        f"{setting.device}{passes}.",
        "waiting": f"Sampling limits the speed: {percent} of the time the update waits for other "
        "processes.",
        "evaluation": f"Evaluation limits the speed: it takes {percent} of the time.",
        "checkpoint": f"Checkpoints limit the speed: writing them takes {percent} of the time.",
        "other": f"Reports limit the speed: what comes between updates takes {percent} of the "
        "time.",
    }[phase]


def _stepping(setting: Setting) -> list[str]:
    if setting.backend == "gymnasium":
        if setting.single_only or setting.source in ("group maker", "vector environment"):
            return ["a faster step() of it"]
        if setting.source == "maker":
            return ["a faster step() of it, or a function that makes a vector environment of it,"]
        if setting.envpool == "has it":
            return ["the same id in C++ (--env.backend envpool)"]
        if setting.envpool == "absent":
            return ["EnvPool, if it has this id in C++ (see quintet envs)"]
        return [f"a faster backend, if there is one (quintet envs {setting.env.split('-')[0]}),"]
    if setting.env_threads < setting.auto_env_threads:
        return [f"{setting.auto_env_threads} threads a pool (leave --env.num-threads out)"]
    if setting.num_groups > setting.auto_num_groups:
        groups = _groups(setting.auto_num_groups)
        return [f"{groups} (leave --env.streams-per-group out)"]
    if setting.env_threads * setting.num_groups >= setting.cores > 1:
        return ["more CPU cores"]
    return [_more_streams(setting)]


def _acting(setting: Setting) -> list[str]:
    advice = [*_compiling(setting), *_threads(setting)]
    if setting.num_groups > 1:
        advice.append(f"one group (--env.streams-per-group {setting.num_streams})")
    return [*advice, _more_streams(setting)]


def _learning(setting: Setting) -> list[str]:
    advice = _compiling(setting)
    if setting.passes is not None and setting.passes > 1:
        advice.append(f"fewer passes than {setting.passes} (--num-epochs)")
    if setting.minibatch_steps is not None and setting.minibatch_steps < setting.batch_steps:
        larger = _larger_minibatch(setting.minibatch_steps, setting)
        advice.append(f"larger minibatches (--minibatch-steps {larger})")
    if setting.large_network and setting.device == "cpu":
        advice.append("the GPU (--runtime.device cuda)" if setting.gpu else "a GPU")
    return [*advice, *_threads(setting, learning=True)]


def _evaluation(setting: Setting) -> list[str]:
    fewer = [f"fewer episodes (--eval.episodes below {setting.eval_episodes})"]
    return ["a longer --eval.interval", *(fewer if setting.eval_episodes > 1 else [])]


def _other(setting: Setting) -> list[str]:
    advice = ["a quicker on_report"] if setting.callback else []
    if setting.report_interval_s < 1:
        now = f"{setting.report_interval_s:g}"
        advice.append(f"fewer reports (--report.interval-s 1, it is {now})")
    return advice or (["fewer --report.sinks"] if setting.sinks else [])


_ADVICE = {
    "stepping": _stepping,
    "acting": _acting,
    "learning": _learning,
    "waiting": lambda _: ["a faster environment or more CPU cores"],
    "evaluation": _evaluation,
    "checkpoint": lambda _: ["a longer --checkpoint.interval-updates or a faster disk"],
    "other": _other,
}


def _compiling(setting: Setting) -> list[str]:
    if not setting.may_compile or setting.compiles:
        return []
    if not setting.compiler:
        return ["a C++ compiler (g++), which --runtime.compile needs,"]
    return ["compiling it (--runtime.compile on)"]


def _threads(setting: Setting, learning: bool = False) -> list[str]:
    """More of PyTorch's threads; small networks are slower with a second one."""
    on_cpu = setting.device == "cpu" or not learning  # acting is always on the CPU
    if on_cpu and setting.large_network and setting.threads < setting.cores:
        return [f"more threads (--runtime.threads {setting.cores})"]
    return []


def _more_streams(setting: Setting) -> str:
    """A call has a fixed cost, which more streams share."""
    streams = 2 * setting.num_streams
    if setting.source == "vector environment":  # what it says of its size can't be changed
        return f"more streams (a vector environment of {streams})"
    return f"more streams (--env.num-streams {streams})"


def _larger_minibatch(steps: int, setting: Setting) -> int:
    """About twice as large, and such that the batch is divided in whole minibatches of whole
    chunks.
    """
    batch, chunk = setting.batch_steps, setting.chunk_steps
    half_as_many = (-(-batch // steps) + 1) // 2
    fitting = (n for n in range(half_as_many, 0, -1) if batch % n == 0 and batch // n % chunk == 0)
    return batch // next(fitting, 1)


def _groups(number: int) -> str:
    return "one group" if number == 1 else f"{number} groups"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _one_of(advice: list[str]) -> str:
    joined = " or ".join(filter(None, [", ".join(advice[:-1]), advice[-1]]))
    return joined[0].upper() + joined[1:]


_CORES = ("cores_used", "cores_used_by_others")


@final
class TimeShares:
    """Where the time goes, by phase, over the last half minute.

    The first report of a process is left out as soon as there is another: it includes the start,
    where networks compile and memory is taken.
    """

    def __init__(self) -> None:
        self._wall_s: float | None = None
        self._reports: deque[tuple[float, float, dict[Phase, float], Cores]] = deque()
        self._starting = True

    def add(self, report: Mapping[str, float]) -> None:
        """Takes the ``time/PHASE_frac`` of a report, over the time since the one before."""
        shares: dict[Phase, float] = {
            phase: report[name] for phase in PHASES if (name := f"time/{phase}_frac") in report
        }
        if not shares:
            return
        wall_s = report.get("wall_s", 0.0)
        passed_s = 1.0 if self._wall_s is None else max(wall_s - self._wall_s, 1e-9)
        if self._starting and self._reports:
            self._reports.clear()
            self._starting = False
        self._wall_s = wall_s
        used, by_others = (report.get(f"machine/{name}", 0.0) for name in _CORES)
        self._reports.append((wall_s, passed_s, shares, Cores(used, by_others)))
        while wall_s - self._reports[0][0] > WINDOW_S:
            self._reports.popleft()

    @property
    def starting(self) -> bool:
        """Whether there is no report yet but the first one."""
        return self._starting

    def recent(self) -> dict[Phase, float]:
        """Shares that sum to 1; empty before the first report that has them."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for _, passed_s, shares, _ in self._reports:
            for phase, share in shares.items():
                seconds[phase] += share * passed_s
        whole = sum(seconds.values())
        return {phase: s / whole for phase, s in seconds.items() if s > 0} if whole > 0 else {}

    def cores(self) -> Cores:
        """Mean over the same reports."""
        whole = sum(passed_s for _, passed_s, _, _ in self._reports) or 1.0
        used = sum(passed_s * cores.used for _, passed_s, _, cores in self._reports)
        by_others = sum(passed_s * cores.by_others for _, passed_s, _, cores in self._reports)
        return Cores(used / whole, by_others / whole)
