"""Imports users' modules by import strings, and finds names for objects that users pass in Python.

Callers first check with `quintet.system.trust` whether a name from a file may be imported.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeGuard, final

from pydantic import AfterValidator, WrapValidator

from quintet.errors import ConfigError
from quintet.system import forks
from quintet.system.name_hints import form_hint
from quintet.system.signals import STOPS

_SCRIPTS = ("__main__", "__mp_main__")
"""Modules that other processes can't import."""

_IMPORTS_FOR: ContextVar[str] = ContextVar("_IMPORTS_FOR", default="")
"""The purpose of an import of users' modules that is under way; "" without one."""


@final
class _StartsRun(ConfigError):
    """A module that quintet imports starts a run."""


@contextmanager
def imports_for(what: str) -> Iterator[None]:
    """Marks a block that imports users' modules, in which no run may start.

    what: what the imports are for, for a message.
    """
    before = _IMPORTS_FOR.set(what)
    try:
        yield
    finally:
        _IMPORTS_FOR.reset(before)


def require_no_import(function: str) -> None:
    """Raises ConfigError if a function that starts a run is called by a module that is being
    imported for another purpose.
    """
    if not (what := _IMPORTS_FOR.get()):
        return
    calls = [x for x in traceback.extract_stack() if x.name == "<module>"]
    place = f" ({calls[-1].filename}:{calls[-1].lineno})" if calls else ""
    raise _StartsRun(
        f"a module that quintet imports must not start a run, but importing it for {what} calls "
        f'{function}{place}: put that call under if __name__ == "__main__":'
    )


@final
class Given(str):
    """The name of a function given in Python, with the function, which other processes get by
    value; files keep the name alone.
    """

    function: Callable[..., Any]

    def __new__(cls, function: Callable[..., Any]) -> "Given":
        self = super().__new__(cls, name_of(function))
        self.function = function
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Given, (self.function,)


CodeName = Annotated[str, WrapValidator(lambda x, check: x if isinstance(x, Given) else check(x))]
"""An option that may name code: text, or a `Given`, which is kept."""


def words_or_code(*words: str) -> AfterValidator:
    """Validator of an option that is one of these words, or names code."""

    def check(value: str) -> str:
        if value in words or is_code_name(value):
            return value
        raise ValueError(f"must be {', '.join(words)} or an import string 'pkg.module:name'")

    return AfterValidator(check)


def named(argument: str, function: Callable[..., Any]) -> str:
    """Value of an option for a function or class: an import string where other processes can import
    it, else `Given`.  Raises ConfigError if the string stands for something else.

    argument: name of the argument, for messages.
    """
    name = name_of(function)
    module_name, _, path = name.partition(":")
    if not is_import_string(name):
        return Given(function)
    found: Any = import_module(module_name, name)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if found is not function:
        raise ConfigError(
            f"{argument} must be a function or class that can be found by its name, got {name}, by "
            f"which {('nothing' if found is None else 'another object')} is found; give a lambda "
            "that calls it, or the object that has this name"
        )
    return Given(function) if module_name in _SCRIPTS else name


def nameless(option: str, name: str, argument: str) -> ConfigError:
    """The error for a function that was `Given`, whose name alone is in a file."""
    return ConfigError(
        f"{option}={name} must be a function given in Python, got only the name that files keep; "
        f"give the same function again as {argument}, or train with one at the top level of a "
        "module, whose name suffices"
    )


