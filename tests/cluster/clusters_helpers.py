"""A Ray cluster of several nodes on this machine, and their processes, for tests."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster


@contextmanager
def cluster_of(nodes: int, **of_node: Any) -> Iterator[Cluster]:
    """A cluster of this many nodes of one core each; the first is the head."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    cluster = Cluster()
    try:
        for _ in range(nodes):
            cluster.add_node(**{"num_cpus": 1, "include_dashboard": False} | of_node)
        # Ray's handler would never end in a fork of this process, as of AsyncVectorEnv.
        signal.signal(signal.SIGTERM, before)
        yield cluster
    finally:
        cluster.shutdown()


def actors(kind: str = "_Served") -> list[psutil.Process]:
    """The processes of nodes that take part in runs, in clusters that this process has begun; those
    of the kind `Host` have one run each.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith(f"ray::{kind}"):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def workers_of(actor: psutil.Process) -> list[psutil.Process]:
    """The sampler processes of a node."""
    found = []
    for child in actor.children(recursive=True):
        with suppress(psutil.Error):
            if child.name().split()[:1] == ["worker"]:
                found.append(child)
    return found


def nothing_is_left(within_s: float = 10.0) -> bool:
    """Whether all actors have ended."""
    deadline = time.monotonic() + within_s
    while actors("_Served") + actors("Host"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def stop(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which Ray is not installed."""
    ours = ("jobs.on_ray", "jobs.roster", "jobs.cluster_place", "cluster.peer", "cluster.nodes")
    for name in ours:
        monkeypatch.delitem(sys.modules, f"quintet.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
