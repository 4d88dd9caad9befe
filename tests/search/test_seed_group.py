"""Runs that differ in their seed: the seeds of one experiment."""

import errno
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_run_helpers import newest

import quintet
from quintet.algorithms.ppo.config import PPOConfig
from quintet.checkpoints.checkpoint import tensor_hashes
from quintet.checkpoints.lock import run_lock
from quintet.errors import ConfigError, GroupFault, QuintetError
from quintet.jobs import group
from quintet.jobs.job import Job, Outcome
from quintet.observe.report_files import read_metrics
from quintet.options import machine
from quintet.options.layers import Layer
from quintet.options.run import RunConfig
from quintet.options.saved import load_seeds
from quintet.search import placement, seed_group, trial
from quintet.search.trial import overwriting_once
from quintet.system.memory import limit_told

TESTS = Path(__file__).parent
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Members find the modules beside this one, and those of runs."""
    places = (TESTS, TESTS.parent, TESTS.parent / "run")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))


def wait_for(condition) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


SMALL: dict[str, Any] = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.interval_s": 0.0,
    "report.sinks": ("jsonl",),
    "eval.episodes": 2,
    "eval.interval": 100,  # auto skips evaluations by the clock
}
ENV = "quintet.envs.toy:Contextual"


def timeless(folder: Path) -> list[dict[str, float]]:
    clock = ("wall_s", "time/", "throughput/", "machine/", "process/")
    return [
        {name: value for name, value in report.items() if not name.startswith(clock)}
        for report in read_metrics(folder)
    ]


class Slowly(gymnasium.Env[Any, Any]):
    """Once a file is there, an iteration of `SMALL` takes 19 s, for which a stop waits."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.3 if Path(os.environ.get("SLOW_IF", "nothing")).exists() else 0.02)
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, self.steps == 8, False, {}


@pytest.mark.slow
def test_the_same_command_goes_on_right_after_its_process_was_killed(tmp_path):
    """It waits for the runs, which stop by themselves, before it looks at what they have left."""
    words = ["-m", "quintet", "train", "ppo", "--env", "test_seed_group:Slowly", "--seeds", "1,2"]
    words += ["--run-dir", str(tmp_path / "a"), "--total-steps", "192", "--jobs", "2"]
    for name, value in SMALL.items():
        if not isinstance(value, tuple):
            words += [f"--{name}", str(value)]
    command = [sys.executable, *words, "--report.progress", "false", "--runtime.kind", "serial"]
    slow = os.environ | {"SLOW_IF": str(tmp_path / "slow")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=slow) as first:
        wait_for(lambda: all((tmp_path / f"a/s{seed}/metrics.jsonl").exists() for seed in (1, 2)))
        (tmp_path / "slow").touch()
        first.kill()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of an earlier command that was killed, to leave" in done.stdout
    for seed in (1, 2):
        steps = [each["env_steps"] for each in read_metrics(tmp_path / f"a/s{seed}")]
        assert steps == sorted(set(steps))  # it went on, and did not begin again
        assert steps[-1] == 192
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["s1", "s2"]


WIDE = {"model.policy_hidden": (256, 256), "env.num_streams": 1}


@pytest.mark.parametrize(
    ("env", "options", "jobs", "threads", "actor_threads"),
    [
        ("CartPole-v1", WIDE, None, None, None),  # one at a time, with all four
        ("CartPole-v1", WIDE, 1, None, None),
        ("CartPole-v1", WIDE, 2, 2, None),  # acts have one thread anyway
        ("CartPole-v1", WIDE, 8, 1, None),  # three runs, of which each has a core
        ("CartPole-v1", WIDE | {"runtime.threads": 4}, 2, 4, 2),
        ("CartPole-v1", {}, 2, None, None),
        ("quintet.envs.toy:DotToTarget", {}, 2, 2, 2),
    ],
)
def test_runs_at_once_share_the_cores(
    tmp_path, monkeypatch, env, options, jobs, threads, actor_threads
):
    sent = []

    def run_all(jobs, at_once, say, place):
        sent.extend(pickle.loads(pickle.loads(each.payload)["run"]) for each in jobs)
        return [Outcome(None, None)] * len(jobs)

    monkeypatch.setattr(group, "run_all", run_all)
    for module in (seed_group, placement, machine):
        monkeypatch.setattr(module, "usable_cores", lambda: 4)
    quintet.train("ppo", env, 10**5, None, tmp_path, dict(options), seeds=[1, 2, 3], jobs=jobs)
    assert len(sent) == 3
    for each in sent:
        runtime = each.config.runtime
        assert (runtime.threads, runtime.actor_threads) == (threads, actor_threads)
        shared = threads is not None and "runtime.threads" not in options
        assert ("share the cores" in each.sources["runtime.threads"]) == shared


