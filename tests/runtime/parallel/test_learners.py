"""Several learners as one: what each is given, what goes wrong with them, and whole runs."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import quick_helpers
import torch
from adders_helpers import adders, digest, make_batch
from learner_run_helpers import SMALL, Drifting
from processes_helpers import open_files, processes_of
from small_run_helpers import hashes, newest

import quintet
from quintet.errors import ConfigError, LearnerFault, NonFiniteError, QuintetError
from quintet.options import machine
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.runtime.parallel.learners import Learners
from quintet.runtime.parallel.ranks import host_store
from quintet.system import forks
from quintet.types import LearnerState

SCRIPT = Path(__file__).parent.parent / "learner_run_helpers.py"
slow = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def kept() -> None:
    """Files that a process keeps: a pipe once it has had a store, others once it has had a run."""
    host_store()
    forks.watch()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    files = open_files()
    yield
    gc.collect()  # an error's traceback holds what its frames held
    assert processes_of() == []
    deadline = time.monotonic() + 2
    while open_files() > files and time.monotonic() < deadline:
        time.sleep(0.05)  # gloo's threads close their sockets
    assert open_files() <= files


def update(
    learners: Learners, seed: int, cut: bool = False, replayed: bool = False
) -> dict[str, float]:
    learners.update(make_batch(seed, cut, replayed), 10 * seed)
    return dict(learners.metrics())


def update_twice(learners: Learners) -> None:
    for seed in (1, 2):
        update(learners, seed)


def test_every_rank_gets_its_columns_of_the_batch_and_the_state_of_the_first() -> None:
    learners = adders(4)
    try:
        expected = torch.zeros(20, dtype=torch.float64)
        for seed, cut in ((1, False), (2, True), (3, False)):
            assert update(learners, seed, cut) == {"ranks": 4.0, "last": 3.0}
            seen = digest(make_batch(seed, cut))
            expected[: len(seen)] += seen
            expected[-1] += 10 * seed
        # So it is with one from replay, which has another shape.
        assert update(learners, 6, cut=True, replayed=True) == {"ranks": 4.0, "last": 3.0}
        seen = digest(make_batch(6, cut=True, replayed=True))
        expected[: len(seen)] += seen
        expected[-1] -= 60
        assert torch.equal(learners.save().tensors["weights"], expected)
        # What is loaded or donated reaches them before the next update; saving compares.
        state = LearnerState(
            {
                "weights": torch.arange(20.0).double(),
                "half": torch.tensor(7.0),
                "seen_last": torch.tensor(3.0),
            },
            {"updates": 70},
        )
        learners.load(state)
        update(learners, 4)
        assert learners.save().scalars == {"updates": 71}
        learners.warm_start({"weights": torch.ones(20, dtype=torch.float64)})
        update(learners, 5)
        saved = learners.save()
        assert saved.scalars == {"updates": 72}
        assert saved.tensors["weights"][-1] == 51.0
        assert learners.publication().version == 72
    finally:
        learners.close()
    learners.close()


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    [
        (
            "raise",
            LearnerFault,
            r"\(cpu, pid \d+\) failed: it raised .*out of paint \(.*adders_helpers.py:\d+ in",
        ),
        ("nan", NonFiniteError, "^loss became nan$"),
        pytest.param(
            "die",
            LearnerFault,
            r"learner 1 \(cpu, pid \d+\) ended with status 3 in update 2",
            marks=slow,
        ),
        pytest.param("crash", LearnerFault, "was ended by SIGSEGV in update 2", marks=slow),
        ("hang", LearnerFault, r"^learner 1 \(cpu, pid \d+\) must join update 2 within 2 s"),
        pytest.param(
            "never",
            LearnerFault,
            r"^learner 1 \(cpu, pid \d+\) must end update 1 within 2 s",
            marks=slow,
        ),
        pytest.param(
            "unready",
            LearnerFault,
            r"learner 1 .* failed: it raised .*not made for this \(.*adders_helpers.py",
            marks=slow,
        ),
    ],
)
def test_one_that_fails_is_named(trouble: str, error: type[QuintetError], words: str) -> None:
    said: list[str] = []
    learners = adders(3, trouble, timeout_s=2.0)
    try:
        learners.start(said.append, said.append)
        with pytest.raises(error, match=words) as caught:
            update_twice(learners)
        assert ("Traceback" in caught.value.detail) == (trouble in ("raise", "unready"))
    finally:
        begin = time.monotonic()
        learners.close()
    assert time.monotonic() - begin < 3  # nobody is waited for
    if trouble == "die":
        assert "[learner 1] farewell" in said


@pytest.mark.parametrize("found", [LearnerFault("learner 1 ended"), None])
def test_a_learner_that_is_gone_is_why_numbers_are_wrong(found: LearnerFault | None) -> None:
    """On a GPU, where what an exchange left is used before the host hears that it was ended."""

    def update(*_: object) -> None:
        raise NonFiniteError("loss became nan")

    ranks = SimpleNamespace(settle=lambda: None, found=lambda: found)
    learners: Any = SimpleNamespace(learner=SimpleNamespace(update=update), ranks=ranks)
    with pytest.raises(QuintetError) as caught:
        Learners._update(learners, make_batch(1, cut=False), 1)
    assert caught.type is (NonFiniteError if found is None else LearnerFault)


def test_a_batch_stays_until_every_learner_is_done_with_it() -> None:
    learners = adders(2, "late")
    try:
        update_twice(learners)
        learners.save()  # which compares
    finally:
        learners.close()


def test_other_weights_are_found_when_they_are_saved() -> None:
    learners = adders(2, "drift")
    try:
        update(learners, 1)
        learners.save()
        update(learners, 2)
        with pytest.raises(LearnerFault, match=r"learner 1 .* must have the same weights as"):
            learners.save()
    finally:
        learners.close()


def test_one_that_died_between_updates_does_not_keep_the_first_from_being_saved() -> None:
    learners = adders(2)
    try:
        update(learners, 1)
        (process,) = processes_of()
        process.kill()
        assert learners.save().scalars == {"updates": 1}
        with pytest.raises(LearnerFault, match=r"learner 1 .* was ended by SIGKILL"):
            update(learners, 2)
    finally:
        learners.close()


def test_batches_from_replay_that_cant_be_shared_evenly_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"num_learners=5 must divide the 24 sequences of a batch"
    ):
        adders(5)


@slow
def test_close_before_the_first_update() -> None:
    learners = adders(2)
    learners.start(print, print)
    learners.close()


# Whole runs


def train(folder: Path, learners: int, steps: int = 2_000, on_report: Any = None, **options: Any):
    config = SMALL | {"runtime.num_learners": learners} | options
    return quintet.train("impala", Drifting, steps, 7, folder, config, on_report=on_report)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = newest(folder)
    return found.tensors["learner"] | found.tensors["policy"]


def assert_alike(folder: Path, other: Path) -> None:
    """But for rounding."""
    found, wanted = tensors(folder), tensors(other)
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-6, atol=1e-6, msg=name)


class KillOnce:
    """Kills a learner at the report `at`."""

    def __init__(self, at: int = 12) -> None:
        self.at, self.reports = at, 0

    def __call__(self, _report: object) -> None:
        self.reports += 1
        if self.reports == self.at:
            learner = [p for p in processes_of() if p.name().startswith("learner")]
            learner[0].kill()


@slow
def test_runs_of_one_and_two_learners_are_alike_and_a_killed_one_goes_back(tmp_path: Path) -> None:
    one = train(tmp_path / "one", 1)
    two = train(tmp_path / "two", 2)
    assert one.metrics["env_steps"] == two.metrics["env_steps"] == 2_000
    named = ("loss/", "policy/", "value/", "optim/", "advantage/", "reward/", "normalizer/")
    expected = {k: v for k, v in one.metrics.items() if k.startswith(named)}
    assert {k: two.metrics[k] for k in expected} == pytest.approx(expected, rel=2e-6, abs=1e-6)
    assert_alike(tmp_path / "two", tmp_path / "one")
    # The same bytes twice, though one is killed on the way.
    killed = train(tmp_path / "killed", 2, on_report=KillOnce())
    assert killed.status == "finished"
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "two")
    said = (tmp_path / "killed" / "log.txt").read_text()
    assert "learner 1 (cpu, pid " in said
    assert "was ended by SIGKILL" in said
    assert "it printed nothing" in said
    assert "resumed at update" in said


@slow
def test_a_run_goes_on_with_another_number_of_learners(tmp_path: Path) -> None:
    """As if there had been one all along, in a run that is off the path for another reason: from a
    resume with other rounding on, no checkpoint is exact, so that environments go on."""
    for name, changes in {
        "one": ({"runtime.threads": 1}, {"runtime.threads": 2}, {"runtime.threads": 1}),
        "many": tuple({"runtime.num_learners": n} for n in (2, 4, 1)),
    }.items():
        for options, updates in zip(changes, (10, 20, 1_000), strict=True):
            train(
                tmp_path / name,
                options.pop("runtime.num_learners", 1),
                on_report=lambda report, last=updates: report["updates"] == last,
                resume="latest",
                **options,
            )
    assert_alike(tmp_path / "many", tmp_path / "one")
    for name in ("one", "many"):
        said = (tmp_path / name / "log.txt").read_text()
        assert said.count("resumed at update") == 2
        assert said.count("differ from the uninterrupted run's") == 2


@slow
@pytest.mark.parametrize("kind", ["async", "lockstep"])
def test_beside_workers_a_run_goes_back_when_a_learner_is_killed(kind: str, tmp_path: Path) -> None:
    options = {"runtime.kind": kind, "runtime.num_workers": 1, "model.core": "lstm"}
    result = train(tmp_path, 2, 3_200, KillOnce(), **options, **{"model.core_size": 8})
    assert result.status == "finished"
    assert result.metrics["env_steps"] == 3_200
    said = (tmp_path / "log.txt").read_text()
    assert "was ended by SIGKILL" in said
    assert "going back to the last" in said


def test_a_nan_is_told_and_the_batch_is_kept(tmp_path: Path) -> None:
    options = {"check_numerics": True, "learning_rate": 1e30, "runtime.compile": "off"}
    with pytest.raises(NonFiniteError, match=r"at update .* kept in"):
        train(tmp_path, 2, **options)
    assert (tmp_path / "failed_batch").is_dir()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=slow),
        pytest.param(signal.SIGTERM, marks=slow),
    ],
)
def test_no_learner_outlives_the_first(number: int, tmp_path: Path) -> None:
    process = quick_helpers.begin([SCRIPT, tmp_path])
    assert process.stdout is not None
    while "report" not in process.stdout.readline():
        assert process.poll() is None
    found = processes_of(process.pid)
    assert len(found) == 1
    # To the whole group, as a terminal does it with Ctrl-C.
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 0
        assert "stopped at" in (tmp_path / "log.txt").read_text()
        assert any((tmp_path / "checkpoints").iterdir())
    _, alive = psutil.wait_procs(found, timeout=5)
    assert not alive


# Options


@pytest.mark.parametrize(
    ("algo", "options", "words"),
    [
        (
            "ppo",
            {"runtime.num_learners": 3},
            "must divide minibatch_steps evenly, got 64: use minibatch_steps 66",
        ),
        (
            "ppo",
            {"runtime.num_learners": 4, "model.core": "lstm"},
            "must divide minibatch_steps evenly, got 64: use minibatch_steps 128",
        ),
        (
            "impala",
            {"runtime.num_learners": 3, "batch_unrolls": 32},
            "must divide batch_unrolls evenly, got 32: use batch_unrolls 33",
        ),
        ("impala", {"runtime.learner_timeout_s": 5.0}, "no effect without runtime.num_learners"),
    ],
)
def test_refused(algo: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose(algo, [Layer("call", {"env.id": "CartPole-v1"} | options)])


@pytest.mark.parametrize(
    ("device", "gpus", "words"),
    [
        ("cuda", 1, "runtime.device=cuda must have 2 CUDA GPUs that PyTorch sees, got 1: use"),
        ("cuda:1", 2, "must have runtime.device=cuda .*got cuda:1"),
        ("cuda", 0, "must have 2 CUDA GPUs that PyTorch sees, got 0"),
    ],
)
def test_a_gpu_for_each(
    device: str, gpus: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    given = {"env.id": "CartPole-v1", "runtime.num_learners": 2, "runtime.device": device}
    loaded = compose("impala", [Layer("call", given)])
    with pytest.raises(ConfigError, match=words):
        resolution.resolved(loaded)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_gpu_that_is_not_there(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for number in (0, gpus - 1, gpus, gpus + 1):
        device = f"cuda:{number}"
        loaded = compose(
            "ppo", [Layer("call", {"env.id": "CartPole-v1", "runtime.device": device})]
        )
        if number < gpus:
            assert resolution.resolved(loaded)[0]["runtime.device"] == device
            continue
        with pytest.raises(
            ConfigError, match=rf"={device} must have {number + 1} CUDA .*got {gpus}:"
        ):
            resolution.resolved(loaded)


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine, "uses_pictures", lambda *_: True)
    given = {"env.id": "CartPole-v1", "runtime.kind": "serial"}
    for learners, expected in ((1, 8), (2, 4), (3, 2)):
        columns = {"runtime.num_learners": learners, "batch_unrolls": 6}
        loaded = compose("impala", [Layer("call", given | columns)])
        values = resolution.resolved(loaded)[0]
        # The others have nothing to do while the first one acts.
        assert (values["runtime.threads"], values["runtime.actor_threads"]) == (expected, 8)


@pytest.mark.parametrize(
    ("hidden", "kind", "threads"),
    [
        ("64 64", "serial", 1),
        ("256", "serial", 1),
        ("256 256", "serial", 8),
        ("400 300", "async", 4),
    ],
)
def test_wide_layers_take_threads_for_updates_alone(
    hidden: str, kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    widths = [int(width) for width in hidden.split()]
    given = {"env.id": "Pendulum-v1", "runtime.kind": kind, "model.policy_hidden": widths}
    given |= {"action_layer": 1}
    values = resolution.resolved(compose("ddpg", [Layer("call", given)]))[0]
    assert (values["runtime.threads"], values["runtime.actor_threads"]) == (threads, 1)
