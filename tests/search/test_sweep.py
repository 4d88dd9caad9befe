"""Whole sweeps by the command: failures, kills, the best again, refusals."""

import csv
import importlib
import json
import pickle
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quick_helpers import PRELOAD, begin, forks
from small_run_helpers import SMALL, TOY

from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.jobs import group, local
from quintet.jobs.job import Job, Outcome
from quintet.jobs.local import LocalPlace
from quintet.observe.run_summary import find_runs
from quintet.search import placement
from quintet.system.signals import StopRequest

OPTIONS = [
    word
    for name, value in {
        **{k: x for k, x in SMALL.items() if k != "unroll_steps"},
        "eval.episodes": 2,
        "total_env_steps": 1024,
    }.items()
    for word in (f"--{name}", json.dumps(value) if isinstance(value, tuple) else str(value))
]


def command(folder: Path, *more: str) -> list[str]:
    return ["sweep", "ppo", "--env", TOY, "--run-dir", str(folder), *OPTIONS, *more]


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are forks of a process that has imported what they need."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(local, "Child", forks(PRELOAD))


SEARCH = ("--search", "learning_rate", "--search", "clip_epsilon=0.1..0.3")


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_best_trial(tmp_path: Path) -> None:
    more = (*SEARCH, "--trials", "4", "--jobs", "2", "--best", "1", "--seeds-of-best", "2")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with begin(["-m", "quintet", *command(killed, *more)]) as process:
        for line in process.stdout:
            if "[0002] ppo on" in line:
                break
        process.kill()
    assert cli.main(command(killed, *more)) == 0
    assert cli.main(command(whole, *more)) == 0
    assert table(killed) == table(whole)
    assert [row["state"] for row in table(whole)] == ["complete"] * 4
    assert (killed / "best.yaml").read_text() == (whole / "best.yaml").read_text()


def test_an_interrupted_sweep_goes_on_and_its_best_trial_is_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trial ends, but what it found is lost."""
    from quintet.search.study import Study

    more = (*SEARCH, "--trials", "2", "--best", "1", "--seeds-of-best", "1")
    end, folder = Study.end, tmp_path / "a"

    def dies(study: Study, number: int, *how: object) -> None:
        if number == 1:
            raise KeyboardInterrupt
        end(study, number, *how)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Study, "end", dies)
        assert cli.main(command(folder, *more)) == 130
    capsys.readouterr()
    assert cli.main(command(folder, *more)) == 0
    said = capsys.readouterr().out
    assert "[0001]" not in said
    assert "[0002] eval/return_mean" in said
    assert "again, on seeds 1\n" in said
    assert "1 seed " in said
    rows = table(folder)
    assert [row["state"] for row in rows] == ["complete"] * 2
    assert len(find_runs(folder)) == 2 + 1
    best = max(rows, key=lambda row: float(row["eval/return_mean"]))
    assert best["fresh_seeds_mean"]

    # The same command again trains nothing; another one is refused; best.yaml is a configuration.
    assert cli.main(command(folder, *more)) == 0
    assert "[0" not in capsys.readouterr().out
    assert cli.main(command(folder, *more, "--gamma", "0.9")) == 2
    assert "gamma: the sweep has None, this command has 0.9" in capsys.readouterr().err
    with run_lock(folder):
        assert cli.main(command(folder, *more)) == 1
    assert "in use by the process" in capsys.readouterr().err
    options = ["--config", str(folder / "best.yaml"), "--run-dir", str(tmp_path / "run")]
    assert cli.main(["config", "ppo", *options]) == 0
    assert f"learning_rate: {best['learning_rate']}" in capsys.readouterr().out


FAILING = ("--search", "unroll_steps=16,7", "--trials", "4", "--best", "0", "--pruner", "none")


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep, some of whose trials failed before they had a folder."""
    folder: Path = tmp_path_factory.mktemp("sweep") / "a"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "Child", forks(PRELOAD))
        assert cli.main(command(folder, *FAILING)) == 0
    return folder


