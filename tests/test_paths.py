"""Paths as people give them, in Python and in every command."""

import os
import shutil
from pathlib import Path

import pytest
import small_run_helpers
from small_run_helpers import TOY

import quintet
from quintet.commands import cli
from quintet.envs.toy import Contextual

SMALL = small_run_helpers.SMALL | {"eval.episodes": 1}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder; the working folder is another one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_the_home_folder_in_every_path(home):
    result = quintet.train("ppo", TOY, 128, run_dir="~/run", config=SMALL)
    assert result.run_dir == home / "run"
    again = quintet.train("ppo", TOY, 128, run_dir=Path("~/run"), config=SMALL)
    assert again.run_dir == home / "run"
    config = {**SMALL, "init_from": "~/run"}
    for _ in range(2):  # the second is the same command, which finds the same run
        quintet.train("ppo", TOY, 128, run_dir="~/warm", config=config)
    policy = quintet.load("~/run")
    assert policy.save("~/policy") == home / "policy"
    newest = max((home / "run" / "checkpoints").iterdir())
    quintet.load("~/run", f"~/run/checkpoints/{newest.name}")
    (home / "more.yaml").write_text("gamma: 0.5\n")
    words = ["train", "ppo", f"--env={TOY}", "--total-steps=64", "--run-dir=~/third"]
    words += ["--config=~/more.yaml", "--env.num-streams=4", "--unroll-steps=16"]
    assert cli.main([*words, "--minibatch-steps=32", "--eval.episodes=0"]) == 0
    assert "gamma: 0.5" in (home / "third" / "config.yaml").read_text()
    assert cli.main(["eval", "~/run", "--episodes=1"]) == 0
    assert cli.main(["plot", "~/run", "--out=~/curve.png"]) == 0
    assert (home / "curve.png").exists()
    assert not list(Path().iterdir())


def test_a_folder_that_is_called_none(home):
    here = Path("none").absolute()
    assert quintet.train("ppo", TOY, 64, run_dir="none", config=SMALL).run_dir == here
    assert Path("none/config.yaml").exists()
    shutil.copytree("none", "null")
    warm = {**SMALL, "init_from": "null"}
    quintet.train("ppo", TOY, 64, run_dir=home / "run", config=warm)
    assert f"init_from: {Path('null').absolute()}" in (home / "run" / "config.yaml").read_text()


class Wanders(Contextual):
    """Reads a file of the folder in which the run began, then goes to another one."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__()
        self.level = Path("level.txt").read_text()
        os.chdir(elsewhere)


def test_an_environment_that_changes_the_working_folder(home):
    """Workers begin in the folder in which the run began, after one was made for its spaces."""
    Path("level.txt").write_text("1")
    here = Path.cwd()
    one = {"env.num_streams": 1, "batch_unrolls": 1, "runtime.num_workers": 1, "eval.episodes": 0}
    config = {**SMALL, **one, "runtime.kind": "async", "env.kwargs": {"elsewhere": str(home)}}
    del config["minibatch_steps"], config["num_epochs"]
    result = quintet.train("impala", Wanders, 64, run_dir="run", config=config)
    assert result.run_dir == here / "run"
    assert list((here / "run" / "checkpoints").iterdir())
    assert not list(home.iterdir())
    assert Path.cwd() == here


def test_a_name_that_another_module_has_is_told_with_its_file(home, capsys):
    Path("test.py").write_text("def make(): ...\n")
    assert cli.main(["check-env", "test:make"]) == 2
    said = capsys.readouterr().err
    assert "test/__init__.py (" in said
    assert f"{Path('test.py').resolve()} was not imported, give it another name) has neither" in (
        said
    )
