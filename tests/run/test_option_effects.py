"""Every option of a run, its environments, checkpoints, evaluations and reports does something."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from pydantic import BaseModel
from run_helpers import (
    SMALL,
    TOY,
    Where,
    iterations,
    make_contextual,
    names,
    run,
    weights,
)

import quintet
from quintet.checkpoints import checkpoint
from quintet.envs.toy import Contextual, FinitePay
from quintet.observe.report_files import read_metrics
from quintet.options.layers import Layer
from quintet.options.run import PARTS, TOP, prefix_of
from quintet.options.saved import load_config
from quintet.policies import evaluation
from quintet.policies.evaluation import Scores
from quintet.run import sampling, saving


def _seed(where: Where) -> None:
    seeds = {"a": 1, "b": 1, "c": 2}
    one, two, three = (
        weights(run(where.folder / name, 64, seed=seed)) for name, seed in seeds.items()
    )
    assert one == two
    assert one != three


def _preset(where: Where) -> None:
    assert run(where.folder / "a", 64).metrics["policy/kl_coef"] == 0
    assert run(where.folder / "b", 64, preset="kl_penalty").metrics["policy/kl_coef"] > 0


def _interval_iterations(where: Where) -> None:
    run(where.folder / "a", 700, checkpoint__interval_iterations=5, checkpoint__keep=100)
    *due, last = iterations(where.folder / "a")
    assert due == list(range(5, last, 5))
    # auto: 1/20 of the run; what only safety asks for is left out where it costs too much
    with where.monkeypatch.context() as patched:
        patched.setattr(saving, "_TIME_FRAC", 1.0)
        run(where.folder / "b", 64 * 40, checkpoint__keep=100)
    assert iterations(where.folder / "b")[:19] == list(range(2, 40, 2))
    with where.monkeypatch.context() as patched:
        patched.setattr(saving, "_TIME_FRAC", 0.0)
        endless = {"env": "quintet.envs.toy:FinitePay", "env__kwargs": {"n": 10**6}}
        run(where.folder / "c", 64 * 10, checkpoint__keep=100, **endless)
    assert len(names(where.folder / "c")) == 2  # the first one, and the end


def _max_cut_frac(where: Where) -> None:
    exact = {}
    for most in (0.0, 0.05, 1.0):
        folder = where.folder / str(most)
        run(folder, 600, "quintet.envs.toy:FinitePay", env__kwargs={"n": 9},
            checkpoint__interval_iterations=2, checkpoint__max_cut_frac=most,
            checkpoint__keep=100)  # fmt: skip
        found = [checkpoint.read(folder / "checkpoints" / name).meta for name in names(folder)]
        exact[most] = sum(meta["exact"] for meta in found)
        for meta in found:
            assert meta["counters"]["cut_env_steps"] <= most * meta["counters"]["env_steps"]
        if most == 1.0:
            assert all(meta["exact"] for meta in found)
    assert exact[0.0] <= exact[0.05] < exact[1.0]


def _checkpoint_interval_s(where: Where) -> None:
    for interval_s, count in ((1e-6, 8), (3600.0, 1)):
        folder = where.folder / str(interval_s)
        run(folder, 64 * 8, "quintet.envs.toy:FinitePay", env__kwargs={"n": 10**6},
            checkpoint__interval_iterations=100, checkpoint__interval_s=interval_s,
            checkpoint__keep=100)  # fmt: skip
        assert len(names(folder)) == count


def _keep(where: Where) -> None:
    for keep in (1, 4):
        folder = where.folder / str(keep)
        run(folder, 640, checkpoint__interval_iterations=1, checkpoint__keep=keep)
        assert len(names(folder)) == keep
        last = iterations(folder)[-1]
        assert iterations(folder) == list(range(last - keep + 1, last + 1))


def _milestones(where: Where) -> None:
    given = {
        "checkpoint__interval_iterations": 1,
        "checkpoint__keep": 1,
        "checkpoint__milestones": 4,
    }
    run(where.folder, 64 * 8, "quintet.envs.toy:FinitePay", env__kwargs={"n": 10**6}, **given)
    assert iterations(where.folder) == [2, 4, 6, 8]  # no resets, so 8 iterations


def _save_best(where: Where) -> None:
    run(where.folder / "a", eval__episodes=1)
    assert quintet.load(where.folder / "a", "best").spaces.action == spaces.Discrete(3)
    run(where.folder / "b", eval__episodes=1, checkpoint__save_best=False)
    assert not (where.folder / "b/best").exists()
    assert "eval/return_mean" in read_metrics(where.folder / "b")[-1]


def _best_by(where: Where) -> None:
    by = {"eval__episodes": 1, "eval__interval": 64, "checkpoint__best_by": "-eval/length_mean"}
    run(where.folder / "a", **by)
    lengths = [x.get("eval/length_mean", 1e9) for x in read_metrics(where.folder / "a")]
    assert checkpoint.read(where.folder / "a" / "best").meta["best"] == -min(lengths)


def _metrics(where: Where) -> None:
    """No number is in the toy's info: a key that is not there has no metric, and is told."""
    run(where.folder, 256, env__metrics="none_of_it")
    assert "got none_of_it, which none of the first" in (where.folder / "log.txt").read_text()


