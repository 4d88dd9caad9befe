"""Reads and writes files that may be damaged, deeply nested, or on a full disk.

Parsed files are bounded in size and depth, and every fault is a `FileFault` of one sentence that
names the file.  Written files are complete or absent, and survive a power cut together with their
new folders.
"""

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, final

import yaml

try:  # libyaml, where PyYAML has it: ten times as fast
    from yaml import CSafeDumper as _SafeDumper
except ImportError:
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]

from quintet.errors import FileFault
from quintet.system.printing import note

TEMPORARY = ".tmp-"
"""Prefix of unfinished files, which are useless after a crash."""

MAX_DEPTH = 100  # levels of nested lists and mappings
MAX_YAML_BYTES = 500_000  # PyYAML takes seconds for these
MAX_NODES = 1_000_000  # values in a document; aliased ones count at each occurrence

_BLOCK_BYTES = 2**20  # zeros that are written at once

_CONTAINERS = (Mapping, list, tuple, set)
_SCALARS = (float, int, str)  # most values; `isinstance` of a Mapping is slow

_ADVICE = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "the quota is used up: make room there, or have it raised",
    errno.EFBIG: "a file may not grow so large there: raise the limit (ulimit -f)",
    errno.EIO: "the disk reports an error: check it (dmesg), and use another one",
    errno.EROFS: "the file system is mounted read-only: mount it for writing",
    errno.EBADF: "code of an environment, or of a library, closed a file that it had not opened "
    "(os.close, os.closerange): mend it",
    errno.EACCES: "ask for permission (chmod, chown)",
    errno.EPERM: "ask for permission (chmod, chown, lsattr)",
    errno.EMFILE: "this process may open no more files: raise the limit (ulimit -n)",
    errno.ENFILE: "the system has no more files to give: close other programs",
    errno.ENOMEM: "free memory",
    errno.ENOENT: "it is missing: give the right name, or restore it",
    errno.ENOTDIR: "a file is where a folder must be: move it away",
    errno.EISDIR: "a folder is where a file must be: move it away",
    errno.EEXIST: "move away what is there",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "links lead in a circle: remove them",
    errno.ESTALE: "the network file system has lost it: mount it again",
    errno.EINVAL: "a file of its own must be there: move away what is there",
    errno.EBUSY: "another program uses it: end that",
    errno.ETXTBSY: "another program uses it: end that",
}

# YAML by the rules of version 1.2, in which words are what they look like.  PyYAML follows version
# 1.1, in which ``off`` and ``yes`` are truth values, ``12:30`` is the number 750, ``010`` is 8,
# ``2001-01-01`` a date, and ``1e-3`` a text.

_BOOL, _INT, _FLOAT, _DATE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp")
)
_BOOLS = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTS = re.compile(r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)")
_FLOATS = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


@final
class _Loader(yaml.SafeLoader):
    """Refuses a name that a mapping has twice, of which PyYAML keeps the last."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's)
        first: [each for each in found if each[0] not in (_BOOL, _INT, _FLOAT, _DATE)]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ValueError(
                    f"{key.value!r} must stand once in a mapping, got it in lines "
                    f"{lines[key.value]} and {line}; leave one out"
                )
            lines[key.value] = line
        return node


@final
class _Dumper(_SafeDumper):
    """Quotes every text that one of the two versions takes for something else."""


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node)).replace("_", "")
    bases = {"0x": 16, "0b": 2}
    return int(digits, bases.get(digits.lstrip("+-")[:2], 10))


for tag, form, first in (
    (_BOOL, _BOOLS, "tTfF"),
    (_INT, _INTS, "-+0123456789"),
    (_FLOAT, _FLOATS, "-+.0123456789"),
):
    whole = re.compile(f"^(?:{form.pattern})$")
    _Loader.add_implicit_resolver(tag, whole, list(first))
    _Dumper.add_implicit_resolver(tag, whole, list(first))
_Loader.add_constructor(_INT, _int)


def warn_on_stderr(message: str) -> None:
    """Prints a warning to standard error, apart from results."""
    note(f"warning: {message}")


def advice(fault: OSError) -> str:
    """Short advice on a system error."""
    return _ADVICE.get(fault.errno or 0, "mend what the system names")


def reason(fault: OSError) -> str:
    """The system's text for an error."""
    return fault.strerror or str(fault) or type(fault).__name__


# Reading


def read_bytes(
    path: Path, *, pipe: bool = False, folder: int | None = None, most: int | None = None
) -> bytes:
    """The content of a file; raises FileFault if it can't be read.

    pipe: whether it may be a pipe or a device, from which a read may never return.
    folder: a handle to the file's folder, which may have been renamed.
    most: number of bytes above which it is not read, as that of a stranger would fill the memory.
    """
    try:
        with _opened(path, pipe, folder) as file:
            if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
                raise ValueError(f"it has {size:,} bytes, at most {most:,} were expected")
            return file.read()
    except (OSError, ValueError) as fault:  # ValueError: a name with a null in it
        raise cannot_read(path, fault) from fault


def read_lines(path: Path, most: int) -> Iterator[bytes]:
    """The lines of a file with their ends, the last perhaps without; of one that has more than
    `most` bytes the first `most + 1`, without an end.  Raises FileFault if it can't be read.
    """
    try:
        with _opened(path, False, None) as file:
            while line := file.readline(most + 1):
                part = line
                while len(part) > most and not part.endswith(b"\n"):
                    part = file.readline(most + 1)
                yield line
    except (OSError, ValueError) as fault:
        raise cannot_read(path, fault) from fault


