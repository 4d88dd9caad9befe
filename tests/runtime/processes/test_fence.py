"""The barrier between processes, and weights that another process writes while they are read."""

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable

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


def publication(version: int) -> Publication:
    return Publication(version, {"w": torch.full((100_000,), float(version))})


def use(kind: str) -> None:
    """Has boards use one of the fences."""
    if kind == "membarrier":
        params.fence = lambda: membarrier(NUMBER)  # type: ignore[assignment]


def read(arena: Arena, ready: Callable[[], object]) -> dict[str, int]:
    """Reads until a few publications were overtaken; what was found."""
    board, found = Board(arena, 0), {"reads": 0, "overtaken": 0, "torn": 0, "backwards": 0}
    last, end = -1, time.monotonic() + 30
    ready()
    while (found["overtaken"] < 5 or found["reads"] < 50) and time.monotonic() < end:
        calls: list[tuple[int, torch.Tensor]] = []

        def load(given: Publication, calls: list[tuple[int, torch.Tensor]] = calls) -> None:
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
        if found["torn"]:
            break
    return found


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
    here, there = socket.socketpair()
    if not (reader := os.fork()):
        try:
            there.send(json.dumps(read(arena, lambda: there.send(b"ready\n"))).encode())
        finally:
            os._exit(0)
    assert here.recv(6) == b"ready\n"
    there.close()
    version = 0
    while not os.waitpid(reader, os.WNOHANG)[0]:
        version += 1
        board.write(publication(version))
        time.sleep(0)
    found = json.loads(here.recv(1_000))
    here.close()
    arena.close()
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
    with pytest.raises(ConfigError, match=r"this machine lacks \(armv7l: none is known\); use"):
        fence_of("armv7l", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "alpha")
    fence.cache_clear()
    arena = Arena.create(board_specs(0, publication(0)))
    with pytest.raises(ConfigError, match="need a memory barrier between processes"):
        Board(arena, 0)
    arena.close()
    monkeypatch.undo()
    fence.cache_clear()
