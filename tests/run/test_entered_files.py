"""The files that a minimal run needs: few, and counted."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/entered_files.py"
ENTERED, LOADED = 145, 182  # today; they may only fall


def test_a_minimal_run_enters_and_loads_few_files() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    counts = re.search(r"(\d+) files entered, (\d+) loaded$", done.stdout.strip())
    assert counts is not None, done.stdout
    assert int(counts[1]) <= ENTERED, done.stdout
    assert int(counts[2]) <= LOADED, done.stdout
    for part in ("cluster/nodes", "runtime/replay/replay", "runtime/processes/worker", "play"):
        assert f"{part}.py" not in done.stdout  # parts that such a run does not have
