"""Sinks: every report once, whole lines, and a clear word about full disks."""

import csv
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import small_run_helpers
from disks_helpers import small_disk

import quintet
from quintet.errors import ConfigError, QuintetError
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import read_summary
from quintet.observe.sinks import (
    JsonlSink,
    Kept,
    ReportConfig,
    TensorBoardSink,
    open_sinks,
)


def no_notice(message: str) -> None:
    raise AssertionError(f"unexpected notice: {message}")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scalars_of(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_all_sinks_get_the_same_finite_values(tmp_path: Path) -> None:
    reporter = open_sinks(ReportConfig(), tmp_path, resume_env_steps=None, notice=no_notice)
    sent = reporter.write({"env_steps": 10, "loss/policy": 1 / 3, "loss/value": float("nan")})
    assert sent == {"env_steps": 10, "loss/policy": 1 / 3}
    reporter.write({"env_steps": 20, "loss/policy": -2.0})
    # at once in the files: only the table waits for a checkpoint
    assert read_metrics(tmp_path) == [sent, {"env_steps": 20, "loss/policy": -2.0}]
    assert not (tmp_path / "progress.csv").exists()
    reporter.sync()
    assert [row["loss/policy"] for row in rows_of(tmp_path / "progress.csv")] == [
        repr(1 / 3),
        "-2.0",
    ]
    assert scalars_of(tmp_path / "tensorboard", "loss/policy") == [
        (10, pytest.approx(1 / 3)),
        (20, -2),
    ]
    reporter.close()


def test_tensorboard_reads_what_came_last_also_after_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for start, values in ((now, range(1, 5)), (now - 500.0, range(3, 6))):
        monkeypatch.setattr(time, "time", lambda at=start: at)
        sink = TensorBoardSink(tmp_path)
        for steps in values:
            sink.write({"env_steps": steps, "loss/policy": float(steps)})
        sink.close()
    assert [steps for steps, _ in scalars_of(tmp_path, "loss/policy")][-3:] == [3, 4, 5]


def test_distributions_go_to_tensorboard_alone(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = open_sinks(ReportConfig(), tmp_path, resume_env_steps=None, notice=no_notice)
    x = np.array([1.0, 2.0, 2.0, 5.0, np.nan, np.inf])
    given = {"histogram/x": x, "histogram/none": x[4:], "histogram/one": np.ones((2, 2), int)}
    sent = reporter.write({"env_steps": 10, "loss/policy": 0.5}, given)
    reporter.close()
    assert sent == {"env_steps": 10, "loss/policy": 0.5}
    assert read_metrics(tmp_path) == [sent]
    assert set(rows_of(tmp_path / "progress.csv")[0]) == set(sent)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["histograms"]) == {"histogram/x", "histogram/one"}
    (event,) = events.Histograms("histogram/x")
    shown = event.histogram_value
    assert event.step == 10
    assert (shown.min, shown.max, shown.num, shown.sum, shown.sum_squares) == (1, 5, 4, 10, 34)
    edges = [1.0, *shown.bucket_limit]
    for low, high, count in zip(edges, edges[1:], shown.bucket, strict=False):
        last = high == edges[-1]
        finite = x[:4]
        assert count == ((finite >= low) & ((finite < high) | (last & (finite == high)))).sum()
    assert sum(events.Histograms("histogram/one")[0].histogram_value.bucket) == 4
    with pytest.raises(QuintetError, match="histograms/x"):
        reporter.write({"env_steps": 20}, {"histograms/x": x})


def test_distributions_that_no_sink_shows_are_told_once(tmp_path: Path) -> None:
    notices: list[str] = []
    config = ReportConfig(sinks=("jsonl",))
    reporter = open_sinks(config, tmp_path, resume_env_steps=None, notice=notices.append)
    for steps in (1, 2, 3):
        reporter.write({"env_steps": steps}, {} if steps == 1 else {"histogram/x": [1.0]})
        assert len(notices) == (steps > 1)
    assert "report.sinks" in notices[0]
    reporter.close()


def test_undeclared_metric_reaches_no_sink(tmp_path: Path) -> None:
    reporter = open_sinks(ReportConfig(), tmp_path, resume_env_steps=None, notice=no_notice)
    with pytest.raises(QuintetError, match="loss/typo"):
        reporter.write({"env_steps": 10, "loss/typo": 1.0})
    reporter.close()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_resume_drops_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    reporter = open_sinks(ReportConfig(), tmp_path, resume_env_steps=None, notice=no_notice)
    for steps in (10, 20, 30, 40):
        reporter.write({"env_steps": steps, "loss/policy": float(steps)})
    reporter.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 15, "loss')
    notices: list[str] = []
    reporter = open_sinks(
        ReportConfig(), tmp_path, resume_env_steps=20, notice=notices.append, warn=notices.append
    )
    assert notices == [
        f"the last line of {tmp_path / 'metrics.jsonl'} is torn and left out",
        "dropped 2 reports beyond 20 env_steps, which training writes again",
    ]
    reporter.write({"env_steps": 25, "loss/policy": 99.0})
    reporter.close()
    assert [(r["env_steps"], r["loss/policy"]) for r in read_metrics(tmp_path)] == [
        (10, 10.0),
        (20, 20.0),
        (25, 99.0),
    ]
    rows = rows_of(tmp_path / "progress.csv")
    assert [(row["env_steps"], row["loss/policy"]) for row in rows] == [
        ("10", "10.0"),
        ("20", "20.0"),
        ("25", "99.0"),
    ]
    assert scalars_of(tmp_path / "tensorboard", "loss/policy") == [(10, 10), (20, 20), (25, 99)]
    assert not list(tmp_path.glob(".*"))


def test_beginning_anew_empties_the_files(tmp_path: Path) -> None:
    notices: list[str] = []
    for first in (10, 5):
        reporter = open_sinks(
            ReportConfig(), tmp_path, resume_env_steps=None, notice=notices.append
        )
        reporter.write({"env_steps": first, "loss/policy": 1.0})
        reporter.close()
    assert notices == ["dropped 1 report of an earlier start, which training writes again"]
    assert [report["env_steps"] for report in read_metrics(tmp_path)] == [5]
    assert [row["env_steps"] for row in rows_of(tmp_path / "progress.csv")] == ["5"]
    assert scalars_of(tmp_path / "tensorboard", "loss/policy") == [(5, 1)]


def test_reader_leaves_out_a_torn_last_line_and_tells_of_others(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match=r"no metrics\.jsonl"):
        read_metrics(tmp_path)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"env_steps": 1}\n{"env_steps": 2}\n{"env_st')
    assert [report["env_steps"] for report in read_metrics(tmp_path)] == [1, 2]
    file.write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 3}\n')
    notices: list[str] = []
    assert [report["env_steps"] for report in read_metrics(tmp_path, notices.append)] == [1, 3]
    (notice,) = notices
    assert notice.startswith(f"line 2 of {file} is damaged (")
    file.write_text('{"env_steps": null}\n{"env_steps": 2}\n')
    assert read_metrics(tmp_path, notices.append) == [{"env_steps": 2}]
    assert "not all values are finite numbers" in notices[1]


