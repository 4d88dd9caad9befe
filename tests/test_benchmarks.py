"""The scripts of benchmarks/ can be imported, and are called as they say and documents show."""

import argparse
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(FOLDER.glob("*.md")),
)


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


def documented() -> list[str]:
    """Every ``python benchmarks/SCRIPT ...`` of the documents, in blocks and in prose."""
    found: set[str] = set()
    for path in DOCUMENTS:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"python benchmarks/[^`|\n]+", text):
            found.add(" ".join(shlex.split(line, comments=True)[1:]))
    return sorted(found)


class Parsed(Exception):
    """The arguments are those of the script, which would begin now."""


@pytest.mark.parametrize("command", [*documented(), "benchmarks/replay.py --no-such-option"])
def test_documented_commands_are_those_of_the_scripts(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is optional, in brackets, counts as left out, and words in capitals as paths."""
    script, *words = re.sub(r"\[.*?\]", "", command).split()
    known = argparse.ArgumentParser.parse_known_args

    def stop(parser: argparse.ArgumentParser) -> None:
        _, rest = known(parser)
        if rest:
            parser.error(f"unrecognized arguments: {rest}")
        raise Parsed

    def stop_knowing(parser: argparse.ArgumentParser) -> None:
        known(parser)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop_knowing)
    monkeypatch.setattr(sys, "argv", [str(ROOT / script), *words])
    monkeypatch.syspath_prepend(str(FOLDER))
    if not SCRIPTS[Path(script).name]:
        assert not words
        return
    wrong = "--no-such-option" in words
    with pytest.raises(SystemExit if wrong else Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def test_documented_commands_are_found() -> None:
    assert len(documented()) > 20


def test_figures_of_the_doctor_are_those_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    table = runpy.run_path(str(FOLDER / "doctor.py"), run_name="imported")["summary"]()
    assert table in (FOLDER / "parts.md").read_text()


def test_scores_of_sac_are_those_of_its_records() -> None:
    page = (ROOT / "docs" / "sac.md").read_text()
    paths = sorted((FOLDER / "results").glob("sac-*-v*.json"))
    assert len(paths) == 7
    for path in paths:
        record = json.loads(path.read_text())
        seeds = [run["seed"] for run in record["runs"]]
        scores = [run["return_mean"] for run in record["runs"]]
        told = ", ".join(f"{x:,.0f}" if abs(x) >= 1_000 else f"{x:.1f}" for x in scores)
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {record['env']} |")]
        _, _, _, said, *_ = (cell.strip().replace("*", "") for cell in row.split("|"))
        assert said == told + (f" (seed {seeds[0]})" if len(seeds) == 1 else "")
