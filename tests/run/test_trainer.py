"""A run and its folder: lineage of checkpoints, the best policy, times, what a kill leaves."""

import dataclasses
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from small_run_helpers import newest

import quintet
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.checkpoints import checkpoint
from quintet.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    NonFiniteError,
    QuintetError,
)
from quintet.observe.plots import plot_runs
from quintet.observe.report_files import read_metrics
from quintet.observe.timing import PHASES
from quintet.options.run import CHANGE_ROUNDING
from quintet.policies.evaluation import Scores
from quintet.run import trainer
from quintet.run.launch import Result
from quintet.types import Rollout

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 100,
}
# Its episodes never end here, so every iteration has 64 env_steps.
ENV = "toys_helpers:EndlessPay"
TOTAL = 64 * 20


def run(folder: Path, total: int = TOTAL, on_report: Any = None, **config: Any) -> Result:
    options = {name.replace("__", "."): value for name, value in config.items()}
    given = SMALL | {"env.kwargs": {"n": 10_000}} | options
    return quintet.train("ppo", ENV, total, 3, folder, given, on_report)


def stopped(folder: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs until iteration `at` and asks for a stop there, as Ctrl-C does."""
    whole = trainer.Trainer.after_iteration

    def asking(self: trainer.Trainer, episodes: Any) -> bool:
        if self.counters.iteration == at:
            self.stop.made = True
        return whole(self, episodes)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "after_iteration", asking)
        assert run(folder).status == "stopped"


def test_after_a_stop_off_the_schedule_nothing_is_on_the_path_again(tmp_path, monkeypatch):
    run(tmp_path / "whole")
    stopped(tmp_path / "a", 7, monkeypatch)
    stopped(tmp_path / "a", 13, monkeypatch)
    # Iteration 10 was due while the run was off the path: it can't be resumed from exactly.
    assert newest(tmp_path / "a", exact_only=True).meta["iteration"] == 5
    run(tmp_path / "a", resume="exact")
    assert checkpoint.tensor_hashes(newest(tmp_path / "a")) == checkpoint.tensor_hashes(
        newest(tmp_path / "whole")
    )
    left = [checkpoint.read(p).meta for p in (tmp_path / "a/checkpoints").iterdir()]
    assert sorted(meta["iteration"] for meta in left) == [5, 10, 15, 20]
    assert all(meta["exact"] for meta in left)


def test_the_last_exact_checkpoint_is_never_pruned(tmp_path, monkeypatch):
    monkeypatch.setitem(SMALL, "checkpoint.keep", 1)
    stopped(tmp_path, 7, monkeypatch)
    stopped(tmp_path, 18, monkeypatch)
    assert newest(tmp_path).meta["iteration"] == 18
    assert newest(tmp_path, exact_only=True).meta["iteration"] == 5


def test_off_the_path_no_episode_is_given_up(tmp_path, monkeypatch):
    """No checkpoint there could be exact, so there is nothing to begin anew for."""
    stopped(tmp_path, 8, monkeypatch)
    before = newest(tmp_path).meta["counters"]
    assert before["running_env_steps"] > 0
    run(tmp_path)
    after = newest(tmp_path).meta["counters"]
    assert not newest(tmp_path).meta["exact"]
    assert after["exact_iteration"] == before["exact_iteration"] == 5
    # what ran when the run stopped, and no more
    assert after["cut_env_steps"] == before["cut_env_steps"] + before["running_env_steps"]


def test_exact_needs_a_scheduled_checkpoint(tmp_path, monkeypatch):
    stopped(tmp_path, 3, monkeypatch)
    with pytest.raises(CheckpointError, match="must have an exact checkpoint"):
        run(tmp_path, resume="exact")
    assert newest(tmp_path).meta["iteration"] == 3


def test_a_run_that_was_killed_at_its_very_start_begins_anew(tmp_path):
    for name in (".lock", "log.txt", ".config.yaml.tmp"):
        (tmp_path / name).touch()
    assert run(tmp_path).status == "finished"


def test_another_budget_is_another_path(tmp_path):
    run(tmp_path)
    assert newest(tmp_path).meta["exact"] is True
    run(tmp_path, total=2 * TOTAL)
    assert newest(tmp_path).meta["exact"] is False


def test_a_run_says_at_its_end_where_its_time_went(tmp_path):
    run(tmp_path)
    (line,) = re.findall(r"time: ([\d.]+) s: (.+)", (tmp_path / "log.txt").read_text())
    parts = dict(part.rsplit(" ", 1) for part in line[1].split(", "))
    assert {"stepping", "acting", "learning", "checkpoint"} <= parts.keys() <= set(PHASES)
    shares = [int(share.removesuffix("%")) for share in parts.values()]
    assert sum(shares) == pytest.approx(100, abs=len(shares))
    assert shares == sorted(shares, reverse=True)
    assert 0 < float(line[0]) < 600


@pytest.mark.parametrize("stops", [False, True])
def test_the_end_is_told_in_one_order(tmp_path, stops, monkeypatch):
    if stops:
        stopped(tmp_path, 3, monkeypatch)
    else:
        run(tmp_path)
    kinds = [r" \d+%  ", " health: ", " time: "] + [" stopped at "] * stops
    said = (tmp_path / "log.txt").read_text()
    last = [[m.start() for m in re.finditer(kind, said)][-1] for kind in kinds]
    assert last == sorted(last)


def test_other_devices_and_learners_are_another_path():
    assert {"runtime.device", "runtime.num_learners"} <= {*CHANGE_ROUNDING}


def test_other_threads_are_another_path(tmp_path, monkeypatch):
    """As the machine's load changes; a resume that must be exact is refused them."""
    stopped(tmp_path, 7, monkeypatch)
    with pytest.raises(
        ConfigError, match=r"resume=exact must have .*runtime.threads was 1 and is 2"
    ):
        run(tmp_path, runtime__threads=2, resume="exact")
    threads: set[int] = set()
    run(tmp_path, on_report=lambda _: threads.add(torch.get_num_threads()), runtime__threads=2)
    assert threads == {2}
    said = (tmp_path / "log.txt").read_text()
    assert "runtime.threads was 1 and is 2: the run continues with other rounding" in said
    assert "differ from the uninterrupted" in said
    assert newest(tmp_path).meta["exact"] is False
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["runtime.threads"] == 2


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path):
    """A falling rate is a function of the share of the budget: it rises at once with a new one."""
    reports: list[dict[str, float]] = []
    run(tmp_path, on_report=reports.append)
    assert reports[-1]["optim/learning_rate"] == pytest.approx(3e-4 / 20)
    result = run(tmp_path, 2 * TOTAL, reports.append)
    assert (result.status, result.metrics["env_steps"]) == ("finished", 2 * TOTAL)
    # Iteration k of n begins with the rate of its first step, 1 - (k - 1) / n.
    rates = [report["optim/learning_rate"] for report in reports]
    assert rates[20:22] == pytest.approx([3e-4 * 20 / 40, 3e-4 * 19 / 40])
    assert read_metrics(tmp_path) == reports
    assert [report["env_steps"] for report in reports] == [64.0 * k for k in range(1, 41)]
    said = (tmp_path / "log.txt").read_text()
    assert "the budget was 1,280 env_steps and is 2,560 now: schedules follow the share" in said
    assert "so a falling rate rises at once" in said
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["total_env_steps"] == 2 * TOTAL
    assert checkpoint.read(tmp_path / "policy").meta["version"] == 40
    plot_runs([tmp_path], tmp_path / "curve.svg", metric="loss/total")
    # Going on and finishing at once are different runs, and say so; the same command is finished.
    assert not newest(tmp_path).meta["exact"]
    run(tmp_path, 2 * TOTAL)
    assert "this run is finished: 2,560 env_steps" in (tmp_path / "log.txt").read_text()


