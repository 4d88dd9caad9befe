"""``quintet plot`` as a command; tests/observe/test_plots.py has the pictures."""

import json
from pathlib import Path

import pytest
import yaml

from quintet.commands import cli
from quintet.observe import metrics, plots


def test_options_reach_what_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def drawn(*given: object) -> Path:
        asked.append(given)
        return tmp_path / "a.png"

    monkeypatch.setattr(plots, "plot_runs", drawn)
    runs, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "a.png"
    words = [*map(str, runs), "--out", str(out)]
    for more in ([], ["--x", "wall_s", "--metric", "eval/return_mean"], ["--kind", "bars"]):
        assert cli.main(["plot", *words, *more]) == 0
    assert asked == [
        (runs, out, "curve", "env_steps", None),
        (runs, out, "curve", "wall_s", "eval/return_mean"),
        (runs, out, "bars", "env_steps", None),
    ]


def test_metrics_of_one_learner_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process that has trained nothing."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(metrics, "METRICS", {**metrics.OF_RUNS, **metrics.OF_LEARNERS})
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    config = {"algo": "ppo", "seed": 1, "run_dir": "run", "env": {"id": "CartPole-v1"}}
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    names = ("env_steps", "wall_s", "episode/return_mean", "policy/ratio_max_error")
    rows = [dict(zip(names, (n * 100, n + 0.5, n + 0.5, 0.1), strict=True)) for n in range(1, 4)]
    Path("run/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert cli.main(["plot", "run", "--out", "curve.svg"]) == 0
    assert "damaged" not in capsys.readouterr().err
    assert Path("curve.svg").stat().st_size > 1000
