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
from contextlib import suppress
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import quick_helpers
import yaml
from run_helpers import (
    SMALL,
    TOY,
    Trouble,
    hashes,
    log,
    names,
    run,
    tree,
    weights,
)
from torch import nn

import quintet
from quintet.checkpoints import checkpoint
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.envs import resolved as resolved_envs
from quintet.envs.toy import Contextual
from quintet.errors import CheckpointError, ConfigError, EnvironmentFault, NonFiniteError
from quintet.observe.report_files import read_metrics

HERE = Path(__file__).parent


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
    run(tmp_path / "function", env="run_helpers:make_contextual")
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
    with pytest.raises(ConfigError, match=r"model.encoder must be what the given model says"):
        quintet.train("ppo", TOY, 128, 0, tmp_path, config | {"model.encoder": "mlp"}, model=Halves)
    with pytest.raises(ConfigError, match="must be a class of torch"):
        quintet.train("ppo", TOY, 128, 0, tmp_path, config, model=Halves({}))


def test_options_that_an_argument_names_otherwise_are_refused(tmp_path):
    for given, name in (({"seed": 1}, "seed"), ({"total_steps": 64}, "total_env_steps")):
        config = SMALL | {"seed": 0, "total_env_steps": 128}
        with pytest.raises(ConfigError, match=f"^{name} must be what the given argument says"):
            quintet.train("ppo", TOY, run_dir=tmp_path / "run", config=config, **given)
    same = SMALL | {"run_dir": str(tmp_path / "run"), "total_env_steps": 128}
    assert (
        quintet.train("ppo", TOY, 128, run_dir=tmp_path / "run", config=same).status == "finished"
    )


