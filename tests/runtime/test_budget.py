"""A step budget is executed exactly, and what became of every executed step is told apart."""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from adders_helpers import PLAN, ROWS
from processes_helpers import processes_of

import quintet
from quintet.checkpoints import checkpoint
from quintet.envs import repeating
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics
from quintet.observe.timing import PhaseTimer
from quintet.run.callbacks import OnReport
from quintet.runtime import loop
from quintet.runtime.delivery import Batch, Delivery, Steps, within_budget
from quintet.runtime.policies import Assignment
from quintet.runtime.slots import Slot, slot_specs, zeros
from quintet.types import Publication, Rollout

KINDS = {
    "serial": {"runtime.kind": "serial"},
    "lockstep": {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 0},
    "lockstep1": {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 1},
    "async": {"runtime.kind": "async", "runtime.num_workers": 2},
}
STREAMS = 8


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is made by the check whether episodes repeat: steps are counted here."""
    monkeypatch.setattr(repeating, "unrepeatable", lambda *_: "")


class Counted(gymnasium.Env):
    """Episodes of 3 to 12 steps; every step of every process leaves a byte in a file."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 13))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        os.write(self.file, b".")
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


def train(
    folder: Path,
    kind: str,
    total: int,
    algo: str = "ppo",
    env: Any = Counted,
    on_report: OnReport | None = None,
    **more: Any,
) -> dict[str, float]:
    """The last report, with the steps that were really executed under ``real``."""
    unroll = {"ppo": {"unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 1}}
    config = {
        "env.num_streams": STREAMS,
        "env.streams_per_group": 2,
        "env.kwargs": {"file": str(folder / "steps")},
        "env.mask_from_info": False,  # no look for masks, which makes a step
        "eval.episodes": 0,
        "report.interval_s": 0.0,
        "report.sinks": ["jsonl"],
        "report.progress": False,
        "runtime.compile": "off",
    }
    config |= unroll.get(algo, {"unroll_steps": 5, "batch_unrolls": 6}) | KINDS[kind]
    config |= {name.replace("__", "."): value for name, value in more.items()}
    result = quintet.train(algo, env, total, 3, folder / "run", config, on_report=on_report)
    return {**result.metrics, "real": float((folder / "steps").stat().st_size)}


@pytest.mark.parametrize(
    ("algo", "kind", "total"),
    [
        ("ppo", "serial", 130),
        ("ppo", "serial", 777),
        ("impala", "serial", 130),
        ("impala", "serial", 777),
        ("impala", "async", 130),
        pytest.param("ppo", "lockstep", 130, marks=pytest.mark.slow),
        pytest.param("ppo", "lockstep", 777, marks=pytest.mark.slow),
        pytest.param("ppo", "lockstep1", 130, marks=pytest.mark.slow),
        pytest.param("ppo", "lockstep1", 777, marks=pytest.mark.slow),
        pytest.param("impala", "lockstep1", 130, marks=pytest.mark.slow),
        pytest.param("impala", "lockstep1", 777, marks=pytest.mark.slow),
        pytest.param("impala", "async", 777, marks=pytest.mark.slow),
    ],
)
def test_at_most_one_row_per_stream_is_executed_beyond_the_budget(
    algo: str, kind: str, total: int, tmp_path: Path
) -> None:
    last = train(tmp_path, kind, total, algo)
    assert last["env_steps"] == total
    assert last["data/executed_env_steps"] == last["real"]
    # One that is made anew at a restart gives up what waited; async has none.
    cut = last["data/discarded_env_steps"]
    assert last["real"] == total + cut
    if algo == "ppo" or kind == "async":  # all columns of a round are one batch, or none restarts
        assert cut < STREAMS


class DiesOnce(Counted):
    """The first environment that comes to its 200th step takes its process with it."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.mark, self.life = Path(f"{file}.died"), 0

    def step(self, action):
        self.life += 1
        if self.life == 200:
            with suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                os._exit(3)
        return super().step(action)


def test_steps_of_an_unroll_whose_worker_died_are_executed_and_discarded(tmp_path: Path) -> None:
    """The worker was in the middle of its fourth unroll, with all of its 4 streams: with one row in
    8.5 spent on a reset 200 steps take 227 rows, or 35 after three unrolls.
    """
    long = {"unroll_steps": 64, "minibatch_steps": 512}
    last = train(tmp_path, "async", 4_000, env=DiesOnce, **long)
    assert last["data/worker_restarts"] == 1
    assert last["env_steps"] == 4_000
    # In the row at work, which streams had made their step isn't known.
    assert abs(last["data/executed_env_steps"] - last["real"]) <= 4
    lost = last["data/discarded_env_steps"]
    assert lost == last["data/executed_env_steps"] - 4_000
    assert lost > 10 * 4
    # Their episodes are given up with them.
    assert last["episode/cut_frac"] >= lost / last["data/executed_env_steps"]


class KillsServer:
    """At the second report."""

    reports = 0

    def __call__(self, _report) -> None:
        self.reports += 1
        if self.reports == 2:
            server = (p for p in processes_of() if any("server" in word for word in p.cmdline()))
            next(server).kill()


@pytest.mark.slow
def test_steps_of_unrolls_that_a_dead_server_ended_are_executed_and_discarded(
    tmp_path: Path,
) -> None:
    long = {"unroll_steps": 64, "minibatch_steps": 512, "runtime__inference": "server"}
    last = train(tmp_path, "async", 4_000, on_report=KillsServer(), **long)
    assert last["data/worker_restarts"] == 1
    assert abs(last["data/executed_env_steps"] - last["real"]) <= STREAMS
    assert last["data/discarded_env_steps"] == last["data/executed_env_steps"] - 4_000


def test_what_became_of_steps_goes_on_over_a_resume(tmp_path: Path) -> None:
    train(tmp_path, "serial", 300, checkpoint__max_cut_frac=1.0)
    last = train(tmp_path, "serial", 600, checkpoint__max_cut_frac=1.0)
    assert last["env_steps"] == 600
    assert last["data/executed_env_steps"] == last["real"]
    reports = read_metrics(tmp_path / "run")
    assert [r["data/executed_env_steps"] for r in reports] == sorted(
        r["data/executed_env_steps"] for r in reports
    )


@pytest.mark.parametrize("interval_s", [0.0, pytest.param(1e6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["serial", pytest.param("lockstep", marks=pytest.mark.slow)])
def test_a_run_that_is_resumed_reports_the_same_episodes(
    kind: str, interval_s: float, tmp_path: Path
) -> None:
    """Also those that ended in columns which waited at the checkpoint, or that no report held."""
    options = {"checkpoint__interval_iterations": 3, "checkpoint__max_cut_frac": 1.0}
    options |= {"checkpoint__keep": 100, "report__interval_s": interval_s}
    train(tmp_path, kind, 400, "impala", **options)
    whole = read_metrics(tmp_path / "run")
    for each in sorted((tmp_path / "run/checkpoints").iterdir())[2:]:
        shutil.rmtree(each)
    last = train(tmp_path, kind, 400, "impala", **options)
    resumed = read_metrics(tmp_path / "run")
    assert len(whole) == len(resumed) == (1 if interval_s else last["iterations"])
    told = {name for report in whole for name in report if name.startswith("episode/")}
    assert len(told) == 7
    for before, after in zip(whole, resumed, strict=True):
        assert [before.get(name) for name in told] == [after.get(name) for name in told]


def test_serial_and_lockstep_end_with_the_same_bytes(tmp_path: Path) -> None:
    """The last unroll ends at the same row, whoever executes it."""
    hashes = []
    for kind in ("serial", "lockstep"):
        (tmp_path / kind).mkdir()
        train(tmp_path / kind, kind, 777)
        found = checkpoint.latest(tmp_path / kind / "run/checkpoints", warn=print)
        assert found is not None
        hashes.append(checkpoint.tensor_hashes(found))
    assert hashes[0] == hashes[1]


def all_valid(columns: int) -> Rollout:
    batch = Slot(zeros(slot_specs(ROWS, PLAN, columns)), ROWS, PLAN).rollout
    batch.valid.fill_(True)
    return batch


def test_every_row_that_is_not_valid_follows_a_cut() -> None:
    """Past the budget, and masked for another reason in the middle or at the start of a column."""
    batch = all_valid(3)
    batch.valid[:3, 0] = False  # old weights, say
    batch.valid[4, 1] = False
    batch.terminated[1, 2] = True
    batch.valid[2, 2] = False  # spent on resetting
    found, count = within_budget(batch, 11)
    assert count == int(found.valid.sum()) == 11
    cut = ~found.not_cut_t.bool()
    follows = torch.zeros_like(cut)
    follows[1:] = cut[:-1]
    assert (follows | found.valid)[1:].all()
    assert not cut[1, 1]
    assert found.trace_cut is not None
    assert not found.trace_cut[1, 2]  # an ending is none
    whole = all_valid(3)
    assert within_budget(whole, 18)[0] is whole


def test_lag_is_counted_from_the_learner_not_from_what_it_published(tmp_path: Path) -> None:
    train(tmp_path, "serial", 800, "impala", runtime__publish_interval_iterations=10)
    reports = read_metrics(tmp_path / "run")
    assert {r["policy_lag/max"] for r in reports} >= {float(k) for k in range(11)}


def test_rows_beyond_the_bound_are_never_learned_from(tmp_path: Path) -> None:
    options = {"runtime__max_policy_lag": 3, "runtime__publish_interval_iterations": 4}
    last = train(tmp_path, "async", 4_000, "impala", **options)
    reports = read_metrics(tmp_path / "run")
    assert max(r["policy_lag/max"] for r in reports) == 3
    assert last["data/discarded_env_steps"] > STREAMS  # some were too old
    assert (
        last["real"]
        == last["data/executed_env_steps"]
        == 4_000 + (last["data/discarded_env_steps"])
    )
    # Episodes that ended in dropped rows count: on average they have 7.5 steps.
    ended = sum(r.get("episode/count", 0) for r in reports)
    assert ended > 0.9 * last["real"] / 7.5 - STREAMS


@pytest.mark.parametrize("kind", ["serial", pytest.param("async", marks=pytest.mark.slow)])
def test_a_batch_without_a_valid_row_is_not_learned_from(kind: str, tmp_path: Path) -> None:
    """Every row of a reset is a batch of its own here; a step without data would still move Adam's
    or RMSProp's memory.
    """
    alone: dict[str, Any] = {"env__num_streams": 1, "env__streams_per_group": 1, "unroll_steps": 1}
    alone |= {"batch_unrolls": 1, "checkpoint__interval_iterations": 1_000}
    alone |= {"runtime__num_workers": 1} if kind == "async" else {}
    last = train(tmp_path, kind, 60, "impala", **alone)
    assert last["updates"] == last["env_steps"] == 60
    assert (last["iterations"] > 60) == (kind == "serial")  # async does not deliver it at all


def test_a_bound_that_no_row_would_meet_is_refused(tmp_path: Path) -> None:
    options = {"runtime__max_policy_lag": 3, "runtime__publish_interval_iterations": 5}
    with pytest.raises(ConfigError, match=r"publish_interval_iterations must be at most 4, got 5"):
        train(tmp_path, "async", 100, "impala", **options)


class SlowInOneProcess(Counted):
    """Where it is made first, a step takes 0.4 s."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        owner = Path(f"{file}.owner")
        with suppress(FileExistsError):
            owner.touch(exist_ok=False)
            owner.write_text(str(os.getpid()))
        self.pause_s = 0.4 if owner.read_text() == str(os.getpid()) else 0.0

    def step(self, action):
        time.sleep(self.pause_s)
        return super().step(action)


@pytest.mark.slow
def test_a_worker_that_waits_for_the_others_is_not_taken_for_hung(tmp_path: Path) -> None:
    """In the last round, each has so many rows, and hears then of more."""
    last = train(
        tmp_path, "lockstep", 16, env=SlowInOneProcess, env__num_streams=2,
        env__streams_per_group=1, unroll_steps=4, minibatch_steps=8, runtime__worker_timeout_s=1.0,
    )  # fmt: skip
    assert last["env_steps"] == 16
    assert last["real"] == last["data/executed_env_steps"]


class Turns:
    """Batches of two policies in turn; keeps whose weights were published."""

    restarts, turn = False, 0

    def __init__(self) -> None:
        self.delivery = Delivery(PLAN, 6, Assignment(2))
        self.published: list[int] = []

    def publish(self, publication: Publication) -> None:
        self.published.append(publication.policy)

    def restart(self, iteration: int) -> None:
        pass

    def collect(self, env_steps_left: int, restarts_after: Any) -> Batch:
        self.turn += 1
        steps = Steps(18, 0, 0, 0, 0)
        return Batch(all_valid(3), self.turn % 2, 18, [], steps)


class Idle:
    """Keeps on which devices its batches were."""

    version = updates = 0

    def __init__(self) -> None:
        self.devices: set[str] = set()

    def update(self, batch: Rollout, env_steps: int) -> None:
        self.devices |= {x.device.type for x in (batch.reward, *batch.obs.values())}

    def publication(self) -> Publication:
        return Publication(0, {})


def take_turns(learners: list[Idle], devices: Sequence[torch.device], **budget: int) -> list[int]:
    """Six batches for each; whose weights were published."""
    sampling = Turns()
    loop.TrainingLoop(
        loop.Components(learners, sampling, devices=devices),
        loop.Counters(),
        loop.Budget(18 * 12, 100, **budget),
        loop.Hooks(lambda exact: None, lambda batch: False, lambda batch, policy: ""),
        PhaseTimer(),
    ).run()
    return sampling.published


def test_every_policy_is_published_as_often_as_it_learns() -> None:
    """Though two take turns, and the interval is even."""
    published = take_turns([Idle(), Idle()], (), publish_iterations=2)
    assert sorted(published) == [0] * 4 + [1] * 4  # at the start, and 3 times in 6 batches each


def test_batches_go_to_the_device_of_their_policy() -> None:
    learners = [Idle(), Idle()]
    take_turns(learners, [torch.device("cpu"), torch.device("meta")])
    assert [each.devices for each in learners] == [{"cpu"}, {"meta"}]
