"""Commands of installed packages: listed without an import, imported when they are named."""

import sys
from pathlib import Path

import pytest
from installed_helpers import install

from quintet.commands import cli

FLY = """
from dataclasses import dataclass
from quintet.errors import QuintetError

@dataclass(frozen=True)
class Fly:
    "Flies."

    height_m: float = 1.0
    "height in metres"

    def execute(self):
        if self.height_m < 0.0:
            raise QuintetError("--height-m must be at least 0")
        print(f"flies at {self.height_m:g} m")
"""


@pytest.fixture(autouse=True)
def _offered(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(packages, "birds", "[quintet.commands]\nfly = birds:Fly\n", {"birds.py": FLY})
    monkeypatch.setattr(cli.OF_PACKAGES, "loaded", {})
    monkeypatch.delitem(sys.modules, "birds", raising=False)


def test_help_lists_them_without_an_import(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    found = capsys.readouterr()
    assert "\n  fly                   of birds 1.0\n" in found.out
    assert found.err == ""
    assert cli.main(["flly"]) == 2
    assert "did you mean 'fly'?" in capsys.readouterr().err
    assert "birds" not in sys.modules


def test_a_command_of_a_package_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fly", "--height-m", "3"]) == 0
    assert capsys.readouterr().out == "flies at 3 m\n"
    assert cli.main(["fly", "--height-m", "-3"]) == 1
    assert capsys.readouterr().err == "error: --height-m must be at least 0\n"
    with pytest.raises(SystemExit) as ended:
        cli.main(["fly", "--help"])
    assert ended.value.code == 0
    assert "height in metres" in capsys.readouterr().out


def test_a_name_of_quintet_s_own_is_quintet_s(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"thief.py": "raise RuntimeError\n"}
    install(packages, "thief", "[quintet.commands]\nruns = thief:Runs\n", files)
    assert cli.main(["--help"]) == 0
    found = capsys.readouterr()
    assert "thief" not in found.out
    (line,) = found.err.splitlines()
    assert line.startswith(
        "warning: the name of a command must not be one of quintet's own, got 'runs' from thief 1.0"
    )
    assert cli.main(["runs", str(packages)]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module\n", "must be importable, but importing broken:C of broken 1.0"),
        ("C = 3\n", "must be a builtins.type, got 3"),
    ],
)
def test_a_broken_package_is_one_error_and_stops_nobody_else(
    text: str, said: str, packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(packages, "broken", "[quintet.commands]\ncrash = broken:C\n", {"broken.py": text})
    assert cli.main(["crash"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: command 'crash' {said}")
    assert cli.main(["fly"]) == 0
    sys.modules.pop("broken", None)


def test_commands_of_packages_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.OF_PACKAGES, "_points", lambda: ())
    for name in ("push", "pull"):
        assert cli.main([name, "run", "a/b"]) == 2
        said = capsys.readouterr().err
        assert said.endswith(
            f", got {name!r}; `pip install ./plugins/hub` in a checkout of quintet "
            "(docs/sharing.md) adds it\n"
        )
