"""Runs elsewhere: one door for commands, options and functions, imported when it is used."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from installed_helpers import install
from small_run_helpers import SMALL, TOY

import quintet
from quintet.commands.cli import main
from quintet.errors import ConfigError, QuintetError
from quintet.system import places
from quintet.system.places import is_elsewhere, run_path

FETCHES = """
from pathlib import Path
from quintet.errors import QuintetError

def fetch(what):
    place = Path({folder!r}, what)
    if not place.exists():
        raise QuintetError(f"the shelf must hold {{what}}")
    return place
"""


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.PLACES, "loaded", {})
    monkeypatch.delitem(sys.modules, "shelf_of_runs", raising=False)


@pytest.fixture
def shelf(packages: Path, tmp_path: Path) -> Path:
    """The folder of a place `shelf`."""
    folder = tmp_path / "shelf"
    files = {"shelf_of_runs.py": FETCHES.format(folder=str(folder))}
    install(packages, "shelf", "[quintet.places]\nshelf = shelf_of_runs:fetch\n", files)
    return folder


def test_a_place_is_imported_when_it_is_used(shelf: Path) -> None:
    (shelf / "a").mkdir(parents=True)
    assert is_elsewhere("shelf:a")
    assert is_elsewhere(Path("shelf:a"))
    assert not is_elsewhere("module:a")
    assert not is_elsewhere(None)
    assert run_path("./shelf:a") == Path.cwd() / "shelf:a"
    assert "shelf_of_runs" not in sys.modules
    assert run_path("shelf:a") == shelf / "a"
    with pytest.raises(QuintetError, match="the shelf must hold b"):
        run_path("shelf:b")


def test_a_place_without_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places.PLACES, "_points", lambda: ())
    said = "hf: must have a package that is not installed, got hf:a/b: install it by `pip install"
    with pytest.raises(QuintetError, match=said):
        quintet.load("hf:a/b")
    for command in (["eval"], ["export", "--out", "x"], ["report", "--out", "x.html"], ["doctor"]):
        assert main([command[0], "hf:a/b", *command[1:]]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {said}")


def test_a_place_that_is_broken(packages: Path) -> None:
    install(packages, "odd", "[quintet.places]\nodd = odd_place:N\n", {"odd_place.py": "N = 3\n"})
    with pytest.raises(
        ConfigError, match=r"place of runs 'odd' must be a builtins\.function, got 3"
    ):
        run_path("odd:a")


def test_every_command_and_function_takes_a_run_elsewhere(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = quintet.train("ppo", TOY, 64, run_dir=shelf / "a", config=SMALL).policy
    trusted = ["--env", TOY]
    seen = []
    for run in ("shelf:a", str(shelf / "a")):
        capsys.readouterr()
        assert main(["eval", run, "--episodes", "4", "--json", *trusted]) == 0
        seen.append(json.loads(capsys.readouterr().out)["returns"])
    assert seen[0] == seen[1]
    assert quintet.load("shelf:a").publication.version == policy.publication.version
    shutil.copytree(shelf / "a", shelf / "b")
    where = {
        "report": ["--out", "r.html"],
        "plot": ["--out", "p.svg", "--metric", "loss/total"],
        "compare": ["--with", "shelf:b", "--metric", "loss/total"],
        "export": ["--out", "x", "--format", "numpy", "--steps", "100", *trusted],
        "diff": [str(shelf / "a")],
        "runs": [],
        "doctor": [],
    }
    for command, words in where.items():
        assert main([command, "shelf:a", *words]) in (0, 1)  # 1: the doctor has a likely cause
        assert "error: " not in capsys.readouterr().err, command
    new = ["train", "ppo", *trusted, "--total-env-steps", "64", "--run-dir", "new"]
    small = [word for name, x in SMALL.items() for word in (f"--{name}", str(x).strip("(,)"))]
    assert main([*new, *small, "--init-from", "shelf:a"]) == 0
    assert f"tensors of {shelf}/a" in (tmp_path / "new/log.txt").read_text()
    assert "init_from: shelf:a\n" in (tmp_path / "new/config.yaml").read_text()
    capsys.readouterr()
    assert main(["train", "ppo", *trusted, "--run-dir", "shelf:c"]) == 2
    assert "run_dir must be the path of a folder, got 'shelf:c'" in capsys.readouterr().err
