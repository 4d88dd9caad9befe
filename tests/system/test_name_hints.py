"""Names of an environment in another form lead to the import string that they mean."""

from pathlib import Path

import pytest

from quintet.envs.ids import resolve_backend
from quintet.errors import ConfigError
from quintet.system.importing import import_module
from quintet.system.name_hints import form_hint


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "envs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text("class Base: pass\nclass Other: pass\n")
    (package / "grid.py").write_text("from .base import Base\nclass Grid(Base): pass\n")
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "maze.py").write_text("def make(): pass\ndef _part(): pass\n")
    (tmp_path / "own.py").write_text("class Own: pass\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "folder", "hint"),
    [
        ("envs.grid.Grid", "", "envs.grid:Grid"),
        ("./envs/grid.py:Grid", "", "envs.grid:Grid"),
        ("envs/grid:Grid", "", "envs.grid:Grid"),
        ("envs/grid.py", "", "envs.grid:Grid"),
        ("envs.grid", "", "envs.grid:Grid"),
        ("envs\\grid.py:Grid", "", "envs.grid:Grid"),
        ("envs/base.py", "", "envs.base:NAME"),
        ("loose/maze.py", "", "loose.maze:make"),
        ("own", "", "own:Own"),
        ("own.Own", "", "own:Own"),
        ("grid:Grid", "envs", "envs.grid:Grid, started in {}"),
        ("grid.py", "envs", "envs.grid:Grid, started in {}"),
        ("../own.py:Own", "envs", "own:Own, started in {}"),
        ("CartPole-v1", "", ""),
        ("ALE/Pong-v5", "", ""),
        ("nowhere.Grid", "", ""),
        ("ale_py", "", ""),
    ],
)
def test_the_hint(
    name: str, folder: str, hint: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / folder)
    wanted = f"its import string is {hint.format(project)}" if hint else ""
    assert form_hint(name) == wanted


def test_the_errors_say_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for name in ("envs.grid.Grid", "envs/grid.py"):
        with pytest.raises(ConfigError, match=r"its import string is envs\.grid:Grid"):
            resolve_backend(name)
    for name in ("./envs/grid.py:Grid", "envs/grid:Grid"):
        with pytest.raises(ConfigError, match=r"its import string is envs\.grid:Grid"):
            import_module(name.partition(":")[0], name)
    monkeypatch.chdir(project / "envs")
    with pytest.raises(ConfigError, match=r"its import string is envs\.grid:Grid, started in"):
        import_module("grid", "grid:Grid")
