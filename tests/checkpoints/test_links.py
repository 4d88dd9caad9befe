"""Run folders of strangers: nothing is opened, written or removed through a link in them."""

import os
import shutil
import socket
from pathlib import Path

import pytest

import quintet
from quintet.checkpoints import checkpoint, links
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.errors import CheckpointError

ENV = "Pendulum-v1"
OPTIONS = {
    "env.num_streams": 2, "unroll_steps": 16, "replay_capacity_steps": 200, "batch_size": 4,
    "updates_per_env_step": 0.1, "preset": "none", "checkpoint.keep": 1,
    "checkpoint.interval_iterations": 8, "checkpoint.max_cut_frac": 1.0, "runtime.kind": "serial",
    "population.size": 2,
    "population.start_env_steps": 64, "population.period_env_steps": 32, "eval.episodes": 1,
    "report.progress": False, "report.interval_s": 0.0, "model.policy_hidden": [4],
    "model.value_hidden": [4, 4],
}  # fmt: skip
AT_FIRST = (".lock", "log.txt", ".tmp-config.yaml")
"""Names in a folder that counts as empty."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with everything in its folder that a run makes."""
    folder = tmp_path_factory.mktemp("run") / "run"
    quintet.train("ddpg", ENV, 512, seed=1, run_dir=folder, config=OPTIONS)
    (folder / "wandb.json").write_text('{"id": "x"}')
    for name in (*AT_FIRST, "checkpoints/.tmp-000000001-1-ab", "checkpoints/.old-000000001"):
        (folder / name).touch()
    (folder / "wandb").mkdir()
    for name in ("replay", "best"):  # where a run of one policy has them
        shutil.copytree(folder / "policy_0" / name, folder / name)
    shutil.copytree(folder / "best", folder / "failed_batch")
    return folder


def words(command: str, folder: Path, beside: Path) -> list[str]:
    asked = [f"--{name.replace('_', '-')}={_word(x)}" for name, x in OPTIONS.items()]
    train = ["train", "ddpg", "--env", ENV, "--total-steps", "544", "--seed", "1", *asked]
    return {
        "train": [*train, "--run-dir", str(folder)],
        "overwrite": [*train, "--run-dir", str(folder), "--overwrite"],
        "init": [*train, "--run-dir", str(beside / "new"), "--init-from", str(folder)],
        "config": ["config", *train[1:], "--run-dir", str(folder)],
        "eval": ["eval", str(folder), "--episodes", "1"],
        "best": ["eval", str(folder), "--episodes", "1", "--checkpoint", "best"],
        "plot": ["plot", str(folder), "--out", str(beside / "p.svg")],
        "lineage": ["plot", str(folder), "--out", str(beside / "p.svg"), "--lineage"],
    }[command]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


READING = ("config", "eval", "plot", "best", "lineage", "init", "overwrite")


def content(place: Path) -> dict[str, object]:
    """All that is in a folder, and when it was written."""
    return {
        str(path.relative_to(place)): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted([place, *place.rglob("*")])
    }


def led_out(folder: Path, path: Path, outside: Path) -> None:
    """Moves a file or folder of the run away, and leaves a link to it."""
    outside.mkdir()
    os.rename(path, outside / path.name)
    if (outside / path.name).is_dir():  # what else may stand where a link leads
        for name in ("own.bin", "rows.bin", "events.out.tfevents.1.own"):
            (outside / path.name / name).write_text("mine")
        (outside / path.name / "000000999").mkdir()
        (outside / path.name / "000000999/thesis.txt").write_text("mine")
    path.symlink_to(outside / path.name)


def brought_back(path: Path, outside: Path) -> None:
    path.unlink()
    os.rename(outside / path.name, path)
    outside.rmdir()


def refused(command: str, folder: Path, beside: Path, capsys) -> str:
    """What is said of a folder that a command refuses."""
    beside.mkdir(exist_ok=True)
    capsys.readouterr()
    status = cli.main(words(command, folder, beside))
    said = capsys.readouterr().err
    assert status in (1, 2), (command, said)
    assert len([line for line in said.splitlines() if "error: " in line]) == 1, said
    return said


def test_a_run_makes_no_other_names(run):
    assert {path.name for path in run.iterdir() if not links.is_ours(path.name)} == set()
    names = {path.relative_to(run).as_posix() for path in run.rglob("*")}
    assert {"policy_0/replay/rows.bin", "policy_1/best/meta.json", "population.jsonl"} <= names


