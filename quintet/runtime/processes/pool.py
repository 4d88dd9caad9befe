"""Sampler processes, on this machine or elsewhere, as the kinds of sampling use them."""

from collections.abc import Callable
from typing import Protocol

from quintet.runtime.processes.grants import Event, Grants
from quintet.runtime.processes.messages import WorkerSpec
from quintet.runtime.processes.process import WaitNotice
from quintet.types import Publication


class Pool(Protocol):
    """The workers of a run: `Workers` of this machine, or `Nodes` of a cluster."""

    spec: WorkerSpec
    grants: Grants
    say: Callable[[str], None]

    def start(self) -> None: ...

    def replace(self, index: int) -> None: ...

    def publish(self, publication: Publication) -> None: ...

    def events(self, timeout_s: float) -> list[Event]: ...

    def wait_notice(self) -> WaitNotice: ...

    def report(self) -> dict[str, float]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...
