"""Environments that other processes step: the same bytes, errors of the user's code, and ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from scripted_helpers import Scripted

import quintet
from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.vector import VectorEnv, allocate_obs, allocate_row
from quintet.errors import ConfigError, EnvironmentFault, WorkerFault
from quintet.runtime import spread
from quintet.runtime.processes import process
from quintet.runtime.processes.process import Process
from quintet.runtime.processes.stepped import SteppedEnv
from quintet.runtime.spread import (
    MOST_PROCESSES,
    SpreadEnv,
    Spreading,
    StepCost,
    best_num_processes,
    make_streams,
)

MS = 1e-3
ROOM = 1e12  # bytes
REAL_JUDGE = spread.several_faster


class Slow(gymnasium.Env):
    """Sleeps `pause_s` in every step; its observation is drawn by its seed, or by its process."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, pause_s: float = 0.01, trouble: str = "", log: str | None = None) -> None:
        self.pause_s, self.trouble, self.log, self.steps = pause_s, trouble, log, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(self.pause_s)
        if self.steps == 4 and self.trouble:
            if self.trouble == "raise":
                raise ValueError("no such thing")
            if self.trouble == "hang":
                time.sleep(1000.0)
            if self.trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return self._obs(), float(action), self.steps == 7, False, {}

    def _obs(self):
        if self.trouble == "own":
            return np.array([0.0, os.getpid() % 1000 / 1000], np.float32)
        return self.np_random.random(2, dtype=np.float32)


MOVED = (
    r"4 processes step the environments: equally many rows took [\d.]+ s in one and [\d.]+ s in 4"
)


