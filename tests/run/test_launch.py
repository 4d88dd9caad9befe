"""Whole runs: what they leave behind, how they go on, and how they end when something breaks."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from pydantic import BaseModel
from torch import nn

import quintet
from quintet import checkpoint, cli
from quintet.algorithms.parts.setup import PLAIN
from quintet.checkpoint import tensor_hashes
from quintet.config.load import Layer
from quintet.config.run import PARTS, TOP
from quintet.config.runtime import RuntimeConfig
from quintet.config.saved import load_config
from quintet.envs import resolved as resolved_envs
from quintet.envs.toy import Contextual, FinitePay
from quintet.errors import CheckpointError, ConfigError, EnvironmentFault, NonFiniteError
from quintet.observe.report_files import read_metrics
from quintet.observe.timing import PhaseTimer
from quintet.run import learners, resolution, sampling, saving
from quintet.run.launch import Result
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.lockstep import LockstepSampling
from quintet.runtime.parallel.learners import Learners
from quintet.runtime.serial import SerialSampling
from quintet.system.lock import run_lock

TOY = "quintet.envs.toy:Contextual"
SMALL: dict[str, Any] = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.progress": False,
    "report.interval_s": 0.0,
    "report.sinks": ("jsonl",),
    "eval.episodes": 0,
}


class Trouble(gymnasium.Env):
    """Pays 1 per step, and after `after` steps of four together does what `kind` says."""

    total = 0  # of the class: environments are made anew at checkpoints

    def __init__(self, kind: str = "", after: int = 50) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.kind, self.after, self.steps = kind, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        type(self).total += 1
        now = self.total > 4 * self.after
        reward = {"nan_reward": math.nan, "huge": 3e38, "seven": 7.0}.get(self.kind, 1.0)
        return self._obs(), reward if now else 1.0, self.steps >= 9, False, {}

    def _obs(self):
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.total > 4 * self.after:
            if self.kind == "nan":
                obs[1] = math.nan
            elif self.kind == "shape":
                return np.zeros(5, np.float32)
            elif self.kind == "raise":
                raise ValueError("the floor gave way")
            elif self.kind == "slow":
                time.sleep(0.005)
        return obs


@pytest.fixture(autouse=True)
def no_trouble_yet():
    Trouble.total = 0


def make_contextual(num_contexts: int = 3) -> gymnasium.Env:
    """Found by an import string."""
    return Contextual(num_contexts)


def run(folder: Path, steps: int = 128, env: Any = TOY, on_report=None, **more: Any):
    config = {**SMALL, **{name.replace("__", "."): value for name, value in more.items()}}
    return quintet.train("ppo", env, steps, run_dir=folder, config=config, on_report=on_report)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def iterations(folder: Path) -> list[int]:
    found = [checkpoint.read(folder / "checkpoints" / name) for name in names(folder)]
    return [one.meta["iteration"] for one in found]


def hashes(folder: Path) -> dict[str, str]:
    """Of the newest checkpoint."""
    return tensor_hashes(checkpoint.read(folder / "checkpoints" / names(folder)[-1]))


def weights(result) -> dict[str, bytes]:
    return {name: x.numpy().tobytes() for name, x in result.policy.publication.tensors.items()}


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


# What a run leaves behind


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_a_run_of_cartpole(tmp_path, backend):
    folder, reports = tmp_path / "run", []
    result = quintet.train(
        "ppo",
        env="CartPole-v1",
        total_steps=2500,
        seed=3,
        run_dir=folder,
        config={
            "env": {"num_streams": 4, "backend": backend},
            "unroll-steps": 32,
            "minibatch_steps": 64,
            "num_epochs": 2,
            "eval.episodes": 2,
            "report": {"progress": False},
        },
        on_report=reports.append,
    )
    wanted = {"config.yaml", "metrics.jsonl", "progress.csv", "tensorboard", "checkpoints", "best"}
    assert {path.name for path in folder.iterdir()} == wanted | {
        "policy",
        "log.txt",
        "run.json",
        ".lock",
    }
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert result.status == "finished"
    assert result.run_dir == folder
    stored = read_metrics(folder)
    assert stored == reports
    assert result.metrics == reports[-1]
    assert reports[-1]["env_steps"] == 2500
    assert {"wall_s", "updates", "eval/return_mean", "loss/policy"} <= set(reports[-1])
    assert len((folder / "progress.csv").read_text().splitlines()) == len(reports) + 1
    assert all(math.isfinite(value) for report in reports for value in report.values())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["seed"] == 3
    assert config["total_env_steps"] == 2500
    assert config["env.backend"] != "auto"  # resolved
    assert config["runtime.threads"] == 1
    newest = checkpoint.read(folder / "checkpoints" / names(folder)[-1])
    assert newest.meta["env_steps"] == 2500
    assert result.policy.act(np.zeros(4))[0] in (0, 1)


@pytest.mark.parametrize("steps", [64, 65, 127, 128, 129, 1000])
def test_the_budget_is_exact(tmp_path, steps):
    """Episodes of 3 steps: a quarter of the rows is spent on resets and must not count."""
    reports = []
    run(tmp_path, steps, "quintet.envs.toy:FinitePay", reports.append, env__kwargs={"n": 3})
    assert reports[-1]["env_steps"] == steps
    assert read_metrics(tmp_path)[-1]["env_steps"] == steps
    assert [r["env_steps"] for r in reports] == sorted({r["env_steps"] for r in reports})
    ended = sum(report.get("episode/count", 0) for report in reports)
    assert steps / 3 - 4 * len(reports) <= ended <= steps / 3


def test_the_command_line_gives_the_same_run_as_python(tmp_path, capsys):
    run(tmp_path / "python", 300)
    arguments = ["train", "ppo", "--env", TOY, "--total-steps", "300"]
    for name, value in SMALL.items():
        words = value if isinstance(value, tuple) else (value,)
        arguments += [f"--{name.replace('_', '-')}", *(str(word) for word in words)]
    assert cli.main([*arguments, "--run-dir", str(tmp_path / "cli")]) == 0
    assert hashes(tmp_path / "cli") == hashes(tmp_path / "python")
    one, two = (
        yaml.safe_load((tmp_path / f / "config.yaml").read_text()) for f in ("cli", "python")
    )
    assert one == two
    assert capsys.readouterr().out.startswith("run: ")


def test_a_callable_and_an_import_string_are_the_same_run(tmp_path):
    run(tmp_path / "class", env=Contextual)
    run(tmp_path / "lambda", env=lambda: Contextual())
    run(tmp_path / "function", env="test_launch:make_contextual")
    run(tmp_path / "toy", env=TOY)
    assert len({json.dumps(hashes(path)) for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("env", ["CartPole-v1", TOY])
def test_an_environment_is_resolved_once(env, tmp_path, monkeypatch):
    """Also where it is evaluated on while it trains, and the advice looks at it."""
    asked = []
    resolve = resolved_envs.resolve_backend
    monkeypatch.setattr(
        resolved_envs, "resolve_backend", lambda *given: asked.append(given) or resolve(*given)
    )
    given = {"preset": "none", "eval__episodes": 1, "eval__interval": 64}
    assert "eval/return_mean" in run(tmp_path, env=env, **given).metrics
    assert asked == [(env, "auto")]


class Halves(nn.Module):
    """An encoder of one's own."""

    def __init__(self, leaves, width=4):
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.feature_size = width

    def forward(self, obs):
        return self.linear(obs["obs"]).tanh()