def _episodes(where: Where) -> None:
    assert run(where.folder / "a", eval__episodes=3).metrics["eval/episodes"] == 3
    result = run(where.folder / "b", eval__episodes=0)
    assert "eval/return_mean" not in result.metrics
    assert not (where.folder / "b/best").exists()


def _interval(where: Where) -> None:
    """Episodes without end: every iteration has 64 env_steps."""
    for interval, wanted in ((256, [256, 512, 640]), (10_000, [640])):
        folder = where.folder / str(interval)
        env = {"env": FinitePay, "env__kwargs": {"n": 30}}
        run(folder, 640, **env, eval__episodes=1, eval__interval=interval)
        found = [r["env_steps"] for r in read_metrics(folder) if "eval/return_mean" in r]
        assert len(found) == len(wanted)
        assert all(0 <= step - at < 64 for step, at in zip(found, wanted, strict=True))


def _eval_max_steps(where: Where) -> None:
    """Episodes of the toy have more than two steps."""
    toy = {"env": "scripted_helpers:Scripted", "eval__episodes": 2}
    assert run(where.folder / "a", **toy).metrics["eval/length_mean"] > 2
    cut = run(where.folder / "b", **toy, eval__max_steps=2).metrics
    assert (cut["eval/length_mean"], cut["eval/cut_episodes"]) == (2, 2)


def _interval_s(where: Where) -> None:
    every, rare = [], []
    run(where.folder / "a", 640, on_report=every.append)
    run(where.folder / "b", 640, on_report=rare.append, report__interval_s=1000.0)
    assert len(every) == every[-1]["iterations"] >= 10
    assert [report["env_steps"] for report in rare] == [640]


def _progress(where: Where) -> None:
    import contextlib
    import io

    for progress in (True, False):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            run(where.folder / str(progress), report__progress=progress)
        assert ("100%" in shown.getvalue()) is progress
        assert (shown.getvalue() == "") is not progress


def _sinks(where: Where) -> None:
    files = {"jsonl": "metrics.jsonl", "csv": "progress.csv", "tensorboard": "tensorboard"}
    for sink, name in files.items():
        folder = where.folder / sink
        run(folder, 64, report__sinks=(sink,))
        written = {path.name for path in folder.iterdir()} & set(files.values())
        assert written == {name} | ({"metrics.jsonl"} if sink == "csv" else set())
    run(where.folder / "none", 64, report__sinks=())
    assert {p.name for p in (where.folder / "none").iterdir()} & set(files.values()) == set()


def _id(where: Where) -> None:
    assert run(where.folder, env="quintet.envs.toy:Target").policy.spaces.action.shape == (1,)


def _backend(where: Where) -> None:
    result = run(where.folder, env="CartPole-v1", env__backend="gymnasium")
    assert result.policy.env.backend == "gymnasium"
    env = groups_of(env="CartPole-v1", env__backend="gymnasium")[0]
    assert env.description.backend == "gymnasium"


def groups_of(env: str = TOY, **values: Any) -> Any:
    """The environments of a serial run."""
    given = {name.replace("__", "."): value for name, value in values.items()}
    config = {**SMALL, "env.id": env, "total_env_steps": 128, **given}
    loaded = load_config("ppo", [], Layer("call", config))
    return sampling.open_source(loaded.config, loaded.env).envs


def _kwargs(where: Where) -> None:
    env = {"env": "quintet.envs.toy:FinitePay", "env__kwargs": {"n": 5}, "report__interval_s": 1e6}
    assert run(where.folder, **env).metrics["episode/length_mean"] == 5
    made = run(where.folder / "b", env=make_contextual, env__kwargs={"num_contexts": 7})
    assert made.policy.spaces.observation.shape == (7,)


