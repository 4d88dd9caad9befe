"""Installed packages that hang, end the process or print, and commands that do not name them."""

import json
import sys
from pathlib import Path

import pytest
from forged_runs_helpers import forged
from installed_helpers import install

from quintet.algorithms import registry
from quintet.commands import cli
from quintet.jobs import imports

HANGS = "import time\ntime.sleep(600)\n"
ENDS = "import os\nos._exit(0)\n"
PRINTS = """
import ctypes, os
print("hello from a package")
os.write(1, b"hello in the file itself\\n")
ctypes.CDLL(None).puts(b"hello from C")
import quintet.algorithms.ppo as ppo
ENTRY = ppo.ENTRY
"""


@pytest.fixture(autouse=True)
def _offered(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"hangs": HANGS, "ends": ENDS, "prints": PRINTS}.items():
        lines = f"[quintet.learners]\n{name} = package_{name}:ENTRY\n"
        install(packages, f"quintet-{name}", lines, {f"package_{name}.py": text})
        monkeypatch.delitem(sys.modules, f"package_{name}", raising=False)
    monkeypatch.setattr(registry.LEARNERS, "loaded", {})
    monkeypatch.setattr(registry.LEARNERS, "_tried", {})


@pytest.mark.parametrize("command", ["runs", "doctor", "report", "plot"])
def test_commands_that_read_runs(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for learner in ("ppo", "ends", "prints"):
        forged(tmp_path / "runs" / learner, {"algo": learner})
    out = tmp_path / f"out.{'png' if command == 'plot' else 'html'}"
    words = ["--out", str(out)] if command in ("plot", "report") else ["--json"]
    assert cli.main([command, str(tmp_path / "runs"), *words]) in (0, 1)
    found = capfd.readouterr()
    assert "hello" not in found.out
    if command in ("plot", "report"):
        assert out.exists()
    else:
        json.loads(found.out)
    warned = [line for line in found.err.splitlines() if line.startswith("warning: learner")]
    ended = (
        "warning: learner 'ends' must be importable, but importing package_ends:ENTRY of "
        "quintet-ends 1.0 ended with status 0: mend or uninstall quintet-ends 1.0"
    )
    assert warned == ([] if command == "runs" else [ended])


def test_an_error_that_names_learners(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "IMPORT_S", 1.0)
    assert cli.main(["train", "pppo", "--env", "CartPole-v1"]) == 2
    found = capsys.readouterr()
    assert "error: the algorithm must be one of ppo, " in found.err
    assert "importing package_hangs:ENTRY of quintet-hangs 1.0 had not ended after 1 s" in found.err
    assert found.out == ""


def test_a_package_that_is_named_prints_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "prints", "--env", "CartPole-v1"]) == 0
    found = capfd.readouterr()
    assert "hello" not in found.out
    assert found.err.count("hello") == 3


def test_names_of_packages_hold_no_escape_codes(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "[quintet.learners]\n\x1b[2Jevil = evil:ENTRY\n"
    install(packages, "quintet-evil", lines, {}, version="1.0")
    assert cli.main(["--help"]) == 0
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err
    assert r"must be a word in lower case, got '\x1b[2Jevil', which is of quintet-evil" in found.err
