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
import torch
from torch.utils import deterministic
from troubles import SMALL, Drifting

import quintet
from quintet.config.runtime import RuntimeConfig
from quintet.errors import ConfigError
from quintet.run import learners
from quintet.runtime.torch_settings import OwnTorch, inexact_told, torch_settings

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def settings() -> dict[str, Any]:
    cudnn: Any = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "cudnn": (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32),
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": deterministic.fill_uninitialized_memory,
        "workspace": os.environ.get(WORKSPACE),
    }


def computes_in_a_fork(told: Any) -> None:
    before = torch.get_num_threads()
    with OwnTorch(2):
        told.put(
            (torch.get_num_threads(), float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0]))
        )
    told.put(torch.get_num_threads() == before)
    with torch_settings(1, "cpu", exact=False):
        pass
    with pytest.raises(ConfigError, match=r"threads must be 1 in a fork .*got 2.*threads 1"):
        torch_settings(2, "cpu", exact=False).__enter__()
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
    with torch_settings(3, "cuda:0", exact=True):
        assert settings() == {
            "threads": 3,
            "cudnn": (True, False, False),
            "algorithms": True,
            "warn_only": True,
            "fill": False,
            "workspace": ":4096:8",
        }
    assert settings() == before
    with torch_settings(3, "cuda", exact=False):
        assert not settings()["algorithms"]
        assert settings()["workspace"] is None
        assert settings()["cudnn"][0]
    assert settings() == before


def test_on_the_cpu_only_the_threads_change_and_what_the_user_has_set_stays(monkeypatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    torch.use_deterministic_algorithms(True)
    try:
        before = settings()
        with torch_settings(3, "cpu", exact=True):
            assert settings() == before | {"threads": 3}
        with torch_settings(3, "cuda", exact=True):
            assert settings()["workspace"] == ":16:8"
        assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)


def put_twice(said: list[str]) -> None:
    with inexact_told(said.append), torch_settings(1, "cuda", exact=True):
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
