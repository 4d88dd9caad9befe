"""The files through which a row passes from its environment to the loss: few, and counted."""

import sys
import tomllib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MOST = tomllib.loads((BENCHMARKS / "budget.toml").read_text())["files_to_loss"]


@pytest.mark.parametrize(
    "algo",
    ["ppo", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ddpg", "appo"))],
)
def test_a_row_passes_through_few_files(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("row_path", None)
    import row_path

    files = row_path.files_of(algo, tmp_path)
    assert len(files) <= MOST[algo], files
    assert f"algorithms/{algo}/learner.py" in files
    assert "envs/gymnasium.py" in files
