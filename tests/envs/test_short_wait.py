"""The wait for a short step ends about when the step does, and no long one is waited for."""

from typing import Any

import numpy as np
import pytest

from quintet.envs import envpool, short_wait
from quintet.envs.public import make_vector_env
from quintet.envs.short_wait import ShortWait
from quintet.envs.vector import StepRow

pytestmark = pytest.mark.skipif(
    not short_wait.SLEEPS_ARE_COUNTED, reason="on this system nothing is waited for awake"
)

READY_S, SLEEP_S = 20e-6, 60e-6


class Clock:
    """Moves a microsecond whenever it is read; counts the sleeps that a step makes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept = 0

    def perf_counter(self) -> float:
        self.now_s += 1e-6
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(short_wait, "time", clock)
    monkeypatch.setattr(short_wait, "_times_slept", lambda: clock.slept)
    # On a busy core each call would take milliseconds.
    monkeypatch.setattr(short_wait.os, "sched_yield", lambda: None)
    return clock


def run(wait: ShortWait, clock: Clock, step_s: float, steps: int = 3000) -> tuple[float, float]:
    """Seconds a step from its begin until its result is here, and those awake of it, of the last
    hundred.
    """
    took, awake = [], []
    for _ in range(steps):
        begin = clock.now_s
        wait.begin()
        wait.stay_awake()
        awake.append(clock.now_s - begin)
        left = begin + step_s - clock.now_s
        clock.slept += left > 0
        clock.now_s += READY_S + (left + SLEEP_S if left > 0 else 0.0)
        wait.collected()
        took.append(clock.now_s - begin)
    return sum(took[-100:]) / 100, sum(awake[-100:]) / 100


@pytest.mark.parametrize("step_s", [20e-6, 80e-6, 150e-6])
def test_short_steps_are_met_awake(clock: Clock, step_s: float) -> None:
    mean_s, _ = run(ShortWait(), clock, step_s)
    assert mean_s < step_s + READY_S + SLEEP_S / 2


def test_it_follows_a_step_that_grows_and_shrinks(clock: Clock) -> None:
    wait = ShortWait()
    for step_s in (40e-6, 120e-6, 60e-6):
        mean_s, _ = run(wait, clock, step_s)
        assert mean_s < step_s + READY_S + SLEEP_S / 2


@pytest.mark.parametrize("step_s", [250e-6, 500e-6, 2e-3, 0.1])
def test_long_steps_are_slept_through(clock: Clock, step_s: float) -> None:
    _, awake_s = run(ShortWait(), clock, step_s)
    assert awake_s < 5e-6


def test_what_was_given_up_is_tried_again(clock: Clock) -> None:
    wait = ShortWait()
    run(wait, clock, 2e-3)
    mean_s, _ = run(wait, clock, 80e-6, steps=12_000)
    assert mean_s < 80e-6 + READY_S + SLEEP_S / 2


def test_never_awake_for_longer_than_the_longest(clock: Clock) -> None:
    wait = ShortWait()
    for number in range(1000):  # steps of any length
        run(wait, clock, (number * 7919 % 400) * 1e-6, steps=1)
        assert wait.awake_s <= 200e-6


@pytest.mark.parametrize(
    ("env_id", "cores", "threads", "counted", "waits"),
    [
        ("CartPole-v1", 2, 1, True, True),
        ("CartPole-v1", 2, 1, False, False),  # not on this system
        ("CartPole-v1", 1, 1, True, False),  # it would take the core from the step
        ("CartPole-v1", 2, 2, True, False),
        ("Pong-v5", 8, 1, True, False),
    ],
)
def test_only_cheap_steps_on_a_core_to_spare_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    env_id: str,
    cores: int,
    threads: int,
    counted: bool,
    waits: bool,
) -> None:
    monkeypatch.setattr(envpool, "usable_cores", lambda: cores)
    monkeypatch.setattr(envpool, "SLEEPS_ARE_COUNTED", counted)
    env: Any = make_vector_env(env_id, 2, backend="envpool", num_threads=threads)
    assert (env._wait is not None) == waits


def test_every_step_of_a_pool_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool, "usable_cores", lambda: 2)
    calls: list[str] = []
    for name in ("begin", "stay_awake", "collected"):
        monkeypatch.setattr(ShortWait, name, lambda _, name=name: calls.append(name))
    env = make_vector_env("CartPole-v1", 2, backend="envpool")
    obs = {"obs": np.zeros((2, 4), np.float32)}
    env.restart([1, 2], obs)
    flags = [np.zeros(2, np.bool_) for _ in range(4)]
    env.send(np.zeros(2, np.int64))
    assert calls == ["begin"]
    env.recv(StepRow(obs, np.zeros(2, np.float32), np.zeros(2, np.float32), *flags))
    env.close()
    assert calls == ["begin", "stay_awake", "collected"]
