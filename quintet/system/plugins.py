"""Records by name: quintet's own, and those of installed packages, which name them as entry points.

Names are read from the packages' metadata; a package is imported only when one of its records is
used.  So nothing that a file names is imported unless an installed package has it.  A package
whose record no option names is first imported in another process, with a time limit.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Generic, TypeVar, final

from quintet.errors import ConfigError
from quintet.system.printing import results_apart
from quintet.system.signals import STOPS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

HUB = "`pip install ./plugins/hub` in a checkout of quintet (docs/sharing.md)"
"""Words that install `quintet push`, `quintet pull` and runs named ``hf:REPO``."""


@final
class Catalog(Generic[T]):
    """The records of one kind; `loaded`: those in use, by name."""

    def __init__(
        self,
        group: str,
        noun: str,
        kind: type[T],
        own: Mapping[str, str],
        import_apart: str,
    ):
        """Imports nothing.

        group: the entry-point group of other packages, ``quintet.learners``.
        noun: the word for a record in messages.  own: import strings of quintet's records, by name.
        import_apart: import string of a function that imports an entry point (name, value, group)
            in another process, and returns how that failed to end by itself, else "".
        """
        self._import_apart = import_apart
        self.group, self.noun, self.kind, self.own = group, noun, kind, own
        self.loaded: dict[str, T] = {}
        self._tried: dict[str, str] = {}  # faults of packages, by the place of a record

    def names(self) -> list[str]:
        """Every name: quintet's own first."""
        return list(dict.fromkeys([*self.own, *self.loaded, *sorted(self._offers())]))

    def __contains__(self, name: str) -> bool:
        return name in self.loaded or name in self.own or name in self._offers()

    def find(self, name: str) -> T:
        """The record of a name in `names`; imports its module at first use.  Raises ConfigError if
        its package is broken, or several have the name.
        """
        if name not in self.loaded:
            self.loaded[name] = self._load(name)
        return self.loaded[name]

    def usable(self, *, own: bool = True) -> Iterator[tuple[str, T]]:
        """Names and records, without those of broken packages; each is imported when it is reached.

        own: also quintet's.
        """
        for name in self.names():
            if name in self.own and not own:
                continue
            try:
                record = self.find_safely(name)
            except ConfigError:  # told where that name is asked for
                continue
            yield name, record

    def find_safely(self, name: str) -> T:
        """Does what `find` does, for a name that the user has not given.

        A package whose import hangs or ends the process is a broken one, which is named once on
        standard error.
        """
        if name not in self.loaded and name not in self.own:
            (point, *_) = self._offers()[name]
            if point.value not in self._tried:
                self._tried[point.value] = fault = self._try(name, point)
                if fault:
                    from quintet.system.files import warn_on_stderr

                    warn_on_stderr(fault)
            if fault := self._tried[point.value]:
                raise ConfigError(fault)
        return self.find(name)

    def _try(self, name: str, point: "EntryPoint") -> str:
        """Returns the fault of a package whose import does not end by itself; "" without one."""
        how: str = resolve_name(self._import_apart)((point.name, point.value, point.group))
        package = _packages([point])
        return how and (
            f"{self.noun} {name!r} must be importable, but importing {_shown(point.value)} of "
            f"{package} {how}: mend or uninstall {package}"
        )

    def register(self, name: str, record: T) -> None:
        """Adds a record in this process only; raises ConfigError if its name is used or invalid."""
        if name in self:
            raise ConfigError(
                f"the name of a {self.noun} must not be in use, got {name!r}: choose another one"
            )
        if fault := self._fault(name, record, "what is registered"):
            raise ConfigError(fault)
        self.loaded[name] = record

    def package_of(self, name: str) -> str:
        """Name and version of the installed package of a record; "" for other records."""
        return "" if name in self.own else _packages(self._offers().get(name, []))

    def faults(self) -> list[str]:
        """Sentences about installed packages whose names can't be used; imports none of them."""
        clashes = [self._clash(name, points) for name, points in self._offers().items()]
        odd = [
            f"{self._name_fault(point.name)}, which is of {_packages([point])}: rename it there"
            for point in self._points()
            if not point.name.isprintable()
        ]
        return [each for each in (*clashes, *odd) if each]

    def _clash(self, name: str, points: "list[EntryPoint]") -> str:
        """Fault of a package's name that is in use by another one; "" if there is none."""
        if name in self.own:
            must, do = (
                "not be one of quintet's own",
                "quintet's own is used, uninstall that package or rename it there",
            )
        elif len(points) > 1:
            must, do = "be of one package", "uninstall all but one"
        else:
            return ""
        return f"the name of a {self.noun} must {must}, got {name!r} from {_packages(points)}: {do}"

    def _offers(self) -> "dict[str, list[EntryPoint]]":
        """The entry points of installed packages, by name, without names that can't be shown."""
        found: dict[str, list[EntryPoint]] = {}
        for point in self._points():
            if point.name.isprintable():
                found.setdefault(point.name, []).append(point)
        return found

    def _points(self) -> "Iterable[EntryPoint]":
        return _points(self.group, _folders()) if self._is_in_use() else ()

    def _is_in_use(self) -> bool:
        """Whether a package has entry points of the group; faster than `importlib.metadata`."""
        sought = f"[{self.group}]".encode()
        folders = (os.path.abspath(folder) for folder in sys.path if isinstance(folder, str))
        with suppress(OSError):
            return any(sought in _texts(folder) for folder in folders)
        return True  # importlib.metadata passes over what can't be read

    def _load(self, name: str) -> T:
        if name in self.own:
            own: T = resolve_name(self.own[name])
            return own
        points = self._offers()[name]
        if clash := self._clash(name, points):
            raise ConfigError(clash)
        package = _packages(points)
        try:
            with results_apart():  # prints of a package are no result of a command
                found: T = points[0].load()
        except STOPS:
            raise
        except BaseException as error:
            from quintet.system.user_code import raised  # imports Gymnasium

            raise ConfigError(
                f"{self.noun} {name!r} must be importable, but importing {points[0].value} of "
                f"{package} {raised(error)}: mend or uninstall {package}"
            ) from error
        if fault := self._fault(name, found, f"{points[0].value} of {package}"):
            raise ConfigError(fault)
        return found

    def _fault(self, name: str, record: object, where: str) -> str:
        """Reason why an entry point's record can't be used; "": it can."""
        if not _is_name(name):
            return f"{self._name_fault(name)}, which is {where}: rename it there"
        if not isinstance(record, self.kind):
            return (
                f"{self.noun} {name!r} must be a {self.kind.__module__}.{self.kind.__qualname__}, "
                f"got {record!r:.100}, which is {where}: mend it there"
            )
        return ""

    def _name_fault(self, name: str) -> str:
        return f"the name of a {self.noun} must be a word in lower case, got {name!r:.100}"


