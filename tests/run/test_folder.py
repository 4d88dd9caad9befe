"""The folder of a run: made good where it can be, refused where it can't, never another's."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import hashes

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import CheckpointError, ConfigError, FileFault, QuintetError
from quintet.observe.report_files import read_metrics
from quintet.run.folder import RunFolder
from quintet.run.launch import Result
from quintet.system import files, provenance

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "eval.episodes": 1,
    "eval.interval": 320,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl", "csv"],
    "report.progress": False,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 2,
    "env.kwargs": {"n": 40},
}
ENV = "toys_helpers:EndlessPay"
TOTAL = 64 * 20


class Killed(BaseException):
    """As if the process had ended."""


def run(folder: Path, on_report: Any = None, total: int = TOTAL, **config: Any) -> Result:
    options = SMALL | {name.replace("__", "."): value for name, value in config.items()}
    return quintet.train("ppo", ENV, total, 3, folder, options, on_report)


def at(iteration: int, act: Callable[[], object]) -> Callable[[dict[str, float]], object]:
    return lambda report: act() if report["iterations"] == iteration else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Stopped at iteration 13, with checkpoints of 10 and 13."""
    folder = tmp_path_factory.mktemp("half") / "run"
    assert run(folder, at(13, lambda: True)).status == "stopped"
    return folder


@pytest.fixture
def copy(tmp_path):
    def copied(of: Path) -> Path:
        return Path(shutil.copytree(of, tmp_path / "run"))

    return copied


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def flip(file: Path, at: int = -5) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


# config.yaml


@pytest.mark.parametrize("damage", ["missing", "foreign", "edited", "folder"])
def test_a_run_goes_on_whatever_its_config_yaml_says(damage, half, copy):
    """It is for people, and written anew."""
    folder = copy(half)
    file = folder / "config.yaml"
    text = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage != "missing":
        edited = text.replace(b"gamma: 0.99", b"gamma: 0.5")
        file.write_bytes({"foreign": b"\xff\x00\x01", "edited": edited}[damage])
    assert run(folder).status == "finished"
    assert file.read_bytes() == text
    assert (damage == "folder") == (folder / "config.yaml.damaged-1").exists()


def test_a_checkpoint_of_another_run_is_not_gone_on_from(half, copy, tmp_path):
    folder, other = copy(half), tmp_path / "other"
    run(other, total=64 * 12, gamma=0.5)
    shutil.rmtree(folder / "checkpoints/000000010")
    shutil.copytree(other / "checkpoints/000000010", folder / "checkpoints/000000010")
    flip(folder / "checkpoints/000000013/policy.safetensors")
    with pytest.raises(
        CheckpointError, match=r"000000010 must be .* of this run, .*\(gamma was 0\.5 and is 0"
    ):
        run(folder)
    shutil.rmtree(folder / "checkpoints/000000013")
    with pytest.raises(ConfigError, match=r"gamma: the run has 0\.5, this command has 0\.99"):
        run(folder, gamma=0.99)


