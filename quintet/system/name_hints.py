"""The right form of an import string that was written in another: ``envs.grid:Grid`` for
``envs.grid.Grid``, ``./envs/grid.py:Grid`` and ``envs/grid.py``.

Files are only read, never imported.
"""

import ast
import os
import sys
from pathlib import Path


def form_hint(name: str) -> str:
    """A phrase with the import string that `name` probably means, and the folder to start in; "" if
    no file of that name is found.
    """
    path, colon, attribute = name.partition(":")
    if Path(path).suffix == ".py" or os.sep in path or "\\" in path:
        file = Path(path.replace("\\", os.sep)).expanduser()
        return _hint(file if file.suffix == ".py" else file.with_name(f"{file.name}.py"), attribute)
    if not all(part.isidentifier() for part in path.split(".")):
        return ""
    here = [str(Path.cwd())]
    folders = list(dict.fromkeys([*here, *map(str, sys.path)]))
    # A single word without a colon is rather an id than an installed module.
    found = _file_of(path, folders if colon or "." in path else here)
    if found is None and not colon and "." in path:
        path, _, attribute = path.rpartition(".")
        found = _file_of(path, folders)
    return "" if found is None else _hint(found, attribute)


def _file_of(module_name: str, folders: list[str]) -> Path | None:
    """The file of a module in the first of these folders that holds it."""
    for folder in folders:
        base = Path(folder).joinpath(*module_name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def _hint(file: Path, attribute: str) -> str:
    """file: a module's file; attribute: the name in it; "": its only class or function, or NAME."""
    if not file.is_file():
        return ""
    file = file.resolve()
    parts = list(file.with_suffix("").parts if file.name != "__init__.py" else file.parent.parts)
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    here = Path.cwd().resolve()
    if root != here and here in root.parents and not (file.parent / "__init__.py").is_file():
        root = here  # a folder without __init__.py is a package too
    module = ".".join(parts[len(root.parts) :])
    if not module or not all(part.isidentifier() for part in module.split(".")):
        return ""
    known = attribute if attribute.isidentifier() else _only_name(file) or "NAME"
    searched = {Path(each or ".").resolve() for each in map(str, sys.path)} | {here}
    start = "" if root in searched else f", started in {root}"
    return f"its import string is {module}:{known}{start}"


def _only_name(file: Path) -> str:
    """The name of the only public class of a module, or of its only function; "" if there are
    several or none.
    """
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for kinds in (ast.ClassDef, ast.FunctionDef):
        names = [x.name for x in body if isinstance(x, kinds) and not x.name.startswith("_")]
        if names:
            return names[0] if len(names) == 1 else ""
    return ""