def _opened(path: Path, pipe: bool, folder: int | None) -> IO[bytes]:
    """A regular file (pipe: or a pipe), open for reading; raises OSError."""
    # Without waiting, since opening a pipe waits for its other end.
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if pipe else os.O_NONBLOCK)
    handle = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    try:
        if not pipe and not stat.S_ISREG(os.fstat(handle).st_mode):
            kind = errno.EISDIR if stat.S_ISDIR(os.fstat(handle).st_mode) else errno.EINVAL
            raise OSError(kind, os.strerror(kind))
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb")


def cannot_read(path: Path, fault: Exception) -> FileFault:
    """The error for a file that can't be read."""
    if not isinstance(fault, OSError):
        return FileFault(f"{path} can't be read: {fault}")
    return FileFault(f"{path} can't be read: {reason(fault)}; {advice(fault)}")


def read_yaml(path: Path, *, pipe: bool = False) -> Any:
    """The value in a YAML file; raises FileFault if it can't be read or is not valid YAML."""
    data = read_bytes(path, pipe=pipe)
    try:
        return parse_yaml(data)
    except ValueError as fault:
        raise FileFault(f"{path} is not valid YAML: {fault}") from fault


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; raises ValueError with one line if it is invalid or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooDeep from None
    _check_size(value)
    return value


def parse_yaml(text: str | bytes) -> Any:
    """Parses YAML of plain values; raises ValueError, of one line, as `parse_json` does."""
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"at most {MAX_YAML_BYTES:,} bytes are allowed, it has {len(text):,}")
    try:
        value = yaml.load(text, _Loader)
    except RecursionError:
        raise TooDeep from None
    except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, AttributeError) as fault:
        # PyYAML's own errors have several lines; the others are from scalars ("2001-99-99").
        raise ValueError(" ".join(str(fault).split())) from fault
    _check_size(value)
    return value


def dump_yaml(value: Any, **how: Any) -> str:
    """The document of a value; `parse_yaml` and PyYAML's `safe_load` both read it."""
    return str(yaml.dump(value, Dumper=_Dumper, **how))


class TooDeep(ValueError):
    """Lists and mappings are nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {MAX_DEPTH} deep")


def _check_size(value: Any) -> None:
    """Refuses a value in which a recursion might not end."""
    left, nodes = [(value, 1)], 0
    while left:
        item, depth = left.pop()
        if not isinstance(item, _CONTAINERS):
            continue
        if depth > MAX_DEPTH:
            raise TooDeep
        nodes += len(item)
        if nodes > MAX_NODES:
            raise ValueError(f"at most {MAX_NODES:,} values are allowed")
        within = item.values() if isinstance(item, Mapping) else item
        left += [
            (each, depth + 1)
            for each in within
            if type(each) not in _SCALARS and isinstance(each, _CONTAINERS)
        ]


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold, and not a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


# Writing


def given_path(path: str | os.PathLike[str]) -> Path:
    """A user's path, made absolute, since an environment may change the working folder.
    ``~`` becomes the home folder, since no shell replaces it in ``--run-dir=~/runs`` and in Python.
    """
    return Path(os.path.expanduser(path)).absolute()


def shown(path: Path) -> Path:
    """A path for messages: relative if it is in the working folder."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):  # OSError: the working folder is gone
        return path


@contextmanager
def same_folder() -> Iterator[None]:
    """Returns to the working folder after a block of users' code."""
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def inode(path: Path | None) -> int | None:
    """The number of a file or folder in its file system, kept when renamed; None: there is none."""
    with suppress(OSError):
        return None if path is None else path.stat().st_ino
    return None


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents; when it returns, they survive a power cut."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the list of a folder's files to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error, or one from which it came, says that a disk or a quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def cannot_write(out: Path, fault: OSError) -> FileFault:
    """The error for a result that can't be written to ``--out``."""
    return FileFault(f"can't write {out}: {reason(fault)}; {advice(fault)}, or give another --out")


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file's content all at once; when it returns, that survives a power cut.  Raises
    OSError if it can't; the file is then unchanged.
    """
    beside = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with suppress(FileNotFoundError):  # a kill may have left it, or a stranger made it a link
            beside.unlink()
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            write_all(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def write_all(handle: int, data: bytes) -> None:
    """Writes all of `data`; a single system call may write less."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def reserve(handle: int, nbytes: int) -> None:
    """Enlarges an open file to `nbytes` and takes their place on the disk, since a full disk would
    end the process when it writes to a mapping of the file.  Raises OSError if there is no room.
    """
    if sys.platform == "linux":
        os.posix_fallocate(handle, 0, nbytes)
        return
    # Other systems may have no such call, and may not keep room for bytes that nobody wrote.
    size = os.lseek(handle, 0, os.SEEK_END)
    for at in range(size, nbytes, _BLOCK_BYTES):
        write_all(handle, bytes(min(_BLOCK_BYTES, nbytes - at)))


def set_aside(path: Path, what: str = "damaged") -> Path:
    """Renames the file or folder `path` to ``NAME.WHAT-1``, ``-2``, ...; returns the new path."""
    number = 1
    while os.path.lexists(place := path.with_name(f"{path.name}.{what}-{number}")):
        number += 1
    try:
        os.rename(path, place)
        sync_folder(path.parent)
    except OSError as fault:
        raise FileFault(
            f"{path} can't be renamed to {place.name}: {reason(fault)}; {advice(fault)}"
        ) from fault
    return place
