"""What is known of EnvPool before its import, which takes about a second: whether it is installed,
its ids and their families, and the library that must be loaded before it.
"""

import ctypes
import importlib.util
import sys
from functools import cache
from importlib.metadata import version
from importlib.resources import files

INSTALL_LINE = 'pip install "quintet[envpool]"'

_RECORDED = "1.2.5"
"""The version whose ids on Linux stand in ``envpool_ids.txt``."""


def is_installed() -> bool:
    """Whether EnvPool is installed; does not import it."""
    return importlib.util.find_spec("envpool") is not None


def families() -> dict[str, str]:
    """The family of every id that EnvPool knows, which is the part of it that implements the id:
    ``"atari"``, ``"mujoco"``, ``"box2d"``, ...; empty where EnvPool isn't installed.

    Imports EnvPool unless the ids of the installed version are recorded.
    """
    if not is_installed():
        return {}
    if "envpool" not in sys.modules and sys.platform == "linux" and version("envpool") == _RECORDED:
        return recorded_families()
    load_opengl()
    import envpool
    from envpool.registration import registry

    return {name: registry.specs[name][0].split(".")[1] for name in envpool.list_all_envs()}


@cache
def recorded_families() -> dict[str, str]:
    """`families` of the version that is recorded, without its import.

    Lines without indentation are families, those below them their ids.
    """
    found: dict[str, str] = {}
    family = ""
    for line in (files("quintet.envs") / "envpool_ids.txt").read_text().splitlines():
        if line.startswith(" "):
            found |= dict.fromkeys(line.split(), family)
        else:
            family = line
    return found


@cache
def load_opengl() -> str:
    """Loads the OpenGL library that MuJoCo needs for drawing; returns why it can't, or "".

    It must come before the first import of EnvPool, so it is called for every environment.  It
    loads no graphics driver.
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
