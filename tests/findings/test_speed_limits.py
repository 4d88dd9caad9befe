"""The sentence about speed: right about where the time goes, no advice that is taken already."""

import itertools
from dataclasses import replace

import pytest
from facts_helpers import ABSENT, FACTS, PICTURES, POOL

from quintet.findings.speed import limit
from quintet.observe.timing import PHASES, Cores, Load
from quintet.protocols import UpdateAdvice


def told(phase: str, share: float = 0.71, **changes: object) -> str:
    facts = replace(changes.pop("facts", FACTS), **changes)  # type: ignore[arg-type]
    rest = (1 - share) / 2
    others = [each for each in ("stepping", "acting", "learning") if each != phase][:2]
    return limit(Load({phase: share, others[0]: rest, others[1]: rest}), facts)  # type: ignore[dict-item]


LARGER = UpdateAdvice(larger_batches=("larger batches (--batch-unrolls 48)",))


def test_environments() -> None:
    assert told("stepping") == (
        "Environments limit the speed: 71% of the time goes into stepping CartPole-v1 "
        "(gymnasium). Worker processes (--runtime.kind lockstep) or the same id in C++ "
        "(--env.backend envpool) would help."
    )
    one_core = told("stepping", cores=1)
    assert one_core.endswith(" The same id in C++ (--env.backend envpool) would help.")
    assert "lockstep" not in told("stepping", num_streams=1, num_groups=1)
    assert "EnvPool, if it has this id" in told("stepping", faster=ABSENT)
    assert "quintet envs CartPole" in told("stepping", faster="")


def test_environments_of_ones_own() -> None:
    own = replace(FACTS, env="my.envs:make", faster="", source="maker")
    assert told("stepping", facts=own).endswith(
        " Worker processes (--runtime.kind lockstep) or a faster step() of it, or a function that "
        "makes a vector environment of it, would help."
    )
    several = told("stepping", facts=own, source="group maker")
    assert several.endswith(
        " Worker processes (--runtime.kind lockstep) or a faster step() of it would help."
    )
    fixed = told("stepping", facts=own, source="vector environment")
    assert fixed.endswith(" A faster step() of it would help.")
    for facts in (own, FACTS):
        masked = told("stepping", facts=facts, single_only=True)
        assert masked.endswith(" or a faster step() of it would help.")
    fixed = told("acting", facts=own, source="vector environment", num_groups=1)
    assert "more streams (a vector environment of 16)" in fixed.replace("More", "more")
    assert "--env.num-streams" not in fixed
    assert "--env.num-streams 16" in told("acting", facts=own, source="group maker")


def test_environments_that_other_processes_step() -> None:
    def said(processes: int, **changes: object) -> str:
        own = {"faster": "", "env": "my.envs:make", "source": "maker", "cores": 2}
        facts = replace(FACTS, **{**own, **changes})  # type: ignore[arg-type]
        shares = {"stepping": 0.9, "learning": 0.1}
        return limit(Load(shares, env_processes=processes), facts)  # type: ignore[arg-type]

    assert "stepping my.envs:make (gymnasium, in 8 processes). More streams (--env.num-st" in said(
        8
    )
    assert "stepping my.envs:make (gymnasium, in 2 processes). More CPU cores or a fa" in said(2)
    assert "in 2 processes). More memory or a faster step()" in said(2, cores=4)
    assert "). As many processes as suit it (leave --env.nu" in said(2, env_processes_given=True)
    assert ". More streams (" in said(8, env_processes_given=True)
    assert "lockstep" not in said(2)
    assert "processes)" not in said(0)


def test_environments_in_pools() -> None:
    pool = replace(FACTS, num_streams=32, **POOL)
    assert "--env.num-streams 64" in told("stepping", facts=pool)
    busy = told("stepping", facts=pool, env_threads=8, auto_env_threads=8)
    assert "More CPU cores would help" in busy
    throttled = told("stepping", facts=pool, env_threads=2, auto_env_threads=8)
    assert "8 threads a pool (leave --env.num-threads out)" in throttled
    torn = told("stepping", facts=pool, num_groups=16, auto_num_groups=1)
    assert torn.endswith(" Fewer groups (leave --env.streams-per-group out) would help.")


