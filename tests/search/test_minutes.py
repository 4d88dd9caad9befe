"""A budget in minutes: the number of env_steps that it becomes, and runs that have it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from small_run_helpers import SMALL as SMALLEST
from small_run_helpers import TOY

import quintet
from quintet.checkpoints import run_record
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.errors import CheckpointError, ConfigError, TimeIsOver
from quintet.jobs import group, user_state
from quintet.jobs.job import Outcome
from quintet.options.layers import Layer
from quintet.options.resolve import batch_steps
from quintet.options.run import RunConfig
from quintet.options.saved import load_config
from quintet.run import launch
from quintet.run.time_budget import TimeBudget, rounded
from quintet.run.trainer import Trainer
from quintet.search import minutes as times

SMALL = SMALLEST | {"report.interval_s": 0.0, "report.sinks": ("jsonl",)}
QUIET = {**SMALL, "report.progress": False}


def train(folder: Path, minutes: float | None = 10.0, total: int | None = None, **more: Any):
    config = {**QUIET, **{name.replace("__", "."): x for name, x in more.items()}}
    return quintet.train("ppo", TOY, total, 3, folder, config, minutes=minutes)


def options(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())


def weights(folder: Path) -> bytes:
    return (folder / "policy" / "policy.safetensors").read_bytes()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The speeds of the next measurements, in place of measuring."""
    speeds: list[float] = []

    def measure(_: Any, budget: TimeBudget) -> None:
        budget.speed, budget.start_s, budget.begin = speeds.pop(0), 0.0, time.monotonic()

    monkeypatch.setattr(times, "_measured", measure)
    return speeds


@pytest.mark.parametrize(
    ("steps", "expected"), [(0.2, 1), (7.9, 7), (99.9, 99), (129.0, 120), (98_765.0, 98_000)]
)
def test_round_numbers(steps: float, expected: int):
    assert rounded(steps) == expected


def test_the_number_is_stored_and_has_the_bytes_of_the_same_number_given(
    tmp_path: Path, measured: list[float]
):
    measured.append(0.5)
    result = train(tmp_path / "timed")
    total = options(tmp_path / "timed")["total_env_steps"]
    assert result.metrics["env_steps"] == total == 280  # 0.5 * 600 * 0.94, rounded down
    assert "minutes" not in options(tmp_path / "timed")
    record = run_record.read(tmp_path / "timed")
    assert record is not None
    assert record.sources["total_env_steps"] == "measured (minutes=10)"
    log = (tmp_path / "timed" / "log.txt").read_text()
    assert "minutes=10: at 0 env_steps/s the run has 280 env_steps" in log
    train(tmp_path / "given", None, total)
    assert weights(tmp_path / "timed") == weights(tmp_path / "given")


def test_a_resume_never_measures_again(tmp_path: Path, measured: list[float]):
    measured.append(0.5)

    def stop(report: dict[str, float]) -> bool:
        return report["env_steps"] >= 128

    config = {**QUIET}
    first = quintet.train("ppo", TOY, None, 3, tmp_path, config, stop, minutes=10.0)
    assert first.status == "stopped"
    assert train(tmp_path).metrics["env_steps"] == 280
    assert "no effect" not in (tmp_path / "log.txt").read_text()
    assert train(tmp_path, 20.0).metrics["env_steps"] == 280
    said = "minutes=20 has no effect on a run that has begun: it has 280 env_steps"
    assert said in (tmp_path / "log.txt").read_text()
    assert train(tmp_path, None, 320).metrics["env_steps"] == 320


def test_it_begins_again_once_if_the_speed_was_far_off(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    measured.append(0.5)
    looked: list[int] = []

    def correction(self: TimeBudget, env_steps: int, total: int, seconds: float) -> int | None:
        looked.append(total)
        assert seconds > 0
        if env_steps < 128:
            return None
        self.checks, self.notes = False, ["it was far off"]
        return 400

    monkeypatch.setattr(TimeBudget, "correction", correction)
    states: list[str] = []
    ended = Trainer.ended
    monkeypatch.setattr(Trainer, "ended", lambda x, *how: (states.append(how[0]), ended(x, *how)))
    result = train(tmp_path / "timed")
    assert states == ["finished"], "a run that begins again has not failed"
    assert set(looked) == {280}
    assert result.metrics["env_steps"] == 400 == options(tmp_path / "timed")["total_env_steps"]
    assert "it was far off" in (tmp_path / "timed" / "log.txt").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["timed"]
    train(tmp_path / "given", None, 400)
    assert weights(tmp_path / "timed") == weights(tmp_path / "given")
    reports = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("timed", "given")]
    assert len({len(text.splitlines()) for text in reports}) == 1


