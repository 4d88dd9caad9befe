"""Modules of import strings: where they are looked for, and what is left of that."""

import sys
from pathlib import Path

import pytest

from quintet.errors import ConfigError
from quintet.system.importing import import_module


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that is not searched, as by a console script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    return tmp_path


def test_a_module_in_the_working_folder_is_found(here: Path) -> None:
    (here / "one_of_my_own.py").write_text("WHO = 'me'\n")
    assert import_module("one_of_my_own", "one_of_my_own:WHO").WHO == "me"
    assert sys.path[-1] == str(here)  # it may import its neighbours later
    del sys.modules["one_of_my_own"]


def test_a_module_that_is_nowhere_leaves_the_search_path_as_it_was(here: Path) -> None:
    before = list(sys.path)
    with pytest.raises(ConfigError, match=r"'nowhere:make' needs module 'nowhere', which can't be"):
        import_module("nowhere", "nowhere:make")
    assert sys.path == before


def test_an_import_that_starts_a_run_is_refused(here: Path) -> None:
    (here / "trains_at_once.py").write_text(
        "import quintet\nquintet.train('ppo', 'CartPole-v1', 100, run_dir='run')\n"
    )
    with pytest.raises(ConfigError, match=r"trains_at_once\.py:2\): put .* __name__ == \"__main__"):
        import_module("trains_at_once", "trains_at_once:Env")
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    "line", ["level = int(sys.argv[99])", "argparse.ArgumentParser().parse_args(['--level'])"]
)
def test_an_import_that_reads_the_command_line_is_told(here: Path, line: str) -> None:
    (here / "reads_words.py").write_text(f"import argparse, sys\n{line}\n")
    with pytest.raises(ConfigError, match=r"it reads sys\.argv, the command line of this process"):
        import_module("reads_words", "reads_words:Env")
