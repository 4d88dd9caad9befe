"""The sink with Trackio's real store; needs the package installed: pytest plugins/trackio."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trackio")
pytest.importorskip("quintet_trackio")

TRAIN = """
import json, sys, quintet, trackio
from trackio.sqlite_storage import SQLiteStorage
config = {
    "report.sinks": ["jsonl", "trackio"], "report.interval_s": 0.0, "report.progress": False,
    "eval.episodes": 1, "runtime.compile": "off", "env.num_streams": 2, "unroll_steps": 32,
}
for steps in (256, 384):
    quintet.train("ppo", "CartPole-v1", steps, run_dir="run", config=config)
(run,) = trackio.Api().runs("quintet")
logs = SQLiteStorage.get_logs("quintet", run.name, run_id=run.id)
print("FOUND", json.dumps([run.name, [x["env_steps"] for x in logs if "env_steps" in x]]))
"""


def test_a_run_and_its_resume_are_one_run_of_trackio(tmp_path):
    environ = os.environ | {"TRACKIO_DIR": str(tmp_path / "store"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    name, steps = json.loads(done.stdout.partition("FOUND")[2])
    assert name == "run"
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {x["env_steps"] for x in lines} <= set(steps)