def test_making_environments() -> None:
    assert told("making") == (
        "Making environments limits the speed: 71% of the time goes into constructors and first "
        "resets of CartPole-v1 (gymnasium), which every restart of all streams calls. A "
        "constructor and a first reset() that take less time or fewer exact checkpoints (a longer "
        "--checkpoint.interval-iterations) would help."
    )
    worker = {"making": 0.6, "stepping": 0.1, "acting": 0.1, "waiting": 0.2}
    load = Load({"learning": 0.1, "waiting": 0.9}, {"worker/0": worker, "worker/1": worker})  # type: ignore[dict-item]
    text = limit(load, replace(WORKERS, kind="lockstep"))
    assert "limits the speed: 90% of the time the update waits, while the workers make" in text
    assert "again for 60% of theirs. A constructor and a first reset() that take less" in text
    assert "exact checkpoints" in text
    assert "exact checkpoints" not in limit(load, replace(WORKERS, kind="async"))


def test_replay() -> None:
    assert told("replay", update=UpdateAdvice(less_work=("smaller batches than 64",))) == (
        "Replay limits the speed: 71% of the time goes into storing transitions and drawing "
        "batches of them. Smaller batches than 64 would help."
    )


def test_update() -> None:
    assert told("learning", 0.64) == (
        "The update limits the speed: 64% of the time goes into learning on cpu (10 passes in "
        "minibatches of 64). Compiling it (--runtime.compile on), fewer passes than 10 "
        "(--num-epochs) or larger minibatches (--minibatch-steps 128) would help."
    )
    assert "compile on" not in told("learning", compiles=True)
    assert "compile on" not in told("learning", may_compile=False)
    assert "C++ compiler" in told("learning", compiler=False)
    nothing = told("learning", compiles=True, update=UpdateAdvice())
    assert nothing.endswith("learning on cpu. A faster machine would help.")
    unrolls = told("learning", compiles=True, update=LARGER)
    assert unrolls.endswith(" A faster machine would help."), "rows, which are what takes the time"


def test_large_networks_are_worth_a_gpu_and_threads() -> None:
    assert "GPU" not in told("learning")
    assert "--runtime.threads" not in told("learning")
    assert "or a GPU" not in told("learning", facts=PICTURES, device="cuda")
    assert "a GPU or" in told("learning", facts=PICTURES)
    assert "--runtime.device cuda" in told("learning", facts=PICTURES, gpu=True)
    assert "--runtime.threads 16" in told("learning", facts=PICTURES)
    assert "--runtime.threads" not in told("learning", facts=PICTURES, threads=16)
    assert "--runtime.threads" not in told("learning", facts=PICTURES, device="cuda")
    assert "--runtime.threads 5" in told("learning", facts=PICTURES, num_learners=3, threads=4)
    assert "--runtime.threads" not in told("learning", facts=PICTURES, num_learners=3, threads=5)


def test_small_networks_are_faster_with_one_learner() -> None:
    assert "num-learners" not in told("learning")
    assert "one learner (--runtime.num-learners 1)" in told("learning", num_learners=2)
    assert "num-learners" not in told("learning", facts=PICTURES, num_learners=2)


def test_acting() -> None:
    assert told("acting") == (
        "Choosing actions limits the speed: 71% of the time goes into acting, for 2 groups of 4 "
        "streams at a time. Compiling it (--runtime.compile on), one group "
        "(--env.streams-per-group 8) or more streams (--env.num-streams 16) would help."
    )
    assert "compile on" not in told("acting", compiles=True)
    assert "C++ compiler" in told("acting", compiler=False)
    single = told("acting", num_groups=1, num_streams=1)
    assert "--env.streams-per-group" not in single
    assert "one group of 1 stream at" in single
    assert "--runtime.threads 16" in told("acting", facts=PICTURES, device="cuda")


def test_others() -> None:
    assert "--eval.episodes below 10" in told("evaluation")
    assert "--eval.episodes" not in told("evaluation", eval_episodes=1)
    assert "--checkpoint.interval-iterations" in told("checkpoint")
    assert "waits for other processes" in told("waiting")
    assert "Fewer --report.sinks" in told("other")
    assert told("other", sinks=False).endswith(" A faster machine would help.")
    assert "leave --report.interval-s out, it is 0" in told("other", report_interval_s=0.0)
    assert "quicker on_report" in told("other", callback=True)


