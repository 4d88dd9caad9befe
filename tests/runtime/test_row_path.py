"""The files through which a row passes from its environment to the loss: few, and counted."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("algo", "most"),
    [
        ("ppo", 8),
        pytest.param("ddpg", 11, marks=pytest.mark.slow),
        pytest.param("appo", 13, marks=pytest.mark.slow),
    ],
)
def test_a_row_passes_through_few_files(
    algo: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("row_path", None)
    import row_path

    files = row_path.files_of(algo, tmp_path)
    assert len(files) <= most, files
    assert f"algorithms/{algo}/learner.py" in files
    assert "envs/gymnasium.py" in files