def test_nothing_goes_through_a_link_of_any_name(run, tmp_path, capsys):
    names = sorted(path.relative_to(run) for path in run.rglob("*"))
    assert len(names) > 40
    folder, outside = tmp_path / "theirs", tmp_path / "outside"
    shutil.copytree(run, folder)
    for number, name in enumerate(names):
        led_out(folder, folder / name, outside)
        before = content(outside), content(folder)
        command = "train" if number % 2 else READING[number // 2 % len(READING)]
        said = refused(command, folder, tmp_path / "beside", capsys)
        assert f"{folder / name} must be an ordinary file or folder, got a link to" in said, said
        assert (content(outside), content(folder)) == before, name
        brought_back(folder / name, outside)


@pytest.mark.parametrize("command", ["train", *READING])
def test_every_command_refuses_links(run, tmp_path, capsys, command):
    folder = tmp_path / "theirs"
    shutil.copytree(run, folder)
    led_out(folder, folder / "checkpoints", tmp_path / "outside")
    before = content(tmp_path / "outside"), content(folder)
    said = refused(command, folder, tmp_path / "beside", capsys)
    assert "checkpoints must be an ordinary file or folder, got a link to" in said
    assert (content(tmp_path / "outside"), content(folder)) == before
    assert not (tmp_path / "beside/new").exists()


@pytest.mark.parametrize("name", AT_FIRST)
def test_a_link_in_a_folder_without_a_run(tmp_path, capsys, name):
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    folder.mkdir()
    mine.write_text("mine")
    (folder / name).symlink_to(mine)
    assert "a link to" in refused("train", folder, tmp_path / "beside", capsys)
    assert mine.read_text() == "mine"
    assert os.listdir(folder) == [name]


def test_no_pipe_socket_or_second_name(run, tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(run, folder)
    os.mkfifo(folder / "tensorboard/events")
    with pytest.raises(CheckpointError, match="a pipe, a socket or a device"):
        quintet.load(folder)
    os.unlink(folder / "tensorboard/events")
    with socket.socket(socket.AF_UNIX) as served:
        here = os.getcwd()
        os.chdir(folder)  # a socket's whole name may have 107 bytes
        served.bind("run.json.s")
        os.chdir(here)
    os.replace(folder / "run.json.s", folder / "run.json")
    with pytest.raises(CheckpointError, match="a pipe, a socket or a device"):
        quintet.load(folder)
    os.unlink(folder / "run.json")
    for name in (".lock", "log.txt", "policy_1/replay/rows.bin"):
        mine = tmp_path / "mine"
        os.rename(folder / name, mine)
        os.link(mine, folder / name)
        quintet.load(folder)  # which writes nothing
        with pytest.raises(CheckpointError, match="a hard link"), run_lock(folder):
            pass
        os.unlink(folder / name)
        os.rename(mine, folder / name)


def test_the_folder_itself_may_be_a_link(run, tmp_path):
    shutil.copytree(run, tmp_path / "there")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    assert cli.main(words("train", tmp_path / "here", tmp_path)) == 0


def test_names_of_others_are_left_alone(run, tmp_path):
    """Files of other names may be links, and stay where replay, checkpoints and policy are
    written anew.
    """
    folder = tmp_path / "mine"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints")
    kept = ["policy_0/replay/notes.bin", "checkpoints/000000001/notes.txt", "tensorboard/notes"]
    kept += ["checkpoints/.tmp-thesis/thesis.txt", ".tmp-thesis"]
    for name in kept:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "dataset").symlink_to(tmp_path)
    root = folder / "checkpoints"
    for name in ("000000002", "000000003", "000000004"):
        checkpoint.write(root, name, {}, {"iteration": int(name)})
    (root / "000000002/notes.txt").write_text("mine")
    told: list[str] = []
    assert checkpoint.prune(root, 1, lambda _: False, told.append) == ["000000003"]
    assert any("holds more than a checkpoint" in each for each in told)
    with run_lock(folder):
        checkpoint.clean_temporary(root)
        checkpoint.clean_temporary(folder)
    assert all((folder / name).read_text() == "mine" for name in kept)
    assert (root / "000000002/notes.txt").read_text() == "mine"
    shutil.rmtree(root)
    for name in ("policy_0/policy", "policy_1/best"):
        shutil.rmtree(folder / name)
        (folder / name).mkdir()
        (folder / name / "thesis.txt").write_text("mine")
    config = OPTIONS | {"report.sinks": ["jsonl"]}
    quintet.train("ddpg", ENV, 512, seed=1, run_dir=folder, config=config)
    # Without a checkpoint the run began again, in a new folder.
    old = folder.with_name("mine.old-1")
    assert (old / "policy_0/replay/notes.bin").read_text() == "mine"
    for name in ("policy_0/policy", "policy_1/best"):
        assert (old / name / "thesis.txt").read_text() == "mine"


def test_a_newer_folder_without_a_manifest_is_kept(tmp_path):
    root = tmp_path / "checkpoints"
    (root / "000000009").mkdir(parents=True)
    (root / "000000009/thesis.txt").write_text("mine")
    assert checkpoint.take_away(root / "000000009") == str(root / "000000009.damaged-1")
    checkpoint.write(root, "000000009", {}, {"iteration": 9})
    assert checkpoint.take_away(root / "000000009") is None
    assert (root / "000000009.damaged-1/thesis.txt").read_text() == "mine"