def code_of(option: str, name: str, argument: str) -> Any:
    """The function or class that an option names: the one that was given in Python, or that of its
    import string.

    argument: argument in Python that takes the function itself.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(name, Given):
        return name.function
    if not is_import_string(name):
        raise nameless(option, name, argument)
    module_name, _, path = name.partition(":")
    found: Any = import_module(module_name, f"{option}={name}")
    module = found
    for part in path.split("."):
        if part not in vars(found):
            advice = "define it at the top level of the module, or correct the name"
            if module_name == "__main__":  # the script that was run
                advice = (
                    "it was defined in the script that trained: give its import string, the "
                    f"script's MODULE:{path}, as --{option.replace('_', '-')} ({argument} in "
                    "Python)"
                )
            raise ConfigError(
                f"{option}={name} must name a class or function {path!r} in module "
                f"{module_name!r}, got no {part!r} in {origin_of(module)}; {advice}"
            )
        found = vars(found)[part]
    return found


def name_of(source: object) -> str:
    """``module:name`` of a source, or ``module:<name>`` where that is no import string."""
    maker: Any = source
    while isinstance(maker, partial):
        maker = maker.func
    module = getattr(maker, "__module__", None) or "__main__"
    name = getattr(maker, "__qualname__", None)
    if name is None:
        return f"{module}:<{type(maker).__qualname__}>"
    if name.startswith("<"):  # a lambda
        return f"{module}:{name}"
    return f"{module}:<{name}>" if maker is not source or "<" in name else f"{module}:{name}"


def settle_search_path() -> None:
    """Makes ``sys.path`` absolute, since an environment may change the working folder."""
    sys.path[:] = [os.path.abspath(each) if isinstance(each, str) else each for each in sys.path]


def import_module(module_name: str, name: str) -> ModuleType:
    """The module of the import string `name`, perhaps in the working folder; raises ConfigError."""
    here, added = str(Path.cwd()), False
    if not all(part.isidentifier() for part in module_name.split(".")):
        hint = form_hint(name) or "use the form pkg.module:name"
        raise ConfigError(f"{name!r} must name a module as Python's import does: {hint}")
    while True:
        try:
            with forks.kept_out(module_name), imports_for(name):
                return importlib.import_module(module_name)
        except (*STOPS, _StartsRun):
            raise
        except BaseException as error:
            root = module_name.partition(".")[0]
            missing = isinstance(error, ModuleNotFoundError) and error.name == root
            if missing and here not in sys.path:  # a console script does not search it
                sys.path.append(here)
                added = True
                continue
            if added:
                sys.path.remove(here)
            raise _not_imported(module_name, name, error) from error


def _not_imported(module_name: str, name: str, error: BaseException) -> ConfigError:
    """The error about a module whose import failed."""
    if isinstance(error, ModuleNotFoundError):
        what = f"which can't be imported: {error}; start in the folder that holds it, install it"
    else:
        from quintet.system.user_code import argv_advice, raised  # imports Gymnasium

        advice = argv_advice(error) or "mend the module"
        what = f"and importing it {raised(error)}; {advice}"
    alone = isinstance(error, ImportError) and "no known parent package" in str(error)
    hint = form_hint(name) if alone else ""
    way = f": {hint}" if hint else ""
    return ConfigError(f"{name!r} needs module {module_name!r}, {what}, or correct the name{way}")


def script_of(name: str) -> str | None:
    """The file name of the script that defines the object named ``__main__:...``; None for other
    names, and without a script.
    """
    if name.partition(":")[0] not in _SCRIPTS:
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    return None if file is None else Path(file).name


def is_here(name: str) -> bool:
    """Whether the script that runs has what ``__main__:name`` names."""
    return hasattr(sys.modules["__main__"], name.partition(":")[2].partition(".")[0])


def of_script(stored: object, given: object) -> bool:
    """Whether `given` names, in another module, what `stored` names in a script that ran."""
    if not (isinstance(stored, str) and isinstance(given, str)):
        return False
    module, colon, name = stored.partition(":")
    return bool(colon) and module in _SCRIPTS and given.partition(":")[1:] == (colon, name)


def same_code(a: object, b: object) -> bool:
    """Whether two values of an option are the same, or name the same object of a script."""
    return a == b or of_script(a, b) or of_script(b, a)


def is_file_name(text: object) -> TypeGuard[str]:
    """Whether it is the plain name of a Python file."""
    return isinstance(text, str) and re.fullmatch(r"[\w.-]+\.py", text) is not None


def way_to_script(names: Mapping[str, str], script: object, folder: Path) -> str:
    """A sentence on import strings ``__main__:...`` of a run in `folder` that `script` trained,
    which is looked for in the working folder and those around the run; "" if this process has them.

    names: the import strings by the option of the command line that gives them again.
    """
    gone = {k: x for k, x in names.items() if x.startswith("__main__:") and not is_here(x)}
    if not gone or not is_file_name(script):
        return ""
    here = Path.cwd()
    places = (x / script for x in (here, *folder.absolute().parents))
    found = next((place for place in places if place.is_file()), None)
    what = f"{' and '.join(gone.values())} {'is' if len(gone) == 1 else 'are'} defined in {script}"
    forms = {k: f"{Path(script).stem}:{x.partition(':')[2]}" for k, x in gone.items()}
    if found is None or not all(is_import_string(form) for form in forms.values()):
        return f"{what}: move the code to a module, or load the policy in {script}"
    given = " and ".join(
        f"--{option} {form} ({option.rpartition('.')[2]}= in Python)"
        for option, form in forms.items()
    )
    start = "" if found.parent == here else f", started in {found.parent}"
    return (
        f"{what}: give {given}{start}; {found} must call quintet.train only under "
        'if __name__ == "__main__":, since it is imported then'
    )


def origin_of(module: ModuleType) -> str:
    """The file of a module, and a file of its name in the working folder if not imported."""
    name = module.__name__
    file = getattr(module, "__file__", None) or f"module {name}"
    base = Path.cwd().joinpath(*name.split("."))
    for own in (base.with_suffix(".py"), base / "__init__.py"):
        if own.exists() and own.resolve() != Path(file).resolve():
            return f"{file} ({own} was not imported, give it another name)"
    return file


def is_import_string(value: str) -> bool:
    """Whether it has the form ``pkg.module:name``."""
    module, colon, name = value.partition(":")
    return bool(colon) and all(
        part.isidentifier() for part in [*module.split("."), *name.split(".")]
    )


def is_code_name(value: str) -> bool:
    """Whether it is an import string, or the name of a `Given`."""
    module, colon, name = value.partition(":")
    nameless_ = bool(colon) and name.startswith("<") and name.endswith(">")
    return is_import_string(value) or (nameless_ and all(map(str.isidentifier, module.split("."))))