@pytest.mark.usefixtures("members_are_forks")
def test_a_group_is_single_runs_side_by_side(tmp_path, capsys, monkeypatch):
    """Same bytes, folders of their own; again it goes on, and one that fails stops no other."""
    from quintet.envs.toy import Contextual

    def make() -> Contextual:  # found by no import: it travels by value
        return Contextual(num_contexts=4)

    results = quintet.train("ppo", make, 300, None, tmp_path / "g", SMALL, seeds=[2, 1], jobs=2)
    assert [result.run_dir for result in results] == [tmp_path / "g/s2", tmp_path / "g/s1"]
    assert [result.status for result in results] == ["finished"] * 2
    out = capsys.readouterr().out
    assert "[s1] 100%" in out
    assert "[s2] 100%" in out
    for result, seed in zip(results, (2, 1), strict=True):
        alone = quintet.train("ppo", make, 300, seed, tmp_path / f"alone{seed}", SMALL)
        assert tensor_hashes(newest(alone.run_dir)) == tensor_hashes(newest(result.run_dir))
        config = (alone.run_dir / "config.yaml").read_text()
        assert (result.run_dir / "config.yaml").read_text() == config
        assert timeless(alone.run_dir) == timeless(result.run_dir)
        assert result.metrics["eval/return_mean"] == alone.metrics["eval/return_mean"]
        assert result.policy.act([0, 0, 1, 0])[0] == alone.policy.act([0, 0, 1, 0])[0]

    shutil.rmtree(tmp_path / "g/s1/checkpoints" / newest(tmp_path / "g/s1").path.name)
    for path in (tmp_path / "g/s1/checkpoints").iterdir():
        (path / "learner.safetensors").write_bytes(b"")
    (tmp_path / "g/s1/checkpoints/000000001").mkdir(exist_ok=True)

    # A reader that went away stops nobody, and what members say is still taken from them.
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(
        GroupFault, match=r"1 of 2 runs failed\nseed 1: no checkpoint in .* be read"
    ):
        quintet.train("ppo", make, 364, None, tmp_path / "g", SMALL, seeds=[1, 2], jobs=1)
    assert newest(tmp_path / "g/s2").meta["env_steps"] == 364


@pytest.mark.parametrize(
    ("status", "answer", "wanted", "says"),
    [
        (0, {"status": "finished", "metrics": {"env_steps": 5.0}}, "finished", None),
        (130, {"status": "stopped", "metrics": {}}, "stopped", None),
        (None, None, "waiting", None),
        (130, None, "waiting", None),
        (-signal.SIGTERM, None, "waiting", None),
        (2, {"error": "why"}, "failed", "why"),
        (3, None, "failed", "its process ended with status 3"),
        (-signal.SIGKILL, None, "failed", f"SIGKILL (was there enough memory?{limit_told()})"),
    ],
)
def test_what_became_of_a_run_follows_from_its_process(tmp_path, status, answer, wanted, says):
    asked = Layer("call", {"env.id": ENV, "run_dir": str(tmp_path)})
    (loaded,) = load_seeds("ppo", [], asked, [7])
    outcome = seed_group._seed_outcome(loaded.config, Outcome(status, answer))
    assert (outcome.seed, outcome.run_dir, outcome.status) == (7, tmp_path / "s7", wanted)
    assert outcome.metrics == (answer or {}).get("metrics", {})
    assert (outcome.error or "").endswith(says) if says else outcome.error is None


