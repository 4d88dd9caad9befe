"""Folders of runs, written by hand."""

import json
from pathlib import Path
from typing import Any

import yaml


def forged(folder: Path, options: dict[str, Any] | None = None, **last: float) -> Path:
    """A finished run of PPO with two reports, the second with `last` too."""
    folder.mkdir(parents=True)
    given = {"algo": "ppo", "seed": 1, "env": {"id": "CartPole-v1"}, "total_env_steps": 2000}
    (folder / "config.yaml").write_text(yaml.safe_dump(given | (options or {})))
    reports = [
        {"env_steps": steps, "wall_s": steps / 100, "episode/return_mean": steps / 10}
        for steps in (1000, 2000)
    ]
    reports[1] |= last
    lines = [json.dumps(each) + "\n" for each in reports]
    (folder / "metrics.jsonl").write_text("".join(lines))
    record = {"state": "finished", "env_steps": 2000}
    (folder / "run.json").write_text(json.dumps(record))
    return folder