def test_a_falling_rate_falls_further_with_a_smaller_budget(tmp_path, monkeypatch):
    stopped(tmp_path, 7, monkeypatch)
    reports: list[dict[str, float]] = []
    run(tmp_path, TOTAL // 2, reports.append)
    assert reports[0]["optim/learning_rate"] == pytest.approx(3e-4 * 3 / 10)
    said = (tmp_path / "log.txt").read_text()
    assert "is 640 now: schedules follow the share of the new budget that is done, so a" in said
    assert "falling rate falls further at once" in said


def test_fewer_steps_than_were_trained_are_refused(tmp_path, monkeypatch):
    stopped(tmp_path, 7, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"at least the 448 that .* has trained.*got 384"):
        run(tmp_path, 384)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }
    result = run(tmp_path, 448)  # exactly these: it is finished, and has its final policy
    assert result.status == "finished"
    assert checkpoint.read(tmp_path / "policy").meta["version"] == 7
    assert run(tmp_path).metrics["env_steps"] == TOTAL


def test_a_finished_run_without_metrics_on_disk_is_finished(tmp_path):
    run(tmp_path, report__sinks=[])
    assert run(tmp_path, report__sinks=[]).metrics == {}


@pytest.mark.parametrize("answer", [True, np.True_])
def test_on_report_stops_the_run_which_goes_on_later(tmp_path, answer):
    seen: list[float] = []

    def enough(report):
        seen.append(report["iterations"])
        return answer if len(seen) == 7 else None

    result = run(tmp_path, on_report=enough)
    assert (result.status, result.metrics["iterations"]) == ("stopped", 7)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert newest(tmp_path).meta["iteration"] == 7
    assert not (tmp_path / "policy").exists()
    assert run(tmp_path, on_report=enough).status == "finished"
    assert seen == [*range(1, 21)]


