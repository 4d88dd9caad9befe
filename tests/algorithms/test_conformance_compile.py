"""What is compiled gives what is eager, for every actor and every learner that compiles updates."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conformance_helpers import LEARNERS


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    """In one process, where learners share compilations."""
    done = subprocess.run(
        [sys.executable, "compiled_helpers.py", *LEARNERS],
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.stdout.strip() == "same", done.stderr[-3000:]
