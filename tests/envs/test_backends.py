"""Records of backends: nothing else decides by their names, and a package may add one."""

import ast
from pathlib import Path

import pytest
from installed_helpers import install

import quintet
from quintet import make_vector_env
from quintet.envs.backends import BACKENDS
from quintet.envs.ids import faster_backend, list_envs, resolve_backend
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import resolved
from quintet.options.saved import load_config

ROOT = Path(quintet.__file__).parent


def deciding(source: str) -> list[str]:
    """Names of backends that a module compares something with."""
    return [
        part.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for part in ast.walk(side)
        if isinstance(part, ast.Constant) and part.value in BACKENDS.own
    ]


def test_no_module_decides_by_the_name_of_a_backend() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in ROOT.rglob("*.py")
        if (names := deciding(path.read_text()))
    }
    # Which ask for the modules of these names.
    assert {name.partition("_")[0].removesuffix(".py") for name in found} <= {
        "envs/envpool", "envs/old", "envs/other", "envs/pettingzoo",
    }  # fmt: skip
    assert deciding('if env.backend in ("gymnasium", "ale"): pass') == ["gymnasium", "ale"]


THEIRS = """
from quintet.envs.backends import Backend
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.toy import Contextual

def make(env, group):
    # It knows no rule of success.
    return GymnasiumVectorEnv(env.with_options({"success": None}), group, lambda _: Contextual())

IDS = ["Theirs-v0", "CartPole-v1"]
BACKEND = Backend(
    title="Theirs", make=make, ids=lambda: IDS, knows=IDS.__contains__,
    install="pip install theirs", is_installed=lambda: True,
)
"""


def test_ids_of_a_package_come_after_ours(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKENDS, "loaded", dict(BACKENDS.loaded))
    points = "[quintet.environments]\ntheirs = their_envs:BACKEND\nlost = no_such_module:BACKEND\n"
    install(packages, "quintet-theirs", points, {"their_envs.py": THEIRS})
    assert resolve_backend("Theirs-v0") == "theirs"
    assert resolve_backend("CartPole-v1") != "theirs"
    assert resolve_backend("CartPole-v1", "theirs") == "theirs"
    assert ("Theirs-v0", "theirs") in list_envs("theirs")
    assert faster_backend("Theirs-v0") == "the same id in C++ (--env.backend theirs)"
    with pytest.raises(ConfigError, match="nearest are Theirs-v0; an id that a package registers"):
        resolve_backend("Their-v1", "theirs")
    with pytest.raises(ConfigError, match="needs one of Theirs's ids; got the import string 'a:b'"):
        resolve_backend("a:b", "theirs")
    with pytest.raises(
        ConfigError, match="environment backend 'lost' must be importable, but import"
    ):
        resolve_backend("CartPole-v1", "lost")


def test_options_that_a_backend_does_not_implement_are_refused(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BACKENDS, "loaded", dict(BACKENDS.loaded))
    points = "[quintet.environments]\ntheirs = their_envs:BACKEND\n"
    install(packages, "quintet-theirs", points, {"their_envs.py": THEIRS})
    assert make_vector_env("Theirs-v0", 2).description.success is None
    assert make_vector_env("Theirs-v0", 2, success="reward>0").description.success == "reward>0"
    said = "must be a rule about rewards with backend 'theirs', .* got 'info:won': use 'reward>NUM"
    with pytest.raises(ConfigError, match=said):
        make_vector_env("Theirs-v0", 2, success="info:won")
    given = {"env.id": "Theirs-v0", "env.num_threads": 2, "preset": "none"}
    with pytest.raises(ConfigError, match=r"env\.num_threads=2 has no effect without env\.backend"):
        resolved(load_config("ppo", [], Layer("call", given)))
