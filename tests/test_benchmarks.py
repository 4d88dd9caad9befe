"""The scripts of benchmarks/ can be imported, and say how they are called."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


SCRIPTS = {path.name: "argparse" in path.read_text() for path in sorted(FOLDER.glob("*.py"))}
"""Whether a script has a parser; without one, ``--help`` would be no help."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "peer_sb3_zoo.py":
        pytest.importorskip(
            "stable_baselines3", reason="the peer that it measures is not installed"
        )
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / name), run_name="imported")


@pytest.mark.parametrize("name", [name for name, has_parser in SCRIPTS.items() if has_parser])
def test_a_script_says_how_it_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER / name), "--help"])
    monkeypatch.syspath_prepend(str(FOLDER))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out.startswith("usage: ")