def test_a_file_of_sinks_that_a_run_has_no_more_is_not_read(tmp_path: Path) -> None:
    small = small_run_helpers.SMALL | {"report.sinks": ["jsonl", "csv"]}
    folder = tmp_path / "run"
    quintet.train("ppo", small_run_helpers.TOY, 128, run_dir=folder, config=small)
    less = small | {"report.sinks": ["jsonl"]}
    quintet.train("ppo", small_run_helpers.TOY, 256, run_dir=folder, config=less)
    found = read_summary(folder)
    assert (found.state, found.faults) == ("finished", ())
    assert found.env_steps == 256
    quintet.train("ppo", small_run_helpers.TOY, 256, run_dir=folder, config=less)
    quintet.train("ppo", small_run_helpers.TOY, 384, run_dir=folder, config=small)
    assert not list(folder.glob("*damaged*"))
    steps = [float(row["env_steps"]) for row in rows_of(folder / "progress.csv")]
    assert steps == [report["env_steps"] for report in read_metrics(folder)]


def test_a_damaged_line_within_stops_no_resume(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"env_steps": 1}\n[2]\n\x00\xff\n{"env_steps": 3}\n{"env_steps": 9}\n')
    notices: list[str] = []
    config = ReportConfig(sinks=("jsonl",))
    before = file.read_bytes()
    reporter = open_sinks(
        config, tmp_path, resume_env_steps=5, notice=notices.append, warn=notices.append
    )
    reporter.write({"env_steps": 7})
    reporter.close()
    aside = tmp_path / "metrics.jsonl.damaged-1"
    assert [notice.split(" is damaged")[0] for notice in notices] == [
        f"line 2 of {file}",
        f"line 3 of {file}",
        "dropped 1 report beyond 5 env_steps, which training writes again",
        f"the damaged {file} is kept as {aside}",
    ]
    assert aside.read_bytes() == before
    assert [report["env_steps"] for report in read_metrics(tmp_path, no_notice)] == [1, 3, 7]


