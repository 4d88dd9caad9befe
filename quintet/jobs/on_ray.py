"""The Ray cluster: its nodes, and an actor on each.  The only module that imports ray."""

import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, final

import ray
from ray._private import worker as driver
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from quintet.errors import ConfigError, WorkerFault
from quintet.system.printing import note

_ANSWER_S = 5.0
"""Seconds within which the address of a cluster must answer."""


class Machine(NamedTuple):
    """A node of the cluster: its id, its address and its numbers of cores and GPUs."""

    id: str
    address: str
    cores: int
    gpus: int = 0


@final
class Hosted:
    """An object of a class in a process of its own on a node, which is never restarted.  It answers
    one question at a time.
    """

    def __init__(self, machine: Machine, kind: type, cores: int, gpus: int = 0, threads: int = 4):
        """cores, gpus: numbers that it reserves in Ray, for which it waits.

        threads: for its methods; with 1 they run in the main thread, with more it can be told to
        stop while it answers.
        """
        self._actor = (
            ray.remote(kind)
            .options(
                num_cpus=cores,
                num_gpus=gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=threads,
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
            )
            .remote()
        )

    def ask(self, method: str, *given: Any) -> None:
        """Calls a method, whose result `answer` returns."""
        self._asked = self.tell(method, *given)

    def tell(self, method: str, *given: Any) -> Any:
        """Calls a method whose result nobody waits for."""
        return getattr(self._actor, method).remote(*given)

    def answer(self) -> Any:
        """The result of the method that was asked for last; None: not yet.  Raises WorkerFault if
        the process, or the method, has failed.
        """
        if not ray.wait([self._asked], timeout=0)[0]:
            return None
        try:
            return ray.get(self._asked)
        except RayError as error:
            raise WorkerFault(_last_line(error)) from error

    def kill(self) -> None:
        """Ends the process at once."""
        with suppress(RayError, ValueError):
            ray.kill(self._actor)


def connect(address: str) -> bool:
    """Connects to a running cluster; False if this process is connected already.  Raises
    ConfigError if this machine is part of none.
    """
    if ray.is_initialized():
        return False
    before = signal.getsignal(signal.SIGTERM)
    driver.print_to_stdstream = _tell  # Ray calls it even where nothing is to be logged
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _ANSWER_S).close()
        ray.init(address, log_to_driver=False, logging_level="error", configure_logging=False)
    except (RayError, OSError, RuntimeError, ValueError, OverflowError) as error:
        raise ConfigError(
            "cluster.address must name a running Ray cluster that this machine is part of, got "
            f"{address} ({_last_line(error)}): start one by `ray start --head`, or join one by "
            "`ray start --address=HOST:PORT`"
        ) from error
    finally:  # Ray ends the process where a run stops with a checkpoint
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    return True


def _tell(message: Mapping[str, Any], *_: object, **__: object) -> None:
    """Prints the first line of a message of the cluster, which Ray would print among results."""
    for text in message["lines"]:
        note(f"ray: {text.partition(chr(10))[0]}")


def here() -> str:
    """This machine's address in the cluster."""
    return str(ray.util.get_node_ip_address())


def machines() -> list[Machine]:
    """The nodes that are alive and give cores."""
    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], cores, int(gives.get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"] and (cores := int((gives := node["Resources"]).get("CPU", 0)))
    ]


def disconnect() -> None:
    ray.shutdown()


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
