"""Slots are conserved: whatever became of its rows, each is free once again, and once only."""

import time
from pathlib import Path
from typing import Any

import pytest
from processes_helpers import processes_of

import quintet
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.lockstep import LockstepSampling
from quintet.runtime.processes.workers import Workers

SLOTS = 8
"""Of each group, more than a run needs: one that lost some would go on, and be found."""

SMALL: dict[str, Any] = {
    "env.num_streams": 8,
    "env.streams_per_group": 2,
    "unroll_steps": 8,
    "minibatch_steps": 24,
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "report.progress": False,
    "runtime.kind": "async",
    "runtime.num_workers": 2,
    "runtime.slots": SLOTS,
}
POPULATION = {
    "population.size": 3,
    "population.start_env_steps": 200,
    "population.period_env_steps": 100,
    "population.min_episodes": 2,
}
LOCKSTEP = {"runtime.kind": "lockstep", "runtime.lag": 1, "runtime.slots": None}


def free_slots(workers: Workers) -> dict[int, list[int]]:
    """By group."""
    return {group: sorted(free) for group, free in workers.grants.free.items()}


@pytest.mark.parametrize(
    ("options", "slots", "kills", "drops"),
    [
        pytest.param(
            {"runtime.max_policy_lag": 3, "runtime.prefetch_batches": 4},
            SLOTS,
            False,
            True,
            marks=pytest.mark.slow,
        ),
        (POPULATION, SLOTS, True, True),
        pytest.param(POPULATION | LOCKSTEP, 2, False, True, marks=pytest.mark.slow),
        pytest.param(POPULATION, SLOTS, False, True, marks=pytest.mark.slow),
        pytest.param(
            {"runtime.max_policy_lag": 10**6}, SLOTS, False, False, marks=pytest.mark.slow
        ),
    ],
    ids=["rows too old", "population, killed worker", "lockstep", "population", "one policy"],
)
def test_every_slot_is_free_once_when_a_run_has_ended(
    options: dict[str, Any],
    slots: int,
    kills: bool,
    drops: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[int, list[int]] = {}
    killed: list[int] = []

    def report(metrics: dict[str, float]) -> None:
        if kills and not killed and metrics["env_steps"] > 800:
            worker = processes_of()[0]
            killed.append(worker.pid)
            worker.kill()

    every = {group: list(range(slots)) for group in range(4)}
    end_async, end_lockstep = AsyncSampling.close, LockstepSampling.close

    def ends_async(self: Any) -> None:
        with self.handling:
            self.env_steps_wanted = -(10**9)  # nothing is granted from now on
            self.delivery.release()
        deadline = time.monotonic() + 20
        while found != every and time.monotonic() < deadline:  # what was granted comes in yet
            with self.changed:
                self.delivery.clear()
                self.changed.notify_all()
            found.update(free_slots(self.workers))
            time.sleep(0.01)
        end_async(self)

    def ends_lockstep(self: LockstepSampling) -> None:
        assert not self.round_begun
        self.delivery.release()
        self.delivery.clear()
        found.update(free_slots(self.workers))
        end_lockstep(self)

    monkeypatch.setattr(AsyncSampling, "close", ends_async)
    monkeypatch.setattr(LockstepSampling, "close", ends_lockstep)
    result = quintet.train(
        "appo",
        "CartPole-v1",
        total_steps=1_600,
        seed=3,
        run_dir=tmp_path / "run",
        config=SMALL | options,
        on_report=report,
    )
    assert result.status == "finished"
    assert bool(killed) is kills
    assert not drops or result.metrics["data/discarded_env_steps"] > 0
    assert found == every