def test_integers_and_floats_survive_exactly(tmp_path: Path) -> None:
    report = {"env_steps": 2**53 + 1, "loss/policy": 0.1 + 0.2}
    sink = JsonlSink(tmp_path)
    sink.write(report)
    sink.begin(Kept(read_metrics(tmp_path), 2**60))
    sink.close()
    assert read_metrics(tmp_path) == [report]


@pytest.mark.parametrize("syncs", [(), (0,), (1, 2), (0, 1, 2)])
def test_a_table_grows_columns(tmp_path: Path, syncs: tuple[int, ...]) -> None:
    """The same table, whenever its rows are written."""
    reports = [
        {"loss/policy": 1.0, "env_steps": 1},
        {"env_steps": 2, "loss/value": 0.5, "eval/return_mean": 5.0},
        {"env_steps": 3, "loss/policy": 3.0},
    ]
    config = ReportConfig(sinks=("csv",))
    reporter = open_sinks(config, tmp_path, resume_env_steps=None, notice=no_notice)
    for place, report in enumerate(reports):
        reporter.write(report)
        if place in syncs:
            reporter.sync()
    reporter.close()
    assert (tmp_path / "progress.csv").read_text().splitlines() == [
        "env_steps,loss/policy,eval/return_mean,loss/value",
        "1,1.0,,",
        "2,,5.0,0.5",
        "3,3.0,,",
    ]


def test_the_table_alone_is_made_from_lines_too(tmp_path: Path) -> None:
    config = ReportConfig(sinks=("csv",))
    reporter = open_sinks(config, tmp_path, resume_env_steps=None, notice=no_notice)
    for steps in (1, 2):
        reporter.write({"env_steps": steps})
        reporter.sync()
    reporter.write({"env_steps": 3})
    assert [row["env_steps"] for row in rows_of(tmp_path / "progress.csv")] == ["1", "2"]
    reporter.close()
    assert [row["env_steps"] for row in rows_of(tmp_path / "progress.csv")] == ["1", "2", "3"]
    assert read_metrics(tmp_path) == [{"env_steps": steps} for steps in (1, 2, 3)]


def test_a_table_without_lines_is_kept(tmp_path: Path) -> None:
    """As of runs that reported to the table only."""
    path, kept = tmp_path / "progress.csv", tmp_path / "progress.csv.old-1"
    path.write_text("env_steps\n1\n")
    with pytest.raises(QuintetError, match=r"no metrics\.jsonl"):
        read_metrics(tmp_path)
    notices: list[str] = []
    for steps in (1, 2):
        reporter = open_sinks(
            ReportConfig(), tmp_path, resume_env_steps=steps, notice=no_notice, warn=notices.append
        )
        reporter.write({"env_steps": steps + 1})
        reporter.close()
    assert notices == [f"{path} is kept as {kept}: only metrics.jsonl is read"]
    assert kept.read_text() == "env_steps\n1\n"
    assert [row["env_steps"] for row in rows_of(path)] == ["2", "3"]


def test_missing_tensorboard_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "tensorboard.compat.proto", raising=False)
    notices: list[str] = []
    reporter = open_sinks(ReportConfig(), tmp_path, resume_env_steps=None, notice=notices.append)
    reporter.write({"env_steps": 1})
    reporter.write({"env_steps": 2})
    reporter.close()
    assert len(notices) == 1
    assert "quintet-rl[tensorboard]" in notices[0]
    assert len(read_metrics(tmp_path)) == 2
    assert not (tmp_path / "tensorboard").exists()


