"""CUDA GPUs without a GPU, for tests: `standin.cpp` as a part of PyTorch's build for CPUs.

It changes PyTorch for good and must be loaded before it, so a test uses it in other processes:
those with `environment` in theirs, in which it is in place when torch has been imported.
"""

import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "standin.cpp", HERE / "standin_device.h"
# The host waits for the device, or for a copy that can't go by itself.  PyTorch's own debug mode
# (`torch.cuda.set_sync_debug_mode`) does not see the waits of copies from pageable memory.
WAITS = ("sync", "event", "stream", "device", "d2h", "h2d", "h2d_pageable", "h2d_index")
COPIES_IN = ("h2d", "h2d_pageable", "h2d_async")


# ---- the library


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def compiler() -> str | None:
    """The C++ compiler, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


@cache
def library() -> Path:
    """The library, built once for each PyTorch, by version and place, and source: 10 s."""
    version = importlib.metadata.version("torch")
    read = b"".join(source.read_bytes() for source in SOURCES)
    key = hashlib.sha256(read + f"{version} {_torch()} {sys.platform}".encode()).hexdigest()
    state = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = state / "quintet-tests" / f"standin-{version}-{key[:12]}"
    made = folder / "standin.so"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _build(folder, made)
    return made


def _build(folder: Path, made: Path) -> None:
    found, torch = compiler(), _torch()
    assert found is not None, "the stand-in for a GPU must have a C++ compiler, such as g++"
    begun = Path(tempfile.mkdtemp(dir=folder)) / made.name
    words = [
        *(found, "-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-DAT_PER_OPERATOR_HEADERS"),
        *(
            f"-I{torch / 'include'}",
            f"-I{torch / 'include/torch/csrc/api/include'}",
            str(SOURCES[0]),
        ),
        *("-o", str(begun), f"-L{torch / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"),
        f"-Wl,-rpath,{torch / 'lib'}",
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"the stand-in for a GPU was not built:\n{done.stdout[-4000:]}"
    begun.replace(made)
    begun.parent.rmdir()


def environment(gpus: int = 1, also: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a process in which there are `gpus` GPUs, and in all that it starts."""
    library()
    path = [str(HERE / "child"), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    added = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "STANDIN_GPUS": str(gpus)}
    return {**os.environ, **added, **(also or {})}


# ---- in the process with the GPU


class _AtTorch:
    """Finds torch as Python does; the library is loaded before it, torch.cuda patched after."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            ctypes.CDLL(str(_torch() / "lib/libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
            native = ctypes.CDLL(str(library()), ctypes.RTLD_GLOBAL)
            execute(module)
            import standin_torch_helpers

            standin_torch_helpers.put_in_place(native, _told)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def await_torch() -> None:
    """Makes the GPUs when torch is imported."""
    assert "torch" not in sys.modules, "the stand-in for a GPU must be loaded before torch"
    sys.meta_path.insert(0, _AtTorch())


@dataclass
class Counts:
    """What the device was asked for meanwhile."""

    kinds: Counter[str] = field(default_factory=Counter)
    where: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # kind, operator, line
    kernels: Counter[str] = field(default_factory=Counter)  # by operator
    bytes: Counter[str] = field(default_factory=Counter)  # by kind

    @property
    def waits(self) -> int:
        return sum(self.kinds[kind] for kind in WAITS)

    @property
    def launches(self) -> int:
        """Kernels, copies on the device, and whole graphs."""
        return self.kinds["kernel"] + self.kinds["d2d"] + self.kinds["graph"]

    def lines(self, kinds: tuple[str, ...] = WAITS) -> list[str]:
        """Where it was asked for, the most frequent first."""
        found = [(n, key) for key, n in self.where.items() if key[0] in kinds]
        return [f"{n} x {k} {op} at {line}" for n, (k, op, line) in sorted(found, reverse=True)]

    def add(self, other: "Counts") -> None:
        for mine, others in (
            (self.kinds, other.kinds), (self.where, other.where),
            (self.kernels, other.kernels), (self.bytes, other.bytes),
        ):  # fmt: skip
            mine.update(others)  # type: ignore[arg-type]


_counted: list[Counts] = []
_deaf = threading.local()
races: Counter[str] = Counter()


def _line() -> str:
    """The innermost line of quintet's own code, and what called it."""
    frame, own = sys._getframe(), ""  # not deeper: an autograd thread has no other
    while frame is not None:
        file = frame.f_code.co_filename
        if "/quintet/" in file and "site-packages" not in file:
            name = file.rsplit("/quintet/", 1)[1]
            own = f"{name}:{frame.f_lineno} ({frame.f_code.co_name})"
            break
        frame = frame.f_back  # type: ignore[assignment]
    return own or "?"


@contextmanager
def unheard() -> Iterator[None]:
    """Nothing of this thread is counted within the block."""
    _deaf.now = True
    try:
        yield
    finally:
        _deaf.now = False


def _told(kind: bytes, name: bytes, size: int) -> None:
    if getattr(_deaf, "now", False):
        return
    word, operator = kind.decode(), name.decode().removeprefix("aten::")
    if word == "race":
        races[_line()] += 1
    for counts in _counted:
        counts.kinds[word] += 1
        counts.bytes[word] += size
        if word in ("kernel", "d2d"):
            counts.kernels[operator] += 1
        else:
            counts.where[word, operator, _line()] += 1


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what is asked of the device, in all threads, until the end of the block."""
    counts = Counts()
    _counted.append(counts)
    try:
        yield counts
    finally:
        _counted.remove(counts)
