"""Entry point of the installed command: Ctrl-C leaves no traceback, however early (except while
Python itself starts).
"""

# Not `signal`, whose first import takes milliseconds.
import _signal  # type: ignore[import-not-found]
import os
import sys


def main() -> int:
    """Runs `quintet.commands.cli.main`; until that is imported, Ctrl-C ends the process at once."""
    usual = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # nohup ignores it
    if usual:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from quintet.commands.cli import main as run

    try:
        if usual:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return run(leave=_leave)
    except KeyboardInterrupt:  # raised before `run` handles it
        return 130


def _leave(status: int) -> None:
    """Ends the process without Python's clean-up, which takes a second with PyTorch."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
