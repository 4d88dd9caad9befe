"""``quintet --version``: versions of quintet, the packages that it builds on, and backends."""

import platform
from importlib import metadata

import quintet
from quintet.envs.backends import BACKENDS, Backend


def report() -> str:
    """Lines of versions, read from the metadata of installed packages; imports no PyTorch."""
    base = ", ".join(
        f"{name} {_version(name) or 'unknown'}" for name in ("torch", "numpy", "gymnasium")
    )
    lines = [f"quintet {quintet.__version__}", f"Python {platform.python_version()}, {base}"]
    lines += [f"backend {name}: {_versions_of(name, each)}" for name, each in BACKENDS.usable()]
    return "\n".join([*lines, *(f"warning: {fault}" for fault in BACKENDS.faults())])


def _versions_of(name: str, backend: Backend) -> str:
    """The packages of a backend with their versions, or the command that installs it."""
    if not backend.is_installed():
        return f"not installed: {backend.install}" if backend.install else "not installed"
    found = [
        f"{each} {version}" for each in backend.packages.values() if (version := _version(each))
    ]
    return ", ".join(filter(None, [BACKENDS.package_of(name), *found])) or "ready"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
