"""The sentence about speed: right about where the time goes, no advice that is taken already."""

import itertools
from dataclasses import replace

import pytest
from settings import PICTURES, SETTING

from quintet.algorithms import minibatches
from quintet.observe.limits import Cores, TimeShares, limit
from quintet.observe.timing import PHASES


def told(phase: str, share: float = 0.71, **changes: object) -> str:
    setting = replace(changes.pop("setting", SETTING), **changes)  # type: ignore[arg-type]
    rest = (1 - share) / 2
    others = [each for each in ("stepping", "acting", "learning") if each != phase][:2]
    return limit({phase: share, others[0]: rest, others[1]: rest}, setting)  # type: ignore[dict-item]


def test_environments() -> None:
    assert told("stepping") == (
        "Environments limit the speed: 71% of the time goes into stepping CartPole-v1 "
        "(gymnasium). The same id in C++ (--env.backend envpool) would help."
    )
    assert "EnvPool, if it has this id" in told("stepping", envpool="absent")
    assert "quintet envs CartPole" in told("stepping", envpool="lacks it")


def test_environments_of_ones_own() -> None:
    own = replace(SETTING, env="my.envs:make", envpool="lacks it", source="maker")
    assert told("stepping", setting=own).endswith(
        " A faster step() of it, or a function that makes a vector environment of it, would help."
    )
    for source in ("group maker", "vector environment"):
        several = told("stepping", setting=own, source=source)
        assert several.endswith(" A faster step() of it would help.")
    for setting in (own, SETTING):
        masked = told("stepping", setting=setting, single_only=True)
        assert masked.endswith(" A faster step() of it would help.")
    fixed = told("acting", setting=own, source="vector environment", num_groups=1)
    assert "more streams (a vector environment of 16)" in fixed.replace("More", "more")
    assert "--env.num-streams" not in fixed
    assert "--env.num-streams 16" in told("acting", setting=own, source="group maker")


def test_environments_in_pools() -> None:
    pool = replace(SETTING, backend="envpool", num_streams=32)
    assert "--env.num-streams 64" in told("stepping", setting=pool)
    busy = told("stepping", setting=pool, env_threads=8, auto_env_threads=8)
    assert "More CPU cores would help" in busy
    throttled = told("stepping", setting=pool, env_threads=2, auto_env_threads=8)
    assert "8 threads a pool (leave --env.num-threads out)" in throttled
    torn = told("stepping", setting=pool, num_groups=16, auto_num_groups=1)
    assert torn.endswith(" One group (leave --env.streams-per-group out) would help.")


def test_update() -> None:
    assert told("learning", 0.64) == (
        "The update limits the speed: 64% of the time goes into learning on cpu (10 passes in "
        "minibatches of 64). Compiling it (--runtime.compile on), fewer passes than 10 "
        "(--num-epochs) or larger minibatches (--minibatch-steps 128) would help."
    )
    assert "compile on" not in told("learning", compiles=True)
    assert "compile on" not in told("learning", may_compile=False)
    assert "C++ compiler" in told("learning", compiler=False)
    assert "--num-epochs" not in told("learning", passes=1)
    assert "--num-epochs" not in told("learning", passes=None)
    assert "--minibatch-steps" not in told("learning", minibatch_steps=2048)
    nothing = told("learning", compiles=True, passes=1, minibatch_steps=None)
    assert nothing.endswith(" A faster machine would help.")


@pytest.mark.parametrize(
    ("batch", "steps", "chunk", "larger"),
    [
        (2048, 64, 1, 128),
        (2048, 1024, 1, 2048),
        (768, 256, 1, 384),
        (768, 256, 128, 384),
        (768, 256, 256, 768),
        (600, 60, 1, 120),
        (500, 100, 1, 250),
        (2048, 1100, 1, 2048),  # as --drop-last allows
        (2048, 100, 1, 256),
        (7, 1, 1, 7),
    ],
)
def test_larger_minibatches_divide_the_batch(
    batch: int, steps: int, chunk: int, larger: int
) -> None:
    text = told("learning", batch_steps=batch, minibatch_steps=steps, chunk_steps=chunk)
    assert f"(--minibatch-steps {larger})" in text
    assert minibatches.size_faults(larger, batch, 1, drop_last=False) == []
    assert minibatches.chunk_faults(chunk, batch, larger) == []


def test_large_networks_are_worth_a_gpu_and_threads() -> None:
    assert "GPU" not in told("learning")
    assert "--runtime.threads" not in told("learning")
    assert "or a GPU" not in told("learning", setting=PICTURES, device="cuda")
    assert "a GPU or" in told("learning", setting=PICTURES)
    assert "--runtime.device cuda" in told("learning", setting=PICTURES, gpu=True)
    assert "--runtime.threads 16" in told("learning", setting=PICTURES)
    assert "--runtime.threads" not in told("learning", setting=PICTURES, threads=16)
    assert "--runtime.threads" not in told("learning", setting=PICTURES, device="cuda")


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
    assert "--runtime.threads 16" in told("acting", setting=PICTURES, device="cuda")


def test_others() -> None:
    assert "--eval.episodes below 10" in told("evaluation")
    assert "--eval.episodes" not in told("evaluation", eval_episodes=1)
    assert "--checkpoint.interval-updates" in told("checkpoint")
    assert "waits for other processes" in told("waiting")
    assert "Fewer --report.sinks" in told("other")
    assert told("other", sinks=False).endswith(" A faster machine would help.")
    assert "--report.interval-s 1, it is 0" in told("other", report_interval_s=0.0)
    assert "quicker on_report" in told("other", callback=True)