@pytest.fixture(autouse=True)
def clocks_move_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two rows others begin; they repeat the third, and step the fifth."""
    monkeypatch.setattr(spread, "best_num_processes", best_num_processes)
    monkeypatch.setattr(spread, "several_faster", lambda alone, several: True)
    monkeypatch.setattr(spread, "_WORTH_S", 0.0)
    monkeypatch.setattr(spread, "_CERTAIN", 1e9)
    monkeypatch.setattr(spread, "_BLOCK_S", 0.0)
    monkeypatch.setattr(SteppedEnv, "can_begin", True)


@pytest.mark.parametrize(
    ("cost", "streams", "cores", "free", "count"),
    [
        (StepCost(50 * MS, False), 8, 2, ROOM, 8),
        (StepCost(50 * MS, False), 200, 2, ROOM, MOST_PROCESSES),
        (StepCost(50 * MS, True), 8, 2, ROOM, 2),
        (StepCost(50 * MS, True), 8, 1, ROOM, 1),
        (StepCost(50 * MS, False), 8, 1, ROOM, 8),
        (StepCost(50 * MS, False), 1, 8, ROOM, 1),
        (StepCost(0.01 * MS, True), 8, 2, ROOM, 1),
        (StepCost(0.01 * MS, True), 1000, 2, ROOM, 2),
        (StepCost(0.056 * MS, True), 32, 2, ROOM, 2),
        (StepCost(0.02 * MS, True), 16, 2, ROOM, 1),
        (StepCost(50 * MS, False, 1 << 30), 8, 2, 8 << 30, 3),
        (StepCost(50 * MS, False, 1 << 30), 8, 2, 1 << 30, 1),
    ],
)
def test_how_many_processes_are_best(
    cost: StepCost, streams: int, cores: int, free: float, count: int
) -> None:
    assert best_num_processes(cost, streams, cores, free) == count


NOISE = np.random.default_rng(0).exponential(1.0, (2, 200)) * 0.02 + 0.03


@pytest.mark.parametrize(
    ("alone", "several", "blocks", "faster"),
    [
        (0.4, 0.1, 3, True),
        (0.1, 0.4, 3, False),
        (0.1, 0.101, 3, False),
        (NOISE[0], NOISE[1] * 0.7, 40, True),
        (NOISE[0] * 0.7, NOISE[1], 40, False),
        (NOISE[0], NOISE[1] * 0.9, 120, True),
        (NOISE[0] * 0.9, NOISE[1], 120, False),
    ],
)
def test_the_faster_way_is_known_as_soon_as_it_is_clear(
    alone: Any, several: Any, blocks: int, faster: bool
) -> None:
    """Blocks that vary as on a busy machine take more of them, up to a bound."""
    a, b = np.zeros(200) + alone, np.zeros(200) + several
    found = [REAL_JUDGE(a[:n], b[:n]) for n in range(1, 201)]
    known = next(n for n, x in enumerate(found) if x is not None)
    assert known < blocks
    assert found[known] == faster
    assert found[:2] == [None, None]


def test_who_steps_is_judged_by_rows_of_both(closing: Any, monkeypatch: Any) -> None:
    """With the clocks of a machine on which others are slower, whatever a step costs."""
    seen: list[tuple[int, int]] = []

    def slower(alone: list[float], several: list[float]) -> bool | None:
        seen.append((len(alone), len(several)))
        return None if len(alone) < 3 else False

    monkeypatch.setattr(spread, "several_faster", slower)
    made = closing(make_streams(resolved(lambda: Slow(0.01), 4), 4, Spreading()))
    said: list[str] = []
    made.tell(print, print, said.append)
    alone = closing(make_group_env(resolved(lambda: Slow(0.0), 4), 4))
    assert rows_of(made, 9) == rows_of(alone, 9)
    assert made.num_processes == 1
    assert all(a == b for a, b in seen)
    assert re.match(r"this process steps .* one by one: equally many rows took .* s in 4", said[0])
    assert made.send.__self__ is made._env, "nothing stands between"


class Elsewhere(Slow):
    """Ends its process, or sees something else, from one of its steps on, if stepped elsewhere."""

    def __init__(self, trouble: str, step: int) -> None:
        super().__init__(0.005)
        self.trouble_there, self.at, self.home, self.life = trouble, step, os.getpid(), 0

    def step(self, action):
        self.life += 1
        return super().step(action)

    def _obs(self):
        troubled = self.life >= self.at and os.getpid() != self.home
        if troubled and self.trouble_there == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._obs() + np.float32(troubled)


@pytest.mark.parametrize(
    "step", [k if k in (2, 5, 8) else pytest.param(k, marks=pytest.mark.slow) for k in range(1, 10)]
)
@pytest.mark.parametrize("trouble", ["die", "differ"])
def test_who_steps_goes_on_whenever_the_other_way_fails(
    trouble: str, step: int, closing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may fail while they repeat rows, and while they step for the run."""
    monkeypatch.setattr(spread, "several_faster", lambda alone, several: None)
    home = os.getpid()

    def make() -> Elsewhere:
        env = Elsewhere(trouble, step)
        env.home = home
        return env

    made = closing(make_streams(resolved(make, 2), 2, Spreading()))
    said: list[str] = []
    made.tell(print, print, said.append)
    rows = rows_of(made, 7)
    alone = closing(make_group_env(resolved(lambda: Slow(0.0), 2), 2))
    same = [a == b for a, b in zip(rows, rows_of(alone, 7), strict=True)]
    assert len(said) == 1
    if made.num_processes == 1:
        assert all(same)
    else:  # others stepped when the difference came, and what the run sees comes from them since
        assert trouble == "differ"
        assert not any(same[same.index(False) :])


class Shown(Slow):
    def render(self) -> Any:
        return np.zeros((2, 2, 3), np.uint8)


