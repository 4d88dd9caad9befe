"""Imports users' modules by import strings.

Callers ask `quintet.system.trust` first whether a name from a file may be imported.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from quintet.errors import ConfigError
from quintet.system import forks
from quintet.system.signals import STOPS


def import_module(module_name: str, name: str) -> ModuleType:
    """The module of the import string `name`, perhaps in the working folder; raises ConfigError if
    there is no such module, or its import raises an error.
    """
    try:
        with forks.kept_out(module_name):
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != module_name.partition(".")[0] or here in sys.path:
            raise _no_module(module_name, name, error) from error
    except STOPS:
        raise
    except BaseException as error:
        raise _raised(module_name, name, error) from error
    sys.path.append(here)  # a console script does not search the working folder
    try:
        with forks.kept_out(module_name):
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        sys.path.remove(here)
        raise _no_module(module_name, name, error) from error
    except STOPS:
        raise
    except BaseException as error:
        sys.path.remove(here)
        raise _raised(module_name, name, error) from error


def is_import_string(value: str) -> bool:
    """Whether it has the form ``pkg.module:name``."""
    module, colon, name = value.partition(":")
    return bool(colon) and all(
        part.isidentifier() for part in [*module.split("."), *name.split(".")]
    )


def _no_module(module_name: str, name: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"{name!r} needs module {module_name!r}, which can't be imported: {error}; start in the "
        f"folder that holds it, install it, or correct the name"
    )


def _raised(module_name: str, name: str, error: BaseException) -> ConfigError:
    from quintet.system.blame import raised  # with Gymnasium

    return ConfigError(
        f"{name!r} needs module {module_name!r}; importing it {raised(error)}; mend the module, or "
        "correct the name"
    )
