"""What `import quintet` does by itself."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "given", "first", "after"),
    [
        ("quintet", {}, "", "4000"),
        ("quintet.commands.cli", {}, "", "4000"),
        ("quintet", {"GOMP_SPINCOUNT": "7"}, "", "7"),  # what the user says
        ("quintet", {"OMP_WAIT_POLICY": "ACTIVE"}, "", "None"),
        ("quintet", {}, "sys.modules['torch'] = sys; ", "None"),  # too late
    ],
)
def test_idle_threads_of_pytorch_sleep_soon(module, given, first, after) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    variables = {k: x for k, x in os.environ.items() if k not in names} | given
    code = f"import os, sys; {first}import {module}; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == after