def test_a_picture_while_both_ways_are_judged_is_of_this_process(
    closing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a block of others; the blocks stay pairs."""
    pairs: list[tuple[int, int]] = []

    def judge(alone: list[float], several: list[float]) -> None:
        pairs.append((len(alone), len(several)))

    monkeypatch.setattr(spread, "several_faster", judge)
    monkeypatch.setattr(spread, "_BLOCK_S", 0.02)
    made = closing(make_streams(resolved(lambda: Shown(0.005), 2), 2, Spreading()))
    assert isinstance(made, SpreadEnv)
    row = allocate_row(made.spaces.observation, 2)
    made.restart([0, 1], allocate_obs(made.spaces.observation, (2,)))
    shown = 0
    for _ in range(60):
        made.send(np.zeros(2, np.int64))
        made.recv(row)
        if made._env is not made._alone and made._block_rows == 1 and shown < 2:
            shown += 1
            made.render(0)  # which others refuse
            assert made._env is made._alone
    assert shown == 2
    assert pairs
    assert all(alone == several for alone, several in pairs)


class Counts(Slow):
    """Its rewards grow with the resets in its life, which no seed brings back."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, float(self.resets), *rest)


def test_environments_that_move_have_lived_through_all_that_was(closing: Any, monkeypatch) -> None:
    """Also through episodes and restarts before others have begun."""
    waits = iter([False] * 12)
    monkeypatch.setattr(SteppedEnv, "can_begin", property(lambda _: next(waits, True)))
    made = closing(make_streams(resolved(lambda: Counts(0.005), 3), 3, Spreading()))
    alone = closing(make_group_env(resolved(lambda: Counts(0.0), 3), 3))
    assert rows_of(made, 10, restarts=3) == rows_of(alone, 10, restarts=3)
    assert made.num_processes == 3


def resolved(make: Any, streams: int, **options: Any) -> ResolvedEnv:
    config = EnvConfig(id="made", num_streams=streams, **options)
    return resolve_env(config, make)


def rows_of(env: VectorEnv, steps: int, restarts: int = 2) -> list[dict[str, bytes]]:
    """Everything that an environment gives, as bytes."""
    found = []
    obs = allocate_obs(env.spaces.observation, (env.num_streams,))
    row = allocate_row(env.spaces.observation, env.num_streams)
    for restart in range(restarts):
        env.restart([100 * restart + i for i in range(env.num_streams)], obs)
        found.append({name: x.tobytes() for name, x in obs.items()})
        for step in range(steps):
            env.send((np.arange(env.num_streams) + step) % 2)
            env.recv(row)
            row.success[~(row.terminated | row.truncated)] = False  # has no meaning there
            arrays = {**row.obs, **{k: x for k, x in vars(row).items() if k != "obs"}}
            found.append({name: x.tobytes() for name, x in arrays.items() if x is not None})
    return found


@pytest.fixture
def closing() -> Iterator[Callable[[VectorEnv], VectorEnv]]:
    made: list[VectorEnv] = []

    def keep(env: VectorEnv) -> VectorEnv:
        made.append(env)
        return env

    yield keep
    for env in made:
        env.close()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"frame_stack": 3, "reward_clip": "abs_one"},
    {"observe_last": True, "success": "reward>101"},
]


class Clocks:
    """Of a thread that loses its core for 20 ms after one of the readings."""

    def __init__(self, lost_after: int) -> None:
        self.s = {"wall": 0.0, "busy": 0.0, "delayed": 0.0}
        self.lost_after, self.readings = lost_after, 0

    def read(self, name: str) -> float:
        found = self.s[name]
        self.readings += 1
        if self.readings == self.lost_after:
            self.pass_(20 * MS, "wall", "delayed")
        return found

    def pass_(self, seconds: float, *names: str) -> None:
        for name in names:
            self.s[name] += seconds