def _is_name(name: str) -> bool:
    return name.isidentifier() and name == name.lower()


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:100]


def _folders() -> tuple[tuple[str, int], ...]:
    """The folders of packages, and when each was changed."""
    found: list[tuple[str, int]] = []
    for folder in sys.path:
        with suppress(OSError, TypeError):  # not all of them exist
            found.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(found)


@cache
def _points(group: str, _of: tuple[tuple[str, int], ...]) -> "tuple[EntryPoint, ...]":
    """The entry points of a group, read once after each change of the folders, in milliseconds."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _texts(folder: str) -> bytes:
    """Texts of the entry points of the packages in a folder; of a file, or of nothing, none."""
    try:
        return _entry_points(folder, os.stat(folder).st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return b""


@cache
def _entry_points(folder: str, _changed_ns: int) -> bytes:
    """Entry points in a folder, read once after each change of it."""
    packages = (name for name in os.listdir(folder) if name.endswith("-info"))
    files = (Path(folder, package, "entry_points.txt") for package in packages)
    return b"\n".join(file.read_bytes() for file in files if file.exists())


def _packages(points: "list[EntryPoint]") -> str:
    """Names and versions of the packages of entry points."""
    dists = [point.dist for point in points if point.dist is not None]
    return " and ".join(sorted(_shown(f"{each.name} {each.version}") for each in dists))
