"""What the documents claim: tables are those of the records, links and commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.cli import COMMANDS
from quintet.config.load import options

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_tables_are_what_the_records_say():
    command = [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path: Path):
    known = {f"--{name.replace('_', '-')}" for name in options("ppo")}
    known |= {"--env", "--total-steps", "--out", "--config", "--help", "--episodes", "--seeds"}
    for line in re.findall(r"^\s*quintet ([^#\n]*)", path.read_text(), re.M):
        words = line.split()
        assert words[0] in COMMANDS, line
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_table_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import tables

    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert tables.rendered(text) == text
    assert tables.rendered(text.replace("| Acrobot-v1 (envpool) |", "| Pong |")) == text
    assert "| Pong |" not in text


def test_the_sixth_learner_is_quoted_as_it_stands_and_is_short():
    source = (ROOT / "tests" / "algorithms" / "test_a2c.py").read_text()
    text = (ROOT / "docs" / "adding-a-learner.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 3
    assert all(block in source for block in blocks)
    assert len(source.splitlines()) < 200