@pytest.mark.parametrize("answer", [None, False, 1, "yes", {"a": 1}])
def test_on_report_goes_on_with_any_other_answer(tmp_path, answer):
    assert run(tmp_path, 256, on_report=lambda _: answer).status == "finished"


def test_true_at_the_last_report_changes_nothing(tmp_path):
    result = run(tmp_path, on_report=lambda report: report["env_steps"] == TOTAL)
    assert result.status == "finished"
    assert (tmp_path / "policy").is_dir()


@pytest.mark.parametrize("at", [7, 20])
def test_what_on_report_raises_loses_nothing(tmp_path, at):
    def fail(report):
        if report["iterations"] == at:
            raise ZeroDivisionError("in your code")

    with pytest.raises(ZeroDivisionError, match="in your code") as raised:
        run(tmp_path, on_report=fail)
    assert str(tmp_path) in raised.value.__notes__[0]
    assert newest(tmp_path).meta["iteration"] == at
    assert (tmp_path / "policy").exists() is (at == 20)
    assert run(tmp_path).metrics["env_steps"] == TOTAL
    assert checkpoint.read(tmp_path / "policy").meta["version"] == 20


@pytest.mark.parametrize(
    ("raised", "reaches"), [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit, QuintetError)]
)
def test_leaving_in_on_report_loses_nothing(tmp_path, raised, reaches):
    def leave(report):
        if report["iterations"] == 7:
            raise raised

    with pytest.raises(reaches):
        run(tmp_path, on_report=leave)
    assert newest(tmp_path).meta["iteration"] == 7


def test_a_second_ctrl_c_in_on_report_ends_the_run_at_once(tmp_path):
    def interrupt(report):
        if report["iterations"] == 7:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_report=interrupt)
    assert newest(tmp_path).meta["iteration"] == 5


@pytest.mark.parametrize("wrong", [5, lambda: None, lambda report, more: None])
def test_on_report_is_checked_before_anything_is_trained(tmp_path, wrong):
    with pytest.raises(ConfigError, match="on_report must be a function of one report, got"):
        run(tmp_path / "run", on_report=wrong)
    assert not (tmp_path / "run").exists()


def test_a_policy_among_the_checkpoints_can_not_be_gone_on_from(tmp_path):
    result = run(tmp_path)
    result.policy.save(tmp_path / "checkpoints/000000099")
    with pytest.raises(ConfigError, match=r"099 must be a run's own checkpoint"):
        run(tmp_path, 2 * TOTAL)


