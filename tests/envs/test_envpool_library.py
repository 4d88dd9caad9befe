"""What is told of EnvPool without importing it."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import TextWrapper

import pytest

from quintet.envs import envpool_library
from quintet.errors import ConfigError

pytest.importorskip("envpool")

RECORD = Path(envpool_library.__file__).with_name("envpool_ids.txt")


def record() -> str:
    """The ids of the EnvPool that is installed, in the form of ``envpool_ids.txt``."""
    importlib.import_module("envpool")
    by_family: dict[str, list[str]] = {}
    for name, family in sorted(envpool_library.families().items()):
        by_family.setdefault(family, []).append(name)
    form = TextWrapper(100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "".join(f"{key}\n{form.fill(' '.join(by_family[key]))}\n" for key in sorted(by_family))


def test_recorded_ids_are_those_of_the_installed_version():
    """Run as a program, this file writes them anew."""
    if any(version(package) != known for package, known in envpool_library.RECORDED.items()):
        pytest.skip("the ids of other versions are recorded")
    assert RECORD.read_text() == record()


def test_an_id_that_a_user_registers_is_known():
    program = """
import envpool
from envpool.registration import registry
from quintet.envs.resolved import resolve_env
from quintet.envs.config import EnvConfig
path, spec, kwargs = registry.specs["CartPole-v1"]
dm, gym = (registry.envpools["CartPole-v1"][kind][1] for kind in ("dm", "gymnasium"))
envpool.register("Mine-v7", path, spec, dm, gym, max_episode_steps=7)
envpool.register("Other-v0", "my_pools", spec, dm, gym)
env = resolve_env(EnvConfig(id="Mine-v7"))
print(env.config.backend, env.family)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["envpool", "classic_control"], done.stderr


@pytest.mark.parametrize("how", ["version", "assets", "folder", "no metadata", "imported"])
def test_of_another_envpool_its_own_ids_are_known(how: str, monkeypatch: pytest.MonkeyPatch):
    def told(package: str) -> str:
        if how == "no metadata":
            raise PackageNotFoundError(package)
        other = {"version": "envpool", "assets": "envpool-assets"}.get(how)
        return "9.9.9" if package == other else envpool_library.RECORDED[package]

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(envpool_library, "load_opengl", lambda: "")
    monkeypatch.setattr(envpool_library, "recorded_families", lambda: {"Old-v0": "atari"})
    monkeypatch.setattr(envpool_library, "version", told)
    if how == "imported":
        importlib.import_module("envpool")
    else:
        monkeypatch.delitem(sys.modules, "envpool", raising=False)
    if how == "folder":
        monkeypatch.setenv("ENVPOOL_ASSETS_PATH", "elsewhere")
    assert not envpool_library.is_recorded()
    found = envpool_library.families()
    assert found["CartPole-v1"] == "classic_control"
    assert "Old-v0" not in found


if __name__ == "__main__":
    RECORD.write_text(record())


def test_a_library_that_the_system_lacks_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "envpool", None)  # importing it raises ImportError
    with pytest.raises(
        ConfigError, match=r"EnvPool does not find a library of the system .*libegl1"
    ):
        envpool_library.imported()


def test_plots_are_shown_as_they_were_without_it(tmp_path: Path):
    pytest.importorskip("matplotlib")
    program = """
import os, sys
import quintet
quintet.train("ppo", "CartPole-v1", 2048, config={"report.progress": False, "eval.episodes": 0})
assert "envpool" in sys.modules
import matplotlib
# Without "agg", pyplot takes the backend of the display or of the notebook.
print([name for name in os.environ if name.startswith("MPL")])
print(dict.get(matplotlib.rcParams, "backend"))
"""
    variables = {k: x for k, x in os.environ.items() if not k.startswith("MPL")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=variables,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    variables_of_matplotlib, backend = done.stdout.splitlines()[-2:]
    assert variables_of_matplotlib == "[]"
    assert backend.lower() != "agg"