def test_a_run_in_another_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "a")))
    thread.start()
    thread.join()
    assert results[0].status == "finished"
    run(tmp_path / "b")
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_a_run_may_be_moved(tmp_path):
    run(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    result = run(tmp_path / "there", 192)
    assert result.metrics["env_steps"] == 192
    assert "resumed at update" in log(tmp_path / "there")
    assert not (tmp_path / "here").exists()


# Going on


def test_again_changes_nothing_and_more_steps_go_on(tmp_path, capsys):
    run(tmp_path)
    before = tree(tmp_path / "checkpoints") | tree(tmp_path / "policy")
    result = run(tmp_path)
    assert tree(tmp_path / "checkpoints") | tree(tmp_path / "policy") == before
    assert result.status == "finished"
    assert "this run is finished: 128 env_steps; raise --total-steps" in log(tmp_path)
    assert "this run is finished" in capsys.readouterr().err  # though progress is not shown
    result = run(tmp_path, 321)
    assert result.metrics["env_steps"] == 321
    steps = [report["env_steps"] for report in read_metrics(tmp_path)]
    assert steps == sorted(set(steps))
    assert steps[0] <= 64
    assert tree(tmp_path / "policy") != {k: v for k, v in before.items() if k.startswith("policy")}


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_stops_the_run_with_a_checkpoint_and_it_goes_on(tmp_path, number):
    def stop(report):
        if report["iterations"] == 6:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    given = {"checkpoint__interval_iterations": 4, "checkpoint__max_cut_frac": 1.0}
    result = run(tmp_path / "a", 1000, on_report=stop, **given)
    assert result.status == "stopped"
    assert signal.getsignal(number) is before
    assert not (tmp_path / "a/policy").exists()
    assert "the same command resumes" in log(tmp_path / "a")
    newest = checkpoint.read(tmp_path / "a/checkpoints" / names(tmp_path / "a")[-1])
    assert newest.meta["exact"] is False
    assert newest.meta["iteration"] >= 6
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    assert run(tmp_path / "a", 1000, **given).status == "finished"
    assert "differ from the uninterrupted" in log(tmp_path / "a")
    # from the exact one before, it is as if nothing had happened
    run(tmp_path / "b", 1000, **given, resume="exact")
    resumed = next(line for line in log(tmp_path / "b").splitlines() if "resumed" in line)
    assert "differ from the uninterrupted" not in resumed
    assert f"removed {tmp_path / 'b/checkpoints' / newest.path.name}" in log(tmp_path / "b")
    run(tmp_path / "c", 1000, **given)
    assert hashes(tmp_path / "b") == hashes(tmp_path / "c")
    assert hashes(tmp_path / "a") != hashes(tmp_path / "c")


def test_two_processes_in_one_folder(tmp_path, capsys):
    """The second is refused with the pid of the first; the first ends by a signal, resumable."""
    command = ["-m", "quintet", "train", "ppo", "--env", "run_helpers:Trouble"]
    command += ["--env.kwargs", '{"kind": "slow", "after": 0}', "--total-steps", "100000"]
    command += ["--run-dir", str(tmp_path), "--env.num-streams", "4", "--unroll-steps", "16"]
    command += ["--report.interval-s", "0", "--runtime.compile", "off", "--eval.episodes", "0"]
    command += ["--env.num-processes", "1"]
    environment = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    with quick_helpers.begin(command, environment) as first:
        try:
            assert "Trouble" in first.stdout.readline()  # it has begun
            arguments = ["--env", "run_helpers:Trouble", "--run-dir", str(tmp_path)]
            assert cli.main(["train", "ppo", *arguments]) == 1
            assert f"in use by the process with pid {first.pid}" in capsys.readouterr().err
            waited = time.monotonic() + 60
            while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < waited:
                time.sleep(0.05)
            first.send_signal(signal.SIGTERM)
            rest = first.stdout.read()
        finally:
            first.kill()
    assert first.returncode == 143
    assert "the same command resumes there" in rest
    assert len(names(tmp_path)) == 1
    with run_lock(tmp_path):
        pass


def make_processes(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.AsyncVectorEnv([lambda: Trouble("slow", 0)] * num_envs)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_to_all_processes_ends_in_a_checkpoint(tmp_path, number):
    """Environments that are processes of their own go on until the run ends them."""
    # nohup's SIGHUP, which the run would honour, is not what is tested.
    code = f"import runpy, signal; signal.signal({number:d}, signal.SIG_DFL)\n"
    code += "runpy.run_module('quintet', run_name='__main__')"
    command = ["-c", code, "train", "ppo", "--run-dir", str(tmp_path)]
    command += ["--env", "test_launch:make_processes", "--total-steps", "100000"]
    command += ["--env.num-streams", "2", "--unroll-steps", "16", "--report.interval-s", "0"]
    command += ["--minibatch-steps", "none", "--runtime.compile", "off", "--eval.episodes", "0"]
    environment = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    with quick_helpers.begin(command, environment) as first:
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
    assert first.returncode == 128 + number
    assert "the same command resumes there" in said
    assert len(names(tmp_path)) == 1


# Faults


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("nan", EnvironmentFault, r"stream \d, step \d+ after .*: observation 'obs'\[1\] is nan"),
        ("nan_reward", EnvironmentFault, r"stream \d, step \d+ after .*: reward is nan"),
        ("shape", EnvironmentFault, r"stream \d, step \d of its episode.*gave shape \(5,\)"),
        ("raise", EnvironmentFault, r"stream \d, step \d of .*ValueError: the floor gave way"),
        ("huge", NonFiniteError, r"must be finite, got \w+ at update \d+; begin again"),
    ],
)
def test_an_environment_that_breaks_leaves_the_last_checkpoint(
    tmp_path, monkeypatch, kind, error, says
):
    given = {"env__kwargs": {"kind": kind}, "env": "run_helpers:Trouble"}
    given |= {"reward_normalizer": "none", "checkpoint__interval_iterations": 1}
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
    monkeypatch.setattr(sys.modules["run_helpers"], "Trouble", lambda kind: sound())
    assert run(tmp_path, 1000, **given).metrics["env_steps"] == 1000
    assert f"from {last}" in log(tmp_path)


def test_a_fault_is_one_message_and_status_1(tmp_path, capsys):
    arguments = ["train", "ppo", "--env", "run_helpers:Trouble", "--run-dir", str(tmp_path)]
    arguments += ["--env.kwargs", '{"kind": "nan"}', "--env.num-streams", "4"]
    arguments += ["--unroll-steps", "16", "--total-steps", "1000", "--eval.episodes", "0"]
    assert cli.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: observations and rewards must be finite; run_helpers:Trouble")
    assert "Traceback" not in err


def test_a_learning_rate_beyond_reason(tmp_path):
    with pytest.raises(NonFiniteError, match="there was no checkpoint yet"):
        run(tmp_path, 1000, learning_rate=1e30, minibatch_steps=16, num_epochs=3)
    assert checkpoint.read(tmp_path / "failed_batch").meta == {"iteration": 0, "env_steps": 0}
    with pytest.raises(
        NonFiniteError,
        match=r"(rho|value|logp_pi|loss/(policy|value)) must be finite, got",
    ):
        run(tmp_path / "b", 1000, learning_rate=1e30, num_epochs=3, check_numerics=True)


def damage(folder: Path) -> None:
    file = folder / "learner.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 255
    file.write_bytes(bytes(data))


def test_when_all_checkpoints_are_damaged_nothing_begins_anew(tmp_path):
    run(tmp_path, 400, checkpoint__interval_iterations=1)
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
    given = {"checkpoint__interval_iterations": 1, "checkpoint__keep": 1000, "report__sinks": ()}
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
