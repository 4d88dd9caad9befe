"""Other systems, as far as a test can pretend to be on one: macOS has no memfd, no processor masks
and no ``/proc``; Windows is refused.  docs/install.md says what was really run where.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import quintet
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.options.machine import _resolve_device
from quintet.options.runtime import RuntimeConfig
from quintet.system import files

HERE = Path(__file__).parent

# Windows


@pytest.mark.parametrize("words", [["train", "ppo", "--env", "CartPole-v1"], ["--help"], []])
def test_windows_is_refused_in_a_sentence(words, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: quintet must run on Linux or macOS, got Windows: run it in WSL 2, "
        "which is a Linux\n"
    )


def test_windows_is_refused_in_python_too(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("train", "load", "evaluate"):
        monkeypatch.delitem(vars(quintet), name, raising=False)
        with pytest.raises(ConfigError, match="got Windows: run it in WSL 2"):
            getattr(quintet, name)


# Devices


def device_of(device: str, num_learners: int = 1) -> str:
    runtime = RuntimeConfig(device=device, num_learners=num_learners)
    return _resolve_device(runtime, pictures=False)


def test_apples_gpus_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"must compute in float64, .* got mps, which can't"):
        device_of("mps")


def test_intels_gpus_are_taken_where_pytorch_sees_them(monkeypatch) -> None:
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(ConfigError, match="xpu must have 1 Intel GPU that PyTorch sees, got 0"):
        device_of("xpu")
    there = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setattr(torch, "xpu", there)
    assert [device_of(each) for each in ("xpu", "xpu:1")] == ["xpu", "xpu:1"]
    with pytest.raises(ConfigError, match="xpu:2 must have 3 Intel GPUs that PyTorch sees, got 2"):
        device_of("xpu:2")
    with pytest.raises(ConfigError, match=r"num_learners=2 must have runtime.device=cuda or cpu"):
        device_of("xpu", 2)


# A disk without Linux's calls


def test_room_is_kept_on_disk_without_linux(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(files, "_BLOCK_BYTES", 3)
    place = tmp_path / "ring"
    place.write_bytes(b"kept")
    handle = os.open(place, os.O_RDWR)
    files.reserve(handle, 12)
    files.reserve(handle, 5)  # never shrinks
    os.close(handle)
    assert place.read_bytes() == b"kept" + bytes(8)


# macOS

SMALL = "--env.num-streams 4 --eval.episodes 2 --report.progress false --checkpoint.max-cut-frac 1"
WORKERS = "--runtime.num-workers 2 --env.streams-per-group 2"


def on_macos(folder: Path, *lines: str) -> None:
    """Runs commands one after the other in one process, and in what it starts."""
    paths = [str(HERE / "systems"), os.environ.get("PYTHONPATH", "")]
    code = "import sys; from quintet.commands.cli import main; assert sys.platform == 'darwin'\n"
    code += "".join(f"assert main({line.split()}) == 0\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_macos_trains_with_a_replay_on_disk(tmp_path: Path) -> None:
    on_macos(
        tmp_path,
        f"train ddpg --env Pendulum-v1 --preset none --total-steps 400 --run-dir ddpg {SMALL}",
        "eval ddpg --episodes 2",
        "plot ddpg --out curve.png",
    )
    assert (tmp_path / "ddpg" / "policy" / "policy.safetensors").is_file()
    assert (tmp_path / "curve.png").is_file()


@pytest.mark.slow
def test_macos_trains_with_processes_of_its_own(tmp_path: Path) -> None:
    """They are started afresh each, since nothing forks there."""
    to = "--env CartPole-v1 --total-steps 640"
    on_macos(
        tmp_path,
        f"train ppo {to} --run-dir a --runtime.kind lockstep {WORKERS} {SMALL}",
        f"train impala {to} --run-dir b --runtime.inference server {WORKERS} {SMALL}",
        f"train ppo {to} --run-dir c --runtime.num-learners 2 {SMALL}",
        f"train ppo {to} --run-dir d --seeds 1,2 {SMALL}",
    )