def test_a_failed_batch_is_kept_whole(tmp_path, monkeypatch):
    whole, given = trainer.Trainer.keep_batch, []

    def fail(self: PPOLearner, batch: Rollout, *_: Any) -> dict[str, float]:
        state = torch.ones(1, 4, 2)
        given.append(dataclasses.replace(batch, state={"h": state}, replayed=True))
        raise NonFiniteError("as if")

    monkeypatch.setattr(PPOLearner, "update", fail)
    monkeypatch.setattr(trainer.Trainer, "keep_batch", lambda self, _, k: whole(self, given[-1], k))
    with pytest.raises(NonFiniteError, match="The offending batch is kept in"):
        run(tmp_path)
    kept = checkpoint.read(tmp_path / "failed_batch").tensors["batch"]
    (batch,) = given
    wanted: dict[str, Any] = {}
    for name, value in vars(batch).items():
        parts = {f"{name}/{k}": x for k, x in value.items()} if isinstance(value, dict) else None
        wanted |= {name: value} if parts is None else parts
    wanted = {name: torch.as_tensor(x) for name, x in wanted.items() if x is not None}
    assert {"state/h", "return_carry", "policy_id", "last_reward", "replayed"} <= set(wanted)
    assert kept.keys() == wanted.keys()
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)


def test_the_batch_is_kept_whose_update_leaves_weights_that_are_not_finite(tmp_path, monkeypatch):
    """By a step along a gradient that is finite: they must not act."""
    update, given = PPOLearner.update, []

    def overflow(self: PPOLearner, batch: Rollout, env_steps: int) -> None:
        given.append(batch.reward.clone())
        update(self, batch, env_steps)
        if len(given) == 2:
            self.trained.theta[0] = torch.inf

    monkeypatch.setattr(PPOLearner, "update", overflow)
    with pytest.raises(
        NonFiniteError, match=r"must be finite, got inf after .* The offending batch is kept in"
    ):
        run(tmp_path)
    kept = checkpoint.read(tmp_path / "failed_batch").tensors["batch"]
    assert torch.equal(kept["reward"], given[-1])
    assert len(given) == 2


def test_the_final_policy_is_made_good_and_renewed(tmp_path):
    run(tmp_path)
    first = checkpoint.read(tmp_path / "policy").meta["version"]
    shutil.rmtree(tmp_path / "policy")  # as if a kill had come just before it
    assert run(tmp_path).status == "finished"
    assert checkpoint.read(tmp_path / "policy").meta["version"] == first
    run(tmp_path, total=2 * TOTAL)
    assert checkpoint.read(tmp_path / "policy").meta["version"] == 2 * first


def test_best_is_the_highest_score_also_over_a_resume(tmp_path, monkeypatch):
    scores = iter([3.0, 5.0, 4.0, 4.5, 1.0, 2.0, 4.9])
    seeds = []

    def evaluate_in(policy, env, how, max_steps) -> Scores:
        seeds.append(how.seed)
        returns = np.full(how.episodes, next(scores))
        return Scores(returns, np.ones(how.episodes, np.int64), None)

    monkeypatch.setattr("quintet.policies.evaluation.evaluate_in", evaluate_in)
    given = {"eval__episodes": 2, "eval__interval": 64 * 5}
    versions = []
    for total in (TOTAL, TOTAL + 64 * 15):
        run(tmp_path, total=total, **given)
        versions.append(checkpoint.read(tmp_path / "best").meta["version"])
    # Scores 3, 5, 4, 4.5 at iterations 5, 10, 15, 20; then 1, 2, 4.9 at 25, 30, 35.
    assert versions == [10, 10]
    assert newest(tmp_path).meta["best"] == 5.0
    # Reported results are played on seeds from 10,000 on; training must not choose by those.
    assert all(seed >= 20_000 for seed in seeds)


class Recorder:
    """A progress that keeps what it is told."""

    def __init__(self, view: Any, _: Any) -> None:
        self.view, self.stages = view, []
        self.stage = self.stages.append
        self.update = self.say = self.close = lambda *_: None


