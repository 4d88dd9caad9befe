"""Use of the machine by a run and by other processes."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import final

import psutil

from quintet.observe.growth import Held
from quintet.system.cpus import usable_cores

_LOOK_AGAIN_S = 10.0
"""Seconds between two searches for child processes, which take milliseconds on busy machines."""


@final
class MachineUse:
    """Use of memory and cores, measured from one report to the next."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._children: dict[psutil.Process, psutil.Process] = {}
        self._looked_at = self._look_at = float("-inf")
        self._waits_ns: dict[int, int] = {}  # nanoseconds by thread
        self._waits_read_at = time.perf_counter()
        self.report()  # the use of cores counts from here on
        self._look_at = float("-inf")  # the next report finds the processes that the run begins

    def report(self) -> dict[str, float]:
        """``process/resident_bytes`` of this process, ``machine/memory_bytes`` of private memory of
        it and its children (Linux; see `held`), ``machine/cores_used`` by them,
        ``machine/cores_waited_for`` by their threads that had no core (Linux), and
        ``machine/cores_used_by_others`` on the cores that it may use.

        The last one is absent in containers with a CPU quota, which share their cores.
        """
        by_core = psutil.cpu_percent(percpu=True)
        linux = hasattr(os, "sched_getaffinity")
        usable = os.sched_getaffinity(0) if linux else set(range(len(by_core)))
        looked_at = self._looked_at
        begun = self._look_for_children()
        known = [process for child, process in self._children.items() if child not in begun]
        used = sum(map(_percent, (self._process, *known))) / 100
        used += sum(_first_share(child, self._looked_at - looked_at) for child in begun)
        memory = self.memory_by_process()
        report = {
            "process/resident_bytes": float(self._process.memory_info().rss),
            **({"machine/memory_bytes": sum(x.bytes for x in memory.values())} if memory else {}),
            "machine/cores_used": used,
            **self._waited(),
        }
        if usable_cores() == len(usable):
            in_use = sum(percent for core, percent in enumerate(by_core) if core in usable) / 100
            # The clocks are read one after the other, so the difference may be negative.
            report["machine/cores_used_by_others"] = max(0.0, in_use - used)
        return report

    def memory_by_process(self) -> dict[int, Held]:
        """Private memory of this process and its children by pid, without shared memory and mapped
        files (as replay).  Empty if the system does not report it.
        """
        found = {}
        for process in (self._process, *self._children):
            with suppress(psutil.Error, AttributeError):
                info = process.memory_info()
                name = "this process, the learner's," if process == self._process else ""
                own = float(max(0, info.rss - info.shared))
                found[process.pid] = Held(name or process.name(), own)
        return found

    def _waited(self) -> dict[str, float]:
        """Number of cores that threads waited for since the last report; empty if the system does
        not count this.
        """
        waits = _waits_ns(process.pid for process in (self._process, *self._children))
        before, begin = self._waits_ns, self._waits_read_at
        self._waits_ns, self._waits_read_at = waits, time.perf_counter()
        if not waits:
            return {}
        # A thread may have waited long before it was first seen.
        grown = sum(ns - before[thread] for thread, ns in waits.items() if thread in before)
        return {"machine/cores_waited_for": grown / 1e9 / (self._waits_read_at - begin)}

    def _look_for_children(self) -> set[psutil.Process]:
        """Finds new child processes, at most every ten seconds."""
        now = time.monotonic()
        if now < self._look_at:
            return set()
        self._looked_at, self._look_at = now, now + _LOOK_AGAIN_S
        found = self._process.children(recursive=True)
        before = self._children
        # The old object of a process keeps the time of its last measurement.
        self._children = {child: before.get(child, child) for child in found}
        return self._children.keys() - before.keys()


def _waits_ns(processes: Iterable[int]) -> dict[int, int]:
    """Nanoseconds for which each thread of these processes waited for a core, by its id."""
    found: dict[int, int] = {}
    for process in processes:
        with suppress(OSError, ValueError, IndexError):  # ended, or no such account
            for thread in os.listdir(folder := f"/proc/{process}/task"):
                with open(f"{folder}/{thread}/schedstat") as file:
                    found[int(thread)] = int(file.read().split()[1])
    return found


def _percent(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent())
    except psutil.Error:  # the process has ended
        return 0.0


def _first_share(process: psutil.Process, passed_s: float) -> float:
    """Mean number of cores that a process kept busy since it began, over `passed_s`."""
    try:
        process.cpu_percent()  # the count begins here
        times = process.cpu_times()
        return float(times.user + times.system) / passed_s
    except psutil.Error:  # the process has ended
        return 0.0
