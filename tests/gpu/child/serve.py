"""Runs functions of test files that another process names, in this one, which has GPUs."""

import importlib
import logging
import os
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PARTS = ("gpu", ".", "runtime", "runtime/replay", "algorithms", "run")


def main() -> None:
    sys.path[:0] = [str(TESTS / name) for name in PARTS]
    import pytest
    import torch

    from quintet.runtime import spread

    torch.set_num_threads(1)
    # As `clocks_move_no_environments` of tests/conftest.py, which is not in place here.
    pytest.MonkeyPatch().setattr(spread, "best_num_processes", lambda *_: 1)
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            file, name, given = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            getattr(importlib.import_module(Path(file).stem), name)(**given)
            pipe.send(("passed", ""))
        except pytest.skip.Exception as skipped:
            pipe.send(("skipped", str(skipped)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
        logging.getLogger("quintet").handlers.clear()


main()