def test_everything_that_a_resume_needs_is_synced_before_the_first_checkpoint(
    tmp_path, monkeypatch
):
    synced: list[str] = []
    whole = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}").removeprefix(f"{tmp_path}/"))
        whole(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    run(tmp_path / "deep/runs/r", total=64 * 5)
    first = next(i for i, name in enumerate(synced) if "checkpoints/.tmp-" in name)
    before = synced[:first]
    assert before[:3] == [str(tmp_path), "deep", "deep/runs"]
    assert before.index("deep/runs/r/.tmp-config.yaml") < len(before) - 1
    assert {"deep/runs/r/metrics.jsonl", "deep/runs/r/.tmp-progress.csv"} <= set(before)
    assert before[-2:] == ["deep/runs/r"] * 2  # after progress.csv, and after checkpoints/ is made


# Checkpoints, policies


def test_a_damaged_old_checkpoint_harms_no_healthy_run(half, copy, capsys):
    folder = copy(half)
    meta = folder / "checkpoints/000000010/meta.json"
    meta.write_text(
        meta.read_text().replace('"scheduled"', '"schedulex"').replace('"exact"', '"exacx"')
    )
    assert run(folder).status == "finished"
    said = capsys.readouterr().err
    assert said.count("passed over a damaged checkpoint") == 1  # not at every checkpoint again
    assert str(meta) in said
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["000000010", "000000018", "000000021"]  # the damaged one and the newest two
    assert hashes(folder)


def test_a_damaged_newest_checkpoint_is_passed_over_by_name(whole, half, copy, capsys):
    """And the run comes to the same end."""
    folder = copy(half)
    flip(folder / "checkpoints/000000013/learner.safetensors")
    assert run(folder).status == "finished"
    assert hashes(folder) == hashes(whole)
    said = capsys.readouterr().err
    assert "skipped a damaged checkpoint: " in said
    assert "000000013/learner.safetensors is corrupted" in said
    assert "what was trained after 632 env_steps is trained again" in said


def test_a_resume_that_must_be_exact_names_the_whole_checkpoint_that_is_not(half, copy):
    folder = copy(half)
    flip(folder / "checkpoints/000000010/learner.safetensors")
    there = re.escape(str(folder / "checkpoints/000000013"))
    with pytest.raises(
        CheckpointError, match=rf"no exact .* --resume latest to continue from {there}"
    ):
        run(folder, resume="exact")
    flip(folder / "checkpoints/000000013/learner.safetensors")
    with pytest.raises(CheckpointError, match=r"or remove .* to start the run again"):
        run(folder, resume="exact")


def test_pruning_reads_no_tensors(whole, copy, monkeypatch):
    folder = copy(whole)
    read: list[str] = []
    for name in ("read_bytes",):
        inner = getattr(checkpoint.files, name)

        def reading(path: Path, inner: Any = inner, **options: Any) -> bytes:
            read.append(path.name)
            return inner(path, **options)

        monkeypatch.setattr(checkpoint.files, name, reading)
    checkpoint.prune(folder / "checkpoints", 1, lambda meta: False)
    assert set(read) == {"manifest.json", "meta.json"}


def test_a_torn_checkpoint_counts_as_none_when_others_are_deleted(whole, copy):
    folder = copy(whole) / "checkpoints"
    newest, before = sorted(folder.iterdir(), reverse=True)
    (newest / "policy.safetensors").write_bytes(b"")
    said: list[str] = []
    assert checkpoint.prune(folder, 1, lambda meta: False, said.append) == []
    assert before.exists()
    (line,) = said
    assert str(newest / "policy.safetensors") in line


def test_a_renamed_checkpoint_is_passed_over(whole, copy, capsys):
    folder = copy(whole)
    newest = folder / "checkpoints/000000020"
    newest.rename(folder / "checkpoints/000000025")
    quintet.load(folder)
    assert "000000025 holds the checkpoint of iteration 20" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flip", "missing", "other"])
def test_a_damaged_policy_of_a_finished_run_is_written_again(damage, tmp_path):
    folder = tmp_path / "run"
    every = {"checkpoint__interval_iterations": 1, "checkpoint__keep": 100, "eval__interval": 100}
    run(folder, total=64 * 6, **every)
    sound = {path.name: path.read_bytes() for path in (folder / "policy").iterdir()}
    if damage == "flip":
        flip(folder / "policy/policy.safetensors")
    else:
        shutil.rmtree(folder / "policy")
    if damage == "other":
        quintet.load(sorted((folder / "checkpoints").iterdir())[0]).save(folder / "policy")
    assert run(folder, total=64 * 6, **every).status == "finished"
    assert {path.name: path.read_bytes() for path in (folder / "policy").iterdir()} == sound


@pytest.mark.parametrize("damage", ["flip", "missing", "other"])
def test_a_damaged_best_policy_of_a_finished_run_is_said(damage, whole, copy, capsys):
    folder = copy(whole)
    if damage == "flip":
        flip(folder / "best/policy.safetensors")
    else:
        shutil.rmtree(folder / "best")
    if damage == "other":
        quintet.load(sorted((folder / "checkpoints").iterdir())[0]).save(folder / "best")
    assert run(folder).status == "finished"
    said = capsys.readouterr().err
    assert "the best policy is lost" in said
    assert str(folder / "best") in said


def test_another_policy_of_the_same_version_is_replaced_by_the_runs(whole, copy, tmp_path):
    folder = copy(whole)
    other = run(tmp_path / "other", learning_rate=1e-2)
    assert other.policy.publication.version == checkpoint.read(folder / "policy").meta["version"]
    shutil.rmtree(folder / "policy")
    other.policy.save(folder / "policy")
    run(folder)
    wanted = (whole / "policy/policy.safetensors").read_bytes()
    assert (folder / "policy/policy.safetensors").read_bytes() == wanted


def test_a_lost_best_policy_is_said_and_found_again(half, copy, capsys):
    folder = copy(half)
    flip(folder / "best/policy.safetensors")
    run(folder)
    assert "the best policy is lost" in capsys.readouterr().err
    assert quintet.load(folder, "best")
    flip(folder / "best/policy.safetensors")
    with pytest.raises(CheckpointError, match=r"best/policy\.safetensors is corrupted"):
        quintet.load(folder, "best")


# The folder itself


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_folder_that_goes_away_ends_the_run_and_is_not_made_again(tmp_path, how):
    folder, away = tmp_path / "run", tmp_path / "away"

    def go() -> None:
        if how == "removed":
            shutil.rmtree(folder)
        else:
            folder.rename(away)
        if how == "replaced":
            folder.mkdir()

    with pytest.raises(CheckpointError, match=r"run was moved or removed during training"):
        run(folder, at(7, go))
    assert folder.exists() == (how == "replaced")
    assert how != "replaced" or not any(folder.iterdir())
    if how != "removed":
        assert "was moved or removed" in log(away)
        shutil.rmtree(folder, ignore_errors=True)
        away.rename(folder)
        assert run(folder).status == "finished"


def test_a_folder_that_goes_away_before_the_first_batch_is_not_made_again(tmp_path, monkeypatch):
    from quintet.run import trainer

    whole = trainer.Trainer.train

    def going(self: trainer.Trainer, sampling: Any) -> Any:
        shutil.rmtree(tmp_path / "run")
        return whole(self, sampling)

    monkeypatch.setattr(trainer.Trainer, "train", going)
    with pytest.raises(CheckpointError, match="was moved or removed"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


# What is said


def test_the_log_holds_every_line_and_the_error_with_its_traceback(tmp_path, capsys):
    def fail() -> None:
        raise ValueError("my own mistake")

    with pytest.raises(ValueError, match="my own mistake"):
        run(tmp_path / "run", at(7, fail), report__progress=True)
    shown = capsys.readouterr().out.splitlines()
    said = log(tmp_path / "run")
    assert len(shown) > 1
    for line in shown:
        assert line in said
    assert "Traceback (most recent call last)" in said
    assert 'raise ValueError("my own mistake")' in said
    assert record(tmp_path / "run")["state"] == "failed"
    assert record(tmp_path / "run")["error"] == "ValueError: my own mistake"
    assert run(tmp_path / "run").status == "finished"
    assert record(tmp_path / "run")["state"] == "finished"


def test_without_progress_the_log_still_has_it(whole):
    assert "100%" in log(whole)
    assert f"ppo on {ENV}" in log(whole)


def test_how_a_run_ended_and_what_it_ran_on(whole, half, tmp_path, monkeypatch):
    assert record(whole)["state"] == "finished"
    assert record(whole)["env_steps"] == TOTAL
    assert record(half)["state"] == "stopped"
    system = record(whole)["system"]
    assert {"torch", "numpy", "gymnasium", "python", "cpu_capability", "machine"} <= set(system)
    assert system["backend"] == "gymnasium"
    monkeypatch.chdir(tmp_path)
    assert provenance.revision(tmp_path) is None
    git = "git -c user.name=a -c user.email=b"
    made = f"git init -q . && echo x > f && git add f && {git} commit -qm x"
    if os.system(made) != 0:
        pytest.skip("git is not there")
    clean = provenance.revision(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "f").write_text("y")
    assert provenance.revision(tmp_path) == f"{clean}-dirty"


def test_a_resume_on_another_machine_says_what_differs(half, copy, monkeypatch, capsys):
    folder = copy(half)
    run(folder, at(15, lambda: True))
    assert "other versions" not in capsys.readouterr().err
    monkeypatch.setattr(provenance.torch, "__version__", "9.9.9")
    run(folder)
    said = capsys.readouterr().err
    assert "9.9.9" in said
    assert "results may differ" in said


# Reports


@pytest.mark.parametrize("damage", ["foreign", "number", "truncated", "folder", "missing"])
def test_damaged_reports_are_never_passed_over(half, copy, damage, capsys):
    folder, whole = copy(half), read_metrics(half)
    path = folder / "metrics.jsonl"
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    contents = {
        "foreign": b"".join([lines[0], b"\xff\x00" + lines[1], *lines[2:]]),
        "number": data.replace(b"64.0", b"65.0", 1),
        "truncated": b"".join(lines[:4]),
    }
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        assert contents[damage] != data
        path.write_bytes(contents[damage])
    kept = {"foreign": [whole[0], *whole[2:]], "truncated": whole[:4]}.get(damage, [])
    if damage == "missing":
        with pytest.raises(QuintetError, match=r"has no metrics\.jsonl"):
            read_metrics(folder)
    else:
        found = read_metrics(folder)
        assert found == kept or (damage == "number" and len(found) == len(whole))
        said = capsys.readouterr().err
        first = f"its first {len(data):,} bytes are not those of the checkpoint"
        assert (first if damage in ("number", "truncated") else str(path)) in said
    assert run(folder).status == "finished"
    said = capsys.readouterr().err
    assert str(path) in said
    assert (folder / "metrics.jsonl.damaged-1").exists() == (damage in ("foreign", "folder"))
    assert (folder / "progress.csv.old-1").exists() == (damage == "missing")
    found = read_metrics(folder)
    assert found[: len(kept)] == kept
    assert capsys.readouterr().err == ""
    assert len((folder / "progress.csv").read_text().splitlines()) == len(found) + 1


def test_reports_whose_checksum_is_damaged_are_not_read_in_silence(half, copy, capsys):
    meta = max((folder := copy(half)).glob("checkpoints/0*")) / "meta.json"
    meta.write_bytes(b"")
    assert read_metrics(folder) == read_metrics(half)
    assert str(meta) in capsys.readouterr().err


def test_reports_after_the_checkpoint_are_dropped_aloud(tmp_path, half):
    folder = Path(shutil.copytree(half, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints/000000013")
    run(folder)
    assert re.search(r"dropped 3 reports beyond \d+ env_steps", log(folder))
    iterations = [report["iterations"] for report in read_metrics(folder)]
    assert iterations == list(range(1, len(iterations) + 1))


def test_a_plot_groups_by_what_was_trained_though_the_file_is_damaged(whole, copy, capsys):
    from quintet.observe.plot_groups import options_of

    folder = copy(whole)
    trained = options_of(folder)
    (folder / "config.yaml").write_text("gamma: 0.5\n")
    assert options_of(folder) == trained
    assert capsys.readouterr().err == ""


def test_warnings_are_no_part_of_a_command_s_result(whole, copy, capsys):
    from quintet.commands import cli

    folder = copy(whole)
    flip(max((folder / "checkpoints").iterdir()) / "policy.safetensors")
    assert cli.main(["eval", str(folder), "--episodes", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 2
    assert "skipped a damaged checkpoint" in err


def test_a_finished_run_misses_its_newest_checkpoint(whole, copy, capsys):
    folder = copy(whole)
    *_, newest = sorted((folder / "checkpoints").iterdir())
    shutil.rmtree(newest)
    before = folder / "checkpoints" / max(os.listdir(folder / "checkpoints"))
    steps = json.loads((before / "meta.json").read_text())["env_steps"]
    capsys.readouterr()
    quintet.load(folder)
    gone = f"was finished with a checkpoint of {TOTAL:,} env_steps, which is gone; the newest"
    assert f"{gone} checkpoint that is left has {steps:,}" in capsys.readouterr().err
    run(folder)
    said = capsys.readouterr()
    assert f"{gone} checkpoint that is left has {steps:,}" in said.out + said.err
    quintet.load(folder)
    assert "gone" not in capsys.readouterr().err


def test_a_full_disk_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(files, "make_folder", full)
    with pytest.raises(FileFault, match=r"run .*No space left.*: make room there, or give another"):
        RunFolder(tmp_path / "run", signed=False).open()
