"""The barrier between processes, and weights that another process writes while they are read."""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from quintet.errors import ConfigError
from quintet.runtime.processes import fence as fences
from quintet.runtime.processes import params
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.fence import _MEMBARRIER, fence, fence_of, membarrier
from quintet.runtime.processes.params import Board, board_specs
from quintet.types import Publication

NUMBER = _MEMBARRIER.get(platform.machine(), -1)
linux = pytest.mark.skipif(sys.platform != "linux" or NUMBER < 0, reason="membarrier is Linux's")

READER = """
import json, sys, time
import torch
sys.path.insert(0, {here!r})
from quintet.runtime.processes.params import Board
from test_fence import publication, shared, use
use({kind!r})
arena = shared(int(sys.argv[1]))
board = Board(arena, 0)
found = dict(reads=0, overtaken=0, torn=0, backwards=0)
last, end = -1, time.monotonic() + 30
print("ready", flush=True)
while (found["overtaken"] < 5 or found["reads"] < 50) and time.monotonic() < end:
    if found["torn"]:
        break
    calls = []
    def load(given):
        first, second = given.tensors["w"].chunk(2)
        copied = first.clone()
        if not calls and found["reads"] % 4 == 0:
            time.sleep(0.003)  # long enough for three publications
        calls.append((given.version, torch.cat([copied, second])))
    version = board.read(load)
    found["reads"] += 1
    found["overtaken"] += len(calls) - 1
    found["torn"] += not bool((calls[-1][1] == version).all())
    found["backwards"] += version < last
    last = version
print(json.dumps(found), flush=True)
"""


def publication(version: int) -> Publication:
    return Publication(version, {"w": torch.full((100_000,), float(version))})


def shared(file: int) -> Arena:
    return Arena(board_specs(0, publication(0)), file)


def use(kind: str) -> None:
    """Has boards use one of the fences."""
    if kind == "membarrier":
        params.fence = lambda: membarrier(NUMBER)  # type: ignore[assignment]


@linux
@pytest.mark.parametrize("kind", ["own", pytest.param("membarrier", marks=pytest.mark.slow)])
def test_a_reader_never_takes_a_torn_publication(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process writes as fast as it can."""
    monkeypatch.setattr(params, "fence", fence)
    use(kind)
    arena = Arena.create(board_specs(0, publication(0)))
    board = Board(arena, 0)
    board.write(publication(0))
    reader = subprocess.Popen(
        [sys.executable, "-c", READER.format(here=str(Path(__file__).parent), kind=kind),
         str(arena.file)],
        pass_fds=[arena.file], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    version = 0
    while reader.poll() is None:
        version += 1
        board.write(publication(version))
        time.sleep(0)
    found = json.loads(reader.stdout.read())
    arena.close()
    assert reader.returncode == 0
    assert found["torn"] == found["backwards"] == 0
    assert found["overtaken"] > 0  # else there was nothing to see


@linux
def test_membarrier_is_taken_where_the_processor_does_not_keep_to_the_order() -> None:
    assert fence_of("x86_64", "linux") is fences._locked
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fences, "membarrier", lambda number: asked.append(number) or print)
        assert fence_of("aarch64", "linux") is print
    assert asked == [283]
    membarrier(NUMBER)()


@linux
def test_without_a_barrier_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"membarrier\(2\) returned ENOSYS\); use --runtime.kind"):
        membarrier(1_000_000)
    with pytest.raises(ConfigError, match=r"got none .* \(armv7l: none is known\); use"):
        fence_of("armv7l", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "alpha")
    fence.cache_clear()
    arena = Arena.create(board_specs(0, publication(0)))
    with pytest.raises(ConfigError, match="must have a memory barrier between processes"):
        Board(arena, 0)
    arena.close()
    monkeypatch.undo()
    fence.cache_clear()
