"""Too little memory is said in one sentence."""

import errno
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quintet.errors import ConfigError, QuintetError
from quintet.run.launch import run
from quintet.system import memory
from quintet.system.memory import LEAST_BYTES, check_address_space, limit_told, memory_fault

GIB = 2**30


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    given = SimpleNamespace(
        RLIMIT_AS=resource.RLIMIT_AS,
        RLIM_INFINITY=resource.RLIM_INFINITY,
        getrlimit=lambda _: (most, most),
    )
    monkeypatch.setattr(memory, "resource", given)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("std::bad_alloc"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory:\nyou tried to"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_what_stands_for_want_of_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 2 * GIB)
    text = str(memory_fault(error))
    assert text.startswith("memory ran out (")
    assert "\n" not in text
    assert "; ulimit -v leaves each process 2.0 GiB); make room, lower env.num_str" in text


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.18 GiB",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_what_stands_for_want_of_a_gpus_memory(said: str) -> None:
    text = str(memory_fault(torch.OutOfMemoryError(f"{said}\nand more")))
    assert text.startswith(f"the GPU's memory ran out (OutOfMemoryError: {said} and more); ")
    assert "lower env.num_streams, the rows of a minibatch" in text


def test_other_errors_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_fault(RuntimeError("shapes don't match")) is None
    assert memory_fault(OSError(errno.ENOSPC, "No space left")) is None
    limited(monkeypatch, resource.RLIM_INFINITY)
    assert limit_told() == ""
    check_address_space()


def test_the_least_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, LEAST_BYTES)
    check_address_space()
    limited(monkeypatch, LEAST_BYTES - 1)
    with pytest.raises(ConfigError):
        check_address_space()


def test_a_run_that_finds_no_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("quintet.run.launch._run", fails)
    loaded = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(address=None)))
    with pytest.raises(QuintetError, match="memory ran out") as caught:
        run(loaded)  # type: ignore[arg-type]
    assert "Traceback" in caught.value.detail


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("kind", "mib"),
    [
        ("serial", 600),
        ("serial", 1024),
        pytest.param("lockstep", 1024, marks=pytest.mark.slow),
        pytest.param("async", 1024, marks=pytest.mark.slow),
    ],
)
def test_a_small_address_space_is_refused_before_pytorch_ends_the_process(
    kind: str, mib: int, tmp_path: Path
) -> None:
    ended = limited_run(tmp_path, mib, "--runtime.kind", kind)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: PyTorch must have an address space of at least 1.5 GiB")
    assert ended.stderr.count("\n") == 1


def limited_run(folder: Path, mib: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintet", "train", "ppo", "--env", "CartPole-v1"]
    command += ["--env.backend", "gymnasium", "--run-dir", str(folder), *options]
    return subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)),
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("kind", ["serial", "lockstep", "async"])
def test_memory_that_runs_out_later_is_named(kind: str, tmp_path: Path) -> None:
    more = ["--env.num-streams", "4000", "--unroll-steps", "4000", "--total-steps", "32000000"]
    ended = limited_run(tmp_path, 1600, "--runtime.kind", kind, *more)
    assert ended.returncode in (1, 2)
    assert ended.stderr.count("\n") == 1
    assert "memory" in ended.stderr
    assert "GiB" in ended.stderr or "bytes" in ended.stderr
