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
        pytest.importorskip("rl_zoo3", reason="the peer that it measures is not installed")
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


def cells(**of: dict[str, object]) -> dict[str, object]:
    """Cells of a race of ten minutes on one environment, by learner."""
    shared = {"std": 1.0, "episodes": 100, "wall_s": 590.0, "winner": "ppo"}
    return {f"Env {who.replace('_', '-')} 10min s11": shared | each for who, each in of.items()}


def test_figures_of_the_race_are_those_of_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    told = runpy.run_path(str(FOLDER / "race.py"), run_name="imported")["told"]
    assert (
        told(json.loads((FOLDER / "results" / "race.json").read_text()))
        in (FOLDER / "parts.md").read_text()
    )
    several = cells(auto={"mean": 3.0}, sb3_ppo={"error": "memory"}, sb3_sac={"mean": 20_000.0})
    *_, row = told(several).splitlines()
    assert row == "| Env | 3 (ppo) | error | not run | **20,000** |"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"auto": {"mean": 2.0}}, "no verdict, as sb3-dqn or sb3-sac failed or did not run"),
        ({"sb3_sac": {"unfit": ""}}, "no verdict, as auto failed or did not run"),
        ({"auto": {"mean": 2.0}, "sb3_dqn": {"mean": 3.0}}, "2 by ppo, below sb3-dqn's 3"),
        (
            {"auto": {"mean": 3.0}, "sb3_dqn": {"mean": 3.0}},
            "not below sb3-dqn's 3 (within two standard errors of the difference)",
        ),
        ({"auto": {"mean": 4.0}, "sb3_sac": {"mean": 3.0}}, "4 by ppo, above sb3-sac's 3"),
        (
            {"auto": {"mean": 3.1}, "sb3_sac": {"mean": 3.0}},
            "above sb3-sac's 3 (within two standard errors of the difference)",
        ),
        (
            {"auto": {"mean": 4.0, "wall_s": 700.0}, "sb3_sac": {"mean": 3.0}},
            "above sb3-sac's 3; too long: auto",
        ),
    ],
)
def test_verdict_of_a_race(
    of: dict[str, dict[str, object]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    verdict = runpy.run_path(str(FOLDER / "race.py"), run_name="imported")["verdict"]
    every = cells(sb3_ppo={"mean": 1.0}, sb3_a2c={"unfit": "no"}, **of)
    line = verdict("Env", every, argparse.Namespace(minutes=10.0, seed=11))
    assert line.endswith(said)


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
