"""Sampler processes, on this machine or elsewhere, as the kinds of sampling use them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from quintet.runtime.processes.grants import Event, Grants, Sampler
from quintet.runtime.processes.messages import WorkerSpec
from quintet.runtime.processes.process import WaitNotice
from quintet.types import Publication


class Pool(Protocol):
    """The workers of a run: `Workers` of this machine, or `Nodes` of a cluster."""

    spec: WorkerSpec
    samplers: list[Sampler]
    grants: Grants
    states: dict[int, Sequence[bytes]]
    say: Callable[[str], None]

    def start(self) -> None: ...

    def replace(self, index: int) -> None: ...

    def publish(self, publication: Publication) -> None: ...

    def restart(self, index: int, iteration: int) -> None: ...

    def grant(
        self, index: int, versions: tuple[int, ...] | None, rows: int, asks: bool = False
    ) -> bool: ...

    def extend(self, index: int, rows: int) -> None: ...

    def events(self, timeout_s: float) -> list[Event]: ...

    def wait_notice(self) -> WaitNotice: ...

    def report(self) -> dict[str, float]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...
