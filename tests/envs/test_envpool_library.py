"""What is told of EnvPool without importing it."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from quintet.envs import envpool_library

pytest.importorskip("envpool")


@pytest.mark.skipif(
    version("envpool") != envpool_library._RECORDED or sys.platform != "linux",
    reason="the ids of another version are recorded",
)
def test_recorded_ids_are_those_of_the_installed_version():
    assert envpool_library.families() == envpool_library.recorded_families()


def test_an_id_that_a_user_registers_is_known():
    envpool_library.families()
    program = """
import envpool
from envpool.registration import registry
from quintet.envs.resolved import resolve_env
from quintet.envs.config import EnvConfig
path, spec, kwargs = registry.specs["CartPole-v1"]
dm, gym = (registry.envpools["CartPole-v1"][kind][1] for kind in ("dm", "gymnasium"))
envpool.register("Mine-v7", path, spec, dm, gym, max_episode_steps=7)
env = resolve_env(EnvConfig(id="Mine-v7"))
print(env.config.backend, env.family)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["envpool", "classic_control"], done.stderr


def test_of_another_version_its_own_ids_are_known(monkeypatch):
    monkeypatch.setattr(envpool_library, "version", lambda _: "9.9.9")
    monkeypatch.setattr(envpool_library, "recorded_families", lambda: {"Old-v0": "atari"})
    monkeypatch.delitem(sys.modules, "envpool", raising=False)
    found = envpool_library.families()
    assert found["Pong-v5"] == "atari"
    assert "Old-v0" not in found