def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The progress of every run from here on."""
    made: list[Recorder] = []

    def make_progress(view: Any, stream: Any) -> Recorder:
        made.append(Recorder(view, stream))
        return made[-1]

    monkeypatch.setattr(trainer, "make_progress", make_progress)
    return made


@pytest.mark.parametrize("compiles", [False, True])
def test_stages_say_when_it_compiles(tmp_path, monkeypatch, compiles):
    made, known = recorders(monkeypatch), trainer.facts_of
    monkeypatch.setattr(
        trainer, "facts_of", lambda *given: dataclasses.replace(known(*given), compiles=compiles)
    )
    run(tmp_path, total=64 * 3)
    assert made[0].stages == (
        [
            "collecting the first 64",
            "compiling acts (up to a minute), then collecting",
            "first update, which compiles it: up to a minute",
        ]
        if compiles
        else ["collecting the first 64", "first update"]
    )


def test_a_resumed_run_shows_its_best_from_the_start(tmp_path, monkeypatch):
    made = recorders(monkeypatch)
    monkeypatch.setattr(
        "quintet.policies.evaluation.evaluate_in",
        lambda policy, env, how, max_steps: Scores(
            np.full(how.episodes, -7.0), np.ones(how.episodes, np.int64), None
        ),
    )
    run(tmp_path, eval__episodes=2)
    run(tmp_path, total=2 * TOTAL, eval__episodes=2)
    assert [(each.view.pace.done, each.view.best) for each in made] == [(0, None), (TOTAL, -7.0)]


class NothingAllowed(gymnasium.Env):
    """Its mask allows nothing from step 20 on."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(-1.0, 1.0, (2,)), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), 1.0, False, False, {}

    def _obs(self):
        mask = np.full(3, self.steps < 20, np.int8)
        return {"x": np.zeros(2, np.float32), "action_mask": mask}


def test_a_mask_that_allows_nothing_is_a_fault(tmp_path):
    says = r"at least one action.*stream 0, step 20: it allows none"
    with pytest.raises(EnvironmentFault, match=says):
        quintet.train("ppo", NothingAllowed, TOTAL, 1, tmp_path, SMALL)


def test_evaluation_stays_with_the_backend_of_the_training(tmp_path):
    config = {k: v for k, v in SMALL.items() if k != "env.kwargs"} | {"env.backend": "gymnasium"}
    policy = quintet.train("ppo", "CartPole-v1", 256, 1, tmp_path, config).policy
    assert quintet.evaluate(policy, env="CartPole-v1", episodes=2).env.backend == "gymnasium"
    assert quintet.evaluate(policy, env="CartPole-v0", episodes=2).env.backend == "envpool"


def test_wall_time_goes_on_over_a_resume(tmp_path, monkeypatch):
    stopped(tmp_path, 10, monkeypatch)
    before = newest(tmp_path).meta["wall_s"]
    run(tmp_path)
    times = [report["wall_s"] for report in read_metrics(tmp_path)]
    assert times == sorted(times)
    assert newest(tmp_path).meta["wall_s"] > before


def test_a_save_without_an_update_leaves_the_scheduled_checkpoint(tmp_path):
    """unfinished_episode=drop and no episode that ended: updates stay 0, iterations do not."""
    config = {
        "unroll_steps": 16, "minibatch_steps": 16, "unfinished_episode": "drop",
        "env.num_streams": 2, "env.backend": "gymnasium", "eval.episodes": 0,
        "checkpoint.interval_iterations": 3, "checkpoint.max_cut_frac": 1.0,
        "report.interval_s": 0.0, "report.sinks": ["jsonl"],
    }  # fmt: skip
    calls = []
    quintet.train(
        "ppo", "Pendulum-v1", 5_000, 0, tmp_path, config,
        on_report=lambda report: calls.append(report) or len(calls) == 5,
    )  # fmt: skip
    found = checkpoint.latest(tmp_path / "checkpoints", exact_only=True, warn=print)
    assert found is not None
    assert (found.meta["iteration"], found.meta["exact"]) == (3, True)
    newest = checkpoint.latest(tmp_path / "checkpoints", warn=print)
    assert newest.meta["iteration"] == 5
