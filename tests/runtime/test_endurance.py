"""What only shows after a long while: things that are not given back."""

from pathlib import Path

import psutil
import pytest
from processes_helpers import open_files, processes_of
from troubles_helpers import SMALL, Drifting

import quintet


@pytest.mark.slow
def test_starting_and_stopping_200_times_leaves_nothing_behind(tmp_path: Path) -> None:
    """Processes, descriptors, memory: none of them grows."""
    process = psutil.Process()
    config = SMALL | {
        "report.sinks": [],
        "runtime.kind": "async",
        "runtime.num_workers": 1,
        "checkpoint.keep": 1,
    }
    seen = []
    for cycle in range(200):
        quintet.train("ppo", Drifting, 64, cycle, tmp_path / str(cycle), config)
        memory = process.memory_info().rss - _shared(process)
        seen.append((len(processes_of()), open_files(), memory))
    processes, files, memory = (list(each) for each in zip(*seen, strict=True))
    assert max(processes) == 0
    assert files[-1] <= files[20]
    # The first cycles import and compile; then 1 MiB in ten cycles would be 18 in all.
    assert memory[-1] - memory[20] < 18 * 2**20
    assert "memfd:quintet" not in Path("/proc/self/maps").read_text()


def _shared(process: psutil.Process) -> int:
    return int(getattr(process.memory_info(), "shared", 0))
