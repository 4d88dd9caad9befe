"""``quintet --version``."""

import subprocess
import sys

import pytest
from installed_helpers import install

import quintet
from quintet.commands.cli import main
from quintet.envs import ale, envpool_library
from quintet.envs.backends import BACKENDS


def shown(capsys: pytest.CaptureFixture[str], word: str = "--version") -> list[str]:
    assert main([word]) == 0
    return capsys.readouterr().out.splitlines()


def test_it_names_the_versions_of_everything(capsys) -> None:
    lines = shown(capsys)
    assert lines[0] == f"quintet {quintet.__version__}"
    assert lines[1].startswith(f"Python {sys.version.split()[0]}, torch ")
    assert "unknown" not in lines[1]
    own = [line.partition(":")[0].removeprefix("backend ") for line in lines[2:]]
    assert own[: len(BACKENDS.own)] == list(BACKENDS.own)
    assert shown(capsys, "-V") == lines


def test_it_says_how_an_absent_backend_is_installed(capsys, monkeypatch) -> None:
    monkeypatch.setattr(envpool_library, "is_installed", lambda: False)
    assert f"backend envpool: not installed: {envpool_library.INSTALL_LINE}" in shown(capsys)


def test_it_names_the_package_of_a_backend(capsys, monkeypatch, tmp_path) -> None:
    record = (
        "from quintet.envs.backends import Backend\nBACKEND = Backend(title='Own', make=print)\n"
    )
    points = "[quintet.environments]\nown = own_envs:BACKEND\n"
    install(tmp_path, "quintet-own", points, {"own_envs.py": record}, "3.4")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(BACKENDS, "loaded", {"ale": ale.BACKEND})
    assert "backend own: quintet-own 3.4" in shown(capsys)


def test_it_imports_no_pytorch() -> None:
    code = (
        "import sys; from quintet.commands.cli import main; main(['--version']); "
        "sys.exit(bool({'torch', 'envpool', 'mujoco', 'pettingzoo'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
