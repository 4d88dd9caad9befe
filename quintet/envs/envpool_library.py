"""Facts about EnvPool before its import, which takes about a second: whether it is installed, its
ids and their families, and the library to load before it.
"""

import ctypes
import importlib.util
import os
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from quintet.errors import ConfigError

INSTALL_LINE = 'pip install "quintet-rl[envpool]"'

RECORDED = {"envpool": "1.2.5", "envpool-assets": "0.3.0"}
"""The versions whose ids on Linux are in ``envpool_ids.txt``; games are read from the assets."""


def is_installed() -> bool:
    """Whether EnvPool is installed; does not import it."""
    return importlib.util.find_spec("envpool") is not None


def families() -> dict[str, str]:
    """The family of every id that EnvPool knows, the part that implements it (``"atari"``, ...);
    empty where EnvPool isn't installed.  Imports EnvPool unless `is_recorded`.
    """
    if not is_installed():
        return {}
    load_opengl()
    if is_recorded():
        return recorded_families()
    ids = imported().list_all_envs()
    from envpool.registration import registry

    return {name: registry.specs[name][0].removeprefix("envpool.").split(".")[0] for name in ids}


def envpool_id(env_id: str) -> str | None:
    """EnvPool's name for an id, without Gymnasium's ``ALE/``; None if it lacks the id."""
    known = families()
    return next((name for name in (env_id, env_id.removeprefix("ALE/")) if name in known), None)


def is_recorded() -> bool:
    """Whether the ids of the installed EnvPool are known without its import."""
    if "envpool" in sys.modules or "ENVPOOL_ASSETS_PATH" in os.environ or sys.platform != "linux":
        return False
    try:
        return all(version(package) == known for package, known in RECORDED.items())
    except PackageNotFoundError:  # made from its sources
        return False


@cache
def recorded_families() -> dict[str, str]:
    """`families` of the recorded versions, without an import.

    Unindented lines are families; the lines below each are its ids.
    """
    found: dict[str, str] = {}
    family = ""
    for line in (files("quintet.envs") / "envpool_ids.txt").read_text().splitlines():
        if line.startswith(" "):
            found |= dict.fromkeys(line.split(), family)
        else:
            family = line
    return found


def imported() -> Any:
    """EnvPool; raises ConfigError where the system lacks a library that it needs."""
    load_opengl()
    unset = [name for name in ("MPLBACKEND", "MPLCONFIGDIR") if name not in os.environ]
    # EnvPool sets those that are missing, and then matplotlib would show no plots in this process.
    os.environ.update(dict.fromkeys(unset, ""))
    try:
        import envpool
    except ImportError as fault:
        raise ConfigError(
            f"EnvPool does not find a library of the system ({fault}): install it (on Debian and "
            "Ubuntu libegl1, libgl1 and libopengl0), or give --env.backend gymnasium"
        ) from fault
    finally:
        for name in unset:
            os.environ.pop(name, None)
    return envpool


@cache
def load_opengl() -> str:
    """Loads the OpenGL library that MuJoCo needs for drawing; returns why it can't, or "".

    It must precede the first import of EnvPool, so it is called before every look at EnvPool's ids.
    It loads no graphics driver.
    """
    if sys.platform != "linux":
        return ""
    if "envpool" in sys.modules:
        return "EnvPool was imported before quintet could load OpenGL for it; import it later"
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return f"OpenGL could not be loaded ({error})"
    return ""