def test_balance_is_said() -> None:
    shares = {"stepping": 0.3, "acting": 0.32, "learning": 0.38}
    assert limit(Load(shares), FACTS).startswith(  # type: ignore[arg-type]
        "No single part limits the speed: 38% learning, 32% acting, 30% stepping. Compiling it "
    )
    assert limit(Load({}), FACTS) == ""


def test_start() -> None:
    compiled = replace(FACTS, compiles=True)
    for acting, learning in ((0.1, 0.8), (0.8, 0.1), (0.45, 0.45), (0.9, 0.0), (0.0, 0.9)):
        shares = {"acting": acting, "learning": learning, "stepping": 0.1}
        assert limit(Load(shares), compiled, starting=True) == (  # type: ignore[arg-type]
            "Compiling took most of the time so far (90% acting and learning): once at every "
            "start, so that all later acts and updates are faster."
        )
        assert "Compiling took" not in limit(Load(shares), compiled)  # type: ignore[arg-type]
        assert "Compiling took" not in limit(Load(shares), FACTS, starting=True)  # type: ignore[arg-type]
    slow = {"stepping": 0.6, "acting": 0.2, "learning": 0.2}
    told_of = limit(Load(slow), compiled, starting=True)  # type: ignore[arg-type]
    assert told_of.startswith("Environments limit")
    assert limit(Load({"other": 0.9}), FACTS, starting=True).startswith("Starting took")