MAKERS: list[Callable[[Path], JsonlSink | TensorBoardSink]] = [
    JsonlSink,
    lambda folder: TensorBoardSink(folder / "tensorboard"),
]


@pytest.mark.parametrize("make", MAKERS, ids=["jsonl", "tensorboard"])
def test_full_disk_is_explained_and_leaves_whole_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], JsonlSink | TensorBoardSink],
) -> None:
    sink = make(tmp_path)
    sink.write({"env_steps": 1, "loss/policy": 1.0})
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    real = os.write
    room = 5

    def nearly_full(handle: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(handle, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(QuintetError, match=r"No space left on device, [\d,]+ bytes free"):
        sink.write({"env_steps": 2, "loss/policy": 2.0})
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before
    monkeypatch.undo()
    sink.write({"env_steps": 4, "loss/policy": 4.0})
    sink.close()


def test_a_table_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ReportConfig(sinks=("csv",))
    reporter = open_sinks(config, tmp_path, resume_env_steps=None, notice=no_notice)
    reporter.write({"env_steps": 1})
    reporter.sync()
    before = (tmp_path / "progress.csv").read_bytes()
    reporter.write({"env_steps": 2})

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(QuintetError, match=r"progress\.csv \(No space left on device"):
        reporter.sync()
    reporter.close()  # does not hide the error that ends the run
    assert (tmp_path / "progress.csv").read_bytes() == before


def test_really_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        sink = JsonlSink(disk)
        written = 0
        with pytest.raises(QuintetError, match="No space left on device"):  # noqa: PT012
            for written in range(10_000):
                sink.write({"env_steps": written, "loss/policy": 1.0})
        sink.close()
        assert (disk / "metrics.jsonl").read_text().endswith("\n")
        assert len(read_metrics(disk)) == written > 10


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, quintet.observe.sinks, quintet.observe.plots, quintet.observe.progress\n"
        "print([m for m in ('tensorboard', 'matplotlib', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


def wandb_records(path: Path) -> bytes:
    """The records of a W&B log without their headers, which may part a word: LevelDB's format,
    blocks of 32 KiB, behind a header of 7 bytes of W&B's own.
    """
    data, found, at = path.read_bytes(), [], 7
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:  # padding
            at += left
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        found.append(data[at + 7 : at + 7 + length])
        at += 7 + length
    assert at == len(data)
    return b"".join(found)


def all_written(path: Path) -> bytes:
    """The records of a W&B log whose run has ended: W&B's own process writes them, and on a busy
    machine it goes on for a moment when the run has been told that it is finished.
    """
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        with suppress(AssertionError):  # half of a record
            if b"loss/policy" in (found := wandb_records(path)):
                return found
        time.sleep(0.1)
    return wandb_records(path)


@pytest.mark.slow
def test_wandb_goes_on_with_the_folders_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids: list[str] = []
    for begin in (None, 10, None):
        reporter = open_sinks(
            ReportConfig(sinks=("wandb",)),
            tmp_path,
            resume_env_steps=begin,
            notice=no_notice,
            options={"env.id": "CartPole-v1"},
        )
        values = {"advantage/std": [1.0, float("nan")]}
        reporter.write({"env_steps": 10.0, "loss/policy": 0.53125}, values)
        reporter.close()
        ids.append(json.loads((tmp_path / "wandb.json").read_text())["id"])
    assert ids[0] == ids[1] != ids[2]
    kept = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert {path.stem.removeprefix("run-") for path in kept} == {*ids}
    for path in kept:  # numbers are JSON
        written = all_written(path)
        for told in (b"loss/policy", b"0.53125", b"env_steps", b"CartPole-v1", b"histogram"):
            assert told in written


def test_wandb_that_is_not_installed_is_refused_before_the_folder_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("quintet.observe.wandb_sink.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"report.sinks=wandb needs wandb, which is not installed"
    ):
        quintet.train(
            "ppo",
            "CartPole-v1",
            2_048,
            run_dir=tmp_path / "run",
            config={"report.sinks": ["wandb"]},
        )
    assert not (tmp_path / "run").exists()
