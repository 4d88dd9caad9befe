"""The files that a minimal run needs: few, and counted."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "entered_files.py"
MOST = tomllib.loads((BENCHMARKS / "budget.toml").read_text())["minimal_run"]


def test_a_minimal_run_enters_and_loads_few_files() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    counts = re.search(r"(\d+) files entered, (\d+) loaded$", done.stdout.strip())
    assert counts is not None, done.stdout
    assert int(counts[1]) <= MOST["entered"], done.stdout
    assert int(counts[2]) <= MOST["loaded"], done.stdout
    for part in (
        "cluster/nodes",
        "runtime/replay/replay",
        "runtime/processes/worker",
        "policies/episodes",
    ):
        assert f"{part}.py" not in done.stdout  # parts that such a run does not have
