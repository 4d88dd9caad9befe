"""A run that goes on for half an hour keeps its speed, and its processes their size."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def minutes(speed: float, mb_per_minute: float) -> list[dict[str, Any]]:
    return [
        {
            "minute": 1.0 * k,
            "env_steps_per_s": speed,
            "own_bytes": {"learner": 10**9, "pid 7": 10**8 + int(mb_per_minute * 1e6 * k)}
            | ({"pid 8": 1} if k == 3 else {}),  # before the warm-up is over: passed over
        }
        for k in range(1, 20)
    ]


def test_the_soak_sees_what_gets_slower_or_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from soak import judged

    sound = judged(minutes(950, 0.5), 1_000)
    assert sound["met"]
    assert sound["of_bench"] == 0.95
    assert sound["mb_per_minute"] == {"learner": 0.0, "pid 7": 0.5}
    assert not judged(minutes(890, 0.5), 1_000)["met"]
    assert not judged(minutes(950, 1.1), 1_000)["met"]


@pytest.mark.slow
def test_half_an_hour_of_pong_is_as_fast_as_a_minute_and_grows_no_process() -> None:
    ended = subprocess.run(
        [sys.executable, SCRIPT, "pong-appo", "--minutes", "30"], capture_output=True, text=True
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3_000:]
