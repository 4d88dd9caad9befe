"""Versions and processor, which affect a run's bytes beside its options, and code revisions."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quintet.system.printing import short

SYSTEM = "system"
"""Key of the result of `system` in a checkpoint's meta."""

_GIT_TIMEOUT_S = 5.0

_ALWAYS = {"quintet", "python", "torch"}
"""Versions that must be equal in any kind of run."""


def system(backend: str, device: str, simulators: Mapping[str, str]) -> dict[str, str]:
    """Versions and kind of machine by name, as text.

    simulators: packages that compute observations, by module; only imported ones count.
    """
    found = {
        "quintet": own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version_of("numpy"),
        "gymnasium": version_of("gymnasium"),
        **{name: version_of(name) for module, name in simulators.items() if module in sys.modules},
        "backend": backend,
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": " ".join((platform.system(), *platform.libc_ver())).strip(),
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found


def compared(
    theirs: Mapping[str, str], ours: Mapping[str, str], exact: bool
) -> tuple[str | None, str | None]:
    """Reason why a node may not take part, from its versions and processor; if it may, how it
    differs from the learner's machine.

    exact: whether all of these must be equal.
    """
    differ = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    pairs = ", ".join(f"{name} {theirs.get(name)}, here {ours.get(name)}" for name in differ)
    if differ and (exact or _ALWAYS & {*differ}):
        must = "versions and processor" if exact else "versions of quintet, Python and PyTorch"
        fault = f"must have the learner's {must}, got {pairs}: make them equal, or leave it out"
        return fault, None
    return None, f"differs from this machine: {pairs}" if differ else None


def warnings(place: Path, meta: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """A message if the checkpoint at `place` was written under other versions than `now`."""
    was = meta.get(SYSTEM, {})
    gone = {name: "none" for name in ("gpu", "cuda") if name in was and name not in now}
    differ = [
        f"{n} {short(str(was[n]), 100)} -> {value}"
        for n, value in {**now, **gone}.items()
        if was.get(n, value) != value
    ]
    if not differ:
        return []
    return [
        f"{place} was written under other versions or on another kind of machine "
        f"({', '.join(differ)}), so results may differ from those of the uninterrupted run"
    ]


def revision(folder: Path, digits: int = 40) -> str | None:
    """The git revision of a folder, with "-dirty" if tracked files changed; None: it has none."""
    describe = ("describe", "--always", "--dirty", "--exclude", "*", f"--abbrev={digits}")
    return _git(folder, *describe) or None


def _git(folder: Path, *words: str) -> str | None:
    """The output of git in a folder; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def own_version() -> str:
    """quintet's version, whatever name or metadata it was installed with."""
    return str(sys.modules["quintet"].__version__)  # an import would be one of the layers above


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # not installed by pip, or a variant of another name
        return "unknown"


def _processor() -> str:
    """The processor's model, as the system names it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