@pytest.mark.parametrize("phase", PHASES)
def test_every_setting_has_a_whole_sentence(phase: str) -> None:
    for backend, faster, device, large, update, starting in itertools.product(
        ("envpool", "ale", "gymnasium"),
        (FACTS.faster, "", ABSENT),
        ("cpu", "cuda"),
        (True, False),
        (FACTS.update, UpdateAdvice(), LARGER),
        (True, False),
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
        for share in (0.2, 1.0):
            text = limit(Load({phase: share}), facts, starting=starting)  # type: ignore[dict-item]
            assert text[0].isupper()
            assert text.endswith(".")
            assert ",," not in text
            assert "  " not in text


@pytest.mark.parametrize(
    ("used", "by_others", "waited_for", "is_crowded"),
    [
        (1.0, 0.9, 0.9, True),
        (1.5, 0.4, 0.5, True),
        (1.6, 0.3, 0.5, False),  # others take less than a fifth
        (1.9, 0.5, 0.2, False),  # it has nearly all that it wants
        (1.0, 0.7, 0.9, False),  # not all cores are busy
        (0.0, 2.0, 2.0, True),
        (1.0, 1.0, None, False),  # the system does not tell
    ],
)
def test_others_limit_the_speed_where_they_leave_too_few_cores(
    used: float, by_others: float, waited_for: float | None, is_crowded: bool
) -> None:
    facts = replace(FACTS, cores=2, threads=2)
    text = limit(Load({"learning": 1.0}, cores=Cores(used, by_others, waited_for)), facts)
    assert text.startswith("Other processes limit the speed") == is_crowded
    assert text.startswith("The update") != is_crowded


def test_a_run_that_sleeps_is_not_hindered_by_others() -> None:
    """Its threads do not wait for cores, as the system tells."""

    def said(used: float, waited_for: float, processes: int = 0) -> str:
        facts = replace(FACTS, cores=2, threads=2)
        shares = {"stepping": 0.98, "learning": 0.02}
        cores = Cores(used, 2.0 - used, waited_for)
        load = Load(shares, cores=cores, env_processes=processes)  # type: ignore[arg-type]
        return limit(load, facts)

    assert said(0.02, 0.0).startswith("Environments limit the speed: 98% of the time goes")
    assert said(0.02, 0.05).startswith("Environments limit"), "it would hardly be faster alone"
    assert said(0.11, 0.38, 8).startswith("Environments limit"), "each waits for a moment"
    assert said(0.11, 0.38).startswith("Other processes limit")
    assert said(1.0, 0.8).startswith("Other processes limit")
    assert said(1.0, 0.05).startswith("Environments limit")


def test_what_would_limit_the_speed_without_the_others_is_said() -> None:
    facts = replace(FACTS, cores=2, threads=1)
    shares = {"stepping": 0.7, "learning": 0.3}
    text = limit(Load(shares, cores=Cores(0.5, 1.5, 1.0)), facts)  # type: ignore[arg-type]
    assert text.endswith(
        " Without them: environments limit the speed: 70% of the time goes into stepping "
        "CartPole-v1 (gymnasium)."
    )


def test_fewer_threads_are_advised_only_where_there_are_more_than_cores_left() -> None:
    def said(threads: int, cores: int, by_others: float) -> str:
        facts = replace(FACTS, cores=cores, threads=threads)
        return limit(Load({"learning": 1.0}, cores=Cores(cores - by_others, by_others, 2.0)), facts)

    assert said(2, 2, 1.04) == (
        "Other processes limit the speed: they take 1.0 of 2 cores. Waiting until they end or "
        "fewer threads (--runtime.threads 1) would help. Without them: the update limits the "
        "speed: 100% of the time goes into learning on cpu (10 passes in minibatches of 64)."
    )
    assert "1 core. Waiting until they end would help. Without" in said(1, 1, 0.5)
    assert "--runtime.threads 5" in said(8, 8, 3.0)
    of_two = replace(FACTS, cores=8, threads=4, num_learners=2)
    text = limit(Load({"learning": 1.0}, cores=Cores(5.0, 3.0, 2.0)), of_two)
    assert "--runtime.threads 2" in text
    facts = replace(FACTS, cores=8, threads=4)
    text = limit(Load({"learning": 1.0}, cores=Cores(3.0, 4.5, 2.0)), facts)
    assert text.startswith("Other processes")
    assert "--runtime" not in text


def test_a_cpp_compiler_among_other_advice() -> None:
    assert "which --runtime.compile needs, fewer passes" in told("learning", compiler=False)


WORKERS = replace(
    FACTS, kind="lockstep", lag=1, num_workers=2, num_streams=8, num_groups=4, may_compile=False
)
BUSY = Cores(15.6, 0.0)  # of 16
HALF = Cores(8.0, 0.0)


def load(
    waits: float,
    stepping: float,
    acting: float,
    serving: float | None = None,
    cores: Cores = HALF,
) -> Load:
    """Of a learner that learns or waits, and two workers that wait for the rest of the time."""
    idle = 1 - stepping - acting
    worker = {"stepping": stepping, "acting": acting, "waiting": idle}
    beside = {"worker/0": worker, "worker/1": worker}
    if serving is not None:
        beside["server"] = {"acting": serving, "waiting": 1 - serving}
    return Load({"learning": 1 - waits, "waiting": waits}, beside, cores)  # type: ignore[arg-type]


def with_workers(now: Load, **changes: object) -> str:
    return limit(now, replace(WORKERS, **changes))  # type: ignore[arg-type]


LEARNER = load(0.02, 0.3, 0.2)


def test_workers_wait_for_the_update() -> None:
    assert with_workers(LEARNER) == (
        "The update limits the speed: 98% of the time goes into learning on cpu (10 passes in "
        "minibatches of 64), while the workers wait 50% of theirs. Fewer passes than 10 "
        "(--num-epochs) or larger minibatches (--minibatch-steps 128) would help."
    )
    one_pass = {"update": UpdateAdvice()}
    assert "(--runtime.compile on)" in with_workers(LEARNER, may_compile=True)
    assert "compile" not in with_workers(LEARNER, may_compile=True, compiles=True)
    assert with_workers(LEARNER, **one_pass).endswith(" A faster machine would help.")
    impala = with_workers(LEARNER, update=LARGER)
    assert impala.endswith(" Larger batches (--batch-unrolls 48) would help.")
    large = {"update": LARGER, "large_network": True, "threads": 4}
    assert with_workers(LEARNER, **large).endswith(
        " A GPU or more threads (--runtime.threads 12) would help."
    )
    # Each of the two may have 4 of the 8 idle cores, and half of all 16.
    assert "(--runtime.threads 8)" in with_workers(LEARNER, **large, num_learners=2)
    shared = {**large, "threads": 8, "num_learners": 2}
    assert with_workers(LEARNER, **shared).endswith(" A GPU would help.")
    assert "The GPU (--runtime.device cuda)" in with_workers(LEARNER, **large, gpu=True)
    busy = LEARNER._replace(cores=BUSY)
    assert with_workers(busy, **large).endswith(" A GPU would help."), "no core is idle"
    on_gpu = with_workers(LEARNER, **large, device="cuda")
    assert on_gpu.endswith(" Larger batches (--batch-unrolls 48) would help.")


STEPPING = load(0.6, 0.7, 0.25)


def test_the_update_waits_for_environments() -> None:
    assert with_workers(STEPPING, faster=ABSENT) == (
        "Environments limit the speed: 60% of the time the update waits, while the workers step "
        "CartPole-v1 (gymnasium) for 70% of theirs. EnvPool, if it has this id in C++ (see quintet "
        "envs) or more workers (--runtime.num-workers above 2) would help."
    )
    own = {"source": "maker", "faster": ""}
    assert "A faster step() of it, or a function that makes" in with_workers(STEPPING, **own)
    pool = POOL
    assert with_workers(STEPPING._replace(cores=BUSY), **pool).endswith(
        " More CPU cores would help."
    )
    throttled = with_workers(STEPPING, **pool, env_threads=1, auto_env_threads=4)
    assert " 4 threads a pool (leave --env.num-threads out) or more workers" in throttled


@pytest.mark.parametrize(
    ("workers", "used", "advice"),
    [
        (2, 14.0, "more workers (--runtime.num-workers above 2)"),
        (
            8,
            8.0,
            "more workers, each with a stream (--runtime.num-workers, --env.num-streams)",
        ),
        (2, 15.8, "more CPU cores"),
        (8, 15.8, "more CPU cores"),
    ],
)
def test_more_workers_for_idle_cores(workers: int, used: float, advice: str) -> None:
    now = STEPPING._replace(cores=Cores(used, 0.0))
    told_of = with_workers(now, **POOL, num_workers=workers, num_streams=8, num_groups=8)
    assert told_of.endswith(f" {advice[0].upper()}{advice[1:]} would help.")


def test_a_given_vector_environment_has_its_number_of_streams() -> None:
    given = {"source": "vector environment", "num_streams": 5, "num_groups": 5, "num_workers": 5}
    text = with_workers(STEPPING, **given)
    assert "more streams (a vector environment of 10)" in text
    assert "--env.num-streams" not in text


ACTING = load(0.6, 0.25, 0.7)


def test_the_update_waits_for_actions() -> None:
    assert with_workers(ACTING) == (
        "Choosing actions limits the speed: 60% of the time the update waits, while the workers "
        "act for 70% of theirs, for 2 streams at a time. Larger groups (--env.streams-per-group "
        "above 2) or more workers (--runtime.num-workers above 2) would help."
    )
    whole = with_workers(ACTING._replace(cores=BUSY), num_groups=2)
    assert whole.endswith(" More streams (--env.num-streams 16) or more CPU cores would help.")
    assert "compiling" in with_workers(ACTING, may_compile=True).lower()
    large = {"large_network": True}
    assert "a GPU or" in with_workers(ACTING, **large)
    assert "--runtime.inference server --runtime.device cuda" in with_workers(
        ACTING, **large, gpu=True
    )
    there = with_workers(ACTING, **large, gpu=True, device="cuda")
    assert "the GPU (--runtime.inference server)" in there


SERVED = {"kind": "async", "inference": "server"}


def test_the_workers_wait_for_the_server() -> None:
    busy = load(0.6, 0.2, 0.75, serving=0.9)
    assert with_workers(busy, **SERVED) == (
        "The inference server limits the speed: 60% of the time the update waits, while the server "
        "acts for 90% of its own on cpu. Acting in the workers (--runtime.inference local) would "
        "help."
    )
    gpu = {**SERVED, "device": "cuda", "large_network": True, "gpu": True}
    assert with_workers(busy, **gpu).endswith(" A faster machine would help.")
    few = with_workers(busy, **gpu, inference_batch_max=4)
    assert few.endswith(" Larger batches (--runtime.inference-batch-max 8) would help.")
    large = with_workers(busy, **SERVED, large_network=True)
    assert "a GPU or more threads for it (--runtime.actor-threads above 1)" in large
    assert "--runtime.actor-threads" not in with_workers(
        busy._replace(cores=BUSY), **SERVED, large_network=True
    )
    exact = with_workers(busy, kind="lockstep", inference="server", may_compile=True)
    assert "Compiling it (--runtime.compile on), larger groups (--env.streams-p" in exact
    assert "compil" not in with_workers(busy, **SERVED, may_compile=True).lower()


def test_server_and_workers_wait_for_each_other() -> None:
    slow = load(0.6, 0.2, 0.75, serving=0.2)
    assert with_workers(slow, **SERVED) == (
        "The way to the inference server limits the speed: 60% of the time the update waits, while "
        "the workers wait for actions for 75% of theirs; the server acts for 20%. Acting in "
        "the workers (--runtime.inference local) or larger groups (--env.streams-per-group "
        "above 2) would help."
    )
    large = {**SERVED, "device": "cuda", "large_network": True}
    assert "--runtime.inference local" not in with_workers(slow, **large)
    assert with_workers(load(0.6, 0.75, 0.2, 0.2), **SERVED).startswith("Environments")


def test_taking_turns() -> None:
    turns = load(0.55, 0.35, 0.2)
    assert with_workers(turns, lag=0) == (
        "Taking turns limits the speed: 55% of the time the update waits for the workers, which "
        "wait 45% of theirs for the update. Sampling during updates (--runtime.lag 1) would "
        "help."
    )
    for changes in ({}, {"kind": "async", "lag": 0}):
        assert "--runtime.lag" not in with_workers(turns, **changes)
    assert "--runtime.lag" not in with_workers(turns._replace(cores=BUSY), lag=0)
    assert "--runtime.lag" not in with_workers(load(0.1, 0.07, 0.03), lag=0), "it would gain 10%"


def test_none_waits_for_another() -> None:
    even = load(0.05, 0.6, 0.34)
    assert with_workers(even, **POOL) == (
        "No single part limits the speed: learner and workers hardly wait for each other. A faster "
        "machine would help."
    )
    assert with_workers(even._replace(cores=BUSY), may_compile=True) == (
        "All cores are busy: learner and workers hardly wait for each other. Compiling it "
        "(--runtime.compile on), the same id in C++ (--env.backend envpool) or a faster machine "
        "would help."
    )


def test_the_slowest_worker_is_the_one_that_is_waited_for() -> None:
    slow, quick = {"stepping": 0.98, "waiting": 0.02}, {"stepping": 0.3, "waiting": 0.7}
    beside = {"worker/0": slow, "worker/1": quick, "worker/2": quick}
    text = limit(Load({"learning": 0.7, "waiting": 0.3}, beside), WORKERS)  # type: ignore[arg-type]
    assert text.startswith("Environments limit the speed: 30% of the time the update waits")


def test_what_else_takes_the_learners_time() -> None:
    now = LEARNER._replace(learner={"evaluation": 0.7, "learning": 0.3})
    assert with_workers(now).startswith("Evaluation limits the speed")
    unknown = Load({"waiting": 0.9, "learning": 0.1})
    assert with_workers(unknown).startswith("Sampling limits the speed: 90%")


def test_start_of_workers() -> None:
    compiled = replace(WORKERS, compiles=True)
    assert limit(load(0.6, 0.2, 0.75), compiled, starting=True).startswith(
        "Compiling took most of the time so far (100% waiting for acts and learning)"
    )
    assert limit(STEPPING, compiled, starting=True).startswith("Environments limit")
    begun = STEPPING._replace(learner={"other": 0.8, "waiting": 0.2})
    assert limit(begun, compiled, starting=True) == (
        "Starting took most of the time so far (80%): processes are begun."
    )
    crowded = begun._replace(cores=Cores(0.5, 1.5, 1.0))
    assert limit(crowded, replace(compiled, cores=2), starting=True).endswith(
        "Without them: starting took most of the time so far (80%): processes are begun."
    )


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
        now = load(waits, stepping, 0.97 - stepping, serving, cores)
        text = with_workers(
            now,
            kind=kind,
            backend=backend,
            in_python=backend == "gymnasium",
            device=device,
            large_network=device == "cuda",
            inference="local" if serving is None else "server",
            may_compile=True,
            compiler=compiler,
            faster="",
        )
        assert text[0].isupper()
        assert text.endswith("would help.") or "would help. Without them: " in text
        assert ",," not in text
        assert "  " not in text
