"""PyTorch's settings of a process: what a GPU is asked for, and that all is put back.

No GPU is needed: the settings are the process's own, whatever it computes on.
"""

import multiprocessing
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import quick_helpers
import torch
from torch.utils import deterministic
from troubles_helpers import SMALL, Drifting

import quintet
from quintet.errors import ConfigError
from quintet.models.precision import autocast
from quintet.options.runtime import RuntimeConfig
from quintet.run import learners
from quintet.runtime.torch_settings import GpuMath, OwnTorch, inexact_told, torch_settings

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
EXACT, FREE = (RuntimeConfig(kind=kind).gpu_math for kind in ("lockstep", "async"))


def settings() -> dict[str, Any]:
    cudnn: Any = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "cudnn": (cudnn.deterministic, cudnn.benchmark),
        "tf32": (cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": deterministic.fill_uninitialized_memory,
        "workspace": os.environ.get(WORKSPACE),
    }


def test_weights_in_a_callers_autocast_are_the_newest() -> None:
    """A cache of casts in the caller's block would keep the first ones."""
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16), OwnTorch():
        with autocast("bf16", torch.device("cpu")):
            assert layer(x).abs().max() > 0
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
        with autocast("bf16", torch.device("cpu")):
            assert layer(x).abs().max() == 0


def computes_in_a_fork(told: Any) -> None:
    torch.set_num_threads(before := 3)
    with OwnTorch(2):
        told.put(
            (torch.get_num_threads(), float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0]))
        )
    told.put(torch.get_num_threads() == before)
    with torch_settings(1, "cpu", FREE):
        pass
    with pytest.raises(ConfigError, match=r"threads must be 1 in a fork .*got 2.*threads 1"):
        torch_settings(2, "cpu", FREE).__enter__()
    told.put("done")


def test_a_fork_of_a_process_that_has_computed_in_threads_computes_in_one() -> None:
    """OpenMP's threads do not come along, and the fork would wait for them without end."""
    with OwnTorch(2):
        torch.ones(512, 512) @ torch.ones(512, 512)
    forking = multiprocessing.get_context("fork")
    told = forking.SimpleQueue()
    child = forking.Process(target=computes_in_a_fork, args=(told,))
    child.start()
    child.join(30.0)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0, "its error is above"  # what it has not put would be waited for
    assert [told.get() for _ in range(3)] == [(1, 512.0), True, "done"]


def test_an_exact_run_on_a_gpu_asks_for_deterministic_algorithms(monkeypatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    with torch_settings(3, "cuda:0", EXACT):
        assert settings() == {
            "threads": 3,
            "cudnn": (True, False),
            "tf32": (False, False),
            "algorithms": True,
            "warn_only": True,
            "fill": False,
            "workspace": ":4096:8",
        }
    assert settings() == before
    with torch_settings(3, "cuda", FREE):
        assert settings() == before | {"threads": 3}  # as PyTorch is by itself
    assert settings() == before


def test_on_the_cpu_only_the_threads_change_and_what_the_user_has_set_stays(monkeypatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    torch.use_deterministic_algorithms(True)
    try:
        before = settings()
        with torch_settings(3, "cpu", EXACT):
            assert settings() == before | {"threads": 3}
        with torch_settings(3, "cuda", EXACT):
            assert settings()["workspace"] == ":16:8"
        assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)


def put_twice(said: list[str]) -> None:
    with inexact_told(said.append), torch_settings(1, "cuda", EXACT):
        for _ in range(3):
            torch.zeros(3).put_(torch.tensor([1]), torch.tensor([2.0]))
        torch.zeros(3).put_(torch.tensor([2]), torch.tensor([2.0]))
        warnings.warn("something else", UserWarning, stacklevel=1)


def test_what_is_not_deterministic_is_said_once(monkeypatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    for _ in range(2):  # in every run of a process
        said: list[str] = []
        with pytest.warns(UserWarning, match="something else") as others:
            put_twice(said)
        assert len(said) == 1
        assert said[0].startswith("not exact on this GPU: PyTorch has no deterministic put_, so")
        assert len(others) == 1


@pytest.mark.parametrize("kind", ["serial", "async"])
def test_options_decide_how_a_gpu_computes(kind: Any) -> None:
    before = settings()
    wanted = RuntimeConfig(kind=kind, deterministic="on", tf32="on")
    assert wanted.gpu_math == GpuMath(deterministic=True, tf32=True)
    with torch_settings(1, "cuda", wanted.gpu_math):
        assert settings()["tf32"] == (True, True)
        assert settings()["algorithms"]
    assert settings() == before
    wanted = RuntimeConfig(kind=kind, deterministic="off", tf32="off")
    assert wanted.gpu_math == GpuMath(deterministic=False, tf32=False)
    with torch_settings(1, "cuda", wanted.gpu_math):
        assert settings()["tf32"] == (False, False)
        assert not settings()["algorithms"]
    assert settings() == before


NEWER_NAMES = """
import torch
from quintet.runtime.torch_settings import GpuMath, torch_settings
convolutions, products = torch.backends.cudnn.conv, torch.backends.cuda.matmul
convolutions.fp32_precision, products.fp32_precision = "ieee", "tf32"
for device in ("cpu", "cuda"):
    with torch_settings(1, device, GpuMath(False, False)):
        if device == "cuda":
            assert products.fp32_precision != "tf32"
    assert (convolutions.fp32_precision, products.fp32_precision) == ("ieee", "tf32")
"""


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="of a newer PyTorch"
)
def test_tf32_may_be_set_by_pytorchs_newer_names() -> None:
    with quick_helpers.begin(["-c", NEWER_NAMES]) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said


def test_only_async_gives_exactness_up() -> None:
    exact = [RuntimeConfig(kind=kind).exact for kind in ("serial", "lockstep", "async")]
    assert exact == [True, True, False]


def test_a_run_asks_before_its_learner_is_made_and_puts_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    make_learner = learners.make_learner

    def make(*args: Any, **named: Any) -> Any:
        asked.append(settings())
        return make_learner(*args, **named)

    monkeypatch.setattr(learners, "make_learner", make)
    before = settings()
    threads = torch.get_num_threads() + 1
    quintet.train("ppo", Drifting, 64, 7, tmp_path, SMALL | {"runtime.threads": threads})
    assert asked == [before | {"threads": threads}]
    assert settings() == before


FREED = """
import resource, sys, torch
from quintet.runtime.torch_settings import configure_torch

if sys.argv[1] == "configured":
    configure_torch(1, "cpu")
for round in range(12):
    if round == 6:
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(9_000_000) for _ in range(8)]
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries stay as they are")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    faults = {}
    for mode in ("configured", "as it is"):
        command = [sys.executable, "-c", FREED, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        faults[mode] = int(done.stdout)
    assert faults["configured"] < 1_000
    assert faults["as it is"] > 100_000  # else the test shows nothing