def _num_streams(where: Where) -> None:
    made = []
    run(where.folder, env=lambda: made.append(Contextual()) or made[-1], env__num_streams=6)
    assert len(made) == 8  # one that was looked at, and one that was tried


def _streams_per_group(where: Where) -> None:
    pool = {"env": "Hopper-v4", "env__backend": "envpool"}  # steps in threads of its own
    for size, groups, env in (
        (None, [4], {}), (None, [2, 2], pool), (4, [4], pool), (1, [1, 1, 1, 1], {}),
    ):  # fmt: skip
        envs = groups_of(env__streams_per_group=size, **env)
        assert [env.num_streams for env in envs] == groups
    one = weights(run(where.folder / "a", 64))
    assert one != weights(run(where.folder / "b", 64, env__streams_per_group=1))


def _frame_stack(where: Where) -> None:
    assert run(where.folder, env__frame_stack=4).policy.spaces.observation.shape == (4, 3)


def _reward_clip(where: Where) -> None:
    env = {"env": "run_helpers:Trouble", "env__kwargs": {"kind": "seven", "after": 0}}
    env["report__interval_s"] = 1e6  # one report, of all episodes
    clipped = run(where.folder / "a", **env, env__reward_clip="abs_one").metrics
    plain = run(where.folder / "b", **env).metrics
    assert clipped["reward/mean"] == pytest.approx(1)
    assert plain["reward/mean"] == pytest.approx(7)
    assert clipped["episode/return_mean"] == plain["episode/return_mean"] == 63


def _success(where: Where) -> None:
    """Ten steps of 7 that end with 7."""
    env = {"env": "run_helpers:Trouble", "env__kwargs": {"kind": "seven", "after": 0}}
    env |= {"report__interval_s": 1e6, "eval__episodes": 2, "report__sinks": ["jsonl", "csv"]}
    for rule, rate in (("reward>6", 1.0), ("reward>7", 0.0)):
        folder = where.folder / rule[-1]
        result = run(folder, **env, env__success=rule)
        assert result.metrics["eval/success_rate"] == rate
        # The last report is of what came after an evaluation, in which no episode need have ended.
        rates = [report.get("episode/success_rate") for report in read_metrics(folder)]
        assert set(rates) - {None} == {rate}
        assert "episode/success_rate" in (folder / "progress.csv").read_text()
        assert quintet.load(folder).env.success == rule
    assert not any("success" in name for name in run(where.folder / "n", **env).metrics)


def _num_threads(where: Where) -> None:
    pytest.importorskip("envpool")
    envs = groups_of(env="CartPole-v1", env__backend="envpool", env__num_threads=3)
    assert [env.num_threads for env in envs] == [3]


def _evaluated(where: Where, name: str, value: Any, **more: Any) -> Scores:
    """The scores of an evaluation whose environment has this option of its own."""
    found: list[Scores] = []
    callbacks = quintet.Callbacks(evaluation=lambda _, scores: found.append(scores))
    config = {**SMALL, "eval.episodes": 2, **more, f"eval.env.{name}": value}
    quintet.train("ppo", TOY, 64, run_dir=where.folder / name, config=config, callbacks=callbacks)
    return found[-1]


def _eval_env_backend(where: Where) -> None:
    cart = {"eval.env.id": "CartPole-v1"}
    for backend in ("gymnasium", "envpool"):
        loaded = load_config(
            "ppo", [], Layer("x", {"env.id": TOY, **cart, "eval.env.backend": backend})
        )
        assert loaded.evaluated.config.backend == backend


def _eval_env_num_threads(where: Where) -> None:
    pool = {"env.id": "CartPole-v1", "env.backend": "envpool", "eval.env.num_threads": 3}
    loaded = load_config("ppo", [], Layer("x", pool))
    assert (loaded.evaluated.num_threads(8), loaded.env.num_threads(8)) == (3, 1)


def _eval_env_num_processes(where: Where) -> None:
    with where.monkeypatch.context() as patched:
        asked: list[int | None] = []
        plain = evaluation.make_streams

        def make(env: Any, *rest: Any) -> Any:
            asked.append(env.config.num_processes)
            return plain(env, *rest)

        patched.setattr(evaluation, "make_streams", make)
        _evaluated(where, "num_processes", 1, **{"env.num_processes": 2})
    assert set(asked) == {1}