@pytest.mark.parametrize(
    ("speed", "expected"),
    [(1_000.0, None), (1_250.0, None), (800.0, None), (3_000.0, 1_500_000), (300.0, 150_000)],
)
def test_when_it_is_far_off(speed: float, expected: int | None, monkeypatch: pytest.MonkeyPatch):
    """At 1,000 env_steps per second ten minutes have 560,000; after 5% of the time it is looked
    at once."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = TimeBudget(10.0, 0.0, speed=1_000.0)
    budget.run_begins(time.monotonic())
    now = 2.0
    assert budget.correction(0, 560_000, 1.0) is None
    now = 20.0
    assert budget.correction(int(18 * speed), 560_000, 19.0) is None  # too early
    assert budget.checks
    now = 40.0
    found = budget.correction(int(38 * speed), 560_000, 39.0)
    assert found == expected
    assert not budget.checks
    assert budget.correction(int(38 * speed), 560_000, 390.0) is None
    if expected is not None:
        assert f"{speed:,.0f} env_steps/s, not 1,000, so it begins again" in budget.notes[0]


def test_the_env_steps_before_the_first_update_count(monkeypatch: pytest.MonkeyPatch):
    """Which a replay makes fast: 25,000 in 5 s, then 300 a second."""
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    probe = times._Probe(3.0, 60.0)
    for steps, now, updates in ((10_000, 2.0, 0), (25_000, 5.0, 1), (26_200, 9.0, 1_200)):
        probe({"env_steps": steps, "wall_s": now, "updates": updates})
    budget = TimeBudget(1.0, 0.0, speed=probe.speed, start_s=probe.start_s)
    budget.start_steps = probe.start_steps
    assert budget.steps_left() == pytest.approx(25_000 + 300 * 55 * 0.94)


def test_a_compiled_run_is_measured_compiled(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    """Only if so many env_steps fit that compiling pays off."""
    compiled: list[str] = []
    own = times._measured

    def measure(loaded: Any, budget: TimeBudget) -> None:
        compiled.append(loaded.config.runtime.compile)
        own(loaded, budget)

    monkeypatch.setattr(times, "_measured", measure)
    monkeypatch.setattr(times, "resolved", lambda loaded: ({
        "runtime.compile": "on" if loaded.config.total_env_steps > 1_000 else "off"
    }, {}))  # fmt: skip
    measured += [0.5]
    train(tmp_path / "short", runtime__compile="auto")
    assert compiled == ["off"]
    monkeypatch.setattr(launch, "_run", lambda loaded, *_, **__: loaded)
    measured += [100.0, 300.0]
    found = train(tmp_path / "long", runtime__compile="auto")
    assert compiled == ["off", "off", "on"]
    assert found.config.total_env_steps == 160_000  # 300 * 600 * 0.94
    assert found.config.runtime.compile == "auto"


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: list[float]):
    with pytest.raises(ConfigError, match="minutes must be given without total_env_steps"):
        train(tmp_path, 10.0, 1_000)
    for wrong in (0, -1.0, float("nan"), True, "10"):
        with pytest.raises(ConfigError, match="minutes must be a number above 0"):
            train(tmp_path, wrong)  # type: ignore[arg-type]
    measured += [0.01]
    own = {"report.progress": False, "replay_start_steps_per_stream": 5_000}
    with pytest.raises(ConfigError, match=r"minutes must be enough for one iteration, got 0\.1"):
        quintet.train("acer", TOY, run_dir=tmp_path, config=own, minutes=0.1)
    vector = gymnasium.make_vec("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="minutes must have environments that can be made again"):
        quintet.train("ppo", vector, run_dir=tmp_path, config={"eval.episodes": 0}, minutes=1.0)
    assert cli.main(["config", "ppo", "--env", TOY, "--minutes", "5"]) == 2
    assert "--minutes is an option of quintet train" in capsys.readouterr().err
    assert cli.main(["train", "ppo", "--env", TOY, "--minutes", "soon"]) == 2
    assert "--minutes must be a number, got 'soon'" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_folder_in_which_another_process_trains(tmp_path: Path, measured: list[float]):
    measured += [0.5]
    with run_lock(tmp_path), pytest.raises(CheckpointError, match="is in use by the process"):
        train(tmp_path)
    assert measured == [0.5]  # it was refused before


def test_a_run_that_began_during_the_measurement_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def measure(_: Any, budget: TimeBudget) -> None:
        quintet.train("ppo", TOY, 128, 4, tmp_path, QUIET)
        budget.speed = 0.5

    monkeypatch.setattr(times, "_measured", measure)
    with pytest.raises(CheckpointError, match="another process began a run in"):
        train(tmp_path)
    assert options(tmp_path)["total_env_steps"] == 128


def test_a_run_beside_other_files_of_the_same_names_never_begins_again(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    """What would be removed may be the user's."""
    monkeypatch.setattr(TimeBudget, "correction", lambda *_: pytest.fail("it looked at the clock"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.txt").write_text("a note")
    measured.append(0.5)
    budgets: list[TimeBudget] = []
    own = times.timed

    def timed(loaded: Any, budget: TimeBudget) -> Any:
        budgets.append(budget)
        return own(loaded, budget)

    monkeypatch.setattr(times, "timed", timed)
    monkeypatch.setattr(launch, "_run", lambda loaded, *_, **__: loaded)
    train(tmp_path)
    assert not budgets[0].checks


def test_a_signal_at_the_end_of_the_measurement_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The measurement is done by the same report."""
    own = times._Probe.__call__

    def call(self: Any, report: dict[str, float]) -> bool:
        if own(self, report):
            os.kill(os.getpid(), signal.SIGINT)
        return self.done

    monkeypatch.setattr(times._Probe, "__call__", call)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 0.05)
    assert not any(tmp_path.iterdir())


def test_the_clock_is_looked_at_from_the_first_update_on(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    looked: list[int] = []

    def correction(self: TimeBudget, env_steps: int, *_: Any) -> None:
        looked.append(env_steps)
        self.said = "seen too late" if len(looked) == 1 else ""

    monkeypatch.setattr(TimeBudget, "correction", correction)
    measured.append(0.5)
    config: dict[str, Any] = {
        "env.num_streams": 4, "unroll_steps": 8, "batch_size": 16, "replay_start_steps": 150,
        "replay_capacity_steps": 1_000, "preset": "none", "model.policy_hidden": (8, 8),
        "eval.episodes": 0, "report.progress": False, "runtime.compile": "off",
    }  # fmt: skip
    quintet.train("ddpg", "Pendulum-v1", None, 3, tmp_path, config, minutes=10.0)
    assert looked
    assert min(looked) >= 150
    assert (tmp_path / "log.txt").read_text().count("seen too late") == 1


def test_what_is_seen_late_is_said(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = TimeBudget(10.0, 0.0, speed=1_000.0)
    budget.run_begins(time.monotonic())
    now = 310.0
    assert budget.correction(0, 560_000, 309.0) is None
    now = 350.0
    assert budget.correction(4_000, 560_000, 349.0) is None
    assert "makes 100 env_steps/s, not 1,000, and will end in about 99 minutes" in budget.said
    assert not budget.checks


def test_there_is_at_least_one_iteration(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    # On a busy machine environments take long for so short a time, and nothing is measured then.
    monkeypatch.setattr(times, "_slow_making", lambda *_: None)
    measured.append(1e-3)
    metrics = train(tmp_path, 0.001).metrics
    assert 0 < metrics["env_steps"] <= 64, "64 rows, with those of resets if the time is over then"
    assert metrics["updates"] > 0


@pytest.mark.usefixtures("members_are_forks")
def test_a_group_has_the_number_of_a_run_that_has_begun(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
):
    quintet.train("ppo", TOY, 256, 1, tmp_path / "s1", QUIET)
    found = quintet.train(
        "ppo", TOY, run_dir=tmp_path, config=QUIET, seeds=[1, 2], jobs=1, minutes=5.0
    )
    assert [each.metrics["env_steps"] for each in found] == [256, 256]
    said = capsys.readouterr().out
    assert "minutes=5 has no effect on a run that has begun: it has 256 env_steps" in said
    assert "the runs that have not begun have 256 env_steps too" in said
    assert "minutes=5: each run" not in said


def test_a_measurement_needs_the_disk_of_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And no more of it for replay than an interval between checkpoints of a short run needs."""
    seen: list[RunConfig] = []

    def run(trial: Any, probe: Any, **_: object) -> None:
        seen.append(trial.config)
        assert trial.config.run_dir.is_relative_to(tmp_path)
        trial.config.run_dir.mkdir()
        for share in (0.0, 1.0):
            probe({"env_steps": 1e6 * share, "wall_s": 100.0 * share, "updates": 1.0})

    given = {"env.id": "Pendulum-v1", "run_dir": str(tmp_path / "runs" / "a"), "seed": 3}
    loaded = load_config("ddpg", [], Layer("call", given))
    monkeypatch.setattr(launch, "run", run)
    timed = times.measure(loaded, TimeBudget(1.0))
    assert timed.config.total_env_steps > 100_000
    for config in seen:
        interval = config.checkpoint.interval(10**9)
        assert interval * batch_steps(config) <= 50_000
    assert timed.config.checkpoint.interval_iterations == "auto"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_too_slow_ends_with_its_time(
    tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
):
    """With a policy, an evaluation, and its env_steps as its budget."""
    monkeypatch.setattr(TimeBudget, "correction", lambda *_: None)
    measured.append(1e7)
    config = {"eval.episodes": 2, "eval.interval": 10**9, "runtime.compile": "off"}
    began = time.monotonic()
    result = train(tmp_path, 0.03, **config)
    assert time.monotonic() - began < 30.0
    assert result.status == "finished"
    steps = result.metrics["env_steps"]
    assert 64 <= steps == options(tmp_path)["total_env_steps"] < 1e6
    assert "eval/return_mean" in result.metrics
    assert (tmp_path / "policy").is_dir()
    assert (tmp_path / "best").is_dir()
    log = (tmp_path / "log.txt").read_text()
    assert f"the time is over after {steps:,.0f} of 16,000,000 env_steps" in log
    again = train(tmp_path, 0.03, **config)
    assert (again.status, again.metrics["env_steps"]) == ("finished", steps)
    assert "this run is finished" in (tmp_path / "log.txt").read_text()


def test_runs_of_a_group_end_with_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Played in this process, with a number of env_steps that was measured far too high."""

    def run_all(jobs: Any, *_: object) -> list[Outcome]:
        payloads = [pickle.loads(each.payload) for each in jobs]
        answers = [times.train_trial(user_state.work_of(each["run"]), each) for each in payloads]
        return [Outcome(0, answer) for answer in answers]

    def fits(runs: Any, minutes: float, *_: object) -> Any:
        return [times.with_total(each, 16_000_000, minutes) for each in runs]

    monkeypatch.setattr(group, "run_all", run_all)
    monkeypatch.setattr(times, "timed_group", fits)
    began = time.monotonic()
    config = {**QUIET, "runtime.compile": "off"}
    found = quintet.train("ppo", TOY, run_dir=tmp_path, config=config, seeds=[1, 2], minutes=0.02)
    assert time.monotonic() - began < 60.0
    for name, each in zip(("s1", "s2"), found, strict=True):
        assert each.status == "finished"
        assert 60 <= each.metrics["env_steps"] == options(tmp_path / name)["total_env_steps"] < 1e6
        assert "the time is over after" in (tmp_path / name / "log.txt").read_text()


def test_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = TimeBudget(1.0, 0.0)
    budget.run_begins(time.monotonic())
    now = 100.0
    budget.row()  # a run has one batch
    assert budget.batch()
    with pytest.raises(TimeIsOver):
        budget.row()
    budget = TimeBudget(1.0, 0.0)
    for now, ends in ((10.0, False), (30.0, False), (50.0, True)):  # noqa: B007
        assert budget.batch() == ends, "the next one would end at 70 s"
    budget.evaluation_begins()
    now = 55.0
    assert not budget.evaluation_late(False)
    now = 60.0
    assert budget.evaluation_late(False)
    assert not budget.evaluation_late(True)
    now = 66.0
    assert budget.evaluation_late(True)
    budget.evaluation_ends()
    assert budget.evaluation_s == 16.0
    budget = TimeBudget(1.0, 0.0, evaluation_s=16.0)
    now = 38.0
    budget.run_begins(time.monotonic())
    now = 40.0
    assert not budget.batch()
    now = 47.0
    assert budget.batch(), "the last evaluation has its time too"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"making": 1.5}, True),
        ({"reset": 1.0}, True),
        ({"reset": 0.1}, False),
        ({"after": 400, "step": 0.002}, False),
        ({"length": 3_000, "step": 0.0005}, False),
        ({"closing": 0.2}, False),
        ({"first": 1.0}, None),
    ],
    ids=["making", "reset", "some reset", "falling", "long episodes", "closing", "first step"],
)
def test_the_time_is_kept_or_told_at_once(
    tmp_path: Path, kwargs: dict[str, Any], told: bool | None
):
    """told: None: either will do."""
    words = ["ppo", "--env", "hostile_helpers:Hostile", "--env.kwargs", json.dumps(kwargs)]
    command = [sys.executable, "-m", "quintet", "train", *words, "--minutes", "0.5"]
    command += ["--run-dir", str(tmp_path / "run")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)
    took_s = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "policy").is_dir()
    was_told = "is too short: in about" in done.stderr
    assert told in (None, was_told)
    assert was_told or took_s < 33.0 + 4.0, "and the start of the command"


def test_a_short_run_is_measured(tmp_path: Path):
    """With no number given by the test; a busy machine makes it no faster."""
    result = train(tmp_path, 0.04)
    record = run_record.read(tmp_path)
    assert record is not None
    assert record.sources["total_env_steps"] == "measured (minutes=0.04)"
    assert result.status == "finished"
    assert result.metrics["env_steps"] == options(tmp_path)["total_env_steps"] > 128
    assert 0.3 < result.metrics["wall_s"] < 30.0


@pytest.mark.slow
def test_a_small_budget_in_a_file_does_not_end_the_measurement(tmp_path: Path):
    """A file that another run has left, for example."""
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "total_env_steps": 64, "report.sinks": ["jsonl"]}))
    words = ["--env", TOY, "--config", str(file), "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", "ppo", *words, "--minutes", "0.05"]) == 0
    assert options(tmp_path / "run")["total_env_steps"] > 128


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"runtime.kind": "lockstep", "runtime.num_workers": 2},
        {"runtime.kind": "async", "runtime.num_workers": 2},
        {"population.size": 2},
    ],
    ids=["lockstep", "async", "population"],
)
def test_every_kind_of_run_is_measured(tmp_path: Path, more: dict[str, Any]):
    algo = "appo" if more.get("runtime.kind") == "async" or "population.size" in more else "ppo"
    config = {"report.progress": False, "eval.episodes": 0, **more}
    result = quintet.train(algo, "CartPole-v1", None, 1, tmp_path, config, minutes=0.5)
    assert result.status == "finished"
    assert 10.0 < result.metrics["wall_s"] < 60.0


@pytest.mark.slow
def test_seeds_have_one_number(tmp_path: Path):
    found = quintet.train(
        "ppo", "CartPole-v1", run_dir=tmp_path, seeds=[1, 2], jobs=2, minutes=0.4,
        config={"eval.episodes": 0},
    )  # fmt: skip
    assert len({each.metrics["env_steps"] for each in found}) == 1
    assert all(each.status == "finished" for each in found)