@pytest.mark.parametrize("lost_after", range(1, 7))
def test_a_thread_that_loses_its_core_between_readings_did_not_wait(
    lost_after: int, closing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, costs = Clocks(lost_after), list[StepCost]()

    class Computes(Slow):
        def step(self, action):
            clocks.pass_(1 * MS, "wall", "busy")
            return super().step(action)

    made = closing(make_streams(resolved(lambda: Computes(0.0), 4), 4, Spreading()))
    rows_of(made, 1, restarts=1)
    names = {"perf_counter": "wall", "process_time": "busy", "own_delay_s": "delayed"}
    for name, clock in names.items():
        monkeypatch.setattr(spread, name, partial(clocks.read, clock))
    monkeypatch.setattr(spread, "best_num_processes", lambda cost, *_: costs.append(cost) or 1)
    rows_of(made, 1, restarts=1)
    assert clocks.readings == 6
    assert [(cost.computes, round(cost.seconds, 6)) for cost in costs] == [(True, 1 * MS)]


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_are_those_of_one_process(options: dict[str, Any], closing: Any) -> None:
    """Over endings, resets and restarts, with shares of different size."""

    def make() -> Scripted:
        return Scripted(lengths=(3, 1, 5), endings=("terminate", "truncate"))

    env = resolved(make, 5, **options)
    here = closing(make_group_env(env, 5))
    there = closing(SteppedEnv(env, here, 2, first_stream=0, timeout_s=60.0))
    assert there.spaces == here.spaces
    assert there.description == here.description
    assert rows_of(there, 20) == rows_of(here, 20)


def test_slow_environments_move_to_other_processes_and_fast_ones_stay(
    closing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a difference in what is seen, and without a step more of those that stay."""
    monkeypatch.setattr(spread, "_ROWS", 4)

    def best(cost: StepCost, *machine: Any) -> int:  # writing to a log is slow on a busy machine
        return best_num_processes(cost, *machine) if cost.seconds > 5 * MS else 1

    monkeypatch.setattr(spread, "best_num_processes", best)
    for pause_s, moved in ((0.02, True), (0.0, False)):
        log = tmp_path / f"{moved}"
        env = resolved(lambda s=pause_s, log=str(log): Slow(s, log=log), 4)
        made = closing(make_streams(env, 4, Spreading()))
        assert isinstance(made, SpreadEnv)
        said: list[str] = []
        made.tell(print, print, said.append)
        alone = closing(make_group_env(resolved(lambda: Slow(0.0), 4), 4))
        assert rows_of(made, 9) == rows_of(alone, 9)
        pids = log.read_text().split()
        assert made.num_processes == (4 if moved else 1)
        assert made.send.__self__ is made.recv.__self__ is made._env, "nothing stands between"
        assert len(set(pids)) == (5 if moved else 1)
        steps = 2 * 4 * 8  # one of nine rows is a reset
        assert len(pids) == steps + (4 * 4 if moved else 0), "only the first four rows, again"
        assert said == ([s] if (s := "".join(said)) else [])
        assert (re.match(MOVED, s) is not None) == moved


def test_one_stream_and_one_process_are_stepped_here(closing: Any) -> None:
    for streams, options in ((1, {}), (3, {"num_processes": 1})):
        env = closing(make_streams(resolved(Slow, streams, **options), streams, Spreading()))
        assert not isinstance(env, SpreadEnv)
    vector = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    env = closing(make_streams(resolved(vector, 3), 3, Spreading()))
    assert not isinstance(env, SpreadEnv)


def test_environments_that_differ_in_another_process_stay(closing: Any) -> None:
    made = closing(make_streams(resolved(lambda: Slow(0.01, "own"), 3), 3, Spreading()))
    said: list[str] = []
    made.tell(print, print, said.append)
    rows_of(made, 4)
    assert made.num_processes == 1
    assert "another process got other observations" in said[0]
    # Who asks for processes gets them.
    own = resolved(lambda: Slow(0.01, "own"), 3, num_processes=2)
    asked = closing(make_streams(own, 3, Spreading()))
    rows_of(asked, 4)
    assert asked.num_processes == 2


def test_environments_that_can_not_be_sent_stay_or_are_refused(closing: Any) -> None:
    lock = threading.Lock()

    def make() -> Slow:
        assert not lock.locked()
        return Slow(0.01)

    made = closing(make_streams(resolved(make, 3), 3, Spreading()))
    said: list[str] = []
    made.tell(print, print, said.append)
    rows_of(made, 4)
    assert made.num_processes == 1
    assert re.search(r"one by one: a step takes [\d.]+ ms, but others could not step", said[0])
    assert "can be sent to other processes" in said[0]
    asked = closing(make_streams(resolved(make, 3, num_processes=2), 3, Spreading()))
    with pytest.raises(ConfigError, match=r"env.num_processes > 1 needs .* that can be sent"):
        rows_of(asked, 1)


@pytest.mark.parametrize(
    ("trouble", "fault", "told"),
    [
        (
            "raise",
            EnvironmentFault,
            r"stream 1(\d), step 4 .* seed \1: .*ValueError: no such thing",
        ),
        ("die", WorkerFault, r"stepper . \(stream 1.* of made, pid \d+\) was ended by SIGKILL"),
        ("hang", WorkerFault, r"stepper . \(stream 1.* must step within 1 s, but has been silent"),
    ],
)
def test_what_goes_wrong_in_another_process_is_told(
    trouble: str, fault: type[Exception], told: str, closing: Any, capfd: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(process, "STOP_GRACE_S", 0.2)  # for which one that hangs is waited for
    env = resolved(lambda: Slow(0.01, trouble), 2, num_processes=2)
    made = closing(make_streams(env, 2, Spreading(first_stream=10, timeout_s=1.0)))
    printed: list[str] = []
    made.tell(printed.append, printed.append)
    with pytest.raises(fault, match=told):
        rows_of(made, 6)
    if trouble == "hang":
        assert "step 4 of its episode" in "".join(printed)
        assert "test_spread.py" in "".join(printed)


class DiesLater(Slow):
    """The first stream's process ends 0.1 s after its fourth step, while the other one steps."""

    def reset(self, *, seed=None, options=None):
        self.first = seed == 0
        return super().reset(seed=seed)

    def step(self, action):
        if self.steps == 3 and self.first:
            code = f"import os, time; time.sleep(0.1); os.kill({os.getpid()}, 9)"
            subprocess.Popen([sys.executable, "-S", "-c", code])
        elif self.steps == 3:
            time.sleep(1.0)
        return super().step(action)


def test_a_process_that_dies_once_it_has_answered_is_told(closing: Any) -> None:
    """While others are still waited for."""
    made = closing(make_streams(resolved(DiesLater, 2, num_processes=2), 2, Spreading()))
    with pytest.raises(WorkerFault, match=r"stepper 0 \(stream 0 of made, .* ended by SIGKILL"):
        rows_of(made, 6, restarts=1)


def test_a_system_that_allows_no_more_processes_is_no_fault(
    closing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = closing(make_streams(resolved(lambda: Slow(0.01), 3), 3, Spreading()))
    said: list[str] = []
    made.tell(print, print, said.append)

    def refuse(_: Process) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Process, "launch", refuse)
    rows_of(made, 6)
    assert made.num_processes == 1
    assert re.search(r"a step takes [\d.]+ ms, but others", said[0])
    assert "Resource temporarily unavailable" in said[0]


def test_groups_share_the_processes(closing: Any) -> None:
    """The cores, and those that were asked for."""
    for asked, count in ((4, 2), (2, 1), (None, 4)):
        env = resolved(lambda: Slow(0.01), 4, num_processes=asked)
        made = closing(make_streams(env, 4, Spreading(num_groups=2)))
        rows_of(made, 5, restarts=1)
        assert made.num_processes == count


def test_processes_end_with_the_environment(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    env = make_streams(resolved(lambda: Slow(0.01, log=str(log)), 3), 3, Spreading())
    rows_of(env, 6, restarts=1)
    pids = {int(pid) for pid in log.read_text().split()} - {os.getpid()}
    assert len(pids) == 3
    env.close()
    end = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in pids):  # as long as the fork server knows them
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_has_the_same_bytes_by_whomever_its_environments_are_stepped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Also where it is stopped and goes on with another number of processes."""
    config = {
        "env.num_streams": 4, "unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 1,
        "model.policy_hidden": (8,), "checkpoint.interval_iterations": 1,
        "report.sinks": ("jsonl",), "report.interval_s": 0.0, "report.progress": False,
        "eval.episodes": 3,
        "runtime.compile": "off", "checkpoint.max_cut_frac": 0.5,
    }  # fmt: skip

    def train(name: str, until: int = 320, **more: Any) -> bytes:
        folder = tmp_path / name
        quintet.train(
            "ppo", lambda: Slow(0.002), 320, run_dir=folder, config={**config, **more},
            on_report=lambda report: report["env_steps"] >= until,
        )  # fmt: skip
        newest = max((folder / "checkpoints").iterdir())
        return (newest / "policy.safetensors").read_bytes()

    def log(name: str) -> str:
        return (tmp_path / name / "log.txt").read_text()

    alone = train("one", **{"env.num_processes": 1})
    assert train("auto") == alone
    assert re.search(MOVED, log("auto"))
    metrics = (tmp_path / "auto" / "metrics.jsonl").read_text()
    assert '"data/env_processes": 4' in metrics
    assert "processes step" not in log("one") + capfd.readouterr().err
    assert train("resumed", until=128, **{"env.num_processes": 3}) != alone
    monkeypatch.setattr(spread, "MOST_PROCESSES", 2)
    assert train("resumed", **{"env.num_processes": None, "resume": "exact"}) == alone
    assert "2 processes step" in log("resumed")
    # Standard output is for the scores.
    capfd.readouterr()
    scores = quintet.evaluate(quintet.load(tmp_path / "auto"), lambda: Slow(0.005), episodes=4)
    assert scores.lengths.tolist() == [7, 7, 7, 7]
    said = capfd.readouterr()
    assert said.out == ""
    assert "step" not in said.err, "who steps is no news"