EFFECTS: dict[str, Callable[[Where], None]] = {
    "seed": _seed,
    "preset": _preset,
    "checkpoint.interval_iterations": _interval_iterations,
    "checkpoint.max_cut_frac": _max_cut_frac,
    "checkpoint.interval_s": _checkpoint_interval_s,
    "checkpoint.keep": _keep,
    "checkpoint.milestones": _milestones,
    "checkpoint.best_by": _best_by,
    "checkpoint.save_best": _save_best,
    "eval.episodes": _episodes,
    "eval.interval": _interval,
    "eval.max_steps": _eval_max_steps,
    "report.interval_s": _interval_s,
    "report.progress": _progress,
    "report.sinks": _sinks,
    "eval.env.backend": _eval_env_backend,
    "eval.env.num_threads": _eval_env_num_threads,
    "eval.env.num_processes": _eval_env_num_processes,
    "env.id": _id,
    "env.backend": _backend,
    "env.kwargs": _kwargs,
    "env.num_streams": _num_streams,
    "env.streams_per_group": _streams_per_group,
    "env.frame_stack": _frame_stack,
    "env.reward_clip": _reward_clip,
    "env.metrics": _metrics,
    "env.success": _success,
    "env.num_threads": _num_threads,
}
"""A check of each option's effect; the runtime's are in test_runtime_options, those of the learner,
the network and a population beside them, those of a cluster in tests/cluster.
"""

ELSEWHERE: dict[str, str] = {
    "algo": "commands/test_cli.py: test_mistakes_are_told_before_anything_is_written",
    "total_env_steps": "run/test_launch.py: test_the_budget_is_exact",
    "run_dir": "run/test_working_folder.py: test_the_folder_of_a_run_stays_where_it_was",
    "resume": "run/test_folder.py: test_a_resume_that_must_be_exact_names_the_whole_checkpoint",
    "init_from": "run/test_warm_start.py: test_it_differs_from_a_run_that_begins_anew",
    "init_from_keys": "run/test_warm_start.py: test_a_part_by_the_names_of_its_tensors",
    "doctor.known": "run/test_findings.py: test_what_the_user_knows_is_not_said",
    "eval.greedy": "run/test_evaluations.py: test_a_greedy_policy_that_is_far_worse_is_told",
    "eval.env.id": "run/test_eval_env.py: test_only_evaluations_are_played_in_it",
    "eval.env.kwargs": "run/test_eval_env.py: test_only_evaluations_are_played_in_it",
    "eval.env.success": "run/test_eval_env.py: test_other_arguments_of_another_environment",
    "eval.env.max_episode_steps": "envs/test_episode_limits.py: test_evaluations_have_the_limit",
    "env.max_episode_steps": "envs/test_episode_limits.py: test_evaluations_have_the_limit",
    "env.fresh_at_checkpoints": "run/test_living_environments.py: test_fresh_environments_make",
    "env.reward_shaping": "run/test_reward_shaping.py: test_each_policy_is_paid_by_its_own_values",
    "env.curriculum": "run/test_tasks.py: test_an_async_run_goes_through_the_stages",
    "env.observe_last": "envs/test_observe_last.py: test_policy_acts_on_these_leaves",
    "env.num_processes": "runtime/test_spread.py: test_a_run_has_the_same_bytes_by_whomever",
    "env.mask_from_info": "envs/test_masks.py: test_numbers_other_than_0_and_1_are_refused",
    "env.observation_dtype": "run/test_large_offsets.py: test_networks_see_differences_of_three",
}
"""Options whose effect on a run another test shows, and how that begins."""


def test_no_option_is_without_a_check():
    elsewhere = ("model", "population", "self_play", "runtime", "cluster")
    parts: dict[str, type[BaseModel]] = {k: v for k, v in PARTS.items() if k not in elsewhere}
    fields = {
        prefix_of(part) + name for part, model in parts.items() for name in model.model_fields
    }
    assert EFFECTS.keys() | ELSEWHERE.keys() == fields | set(TOP)
    assert not EFFECTS.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_test_shows_the_effect(name):
    file, _, test = ELSEWHERE[name].partition(": ")
    assert f"\ndef {test}" in (Path(__file__).parents[1] / file).read_text()


@pytest.mark.parametrize("name", EFFECTS)
def test_every_option_has_an_effect(name, tmp_path, monkeypatch):
    EFFECTS[name](Where(tmp_path, monkeypatch))
