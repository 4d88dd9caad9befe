"""Sampler processes, on this machine or elsewhere, as the kinds of sampling use them."""

from collections.abc import Callable
from typing import Protocol

from quintet.envs.own_state import States
from quintet.runtime.delivery import Delivery
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


class PoolSampling:
    """The part of a `Sampling` that is the same for all kinds with a pool of workers."""

    workers: Pool
    grants: Grants
    delivery: Delivery

    def publish(self, publication: Publication) -> None:
        """Publishes the weights with which all later grants act."""
        self.delivery.publish(publication)
        self.workers.publish(publication)

    def save_environments(self) -> States:
        """The state that environments offer, as of the last unrolls that were received."""
        return dict(self.grants.states)

    def load_environments(self, states: States) -> None:
        """Gives processes the state of their environments when they begin."""
        self.grants.states.update(states)

    def set_task(self, text: bytes) -> None:
        """Tells environments something with the next grants, see `quintet.envs.tasks`."""
        self.grants.task = text

    def kill(self) -> None:
        """Ends the workers at once, before `close`."""
        self.workers.kill()

    def close(self) -> None:
        self.workers.close()
        self.delivery.clear()
