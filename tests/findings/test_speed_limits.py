"""The sentence about speed: right about where the time goes, no advice that is taken already."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from facts_helpers import ABSENT, FACTS, PICTURES, POOL

from quintet.findings.speed import RunFacts, limit
from quintet.observe.timing import PHASES, Cores, Load
from quintet.protocols import UpdateAdvice

WORKERS = replace(
    FACTS, kind="lockstep", lag=1, num_workers=2, num_streams=8, num_groups=4, may_compile=False
)
BUSY = Cores(15.6, 0.0)  # of 16
HALF = Cores(8.0, 0.0)


def alone(phase: str, share: float = 0.71) -> Load:
    """One process, most of whose time a phase takes."""
    others = [each for each in ("stepping", "acting", "learning") if each != phase][:2]
    return Load({phase: share, **dict.fromkeys(others, (1 - share) / 2)})  # type: ignore[arg-type, dict-item]


def load(waits: float, stepping: float, acting: float, serving: float | None = None) -> Load:
    """A learner that learns or waits, and two workers that wait for the rest of the time."""
    idle = 1 - stepping - acting
    worker = {"stepping": stepping, "acting": acting, "waiting": idle}
    beside = {"worker/0": worker, "worker/1": worker}
    if serving is not None:
        beside["server"] = {"acting": serving, "waiting": 1 - serving}
    return Load({"learning": 1 - waits, "waiting": waits}, beside, HALF)  # type: ignore[arg-type]


LEARNER = load(0.02, 0.3, 0.2)
STEPPING = load(0.6, 0.7, 0.25)
ACTING = load(0.6, 0.25, 0.7)
SERVER = load(0.6, 0.2, 0.75, serving=0.9)
ANSWERS = load(0.6, 0.2, 0.75, serving=0.2)
TURNS = load(0.55, 0.35, 0.2)
EVEN = load(0.05, 0.6, 0.34)

LARGER = UpdateAdvice(larger_batches=("larger batches (--batch-unrolls 48)",))
OWN: dict[str, Any] = {"env": "my.envs:make", "faster": "", "source": "maker"}
GROUPS, VECTOR = {"source": "group maker"}, {"source": "vector environment"}
POOLS: dict[str, Any] = {"num_streams": 32, **POOL}
LARGE = {name: getattr(PICTURES, name) for name in ("env", "large_network", "may_compile", *POOL)}
NET: dict[str, Any] = {"update": LARGER, "large_network": True, "threads": 4}
SERVED = {"kind": "async", "inference": "server"}
ON_GPU = {**SERVED, "device": "cuda", "large_network": True, "gpu": True}
FULL = {"num_streams": 8, "num_groups": 8, **POOL}


def said(now: Load, changes: dict[str, Any], *, starting: bool = False) -> str:
    """The sentences about a load; `processes` and `used` (cores) among the changes are its."""
    facts: RunFacts = WORKERS if now.workers else FACTS
    changes = dict(changes)
    cores = changes.pop("used", now.cores)
    now = now._replace(cores=cores, env_processes=changes.pop("processes", now.env_processes))
    return limit(now, replace(facts, **changes), starting=starting)


WHOLE: list[tuple[Load, dict[str, Any], str]] = [
    (
        alone("stepping"),
        {},
        "Environments limit the speed: 71% of the time goes into stepping CartPole-v1 (gymnasium). "
        "Worker processes (--runtime.kind lockstep) or the same id in C++ (--env.backend envpool) "
        "would help.",
    ),
    (
        alone("making"),
        {},
        "Making environments limits the speed: 71% of the time goes into constructors and first "
        "resets of CartPole-v1 (gymnasium), which every restart of all streams calls. A "
        "constructor and a first reset() that take less time or fewer exact checkpoints (a longer "
        "--checkpoint.interval-iterations) would help.",
    ),
    (
        alone("learning"),
        {},
        "The update limits the speed: 71% of the time goes into learning on cpu (10 passes in "
        "minibatches of 64). Compiling it (--runtime.compile on), fewer passes than 10 "
        "(--num-epochs) or larger minibatches (--minibatch-steps 128) would help.",
    ),
    (
        alone("acting"),
        {},
        "Choosing actions limits the speed: 71% of the time goes into acting, for 2 groups of 4 "
        "streams at a time. Compiling it (--runtime.compile on), one group "
        "(--env.streams-per-group 8) or more streams (--env.num-streams 16) would help.",
    ),
    (
        LEARNER,
        {},
        "The update limits the speed: 98% of the time goes into learning on cpu (10 passes in "
        "minibatches of 64), while the workers wait 50% of theirs. Fewer passes than 10 "
        "(--num-epochs) or larger minibatches (--minibatch-steps 128) would help.",
    ),
    (
        STEPPING,
        {"faster": ABSENT},
        "Environments limit the speed: the update waits 60% of its time, while the workers step "
        "CartPole-v1 (gymnasium) for 70% of theirs. EnvPool, if it has this id in C++ (see quintet "
        "envs) or more workers (--runtime.num-workers above 2) would help.",
    ),
    (
        ANSWERS,
        SERVED,
        "The way to the inference server limits the speed: the update waits 60% of its time, while "
        "the workers wait for actions for 75% of theirs; the server acts for 20%. Acting in "
        "the workers (--runtime.inference local) or larger groups (--env.streams-per-group "
        "above 2) would help.",
    ),
    (
        EVEN,
        {"used": BUSY, "may_compile": True},
        "All cores are busy: learner and workers hardly wait for each other. Compiling it "
        "(--runtime.compile on), the same id in C++ (--env.backend envpool) or a faster machine "
        "would help.",
    ),
]


@pytest.mark.parametrize(("now", "changes", "text"), WHOLE)
def test_whole_sentences(now: Load, changes: dict[str, Any], text: str) -> None:
    assert said(now, changes) == text


S, A, U = alone("stepping"), alone("acting"), alone("learning")
# Facts of the run, parts of what is said, and parts that are not (after "!").
ADVICE: list[tuple[Load, dict[str, Any], tuple[str, ...]]] = [
    (S, {"cores": 1}, (". The same id in C++ (--env.backend envpool) would help.",)),
    (S, {"num_streams": 1, "num_groups": 1}, ("!lockstep",)),
    (S, {"faster": ABSENT}, ("EnvPool, if it has this id",)),
    (S, {"faster": ""}, ("quintet envs CartPole",)),
    (S, OWN, ("--runtime.kind lockstep", "a faster step() of it, or a function that makes a v")),
    (S, OWN | GROUPS, ("--runtime.kind lockstep) or a faster step() of it would help.",)),
    (S, OWN | VECTOR, (". A faster step() of it would help.",)),
    (S, OWN | {"single_only": True}, (" or a faster step() of it would help.",)),
    (S, {"single_only": True}, (" or a faster step() of it would help.",)),
    (
        A,
        OWN | VECTOR | {"num_groups": 1},
        ("ore streams (a vector environment of 16)", "!--env.nu"),
    ),
    (A, OWN | GROUPS, ("--env.num-streams 16",)),
    # processes that step environments
    (S, OWN | {"processes": 8, "cores": 2}, ("in 8 processes). More streams (--env.num-streams",)),
    (
        S,
        OWN | {"processes": 2, "cores": 2},
        ("in 2 processes). More CPU cores or a fa", "!lockstep"),
    ),
    (S, OWN | {"processes": 2, "cores": 4}, ("). More memory or a faster step()",)),
    (
        S,
        OWN | {"processes": 2, "cores": 2, "env_processes_given": True},
        ("). As many processes as suit it (leave --env.num-processes out",),
    ),
    (S, OWN | {"processes": 8, "env_processes_given": True}, (". More streams (",)),
    (S, OWN, ("!processes)",)),
    # pools
    (S, POOLS, ("--env.num-streams 64",)),
    (S, POOLS | {"env_threads": 8, "auto_env_threads": 8}, ("More CPU cores would help",)),
    (S, POOLS | {"auto_env_threads": 8}, ("8 threads a pool (leave --env.num-threads out)",)),
    (S, POOLS | {"num_groups": 16, "auto_num_groups": 1}, ("(leave --env.streams-per-group out)",)),
    # the update
    (U, {"compiles": True}, ("!compile on",)),
    (U, {"may_compile": False}, ("!compile on",)),
    (U, {"compiler": False}, ("C++ compiler (g++), which --runtime.compile needs, fewer passes",)),
    (U, {"compiles": True, "update": UpdateAdvice()}, ("on cpu. A faster machine would help.",)),
    (U, {"compiles": True, "update": LARGER}, (". A faster machine would help.",)),  # rows take it
    (U, {}, ("!GPU", "!--runtime.threads", "!num-learners")),
    (U, LARGE, ("a GPU or", "--runtime.threads 16")),
    (U, LARGE | {"device": "cuda"}, ("!or a GPU", "!--runtime.threads")),
    (U, LARGE | {"gpu": True}, ("--runtime.device cuda",)),
    (U, LARGE | {"threads": 16}, ("!--runtime.threads",)),
    (U, LARGE | {"num_learners": 3, "threads": 4}, ("--runtime.threads 5",)),
    (U, LARGE | {"num_learners": 3, "threads": 5}, ("!--runtime.threads",)),
    (U, {"num_learners": 2}, ("one learner (--runtime.num-learners 1)",)),
    (U, LARGE | {"num_learners": 2}, ("!num-learners",)),
    # acting, and the rest
    (A, {"compiles": True}, ("!compile on",)),
    (A, {"compiler": False}, ("C++ compiler",)),
    (A, {"num_groups": 1, "num_streams": 1}, ("one group of 1 stream at", "!--env.streams-per-gr")),
    (A, LARGE | {"device": "cuda"}, ("--runtime.threads 16",)),
    (
        alone("replay"),
        {"update": UpdateAdvice(less_work=("smaller batches than 64",))},
        ("Replay limits", "storing transitions", ". Smaller batches than 64 would help."),
    ),
    (alone("evaluation"), {}, ("--eval.episodes below 10",)),
    (alone("evaluation"), {"eval_episodes": 1}, ("!--eval.episodes",)),
    (alone("checkpoint"), {}, ("--checkpoint.interval-iterations",)),
    (alone("waiting"), {}, ("of its time for other processes",)),
    (alone("other"), {}, ("Fewer --report.sinks",)),
    (alone("other"), {"sinks": False}, (". A faster machine would help.",)),
    (alone("other"), {"report_interval_s": 0.0}, ("leave --report.interval-s out, it is 0",)),
    (alone("other"), {"callback": True}, ("quicker on_report",)),
    # workers wait for the update
    (LEARNER, {"may_compile": True}, ("(--runtime.compile on)",)),
    (LEARNER, {"may_compile": True, "compiles": True}, ("!compile",)),
    (LEARNER, {"update": UpdateAdvice()}, (" A faster machine would help.",)),
    (LEARNER, {"update": LARGER}, (" Larger batches (--batch-unrolls 48) would help.",)),
    (LEARNER, NET, (" A GPU or more threads (--runtime.threads 12) would help.",)),
    # Each of the two may have 4 of the 8 idle cores, and half of all 16.
    (LEARNER, NET | {"threads": 2, "num_learners": 2}, ("(--runtime.threads 6)",)),
    (LEARNER, NET | {"threads": 6, "num_learners": 2}, ("(--runtime.threads 8)",)),
    (LEARNER, NET | {"threads": 8, "num_learners": 2}, (" A GPU would help.",)),
    (LEARNER, NET | {"gpu": True}, ("The GPU (--runtime.device cuda)",)),
    (LEARNER, NET | {"used": BUSY}, (" A GPU would help.",)),  # no core is idle
    (LEARNER, NET | {"device": "cuda"}, (" Larger batches (--batch-unrolls 48) would help.",)),
    (LEARNER._replace(learner={"evaluation": 0.7, "learning": 0.3}), {}, ("Evaluation limits",)),
    # the update waits
    (
        Load({"waiting": 0.9, "learning": 0.1}),
        {},
        ("Sampling limits the speed: the update waits 90%",),
    ),
    (STEPPING, OWN, ("A faster step() of it, or a function that makes",)),
    (STEPPING, POOL | {"used": BUSY}, (" More CPU cores would help.",)),
    (STEPPING, POOL | {"auto_env_threads": 4}, (" 4 threads a pool (leave --env.", "or more work")),
    (STEPPING, FULL | {"used": Cores(14.0)}, ("More workers (--runtime.num-workers above 2)",)),
    (STEPPING, FULL | {"used": Cores(15.8)}, ("More CPU cores",)),
    (STEPPING, FULL | {"num_workers": 8}, ("More workers, each with a stream (--runtime.num-wor",)),
    (STEPPING, FULL | {"num_workers": 8, "used": Cores(15.8)}, ("More CPU cores",)),
    (
        STEPPING,
        VECTOR | {"num_streams": 5, "num_groups": 5, "num_workers": 5},
        ("more streams (a vector environment of 10)", "!--env.num-streams"),
    ),
    (
        ACTING,
        {},
        ("act for 70% of theirs, for 2 streams", "Larger groups (--env.streams-per-group"),
    ),
    (ACTING, {}, (" or more workers (--runtime.num-workers above 2) would help.",)),
    (ACTING, {"used": BUSY, "num_groups": 2}, ("(--env.num-streams 16) or more CPU cores would",)),
    (ACTING, {"may_compile": True}, ("Compiling",)),
    (ACTING, {"large_network": True}, ("a GPU or",)),
    (
        ACTING,
        {"large_network": True, "gpu": True},
        ("--runtime.inference server --runtime.device cuda",),
    ),
    (
        ACTING,
        {"large_network": True, "gpu": True, "device": "cuda"},
        ("the GPU (--runtime.inference server)",),
    ),
    # the server
    (SERVER, SERVED, ("the server acts for 90% of its own on cpu. Acting in the workers (--run",)),
    (SERVER, ON_GPU, (" A faster machine would help.",)),
    (SERVER, ON_GPU | {"inference_batch_max": 4}, ("(--runtime.inference-batch-max 8) would",)),
    (
        SERVER,
        SERVED | {"large_network": True},
        ("a GPU or more threads for it (--runtime.actor-threads above 1)",),
    ),
    (SERVER, SERVED | {"large_network": True, "used": BUSY}, ("!--runtime.actor-threads",)),
    (
        SERVER,
        {"kind": "lockstep", "inference": "server", "may_compile": True},
        ("Compiling it (--runtime.compile on), larger groups (--env.streams-p",),
    ),
    (SERVER, SERVED | {"may_compile": True}, ("!ompil",)),
    (ANSWERS, ON_GPU, ("!--runtime.inference local",)),
    (load(0.6, 0.75, 0.2, 0.2), SERVED, ("Environments limit",)),
    # turns
    (
        TURNS,
        {"lag": 0},
        ("Taking turns limits", "for the update. Sampling during updates (--runti"),
    ),
    (TURNS, {}, ("!--runtime.lag",)),
    (TURNS, {"kind": "async", "lag": 0}, ("!--runtime.lag",)),
    (TURNS, {"lag": 0, "used": BUSY}, ("!--runtime.lag",)),
    (load(0.1, 0.07, 0.03), {"lag": 0}, ("!--runtime.lag",)),  # it would gain 10%
    (EVEN, POOL, ("No single part limits the speed: learner and", ". A faster machine would help")),
]


@pytest.mark.parametrize(("now", "changes", "parts"), ADVICE)
def test_advice(now: Load, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    text = said(now, changes)
    for part in parts:
        assert (part.removeprefix("!") in text) != part.startswith("!"), text


def test_workers_that_make_environments_again() -> None:
    worker = {"making": 0.6, "stepping": 0.1, "acting": 0.1, "waiting": 0.2}
    now = Load({"learning": 0.1, "waiting": 0.9}, {"worker/0": worker, "worker/1": worker})  # type: ignore[dict-item]
    text = said(now, {})
    assert "limits the speed: the update waits 90% of its time, while the workers make" in text
    assert "again for 60% of theirs. A constructor and a first reset() that take less" in text
    assert "exact checkpoints" in text
    assert "exact checkpoints" not in said(now, {"kind": "async"})


def test_balance_is_said() -> None:
    shares = {"stepping": 0.3, "acting": 0.32, "learning": 0.38}
    assert limit(Load(shares), FACTS).startswith(  # type: ignore[arg-type]
        "No single part limits the speed: 38% learning, 32% acting, 30% stepping. Compiling it "
    )
    assert limit(Load({}), FACTS) == ""


def test_start() -> None:
    compiled = replace(FACTS, compiles=True)
    for acting, learning in ((0.1, 0.8), (0.8, 0.1), (0.45, 0.45), (0.9, 0.0), (0.0, 0.9)):
        now = Load({"acting": acting, "learning": learning, "stepping": 0.1})
        text = limit(now, compiled, starting=True)
        assert text.startswith("Compiling took most of the time so far (90% acting and learning)")
        assert "Compiling took" not in limit(now, compiled)
        assert "Compiling took" not in limit(now, FACTS, starting=True)
    slow = Load({"stepping": 0.6, "acting": 0.2, "learning": 0.2})
    assert limit(slow, compiled, starting=True).startswith("Environments limit")
    assert limit(Load({"other": 0.9}), FACTS, starting=True).startswith("Starting took")


def test_start_of_workers() -> None:
    compiled = {"compiles": True}
    assert said(load(0.6, 0.2, 0.75), compiled, starting=True).startswith(
        "Compiling took most of the time so far (100% waiting for acts and learning)"
    )
    assert said(STEPPING, compiled, starting=True).startswith("Environments limit")
    begun = STEPPING._replace(learner={"other": 0.8, "waiting": 0.2})
    whole = "tarting took most of the time so far (80%): processes are begun."
    assert said(begun, compiled, starting=True) == f"S{whole}"
    crowded = compiled | {"cores": 2, "used": Cores(0.5, 1.5, 1.0)}
    assert said(begun, crowded, starting=True).endswith(f"Without them: s{whole}")


# Facts, cores that the run uses, that others use and that it waits for; how the text begins.
CROWDED: list[tuple[Load, dict[str, Any], tuple[Any, ...], str]] = [
    (Load({"learning": 1.0}), {"threads": 2}, (1.0, 0.9, 0.9), "Other"),
    (Load({"learning": 1.0}), {"threads": 2}, (1.5, 0.4, 0.5), "Other"),
    (Load({"learning": 1.0}), {"threads": 2}, (1.6, 0.3, 0.5), "The"),  # others: under a fifth
    (Load({"learning": 1.0}), {"threads": 2}, (1.9, 0.5, 0.2), "The"),  # it has nearly all it wants
    (Load({"learning": 1.0}), {"threads": 2}, (1.0, 0.7, 0.9), "The"),  # not all cores are busy
    (Load({"learning": 1.0}), {"threads": 2}, (0.0, 2.0, 2.0), "Other"),
    (Load({"learning": 1.0}), {"threads": 2}, (1.0, 1.0, None), "The"),  # the system does not tell
    # A run that sleeps: its threads wait for no cores.
    (alone("stepping", 0.98), {}, (0.02, 1.98, 0.0), "Environments limit the speed: 98% of"),
    (alone("stepping", 0.98), {}, (0.02, 1.98, 0.05), "Env"),  # hardly faster alone
    (alone("stepping", 0.98), {"processes": 8}, (0.11, 1.89, 0.38), "Env"),  # a moment for each
    (alone("stepping", 0.98), {}, (0.11, 1.89, 0.38), "Other"),
    (alone("stepping", 0.98), {}, (1.0, 1.0, 0.8), "Other"),
    (alone("stepping", 0.98), {}, (1.0, 1.0, 0.05), "Env"),
]


@pytest.mark.parametrize(("now", "changes", "cores", "begins"), CROWDED)
def test_others_limit_the_speed_where_they_leave_too_few_cores(
    now: Load, changes: dict[str, Any], cores: tuple[Any, ...], begins: str
) -> None:
    assert said(now, {"cores": 2, "used": Cores(*cores), **changes}).startswith(begins)


def test_what_would_limit_the_speed_without_the_others_is_said() -> None:
    text = said(alone("stepping"), {"cores": 2, "used": Cores(0.5, 1.5, 1.0)})
    assert " Without them: environments limit the speed: 71% of the time goes into" in text


def test_fewer_threads_are_advised_only_where_there_are_more_than_cores_left() -> None:
    def crowded(threads: int, cores: int, by_others: float, **changes: Any) -> str:
        used = Cores(cores - by_others, by_others, 2.0)
        now = Load({"learning": 1.0})
        return said(now, {"threads": threads, "cores": cores, "used": used, **changes})

    assert crowded(2, 2, 1.04).startswith(
        "Other processes limit the speed: they take 1.0 of 2 cores. Waiting until they end or "
        "fewer threads (--runtime.threads 1) would help. Without them: the update limits the "
    )
    assert "1 core. Waiting until they end would help. Without" in crowded(1, 1, 0.5)
    assert "--runtime.threads 5" in crowded(8, 8, 3.0)
    assert "--runtime.threads 2" in crowded(4, 8, 3.0, num_learners=2)
    text = crowded(4, 8, 4.5, used=Cores(3.0, 4.5, 2.0))
    assert text.startswith("Other processes")
    assert "--runtime" not in text


def test_the_slowest_worker_is_the_one_that_is_waited_for() -> None:
    slow, quick = {"stepping": 0.98, "waiting": 0.02}, {"stepping": 0.3, "waiting": 0.7}
    beside = {"worker/0": slow, "worker/1": quick, "worker/2": quick}
    text = limit(Load({"learning": 0.7, "waiting": 0.3}, beside), WORKERS)  # type: ignore[arg-type]
    assert text.startswith("Environments limit the speed: the update waits 30% of its time")


def require_whole(text: str, *ends: str) -> None:
    assert text[0].isupper()
    assert text.endswith(".")
    assert not ends or any(end in text for end in ends)
    assert ",," not in text
    assert "  " not in text


@pytest.mark.parametrize("phase", PHASES)
def test_every_setting_has_a_whole_sentence(phase: str) -> None:
    for backend, faster, device, large, update, starting, share in itertools.product(
        ("envpool", "ale", "gymnasium"),
        (FACTS.faster, "", ABSENT),
        ("cpu", "cuda"),
        (True, False),
        (FACTS.update, UpdateAdvice(), LARGER),
        (True, False),
        (0.2, 1.0),
    ):
        facts = replace(
            FACTS,
            backend=backend,
            in_python=backend == "gymnasium",
            faster=faster,
            device=device,
            large_network=large,
            update=update,
        )
        require_whole(limit(Load({phase: share}), facts, starting=starting))  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", ["lockstep", "async"])
def test_every_setting_with_workers_has_a_whole_sentence(kind: str) -> None:
    for waits, stepping, serving, backend, device, cores, compiler in itertools.product(
        (0.01, 0.3, 0.9),
        (0.02, 0.5, 0.97),
        (None, 0.1, 0.9),
        ("envpool", "gymnasium"),
        ("cpu", "cuda"),
        (Cores(), HALF, BUSY, Cores(1.0, 15.0, 1.0)),
        (True, False),
    ):
        facts = {
            "kind": kind,
            "backend": backend,
            "in_python": backend == "gymnasium",
            "device": device,
            "large_network": device == "cuda",
            "inference": "local" if serving is None else "server",
            "may_compile": True,
            "compiler": compiler,
            "faster": "",
            "used": cores,
        }
        now = load(waits, stepping, 0.97 - stepping, serving)
        require_whole(said(now, facts), "would help.", "would help. Without them: ")