def test_a_model_of_ones_own_is_short_for_its_import_string(tmp_path):
    config = {k: v for k, v in SMALL.items() if k != "model.policy_hidden"}
    short = quintet.train("ppo", TOY, 128, 0, tmp_path / "a", config, model=Halves)
    named = config | {"model.encoder": f"{__name__}:Halves"}
    long = quintet.train("ppo", TOY, 128, 0, tmp_path / "b", named)
    assert weights(short) == weights(long)
    assert any("linear" in name for name in weights(short))
    saved = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
    assert saved["model.encoder"] == f"{__name__}:Halves"
    with pytest.raises(ConfigError, match=r"model.encoder must be left to the model that is given"):
        quintet.train("ppo", TOY, 128, 0, tmp_path, config | {"model.encoder": "mlp"}, model=Halves)
    with pytest.raises(ConfigError, match="requires a class of torch"):
        quintet.train("ppo", TOY, 128, 0, tmp_path, config, model=Halves({}))


def test_a_run_in_another_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "a")))
    thread.start()
    thread.join()
    assert results[0].status == "finished"
    run(tmp_path / "b")
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_what_on_report_raises_ends_the_run_and_frees_the_folder(tmp_path):
    def fail(report):
        if report["env_steps"] > 200:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        run(tmp_path, 400, on_report=fail, checkpoint__interval_updates=1)
    assert run(tmp_path, 400).status == "finished"