@pytest.mark.parametrize("how", ["a flipped byte", "of an older version", "lost in a kill"])
def test_a_damaged_journal_is_made_again_from_the_trials(
    how: str, with_failures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where one of them failed before it had a folder."""
    folder = tmp_path / "a"
    shutil.copytree(with_failures, folder)
    before, path = table(folder), folder / "sweep.json"
    assert {row["state"] for row in before} == {"complete", "fail"}
    data = bytearray(path.read_bytes())
    if how == "a flipped byte":
        data[len(data) // 2] ^= 0x80
        path.write_bytes(data)
    elif how == "of an older version":
        path.unlink()
    else:
        path.rename(folder / "sweep.json.damaged-1")
        (folder / "journal.log").unlink()
    capsys.readouterr()
    assert cli.main(command(folder, *FAILING)) == 0
    said = capsys.readouterr().out
    complete = sum(row["state"] == "complete" for row in before)
    assert f"{complete} of {4 if before[3]['state'] == 'complete' else 3} trials are taken" in said
    assert "ppo on" not in said.replace("failed", "")  # nothing is trained again
    assert table(folder) == before
    assert (how == "a flipped byte") == ("kept as sweep.json.damaged-1" in said)
    assert (how == "of an older version") == (folder / "journal.log.old-1").exists()


def test_a_damaged_journal_of_trials_of_another_sweep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (*SEARCH, "--trials", "1", "--best", "0")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    assert "no importance.png: importances need 4 complete trials, got 1" in (
        capsys.readouterr().out
    )
    (tmp_path / "a" / "sweep.json").write_text("{")
    assert cli.main(command(tmp_path / "a", *more, "--gae-lambda", "0.5")) == 1
    said = capsys.readouterr().err
    assert "must hold trials of this sweep, got trials/0001: " in said
    assert "gae_lambda: the run has 0.95, this command has 0.5" in said


def test_a_trial_that_fails_is_recorded_and_the_sweep_goes_on(with_failures: Path) -> None:
    rows = table(with_failures)
    assert {row["state"] for row in rows} == {"complete", "fail"}
    for row in rows:
        failed = row["unroll_steps"] == "7"
        assert (row["state"] == "fail") == failed
        assert ("minibatch_steps must " in row["error"]) == failed
    assert "unroll_steps: 16" in (with_failures / "best.yaml").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "needs an end"),
        (("--trials", "0"), "--trials must be a whole number of at least 1"),
        (("--trials", "2", "--resume", "latest"), "resume must be left to a sweep"),
        (("--trials", "2", "--seeds", "1,2"), "--seeds is an option of quintet train"),
        (("--trials", "2", "--metric", "eval/retrun_mean"), "a metric that runs report"),
        (
            ("--trials", "2", "--metric", "eval/return_mean", "--eval.episodes", "0"),
            "with eval.episodes=0: raise eval.episodes",
        ),
        (("--trials", "2", "--overwrite"), "--overwrite does not belong to quintet sweep"),
        (("--trials", "2", "--report.sinks", "tensorboard"), "must have jsonl or csv"),
        (("--trials", "2", "--gama", "0.9"), "did you mean 'gamma'"),
        (("--trials", "2", "--search", "learning_rat"), "did you mean 'learning_rate'"),
    ],
)
def test_wrong_words_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert cli.main(command(tmp_path / "a", *more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert cli.main(command(tmp_path, "--trials", "2")) == 2
    assert "or one with a sweep" in capsys.readouterr().err
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "sweep.json").symlink_to(tmp_path / "thesis.tex")
    assert cli.main(command(folder, "--trials", "2")) == 1
    assert "must be an ordinary file or folder, got a link" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == ""


def test_a_sweep_without_a_trial_that_trained_to_its_end_fails_with_the_first_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Outcome(1, {"error": "it diverged"})
    monkeypatch.setattr(group, "run_all", lambda jobs, *_, **__: [broken for x in jobs])
    assert cli.main(command(tmp_path / "a", *SEARCH, "--trials", "1")) == 1
    said = capsys.readouterr().err
    assert "no trial trained to its end; the first reason: it diverged" in said


def test_without_optuna_one_sentence_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name
        for name in sys.modules
        if name in ("quintet.search.study", "quintet.search.sweep", "quintet.search.pruning")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(command(tmp_path / "a", "--trials", "2")) == 2
    assert 'pip install "quintet-rl[sweep]"' in capsys.readouterr().err
    importlib.invalidate_caches()


class Fake:
    """Processes of trials that have ended at once.

    scores: by trial; killed: names of members that are killed, once for each time that they are
        named; pruned: trials that are pruned; stops_at: number of the batch in which the user stops
        the sweep while its trials end anyway.
    """

    def __init__(
        self,
        scores: Sequence[float],
        killed: Sequence[str] = (),
        pruned: Sequence[str] = (),
        stops_at: int = -1,
    ):
        self.scores, self.killed, self.pruned = list(scores), [*killed], pruned
        self.stops_at = stops_at
        self.batches: list[list[str]] = []

    def run(
        self, jobs: Sequence[Job], at_once: int, say: Any, place: Any, stop: StopRequest
    ) -> list[Outcome]:
        self.batches.append([each.name for each in jobs])
        if len(self.batches) - 1 == self.stops_at:
            stop.made = True
        return [self._outcome(each) for each in jobs]

    def _outcome(self, job: Job) -> Outcome:
        if job.name in self.killed:
            self.killed.remove(job.name)
            return Outcome(-9, None)
        if job.name in self.pruned:
            return Outcome(0, {"status": "pruned", "score": 0.5, "curve": [[3, 0.5]]})
        number, *fresh = job.name.split("-")
        if fresh:
            assert job.folder is not None
            job.folder.mkdir(parents=True)
            (job.folder / "run.json").write_text('{"state": "finished"}')
            line = {"env_steps": 1024, "wall_s": 1.0, "eval/return_mean": 1.0}
            (job.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return Outcome(0, {"status": "finished", "score": self.scores[int(number) - 1]})


def test_a_stop_is_heeded_also_where_the_trials_have_just_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (*SEARCH, "--trials", "3", "--best", "0")
    fake = Fake([1.0, 2.0, 3.0], stops_at=1)
    monkeypatch.setattr(group, "run_all", fake.run)
    assert cli.main(command(tmp_path / "a", *more)) == 130
    assert [each for each in fake.batches if each] == [["0001"], ["0002"]]
    held = json.loads((tmp_path / "a" / "sweep.json").read_text())
    assert [each["state"] for each in held["trials"]] == ["complete"] * 2
    assert cli.main(command(tmp_path / "a", *more)) == 0
    assert [each for each in fake.batches if each] == [["0001"], ["0002"], ["0003"]]
    assert [row["state"] for row in table(tmp_path / "a")] == ["complete"] * 3


def test_a_trial_of_which_a_fresh_seed_is_killed_comes_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake([1.0, 2.0], killed=["0002-s1"] * 3)
    monkeypatch.setattr(group, "run_all", fake.run)
    more = (*SEARCH, "--trials", "2", "--best", "2", "--seeds-of-best", "2")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    assert "[0002-s1] failed: its process was ended by SIGKILL" in capsys.readouterr().out
    first = table(tmp_path / "a")[0]
    assert f"learning_rate: {first['learning_rate']}" in (tmp_path / "a" / "best.yaml").read_text()


def test_a_fresh_seed_that_is_killed_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake([1.0, 2.0], killed=["0002-s1"] * 2)
    monkeypatch.setattr(group, "run_all", fake.run)
    more = (*SEARCH, "--trials", "2", "--best", "1", "--seeds-of-best", "2")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    fresh = [each for each in fake.batches if each and "-" in each[0]]
    assert fresh == [["0002-s1", "0002-s2"], ["0002-s1"], ["0002-s1"]]
    assert "failed" not in capsys.readouterr().out
    assert [bool(row["fresh_seeds_mean"]) for row in table(tmp_path / "a")] == [False, True]


@pytest.mark.parametrize("times", [2, 3])
def test_a_killed_trial_runs_again_but_not_for_ever(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake([1.0, 2.0], killed=["0001"] * times)
    monkeypatch.setattr(group, "run_all", fake.run)
    assert cli.main(command(tmp_path / "a", *SEARCH, "--trials", "2", "--best", "0")) == 0
    assert [each for each in fake.batches if each] == [*[["0001"]] * 3, ["0002"]]
    states = [row["state"] for row in table(tmp_path / "a")]
    assert sorted(states) == ["complete", "complete" if times == 2 else "fail"]
    told = "[0001] failed: its process was ended by SIGKILL"
    out = capsys.readouterr().out
    assert (told in out) == (times == 3)
    assert (" 3 times" in out) == (times == 3)


def test_a_pruned_trial_is_no_stop_and_no_best_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake([9.0, 2.0, 1.0], pruned=["0001"])
    monkeypatch.setattr(group, "run_all", fake.run)
    assert cli.main(command(tmp_path / "a", *SEARCH, "--trials", "3", "--best", "0")) == 0
    rows = {row["trial"]: row for row in table(tmp_path / "a")}
    assert {name: row["state"] for name, row in rows.items()} == {
        "0001": "pruned",
        "0002": "complete",
        "0003": "complete",
    }
    best = (tmp_path / "a" / "best.yaml").read_text()
    assert f"learning_rate: {rows['0002']['learning_rate']}" in best


@pytest.mark.parametrize(
    ("minutes", "best", "batches", "said"),
    [
        ("16", "2", [["0001"], ["0002"], ["0002-s1", "0002-s2"]], "only the best 1 can be"),
        ("16", "0", [["0001"], ["0002"], ["0003"], ["0004"]], None),
        ("5", "2", [["0001"]], "none of the best trials can be"),
    ],
)
def test_minutes_are_for_trials_and_the_best_again(
    minutes: str,
    best: str,
    batches: list[list[str]],
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each batch takes four minutes."""
    fake = Fake([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(group, "run_all", fake.run)
    clock = SimpleNamespace(monotonic=lambda: 240.0 * len(fake.batches))
    monkeypatch.setattr(importlib.import_module("quintet.search.sweep"), "time", clock)
    more = (*SEARCH, "--minutes", minutes, "--best", best, "--seeds-of-best", "2")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    assert [each for each in fake.batches if each] == batches
    out = capsys.readouterr().out
    assert ("trained again in time, not" in out) == (said is not None)
    assert said is None or f"minutes={minutes}: {said} trained again" in out
    which = f"best: trials/{batches[-1][0][:4]}, by its "
    assert which + ("fresh seeds\n" if "-" in batches[-1][0] else "one seed\n") in out


class Nodes:
    """A cluster that is this process; notes the runs that it checks, and what it is given."""

    def __init__(self) -> None:
        self.checked: list[Path] = []
        self.ran: list[str] = []
        self.left = False

    def of(self, runs: Sequence[Any], placing: Any, values: Any, say: Any) -> "Nodes":
        assert placing.cluster.address == "10.0.0.1:6379"
        assert placing.cluster.wait_s == 5.0
        self.checked += [each.config.run_dir for each in runs]
        return self

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True

    def start(self, job: Job, say: Any) -> Any:
        self.ran += [job.name]
        return LocalPlace().start(job, say)


def test_trials_and_the_best_again_run_on_the_nodes_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes()
    monkeypatch.setattr(placement, "on_nodes", nodes.of)
    more = (*SEARCH, "--trials", "2", "--jobs", "2", "--best", "1", "--seeds-of-best", "1")
    there = ("--cluster", "10.0.0.1:6379", "--cluster.wait-s", "5")
    assert cli.main(command(tmp_path / "a", *more, *there)) == 0
    best = max(table(tmp_path / "a"), key=lambda row: float(row["eval/return_mean"]))["trial"]
    assert nodes.ran == ["0001", "0002", f"{best}-s1"]
    assert nodes.checked == [tmp_path / "a" / "trials"]
    assert nodes.left
    options = (tmp_path / "a" / "trials" / "0001" / "config.yaml").read_text()
    assert "10.0.0.1" not in options  # each run is a whole one, on one node
    # Where it runs is no part of what it is.
    assert cli.main(command(tmp_path / "a", *more)) == 0


def test_a_full_disk_or_a_lost_cluster_is_no_fault_of_a_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a trial nor of the best again: the same command goes on."""
    more = (*SEARCH, "--trials", "1", "--best", "1", "--seeds-of-best", "1")
    full = Outcome(1, {"error": "no room; make room there", "blameless": True})
    run = group.run_all

    def fails(name: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(
                group,
                "run_all",
                lambda jobs, *args, **kwargs: (
                    [full] if [each.name for each in jobs] == [name] else run(jobs, *args, **kwargs)
                ),
            )
            assert cli.main(command(tmp_path / "a", *more)) == 1
        assert f"[{name}] no room; make room there" in capsys.readouterr().err

    fails("0001")
    fails("0001-s1")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    (row,) = table(tmp_path / "a")
    assert row["state"] == "complete"
    assert row["fresh_seeds_mean"]


def test_a_sweep_whose_folder_goes_away_ends_and_does_not_make_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, away = tmp_path / "a", tmp_path / "away"
    more = (*SEARCH, "--trials", "2", "--seeds-of-best", "0")

    def goes(*_: Any, **__: Any) -> list[Outcome]:
        folder.rename(away)
        return [Outcome(1, {"error": "its folder is not there"})]

    with monkeypatch.context() as patched:
        patched.setattr(group, "run_all", goes)
        assert cli.main(command(folder, *more)) == 1
    assert f"the folder {folder} was moved or removed" in capsys.readouterr().err
    assert not folder.exists()
    away.rename(folder)
    assert cli.main(command(folder, *more)) == 0
    assert [row["state"] for row in table(folder)] == ["complete", "complete"]


def test_a_searched_runtime_decides_whether_a_trial_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake([1.0] * 6)
    resumed: list[tuple[str, str]] = []

    def run(jobs: Sequence[Job], *args: Any, **kwargs: Any) -> list[Outcome]:
        for each in jobs:
            config = pickle.loads(pickle.loads(each.payload)["run"]).config
            resumed.append((config.runtime.kind, config.resume))
        return fake.run(jobs, *args, **kwargs)

    monkeypatch.setattr(group, "run_all", run)
    more = ("--search", "runtime.kind=serial,async", "--trials", "6", "--best", "0")
    assert cli.main(command(tmp_path / "a", *more)) == 0
    assert {*resumed} == {("serial", "exact"), ("async", "latest")}
