"""`benchmarks/speed.py`: its last line says what was done, and beside which limit."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import speed
from fixed_work import limits, measure, workloads
from fixed_work.workloads import ENVIRONMENT_VARIABLE

from quintet.algorithms.acer.learner import ACERLearner
from quintet.algorithms.registry import LEARNERS, find
from quintet.commands.cli import main as command
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.protocols import DataPlan

SHIPPED = (
    *("cartpole-ppo", "pong-ppo", "halfcheetah-ppo", "cartpole-appo", "pong-appo"),
    *("halfcheetah-ddpg", "cartpole-acer", "pong-acer"),
    *(["halfcheetah-sac"] if "sac" in LEARNERS else []),
)
ASKED_FOR = {
    "workload", "env_steps", "wall_s", "env_steps_per_s", "updates", "trained_samples",
    "parameters", "precision", "compile_s", "limit_env_steps_per_s", "commit",
}  # fmt: skip
EAGER = {"runtime.compile": "off"}

Say = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the script in this process; what it prints."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["speed.py", *words])
        speed.main()
        return capsys.readouterr().out

    return run


def record_of(said: Say, name: str) -> dict[str, Any]:
    record = json.loads(said(name, "--json", "--runtime.compile", "off").splitlines()[-1])
    assert record.keys() >= ASKED_FOR
    assert record["workload"] == name
    assert record["env_steps_per_s"] == pytest.approx(record["env_steps"] / record["wall_s"])
    parts = record["limit_us_per_env_step"]
    assert parts.keys() == {"env", "act", "update"}
    assert min(parts.values()) > 0.0
    assert record["limit_env_steps_per_s"] == pytest.approx(1e6 / sum(parts.values()))
    spent = sum(record["us_per_env_step"].values()) * record["env_steps"] / 1e6
    assert spent == pytest.approx(record["wall_s"], rel=1e-3)
    return record


@pytest.mark.slow
def test_the_record_says_what_was_done(
    small: Path, said: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 1)  # one process that measures
    record = record_of(said, "small")
    assert record["wall_s"] >= 0.3
    assert record["env_steps"] % 32 == 0  # whole iterations
    # CartPole's episodes have 22 steps on average at first, and then one row of resetting
    assert 0.02 < record["reset_rows"] / record["env_steps"] < 0.08
    assert record["updates"] == record["env_steps"] * 3 // 16
    assert record["trained_samples"] == record["updates"] * 16
    assert record["parameters"] == 2 * (4 * 8 + 8) + (8 * 2 + 2) + (8 + 1)
    assert record["precision"] == "fp32"
    assert record["compile_s"] == 0.0


def test_the_record_of_ddpg_begins_with_its_updates(
    small: Path, said: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its bare environment is measured here, not in a process for each number of threads.
    monkeypatch.setattr(limits, "_in_child", lambda function, *arguments: function(*arguments))
    record = record_of(said, "replayed")
    owed = (record["env_steps"] - record["reset_rows"]) / 2
    assert abs(record["updates"] - owed) <= 0.5  # a half is carried over
    assert record["parameters"] == 2 * (8 * 7 + 7) + (3 * 8 + 8) + (4 * 8 + 8) + 2 * (7 + 1)


def test_the_record_of_acer_has_updates_from_replay_and_the_limit_is_of_as_many(
    small: Path, said: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is random."""
    asked: dict[str, float] = {}

    def measured(*_: object, updates_per_step: float, **__: object) -> limits.Limits:
        asked["updates_per_step"] = updates_per_step
        return limits.Limits(1.0, 1.0, 1.0)

    monkeypatch.setattr(limits, "measure", measured)
    record = record_of(said, "sequences")
    assert asked["updates_per_step"] == record["updates"] / record["env_steps"]
    iterations = record["env_steps"] // 32
    assert record["env_steps"] == 32 * iterations
    drawn = record["updates"] - iterations
    # Poisson's, of mean 3; without replay there would be none.
    assert abs(drawn - 3 * iterations) < 5 * (3 * iterations) ** 0.5
    assert record["trained_samples"] == 32 * record["updates"]
    assert record["parameters"] == (4 * 8 + 8) + (8 * 7 + 7) + 2 * (7 * 2 + 2)
    assert record["us_per_env_step"]["replay"] > 0


def test_a_person_reads_sentences(small: Path, said: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"stepping": 2.0, "acting": 3.0, "learning": 4.0, "replay": 0.0, "other": 1.0}
    record = {
        "workload": "small", "env_steps_per_s": 100_000.0, "us_per_env_step": us,
        "env_steps": 2_000, "reset_rows": 50,
        "limit_env_steps_per_s": 125_000.0,
        "limit_us_per_env_step": {"env": 1.5, "act": 2.5, "update": 3.5},
        "precision": "fp32", "compile_s": 2.0,
    }  # fmt: skip
    monkeypatch.setattr(measure, "run", lambda work, options: record)
    assert said("small").splitlines() == [
        "small: 100,000 env_steps/s, 80% of the 125,000 that its bare parts allow (fp32, compiled "
        "in 2.0 s); 2.5% of the env_steps are rows in which environments reset themselves",
        "  stepping      2.00 us per env_step, bare 1.50",
        "  acting        3.00 us per env_step, bare 2.50",
        "  learning      4.00 us per env_step, bare 3.50",
        "  other         1.00 us per env_step",
    ]