@pytest.mark.slow
def test_ctrl_c_stops_the_group_and_the_same_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "quintet", "train", "ppo", "--env", "run_helpers:Trouble"]
    command += ["--env.kwargs", '{"kind": "slow", "after": 0}', "--total-steps", "100000"]
    command += ["--run-dir", str(tmp_path / "g"), "--env.num-streams", "4", "--unroll-steps", "16"]
    command += ["--eval.episodes", "0", "--seeds", "1,2,3", "--jobs", "2"]
    command += ["--report.interval-s", "0", "--minibatch-steps", "32", "--num-epochs", "1"]
    command += ["--runtime.compile", "off"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # A shell's background jobs ignore Ctrl-C, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        wait_for(lambda: len(list((tmp_path / "g").glob("s[12]/metrics.jsonl"))) == 2)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read().decode()
    assert process.returncode == 130, out
    assert "Traceback" not in out
    for seed in (1, 2):
        assert f"[s{seed}] stopped at" in out
        assert newest(tmp_path / f"g/s{seed}").meta["env_steps"] > 0
        with run_lock(tmp_path / f"g/s{seed}"):
            pass
    assert not (tmp_path / "g/s3").exists()
    rows = [line.split() for line in out.splitlines()]
    assert [row[1] for row in rows if row[:1] in (["1"], ["2"])] == ["stopped"] * 2
    assert ["3", "not", "begun", "-", "-", "-", str(tmp_path / "g/s3")] in rows


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seeds": []}, r"seeds must be at least one whole number and none twice, got \[\]"),
        ({"seeds": [1, 1]}, r"none twice, got \[1, 1\]"),
        ({"seeds": [1.5]}, "whole number"),
        ({"seeds": 3}, "whole number and none twice, got 3"),
        ({"seeds": [True]}, "whole number"),
        ({"seed": True}, "seed: input should be a number, got True"),
        ({"algo": None}, "the algorithm must be one of ppo, impala, appo, ddpg, acer; got None"),
        ({"run_dir": 5}, "run_dir must be the path of a folder, got 5"),
        ({"run_dir": 5, "seeds": [1]}, "run_dir must be the path of a folder, got 5"),
        ({"seeds": [-1]}, "seed: .*greater than or equal to 0"),
        ({"seeds": [1], "seed": 3}, r"seed=3 has no effect with seeds=\[1\]"),
        ({"seeds": [1], "jobs": 0}, "jobs must be a whole number of at least 1, got 0"),
        ({"jobs": 2}, "jobs=2 has no effect without seeds"),
        ({"seeds": [1], "on_report": print}, "on_report is not possible with seeds"),
        ({"seeds": [1], "config": {"runtime.kind": "x"}}, "runtime.kind"),
    ],
)
def test_what_a_group_can_not_be(tmp_path, monkeypatch, given, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        quintet.train(**{"algo": "ppo", "env": ENV, "total_steps": 2048, **given})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("members_are_forks")
def test_a_damaged_folder_stops_no_other_run(tmp_path):
    for name in ("s1", "s3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").touch()
    with pytest.raises(GroupFault, match=r"(?s)2 of 3 runs failed\nseed 1: .*s1.*seed 3: .*s3"):
        quintet.train("ppo", ENV, 64, None, tmp_path, SMALL, seeds=np.array([1, 2, 3]))
    assert newest(tmp_path / "s2").meta["env_steps"] == 64
    with pytest.raises(ConfigError, match=r"run_dir must be .*, got \S+s1 with thesis\.tex"):
        quintet.train("ppo", ENV, 64, None, tmp_path, SMALL, seeds=[1])


def test_an_environment_that_can_not_travel_is_refused(tmp_path):
    from quintet.envs.toy import Contextual

    lock = threading.Lock()

    def make() -> Contextual:
        with lock:
            return Contextual()

    with pytest.raises(ConfigError, match=r"sent to other processes.*give functions that make"):
        quintet.train("ppo", make, 300, None, tmp_path / "g", SMALL, seeds=[1])
    assert not (tmp_path / "g").exists()


def test_a_measurement_that_dies_is_no_ctrl_c(monkeypatch):
    told, stopped = Outcome(0, {"status": "measured", "total": 5}), Outcome(130, None)
    ends = {QuintetError: Outcome(-11, None), KeyboardInterrupt: stopped}
    jobs = [Job(f"s{k}", "module", b"") for k in range(2)]
    for error, how in ends.items():
        monkeypatch.setattr(group, "run_all", lambda *_, how=how: [told, how])
        with pytest.raises(error) as raised:
            seed_group._totals(jobs, 2, print, None)
        if error is QuintetError:
            assert "the speed of s1 failed: its process was ended by SIGSEGV" in str(raised.value)
    monkeypatch.setattr(group, "run_all", lambda *_: [told, told])
    assert seed_group._totals(jobs, 2, print, None) == [5, 5]


def test_a_run_that_starts_again_moves_nothing_aside_twice(tmp_path):
    """As on a cluster, where a run whose node is lost starts again by the same configuration."""
    quintet.train("ppo", ENV, 64, 1, tmp_path / "s1", SMALL)
    asked = Layer("call", {"env.id": ENV, "run_dir": str(tmp_path)})
    first, new = load_seeds("ppo", [], asked, [1, 2], overwrite=True)
    inode = (tmp_path / "s1").stat().st_ino
    assert overwriting_once(first, inode).overwrite  # it died before it had moved anything
    (tmp_path / "s1").rename(tmp_path / "s1.old-1")
    (tmp_path / "s1").mkdir()
    assert not overwriting_once(first, inode).overwrite
    assert overwriting_once(new, None).overwrite
    (tmp_path / "s2").mkdir()
    assert not overwriting_once(new, None).overwrite


def test_a_run_is_no_group(tmp_path):
    (tmp_path / "config.yaml").write_text("algo: ppo\n")
    with pytest.raises(ConfigError, match="of a single run: give another --run-dir"):
        quintet.train("ppo", ENV, 300, None, tmp_path, SMALL, seeds=[1])


def test_training_scores_are_those_of_the_newest_report_with_an_episode(tmp_path: Path) -> None:
    """In the last report of a short run often no episode has ended."""
    config = RunConfig(algo="ppo", env={"id": "CartPole-v1"}, run_dir=tmp_path, learner=PPOConfig())
    ended = Outcome(0, {"status": "finished", "metrics": {"env_steps": 3.0}})
    assert seed_group._seed_outcome(config, ended).metrics == {"env_steps": 3.0}
    reports = [
        {"env_steps": 1.0, "episode/return_mean": 5.0},
        {"env_steps": 2.0, "episode/return_mean": 7.0, "loss/total": 9.0},
        {"env_steps": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in reports))
    found = seed_group._seed_outcome(config, ended).metrics
    assert found == {"env_steps": 3.0, "episode/return_mean": 7.0}


@pytest.mark.parametrize("full", [False, True])
def test_a_member_tells_whether_a_disk_is_full(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = SimpleNamespace(overwrite=False)
    payload = {"run": pickle.dumps(loaded), "inode": None, "train": f"{__name__}:failing"}
    given = pickle.dumps(payload)
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr(trial.work, "receive", lambda **_: (given, answers.append))

    def train(*_: object) -> dict[str, Any]:
        try:
            raise OSError(errno.ENOSPC if full else errno.EACCES, "no")
        except OSError as fault:
            raise QuintetError("it can't be saved") from fault

    monkeypatch.setattr(sys.modules[__name__], "failing", train, raising=False)
    assert trial.main() == 1
    assert answers == [{"error": "it can't be saved", **({"blameless": True} if full else {})}]
