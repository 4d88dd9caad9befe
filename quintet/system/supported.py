"""The systems that quintet runs on."""

import sys

from quintet.errors import ConfigError


def require_system() -> None:
    """Raises ConfigError on a system that lacks what runs and their folders are built on: signals,
    file locks, handles to folders, and processes that inherit files.
    """
    if sys.platform == "win32":
        raise ConfigError(
            "quintet must run on Linux or macOS, got Windows: run it in WSL 2, which is a Linux"
        )