def test_balance_is_said() -> None:
    shares = {"stepping": 0.3, "acting": 0.32, "learning": 0.38}
    assert limit(shares, SETTING).startswith(  # type: ignore[arg-type]
        "Nothing alone limits the speed: 38% learning, 32% acting, 30% stepping. Compiling it "
    )
    assert limit({}, SETTING) == ""


def test_start() -> None:
    compiled = replace(SETTING, compiles=True)
    for acting, learning in ((0.1, 0.8), (0.8, 0.1), (0.45, 0.45), (0.9, 0.0), (0.0, 0.9)):
        shares = {"acting": acting, "learning": learning, "stepping": 0.1}
        assert limit(shares, compiled, starting=True) == (  # type: ignore[arg-type]
            "Compiling took most of the time so far (90% acting and learning): once at every "
            "start, so that all later acts and updates are faster."
        )
        assert "Compiling took" not in limit(shares, compiled)  # type: ignore[arg-type]
        assert "Compiling took" not in limit(shares, SETTING, starting=True)  # type: ignore[arg-type]
    slow = {"stepping": 0.6, "acting": 0.2, "learning": 0.2}
    told_of = limit(slow, compiled, starting=True)  # type: ignore[arg-type]
    assert told_of.startswith("Environments limit")
    assert limit({"other": 0.9}, SETTING, starting=True).startswith("Starting took")


@pytest.mark.parametrize("phase", PHASES)
def test_every_setting_has_a_whole_sentence(phase: str) -> None:
    for backend, envpool, device, large, passes, starting in itertools.product(
        ("envpool", "ale", "gymnasium"),
        ("has it", "lacks it", "absent"),
        ("cpu", "cuda"),
        (True, False),
        (None, 1, 4),
        (True, False),
    ):
        setting = replace(
            SETTING,
            backend=backend,
            envpool=envpool,
            device=device,
            large_network=large,
            passes=passes,
        )
        for share in (0.2, 1.0):
            text = limit({phase: share}, setting, starting=starting)  # type: ignore[dict-item]
            assert text[0].isupper()
            assert text.endswith(".")
            assert ",," not in text
            assert "  " not in text


def test_first_report_counts_until_there_is_another() -> None:
    shares = TimeShares()
    assert shares.recent() == {}
    shares.add({"env_steps": 1.0})
    assert shares.starting
    shares.add({"wall_s": 50.0, "time/learning_frac": 1.0})
    assert shares.starting
    assert shares.recent() == {"learning": 1.0}
    shares.add({"wall_s": 51.0, "time/acting_frac": 1.0})
    assert not shares.starting
    assert shares.recent() == {"acting": 1.0}


def test_shares_are_weighed_by_time_and_forgotten() -> None:
    shares = TimeShares()
    for wall_s, phase in ((0, "other"), (1, "learning"), (4, "acting")):
        shares.add({"wall_s": float(wall_s), f"time/{phase}_frac": 1.0})
    assert shares.recent() == pytest.approx({"learning": 0.25, "acting": 0.75})
    shares.add({"wall_s": 40.0, "time/stepping_frac": 0.5, "time/acting_frac": 0.5})
    assert shares.recent() == pytest.approx({"stepping": 0.5, "acting": 0.5})


@pytest.mark.parametrize(
    ("used", "by_others", "is_crowded"),
    [(1.0, 0.9, True), (1.5, 0.4, True), (1.6, 0.3, False), (0.8, 0.9, False), (0.0, 2.0, True)],
)
def test_others_limit_the_speed_where_they_leave_too_few_cores(
    used: float, by_others: float, is_crowded: bool
) -> None:
    setting = replace(SETTING, cores=2, threads=2)
    text = limit({"learning": 1.0}, setting, cores=Cores(used, by_others))
    assert text.startswith("Other processes limit the speed") == is_crowded
    assert text.startswith("The update") != is_crowded


ALONE = {"cores": 2, "threads": 1, "env_threads": 1, "num_groups": 1}


def test_a_run_that_has_all_the_cores_it_wants_is_not_hindered() -> None:
    def hindered(used: float, **changes: int) -> bool:
        setting = replace(SETTING, **{**ALONE, **changes})
        text = limit({"learning": 1.0}, setting, cores=Cores(used, 2 - used))
        return text.startswith("Other processes")

    assert not hindered(1.0)
    assert hindered(0.7)
    assert hindered(1.0, threads=2)
    assert hindered(1.0, env_threads=2)
    assert hindered(1.0, num_groups=2)
    assert not hindered(1.9, threads=2), "others take next to nothing"


def test_fewer_threads_are_advised_only_where_there_are_more_than_cores_left() -> None:
    def said(threads: int, cores: int, by_others: float) -> str:
        setting = replace(SETTING, cores=cores, threads=threads)
        return limit({"learning": 1.0}, setting, cores=Cores(cores - by_others, by_others))

    assert said(2, 2, 1.04) == (
        "Other processes limit the speed: they take 1.0 of 2 cores. Waiting until they end or "
        "fewer threads (--runtime.threads 1) would help."
    )
    assert said(1, 1, 0.5).endswith("1 core. Waiting until they end would help.")
    assert "--runtime.threads 5" in said(8, 8, 3.0)
    setting = replace(SETTING, cores=8, threads=4)
    text = limit({"learning": 1.0}, setting, cores=Cores(3.0, 4.5))
    assert text.startswith("Other processes")
    assert "--runtime" not in text


def test_cores_are_weighed_by_time_over_the_same_reports() -> None:
    shares = TimeShares()
    assert shares.cores() == Cores()
    for wall_s, others in ((0, 2.0), (1, 1.0), (4, 0.0)):
        report = {"wall_s": float(wall_s), "time/learning_frac": 1.0, "machine/cores_used": 0.5}
        shares.add(report | {"machine/cores_used_by_others": others})
    assert shares.cores() == pytest.approx((0.5, 0.25))
