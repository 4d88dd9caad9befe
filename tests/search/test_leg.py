"""One leg of an entry: its clock, and what it answers."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_run_helpers import SMALL, TOY

from quintet.options.layers import Layer
from quintet.options.resolve import Loaded
from quintet.options.saved import load_config
from quintet.run import launch
from quintet.search import leg

RETURNS = leg._returns
NEW: Any = SimpleNamespace(overwrite=True, config=SimpleNamespace(run_dir=Path("none")))


@pytest.fixture(autouse=True)
def _handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(leg, "_returns", lambda *_: {"greedy": [1.0]})
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def payload(training_s: float, *, last: bool = True) -> dict[str, Any]:
    waits = {"minutes": None, "patient": False}
    times = {"begin": time.monotonic(), "training_s": training_s, "most_s": training_s + 1.0}
    return {**times, "seed": 0, "ways": ["greedy"], "last": last, **waits}


def report(env_steps: int, **more: float) -> dict[str, float]:
    known = {"env_steps": float(env_steps), "wall_s": env_steps / 100.0, "iterations": 1_000.0}
    return {**known, **more}


def scored(count: int, mean: float, length: float = 2.0) -> dict[str, float]:
    return {
        "episode/count": float(count),
        "episode/return_mean": mean,
        "episode/length_mean": length,
    }


def ends(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    monkeypatch.setattr(launch, "run", run)


def test_a_clock_that_comes_when_the_run_has_just_ended_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: Loaded, hear: Callable[..., object], **__: object) -> Any:
        hear(report(100, **scored(3, 5.0)))
        time.sleep(0.3)
        return SimpleNamespace(status="finished", metrics=report(100), policy=None)

    ends(monkeypatch, run)
    found = leg.train_trial(NEW, payload(0.1))
    assert found["status"] == "ran"
    assert found["env_steps"] == 100


def test_the_score_of_training_is_that_of_the_last_episodes_whatever_the_newest_report_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: Loaded, hear: Callable[..., object], **__: object) -> Any:
        hear(report(100, **scored(60, -50.0)))
        hear(report(200, **scored(60, 4.0)))
        hear(report(300, **scored(40, 9.0)))
        hear(report(350))
        return SimpleNamespace(status="finished", metrics=report(350), policy=None)

    ends(monkeypatch, run)
    found = leg.train_trial(NEW, payload(60.0))
    assert found["training"] == pytest.approx(6.0)
    assert found["speed"] == pytest.approx(100.0)


@pytest.mark.parametrize(("before", "training"), [(0, None), (400, 1.0)], ids=["new", "resumed"])
def test_the_few_episodes_that_ended_early_are_no_score_of_training(
    before: int, training: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where only won episodes end before a limit that hardly any stream has reached."""

    def run(_: Loaded, hear: Callable[..., object], **__: object) -> Any:
        hear(report(508, **scored(2, 1.0, 30.0)))
        return SimpleNamespace(status="finished", metrics=report(508, **scored(2, 1.0)), policy=0)

    ends(monkeypatch, run)
    monkeypatch.setattr(leg, "_trained", lambda _: before)
    found = leg.train_trial(NEW, payload(60.0))
    assert found["training"] == training


@pytest.mark.parametrize(
    ("wall_s", "batches", "early_s"),
    [(1.0, 10, 0.1), (4.0, 2, 2.0), (100.0, 1, 2.5), (1.0, 1_000_000, 0.0)],
)
def test_training_stops_a_batch_early_but_not_by_more_than_a_quarter(
    wall_s: float, batches: int, early_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, stopped = [100.0], list[float]()

    def wait(seconds: float) -> bool:
        now[0] += seconds
        return False

    monkeypatch.setattr(leg, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(leg.os, "kill", lambda *_: stopped.append(now[0] - 100.0))
    clock = leg._Clock(100.0, 10.0)
    clock._cancelled = SimpleNamespace(wait=wait)  # type: ignore[assignment]
    heard = leg._Listener(clock, 0)
    heard({"env_steps": 100.0, "wall_s": wall_s, "iterations": float(batches)})
    clock._watch()
    assert clock.over
    assert stopped == [pytest.approx(10.0 - early_s)]


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    values = {**SMALL, "env.id": TOY, "total_env_steps": 64, "run_dir": str(tmp_path / "run")}
    return load_config("ppo", [], Layer("a test", values))


def test_a_run_that_has_no_time_for_more_is_judged_by_what_it_has_learned(loaded: Loaded) -> None:
    """As where a race goes on for its last seconds, in which a process hardly starts."""
    assert leg.train_trial(loaded, payload(-1.0))["status"] == "late"
    launch.run(loaded)
    values = {**SMALL, "env.id": TOY, "total_env_steps": 640, "run_dir": str(loaded.config.run_dir)}
    more = load_config("ppo", [], Layer("a test", values))
    found = leg.train_trial(more, payload(-1.0))
    assert found["status"] == "ran"
    assert found["env_steps"] == 128
    # A resume asks for the same number, which the end must not pass.
    near = replace(more, config=more.config.model_copy(update={"total_env_steps": 80}))
    assert leg._ends_after(near, 64).config.total_env_steps == 80


def test_a_stop_by_the_user_is_no_end_of_the_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in training, nor before the first report, in which there is nothing to stop."""

    def stopped(_: Loaded, hear: Callable[..., object], **__: object) -> Any:
        hear(report(100, **scored(3, 5.0)))
        return SimpleNamespace(status="stopped", metrics=report(100), policy=None)

    def begins(*_: object, **__: object) -> Any:
        signal.raise_signal(signal.SIGTERM)

    ends(monkeypatch, stopped)
    assert leg.train_trial(NEW, payload(60.0)) == {"status": "stopped"}
    ends(monkeypatch, begins)
    with pytest.raises(KeyboardInterrupt):
        leg.train_trial(NEW, payload(60.0))


@pytest.mark.parametrize(
    ("block_s", "cut_at", "greedy", "sampled"),
    [(0.01, None, 100, 100), (3.0, None, 10, 5), (0.1, 3, 10, 5), (20.0, 0, 0, 0)],
    ids=["to the most", "until the time is over", "a block is cut", "the first one is"],
)
def test_episodes_are_played_in_blocks_of_whole_ones(
    block_s: float,
    cut_at: int | None,
    greedy: int,
    sampled: int,
    loaded: Loaded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = launch.run(loaded).policy
    seeds: list[int] = []
    ways: list[bool] = []
    clock = SimpleNamespace(passed_s=50.0)

    def evaluate_in(_: object, source: object, how: Any, max_steps: object) -> Any:
        assert source is loaded.evaluated
        assert not how.stop()
        complete = len(seeds) != cut_at
        ways.append(how.deterministic)
        seeds.extend(how.seed + k for k in range(how.episodes))
        clock.passed_s += block_s
        returns = [float(seed) for seed in seeds[-how.episodes :]]
        return SimpleNamespace(complete=complete, returns=returns)

    if cut_at is not None:
        cut_at *= 5
    monkeypatch.setattr(leg, "evaluate_in", evaluate_in)
    asked = {"seed": 30_000, "most_s": 60.0, "ways": ("greedy", "sampled")}
    found = RETURNS(policy, loaded, asked, clock)  # type: ignore[arg-type]
    counts = {"greedy": greedy, "sampled": sampled}  # on the same seeds
    assert found == {k: [30_000.0 + x for x in range(count)] for k, count in counts.items()}
    if cut_at != 0:
        assert ways[:3] == [True, False, True]