def test_an_observer_is_told_of_every_iteration_in_the_region(small: Path) -> None:
    seen: list[tuple[float, int]] = []
    eager = workloads.scheduling(EAGER)
    record = measure.train(workloads.read("small"), eager, lambda *told: seen.append(told))[2]
    assert [env_steps for _, env_steps in seen] == [32 * (k + 1) for k in range(len(seen))]
    assert seen[-1] == (pytest.approx(record["wall_s"], abs=1e-6), record["env_steps"])


def test_only_the_schedule_is_free(
    small: Path, said: Say, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Layer] = []

    def measured(_: object, options: Layer) -> dict[str, Any]:
        seen.append(options)
        return {}

    monkeypatch.setattr(measure, "run", measured)
    said("small", "--json", "--runtime.threads=2", "--env.streams-per-group", "2")
    said("--json", "--runtime.num_workers", "2")  # all that can be run
    assert [layer.values for layer in seen] == [
        {"runtime.threads": 2, "env.streams_per_group": 2},
        *[{"runtime.num_workers": 2}] * 3,
    ]
    for wrong in (["--num-epochs", "1"], ["--config", "more.yaml"], ["--runtime.thread", "1"]):
        with pytest.raises(SystemExit, match="2"):
            said("small", *wrong)
        assert f"unrecognized arguments: {wrong[0]}" in capsys.readouterr().err


def test_wrong_workloads_are_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"one of small, replayed, sequences; got 'pong-ppo'"):
        workloads.read("pong-ppo")
    with pytest.raises(ConfigError, match=r"later can't be run: algo must be one of .*'unknown'"):
        workloads.read("later")
    text = small.read_text()
    for right, wrong in (('"adam"', '"sgd"'), ('"envpool"', '"atari"')):
        small.write_text(text.replace(right, wrong))
        with pytest.raises(ConfigError, match=r"small can't be run: (optimizer|env_backend)"):
            workloads.read("small")
    small.write_text("[small")
    with pytest.raises(ConfigError, match=ENVIRONMENT_VARIABLE):
        workloads.read("small")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(small.parent / "absent.toml"))
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        workloads.read("small")


def test_shipped_workloads_are_those_that_are_listed(
    usual: None, said: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuple(workloads.names()) == SHIPPED
    for name in SHIPPED:
        work = workloads.read(name)
        config = compose(work.algo, [workloads.layer(work)]).config
        check = find(work.algo).check
        assert check(config.learner, config.model, work.num_envs, 10**6) == []
    with pytest.raises(SystemExit, match="2"):
        said("cartpol")
    assert "one of cartpole-ppo, pong-ppo, halfcheetah-ppo" in capsys.readouterr().err


def test_the_name_of_the_former_command_leads_to_the_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(["bench", "cartpole-ppo"]) == 2
    told = capsys.readouterr().err
    assert "the command must be one of train, " in told
    assert "got 'bench'; `python benchmarks/speed.py` in a checkout" in told


def test_the_region_is_whole_iterations(small: Path) -> None:
    """It begins at the end of one after the warm-up and ends at the first end that makes it long
    enough.
    """
    work = workloads.read("small")
    times = iter([0.05, 0.12, 0.2, 0.38, 0.43, 0.6])

    class Timer:
        passed = 0.0

        def seconds(self) -> dict[str, float]:
            return {"learning": 0.75 * self.passed, "other": 0.25 * self.passed}

    class Counted:
        iteration = env_steps = 0
        updates = 1
        plan = DataPlan(unroll_steps=8, columns_per_batch=4)

    timer, counted = Timer(), Counted()
    watch = measure.Stopwatch(work, counted, counted, timer)  # type: ignore[arg-type]
    over = False
    while not over:
        Counted.iteration += 1
        timer.passed = next(times)
        over = watch.after_iteration()
    assert watch.begin is not None
    assert watch.end is not None
    assert watch.begin.seconds == 0.12
    assert watch.end.seconds == 0.43
    assert watch.end.phases["other"] == 0.25 * 0.43
    assert watch.end.env_steps - watch.begin.env_steps == 96


def test_the_region_waits_for_replay(usual: None) -> None:
    """The warm-up is over and updates are made from fresh batches, but none from replay yet."""
    work = workloads.read("cartpole-acer").model_copy(update={"warmup_seconds": 1e-9})

    class Timer:
        passed = 0.0

        def seconds(self) -> dict[str, float]:
            self.passed += 1.0
            return {"learning": self.passed}

    class Counted:
        iteration, env_steps, updates = 1, 15_999, 1
        plan = ACERLearner.plan

    watch = measure.Stopwatch(work, Counted(), Counted(), Timer())  # type: ignore[arg-type]
    watch._env_steps = lambda: 0  # type: ignore[method-assign]
    watch.after_iteration()
    assert watch.first is not None
    assert watch.begin is None
    Counted.env_steps = 16_000
    watch.after_iteration()
    assert watch.begin is not None