def test_a_run_may_be_moved(tmp_path):
    run(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    result = run(tmp_path / "there", 192)
    assert result.metrics["env_steps"] == 192
    assert "resumed at update" in log(tmp_path / "there")
    assert not (tmp_path / "here").exists()


# Going on


def test_again_changes_nothing_and_more_steps_go_on(tmp_path):
    run(tmp_path)
    before = tree(tmp_path / "checkpoints") | tree(tmp_path / "policy")
    result = run(tmp_path)
    assert tree(tmp_path / "checkpoints") | tree(tmp_path / "policy") == before
    assert result.status == "finished"
    assert "this run is finished: 128 env_steps; raise --total-steps" in log(tmp_path)
    result = run(tmp_path, 321)
    assert result.metrics["env_steps"] == 321
    steps = [report["env_steps"] for report in read_metrics(tmp_path)]
    assert steps == sorted(set(steps))
    assert steps[0] <= 64
    assert tree(tmp_path / "policy") != {k: v for k, v in before.items() if k.startswith("policy")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_with_a_checkpoint_and_it_goes_on(tmp_path, number):
    def stop(report):
        if report["iterations"] == 6:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    given = {"checkpoint__interval_updates": 4, "checkpoint__max_cut_frac": 1.0}
    result = run(tmp_path / "a", 1000, on_report=stop, **given)
    assert result.status == "stopped"
    assert signal.getsignal(number) is before
    assert not (tmp_path / "a/policy").exists()
    assert "the same command goes on" in log(tmp_path / "a")
    newest = checkpoint.read(tmp_path / "a/checkpoints" / names(tmp_path / "a")[-1])
    assert newest.meta["exact"] is False
    assert newest.meta["iteration"] >= 6
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    assert run(tmp_path / "a", 1000, **given).status == "finished"
    assert "which is off the uninterrupted run's path" in log(tmp_path / "a")
    # from the exact one before, it is as if nothing had happened
    run(tmp_path / "b", 1000, **given, resume="exact")
    resumed = next(line for line in log(tmp_path / "b").splitlines() if "resumed" in line)
    assert "off the uninterrupted" not in resumed
    assert f"removed {tmp_path / 'b/checkpoints' / newest.path.name}" in log(tmp_path / "b")
    run(tmp_path / "c", 1000, **given)
    assert hashes(tmp_path / "b") == hashes(tmp_path / "c")
    assert hashes(tmp_path / "a") != hashes(tmp_path / "c")


def test_two_processes_in_one_folder(tmp_path, capsys):
    """The second is refused with the pid of the first; the first ends by a signal, resumable."""
    command = [sys.executable, "-m", "quintet", "train", "ppo", "--env", "test_launch:Trouble"]
    command += ["--env.kwargs", '{"kind": "slow", "after": 0}', "--total-steps", "100000"]
    command += ["--run-dir", str(tmp_path), "--env.num-streams", "4", "--unroll-steps", "16"]
    command += ["--report.interval-s", "0", "--runtime.compile", "off"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert "Trouble" in first.stdout.readline()  # it has begun
            arguments = ["--env", "test_launch:Trouble", "--run-dir", str(tmp_path)]
            assert cli.main(["train", "ppo", *arguments]) == 1
            assert f"in use by the process with pid {first.pid}" in capsys.readouterr().err
            waited = time.monotonic() + 60
            while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < waited:
                time.sleep(0.05)
            first.send_signal(signal.SIGTERM)
            rest = first.stdout.read()
        finally:
            first.kill()
    assert first.returncode == 130
    assert "the same command goes on from there" in rest
    assert len(names(tmp_path)) == 1
    with run_lock(tmp_path):
        pass


def make_processes(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.AsyncVectorEnv([lambda: Trouble("slow", 0)] * num_envs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_to_all_processes_ends_in_a_checkpoint(tmp_path, number):
    """Environments that are processes of their own go on until the run ends them."""
    command = [sys.executable, "-m", "quintet", "train", "ppo", "--run-dir", str(tmp_path)]
    command += ["--env", "test_launch:make_processes", "--total-steps", "100000"]
    command += ["--env.num-streams", "2", "--unroll-steps", "16", "--report.interval-s", "0"]
    command += ["--minibatch-steps", "none", "--runtime.compile", "off"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True,
        # nohup's SIGHUP, which the run would honour, is not what is tested.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as first:  # fmt: skip
        try:
            waited = time.monotonic() + 60
            while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < waited:
                assert first.poll() is None
                time.sleep(0.05)
            if number == signal.SIGINT:
                os.killpg(first.pid, number)
            else:
                first.send_signal(number)
            said, _ = first.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 130
    assert "the same command goes on from there" in said
    assert len(names(tmp_path)) == 1


# Faults


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("nan", EnvironmentFault, r"stream \d, step \d+ after .*: observation 'obs'\[1\] is nan"),
        ("nan_reward", EnvironmentFault, r"stream \d, step \d+ after .*: reward is nan"),
        ("shape", EnvironmentFault, r"stream \d, step \d of its episode.*gave shape \(5,\)"),
        ("raise", EnvironmentFault, r"stream \d, step \d of .*ValueError: the floor gave way"),
        ("huge", NonFiniteError, r"became \w+ at update \d+; begin anew"),
    ],
)
def test_an_environment_that_breaks_leaves_the_last_checkpoint(
    tmp_path, monkeypatch, kind, error, says
):
    given = {"env__kwargs": {"kind": kind}, "env": "test_launch:Trouble"}
    given |= {"reward_normalizer": "none", "checkpoint__interval_updates": 1}
    with pytest.raises(error, match=says) as raised:
        run(tmp_path, 1000, **given)
    last = tmp_path / "checkpoints" / names(tmp_path)[-1]
    assert checkpoint.read(last).meta["env_steps"] >= 64
    assert not (tmp_path / "policy").exists()
    if error is NonFiniteError:
        assert f"kept in {tmp_path / 'failed_batch'}" in str(raised.value)
        assert f"the last good checkpoint is {last}" in str(raised.value)
        kept = checkpoint.read(tmp_path / "failed_batch").tensors["batch"]
        assert kept["reward"].max() > 1e38
        assert kept["reward"].shape == (16, 4)
        assert {"obs/obs", "action", "valid", "record/logp_mu"} <= set(kept)
    else:
        assert not (tmp_path / "failed_batch").exists()
    # the environment is mended: the same call goes on from there
    sound = Trouble
    sound.total = 0
    monkeypatch.setattr(sys.modules[__name__], "Trouble", lambda kind: sound())
    assert run(tmp_path, 1000, **given).metrics["env_steps"] == 1000
    assert f"from {last}" in log(tmp_path)


def test_a_fault_is_one_message_and_status_1(tmp_path, capsys):
    arguments = ["train", "ppo", "--env", "test_launch:Trouble", "--run-dir", str(tmp_path)]
    arguments += ["--env.kwargs", '{"kind": "nan"}', "--env.num-streams", "4"]
    arguments += ["--unroll-steps", "16", "--total-steps", "1000", "--eval.episodes", "0"]
    assert cli.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: observations and rewards must be finite; test_launch:Trouble")
    assert "Traceback" not in err


def test_a_learning_rate_beyond_reason(tmp_path):
    with pytest.raises(NonFiniteError, match="there was no checkpoint yet"):
        run(tmp_path, 1000, learning_rate=1e30, minibatch_steps=16, num_epochs=3)
    assert checkpoint.read(tmp_path / "failed_batch").meta == {"iteration": 0, "env_steps": 0}
    with pytest.raises(
        NonFiniteError, match=r"finite numbers are required, (rho|value|logp_pi|losses)"
    ):
        run(tmp_path / "b", 1000, learning_rate=1e30, num_epochs=3, check_numerics=True)


def damage(folder: Path) -> None:
    file = folder / "learner.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 255
    file.write_bytes(bytes(data))


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    run(tmp_path / "a", 400, checkpoint__interval_updates=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    newest, before, _ = sorted(names(tmp_path / "a"), reverse=True)
    damage(tmp_path / "a/checkpoints" / newest)
    result = run(tmp_path / "a", 400, checkpoint__interval_updates=1)
    assert result.metrics["env_steps"] == 400
    said = log(tmp_path / "a")
    assert f"skipped a damaged checkpoint: {tmp_path / 'a/checkpoints' / newest}" in said
    assert f"env_steps, from {tmp_path / 'a/checkpoints' / before}" in said
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")  # and comes to the same end
    steps = [report["env_steps"] for report in read_metrics(tmp_path / "a")]
    assert steps == sorted(set(steps))


def test_when_all_checkpoints_are_damaged_nothing_begins_anew(tmp_path):
    run(tmp_path, 400, checkpoint__interval_updates=1)
    for name in names(tmp_path):
        damage(tmp_path / "checkpoints" / name)
    before = tree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read.*remove") as raised:
        run(tmp_path, 400)
    assert all(name in str(raised.value) for name in names(tmp_path))
    assert tree(tmp_path / "checkpoints") == before
    with pytest.raises(CheckpointError, match="can be read"):
        quintet.load(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 400 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount")
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_the_run_which_goes_on_when_there_is_room(small_disk, tmp_path):
    folder = small_disk / "run"
    given = {"checkpoint__interval_updates": 1, "checkpoint__keep": 1000, "report__sinks": ()}
    given |= {"model__policy_hidden": (32, 32)}
    with pytest.raises(CheckpointError, match=r"can't write checkpoint .*No space left") as raised:
        run(folder, 10_000, **given)
    last = names(folder)[-1]
    assert f"The last good checkpoint is {folder / 'checkpoints' / last}" in str(raised.value)
    kept = checkpoint.read(folder / "checkpoints" / last)
    assert [name for name in os.listdir(folder / "checkpoints") if name.startswith(".")] == []
    for name in names(folder)[:-1]:
        shutil.rmtree(folder / "checkpoints" / name)
    result = run(folder, kept.meta["env_steps"] + 64, checkpoint__keep=1000, **{
        name: value for name, value in given.items() if name != "checkpoint__keep"
    })  # fmt: skip
    assert result.status == "finished"
    assert f"from {folder / 'checkpoints' / last}" in log(folder)


# Every field of the configuration does something


@dataclass
class Where:
    folder: Path
    monkeypatch: pytest.MonkeyPatch


def resolved(**values: Any) -> dict[str, Any]:
    given = {name.replace("__", "."): value for name, value in values.items()}
    config = {**SMALL, "env.id": TOY, "total_env_steps": 128, **given}
    return resolution.resolved(load_config("ppo", [], Layer("call", config)))[0]


def _algo(where: Where) -> None:
    with pytest.raises(ConfigError, match="one of ppo"):
        quintet.train("dqn", TOY, run_dir=where.folder)


def _total_env_steps(where: Where) -> None:
    assert run(where.folder, 77).metrics["env_steps"] == 77


def _seed(where: Where) -> None:
    seeds = {"a": 1, "b": 1, "c": 2}
    one, two, three = (
        weights(run(where.folder / name, 64, seed=seed)) for name, seed in seeds.items()
    )
    assert one == two
    assert one != three


def _preset(where: Where) -> None:
    assert run(where.folder / "a", 64).metrics["policy/kl_beta"] == 0
    assert run(where.folder / "b", 64, preset="kl_penalty").metrics["policy/kl_beta"] > 0


def _run_dir(where: Where) -> None:
    where.monkeypatch.chdir(where.folder)
    result = quintet.train("ppo", TOY, 64, seed=5, config=SMALL)
    assert result.run_dir == Path("runs/ppo-quintet.envs.toy_Contextual-s5")
    assert (where.folder / result.run_dir / "policy").is_dir()


def _resume(where: Where) -> None:
    run(where.folder)
    with pytest.raises(ConfigError, match="--resume never requires"):
        run(where.folder, resume="never")


def _init_from(where: Where) -> None:
    """More in test_warm_start."""
    run(where.folder / "donor")
    given = {"init_from": str(where.folder / "donor")}
    assert weights(run(where.folder / "a", **given)) != weights(run(where.folder / "b"))


def _init_from_keys(where: Where) -> None:
    run(where.folder / "donor")
    given = {"init_from": str(where.folder / "donor")}
    whole = run(where.folder / "a", **given)
    part = run(where.folder / "b", **given, init_from_keys=["network/encoder.*"])
    assert weights(whole) != weights(part)


def sampling_of(**options: Any) -> Any:
    """What would sample; no process has begun."""
    given = {"env.num_streams": 4} | {k.replace("__", "."): v for k, v in options.items()}
    loaded = load_config("ppo", [], Layer("call", {**SMALL, "env.id": TOY, **given}))
    source = sampling.open_source(loaded.config, loaded.env)
    config = resolution.resolve(loaded, source.spaces)
    learner = learners.make_learner(config, source.spaces)
    made = sampling.make_sampling(config, source, [learner], PhaseTimer(), print, print)
    source.close()
    OPEN.append(made)
    return made


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


def _kind(where: Where) -> None:
    kinds = [type(sampling_of(runtime__kind=kind)) for kind in ("serial", "lockstep", "async")]
    assert kinds == [SerialSampling, LockstepSampling, AsyncSampling]
    with pytest.raises(ConfigError, match="input should be 'serial', 'lockstep' or 'async'"):
        run(where.folder, runtime__kind="parallel")


def _lag(where: Where) -> None:
    for lag in (0, 1):
        made = sampling_of(runtime__kind="lockstep", runtime__lag=lag)
        assert (made.lag, made.workers.crew.num_slots) == (lag, 1 + lag)
    with pytest.raises(ConfigError, match=r"runtime.lag=0 has no effect without runtime.kind=lock"):
        run(where.folder, runtime__lag=0)


def _num_workers(where: Where) -> None:
    for count in (1, 2, 4):
        made = sampling_of(
            runtime__kind="async", runtime__num_workers=count, env__streams_per_group=1
        )
        groups = [[place.group for place in p.places] for p in made.workers.samplers]
        assert len(groups) == count
        assert [group for mine in groups for group in mine] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="num_workers must be at most the number of groups, 2"):
        sampling_of(runtime__kind="async", runtime__num_workers=3, env__streams_per_group=2)


def _max_policy_lag(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__max_policy_lag=7)
    assert made.delivery.plan.max_policy_lag == 7
    assert sampling_of(runtime__kind="async").delivery.plan.max_policy_lag is None


def _slots(where: Where) -> None:
    assert sampling_of(runtime__kind="async").workers.crew.num_slots == 2
    assert sampling_of(runtime__kind="async", runtime__slots=5).workers.crew.num_slots == 5
    with pytest.raises(ConfigError, match="slots must be at least 2 for batches of 4 columns"):
        sampling_of(runtime__kind="async", runtime__slots=1)


def _prefetch_batches(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__prefetch_batches=3)
    assert made.ready.maxsize == 3


def _publish_interval(where: Where) -> None:
    lags: list[float | None] = []

    def trained(interval: int) -> Result:
        return run(
            where.folder / str(interval),
            512,
            on_report=lambda report: lags.append(report.get("policy_lag/max")),
            checkpoint__interval_updates=100,  # at exact ones weights are published too
            runtime__publish_interval_updates=interval,
        )

    every = trained(1)
    assert set(lags) == {None}
    lags.clear()
    third = trained(3)
    assert weights(every) != weights(third)
    assert lags == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    # the policy that is saved is the newest, whatever the actors had
    assert third.policy.publication.version == every.policy.publication.version


def _inference(where: Where) -> None:
    assert sampling_of(runtime__kind="async").workers.server is None
    made = sampling_of(runtime__kind="async", runtime__inference="server")
    assert made.workers.server.kind.module == "quintet.runtime.processes.server"
    # Two groups of a worker take turns only where one steps by itself meanwhile.
    given = {"runtime.kind": "async", "runtime.inference": "server", "runtime.num_workers": 2}
    for backend, size in (("envpool", 2), ("gymnasium", 4)):
        asked = {**SMALL, "env.id": "CartPole-v1", "env.num_streams": 8, "env.backend": backend}
        loaded = load_config("ppo", [], Layer("call", asked | given))
        assert resolution.streams_per_group(loaded.config, loaded.env) == size


def _inference_batches(where: Where) -> None:
    given = {"batch_min": 3, "batch_max": 9, "timeout_ms": 7.0}
    options = {f"runtime__inference_{name}": value for name, value in given.items()}
    made = sampling_of(runtime__kind="async", runtime__inference="server", **options)
    server = made.workers.crew.server
    assert (server.batch_min, server.batch_max, server.batch_timeout_s) == (3, 9, 0.007)
    with pytest.raises(ConfigError, match="inference_batch_max must be at least 3"):
        sampling_of(
            runtime__kind="async",
            runtime__inference="server",
            runtime__inference_batch_min=3,
            runtime__inference_batch_max=2,
        )


def _worker_timeout_s(where: Where) -> None:
    made = sampling_of(runtime__kind="async", runtime__worker_timeout_s=1.5)
    assert made.workers.crew.timeout_s == 1.5


def _max_restarts(where: Where) -> None:
    assert sampling_of(runtime__kind="async", runtime__max_restarts=0).options.max_restarts == 0


def learners_of(**options: Any) -> Learners:
    """What would learn; no process has begun."""
    given = {k.replace("__", "."): v for k, v in options.items()}
    given |= {"env.id": TOY, "preset": "none", "total_env_steps": 10_000}
    loaded = load_config("impala", [], Layer("call", given))
    source = sampling.open_source(loaded.config, loaded.env)
    made = learners.make_learners(resolution.resolve(loaded, source.spaces), source.spaces)
    source.close()
    OPEN.append(made)
    return made


def _num_learners(where: Where) -> None:
    """More in test_learners."""
    made = learners_of(runtime__num_learners=3)
    assert [process.kind.name for process in made.processes] == ["learner 1", "learner 2"]
    with pytest.raises(ConfigError, match="minibatch_steps that they can share evenly, got 32"):
        run(where.folder, runtime__num_learners=3)


def _learner_timeout_s(where: Where) -> None:
    made = learners_of(runtime__num_learners=2, runtime__learner_timeout_s=1.5)
    assert made.crew.timeout_s == 1.5


class Threads(Contextual):
    """Notes how many threads PyTorch has beside it."""

    seen: ClassVar[set[int]] = set()

    def step(self, action):
        self.seen.add(torch.get_num_threads())
        return super().step(action)


def _actor_threads(where: Where) -> None:
    learning = []
    for threads in (2, None):
        Threads.seen.clear()
        run(
            where.folder / str(threads),
            env=Threads,
            runtime__actor_threads=threads,
            on_report=lambda _: learning.append(torch.get_num_threads()),
        )
        assert Threads.seen == {threads or 1}
    assert set(learning) == {1}
    assert sampling_of(runtime__kind="async", runtime__threads=2).workers.crew.threads == 1


def _device(where: Where) -> None:
    where.monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved(runtime__device="auto")["runtime.device"] == "cpu"
    with pytest.raises(ConfigError, match="requires a CUDA GPU"):
        resolved(runtime__device="cuda")


def _threads(where: Where) -> None:
    before, seen = torch.get_num_threads(), []
    run(
        where.folder / "a",
        64,
        runtime__threads=2,
        on_report=lambda _: seen.append(torch.get_num_threads()),
    )
    run(where.folder / "b", 64, on_report=lambda _: seen.append(torch.get_num_threads()))
    assert set(seen) == {1, 2}
    assert seen[0] == 2
    assert torch.get_num_threads() == before


def _compile(where: Where) -> None:
    said: list[str] = []
    where.monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/g++")
    where.monkeypatch.setattr(
        RuntimeConfig, "compute", property(lambda self: said.append(self.compile) or PLAIN)
    )
    run(where.folder / "a", 64, runtime__compile="on")
    assert set(said) == {"on"}
    said.clear()
    run(where.folder / "b", 64, runtime__compile="auto")  # far too short to be worth it
    assert set(said) == {"off"}
    many = {"total_env_steps": 1_500_000, "runtime__compile": "auto"}
    assert resolved(**many)["runtime.compile"] == "on"
    assert resolved(**many, minibatch_steps=64)["runtime.compile"] == "off"
    assert resolved(**many, check_numerics=True)["runtime.compile"] == "off"


class OwnPicture(nn.Module):
    """Puts linear features in a float32 tensor of its own, which autocast would break."""

    feature_size = 2

    def __init__(self, leaves: Any):
        super().__init__()
        self.linear = nn.Linear(4 * 84 * 84, 2)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        x = obs["obs"].flatten(1).float() / 255.0
        out = torch.zeros(len(x), 2)
        out[torch.arange(len(x))] = self.linear(x)
        return out


def _precision(where: Where) -> None:
    full = run(where.folder / "a", 64, runtime__precision="fp32")
    half = run(where.folder / "b", 64, runtime__precision="bf16")
    assert weights(full) != weights(half)
    assert all(x.dtype != torch.bfloat16 for x in half.policy.publication.tensors.values())
    pixels = {"env__id": "Pong-v5", "runtime__precision": "auto"}
    for able, expected in ((True, "bf16"), (False, "fp32")):
        where.monkeypatch.setattr(
            "quintet.models.precision.fast_bf16", lambda device, able=able: able
        )
        assert resolved(**pixels)["runtime.precision"] == expected
        assert resolved(runtime__precision="auto")["runtime.precision"] == "fp32"
        own = {"model__encoder": "test_launch:OwnPicture", "model__policy_hidden": None}
        assert resolved(**pixels, **own)["runtime.precision"] == "fp32"


def _interval_updates(where: Where) -> None:
    run(where.folder / "a", 1000, checkpoint__interval_updates=5, checkpoint__keep=100)
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
        run(where.folder / "c", 64 * 40, checkpoint__keep=100, **endless)
    assert len(names(where.folder / "c")) == 2  # the first one, and the end


def _max_cut_frac(where: Where) -> None:
    exact = {}
    for most in (0.0, 0.05, 1.0):
        folder = where.folder / str(most)
        run(folder, 2000, "quintet.envs.toy:FinitePay", env__kwargs={"n": 9},
            checkpoint__interval_updates=2, checkpoint__max_cut_frac=most,
            checkpoint__keep=100)  # fmt: skip
        found = [checkpoint.read(folder / "checkpoints" / name).meta for name in names(folder)]
        exact[most] = sum(meta["exact"] for meta in found)
        for meta in found:
            assert meta["counters"]["cut_env_steps"] <= most * meta["counters"]["env_steps"]
        if most == 1.0:
            assert all(meta["exact"] for meta in found)
    assert exact[0.0] <= exact[0.05] < exact[1.0]


def _keep(where: Where) -> None:
    for keep in (1, 4):
        folder = where.folder / str(keep)
        run(folder, 640, checkpoint__interval_updates=1, checkpoint__keep=keep)
        assert len(names(folder)) == keep
        last = iterations(folder)[-1]
        assert iterations(folder) == list(range(last - keep + 1, last + 1))


def _milestones(where: Where) -> None:
    given = {"checkpoint__interval_updates": 1, "checkpoint__keep": 1, "checkpoint__milestones": 4}
    run(where.folder, 64 * 8, "quintet.envs.toy:FinitePay", env__kwargs={"n": 10**6}, **given)
    assert iterations(where.folder) == [2, 4, 6, 8]  # no resets, so 8 iterations


def _save_best(where: Where) -> None:
    run(where.folder / "a", eval__episodes=1)
    assert quintet.load(where.folder / "a", "best").spaces.action == spaces.Discrete(3)
    run(where.folder / "b", eval__episodes=1, checkpoint__save_best=False)
    assert not (where.folder / "b/best").exists()
    assert "eval/return_mean" in read_metrics(where.folder / "b")[-1]


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


def _greedy(where: Where) -> None:
    """Target: sampled actions pay much less than their mean."""
    target = {"env": "quintet.envs.toy:Target", "eval__episodes": 5}
    greedy = run(where.folder / "a", **target).metrics["eval/return_mean"]
    sampled = run(where.folder / "b", **target, eval__greedy=False).metrics["eval/return_mean"]
    assert greedy > sampled + 1


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
        assert {path.name for path in folder.iterdir()} & set(files.values()) == {name}
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
    env = {"env": "quintet.envs.toy:FinitePay", "env__kwargs": {"n": 5}, "report__interval_s": 1e9}
    assert run(where.folder, **env).metrics["episode/length_mean"] == 5
    made = run(where.folder / "b", env=make_contextual, env__kwargs={"num_contexts": 7})
    assert made.policy.spaces.observation.shape == (7,)


def _num_streams(where: Where) -> None:
    made = []
    run(where.folder, env=lambda: made.append(Contextual()) or made[-1], env__num_streams=6)
    assert len(made) == 7  # and one that was looked at


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
    env = {"env": "test_launch:Trouble", "env__kwargs": {"kind": "seven", "after": 0}}
    env["report__interval_s"] = 1e9  # one report, of all episodes
    clipped = run(where.folder / "a", **env, env__reward_clip="abs_one").metrics
    plain = run(where.folder / "b", **env).metrics
    assert clipped["reward/mean"] == pytest.approx(1)
    assert plain["reward/mean"] == pytest.approx(7)
    assert clipped["episode/return_mean"] == plain["episode/return_mean"] == 63


def _reward_shaping(where: Where) -> None:
    found = run(where.folder, env="shaped_tasks:make", env__reward_shaping={"each": 3.0}).metrics
    assert found["reward/mean"] == pytest.approx(3)


def _success(where: Where) -> None:
    """Ten steps of 7 that end with 7."""
    env = {"env": "test_launch:Trouble", "env__kwargs": {"kind": "seven", "after": 0}}
    env |= {"report__interval_s": 1e9, "eval__episodes": 2, "report__sinks": ["jsonl", "csv"]}
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


def _observe_last(where: Where) -> None:
    space = run(where.folder, env__observe_last=True).policy.spaces.observation
    assert list(space.spaces) == ["obs", "last_action", "last_reward"]


class OfProcess(Contextual):
    """Leaves the number of its process in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        (Path(folder) / str(os.getpid())).touch()


def _num_threads(where: Where) -> None:
    pytest.importorskip("envpool")
    envs = groups_of(env="CartPole-v1", env__backend="envpool", env__num_threads=3)
    assert [env.num_threads for env in envs] == [3]


def _num_processes(where: Where) -> None:
    """Who makes environments: one process, or two that step them; the policy is the same."""
    bytes_ = []
    for count in (1, 2):
        folder = where.folder / str(count)
        (pids := where.folder / f"pids-{count}").mkdir()
        run(folder, env=partial(OfProcess, str(pids)), env__num_processes=count)
        others = {path.name for path in pids.iterdir()} - {str(os.getpid())}
        assert len(others) == (count if count > 1 else 0)
        bytes_.append((folder / "policy" / "policy.safetensors").read_bytes())
    assert bytes_[0] == bytes_[1]


def _mask_from_info(where: Where) -> None:
    taxi = {"env": "Taxi-v4", "env__backend": "gymnasium"}
    masked = run(where.folder / "a", **taxi, env__mask_from_info=True).policy.spaces.observation
    assert "action_mask" in masked.spaces
    assert run(where.folder / "b", **taxi).policy.spaces.observation == spaces.Discrete(500)


EFFECTS: dict[str, Callable[[Where], None]] = {
    "algo": _algo,
    "total_env_steps": _total_env_steps,
    "seed": _seed,
    "preset": _preset,
    "run_dir": _run_dir,
    "resume": _resume,
    "init_from": _init_from,
    "init_from_keys": _init_from_keys,
    "runtime.kind": _kind,
    "runtime.lag": _lag,
    "runtime.inference": _inference,
    "runtime.inference_batch_min": _inference_batches,
    "runtime.inference_batch_max": _inference_batches,
    "runtime.inference_timeout_ms": _inference_batches,
    "runtime.num_workers": _num_workers,
    "runtime.max_policy_lag": _max_policy_lag,
    "runtime.slots": _slots,
    "runtime.prefetch_batches": _prefetch_batches,
    "runtime.publish_interval_updates": _publish_interval,
    "runtime.worker_timeout_s": _worker_timeout_s,
    "runtime.max_restarts": _max_restarts,
    "runtime.num_learners": _num_learners,
    "runtime.learner_timeout_s": _learner_timeout_s,
    "runtime.actor_threads": _actor_threads,
    "runtime.device": _device,
    "runtime.threads": _threads,
    "runtime.precision": _precision,
    "runtime.compile": _compile,
    "checkpoint.interval_updates": _interval_updates,
    "checkpoint.max_cut_frac": _max_cut_frac,
    "checkpoint.keep": _keep,
    "checkpoint.milestones": _milestones,
    "checkpoint.save_best": _save_best,
    "eval.episodes": _episodes,
    "eval.interval": _interval,
    "eval.greedy": _greedy,
    "report.interval_s": _interval_s,
    "report.progress": _progress,
    "report.sinks": _sinks,
    "env.id": _id,
    "env.backend": _backend,
    "env.kwargs": _kwargs,
    "env.num_streams": _num_streams,
    "env.streams_per_group": _streams_per_group,
    "env.frame_stack": _frame_stack,
    "env.reward_clip": _reward_clip,
    "env.reward_shaping": _reward_shaping,
    "env.success": _success,
    "env.observe_last": _observe_last,
    "env.num_threads": _num_threads,
    "env.num_processes": _num_processes,
    "env.mask_from_info": _mask_from_info,
}
"""A check of each option's effect; the learner's, the network's and a population's have theirs
beside them.
"""


def test_no_option_is_without_a_check():
    elsewhere = ("model", "population", "self_play")
    parts: dict[str, type[BaseModel]] = {k: v for k, v in PARTS.items() if k not in elsewhere}
    fields = {f"{part}.{name}" for part, model in parts.items() for name in model.model_fields}
    assert set(EFFECTS) == fields | set(TOP)


@pytest.mark.parametrize("name", EFFECTS)
def test_every_option_has_an_effect(name, tmp_path, monkeypatch):
    EFFECTS[name](Where(tmp_path, monkeypatch))
