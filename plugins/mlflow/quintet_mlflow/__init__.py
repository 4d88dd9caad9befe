"""Reports of quintet's runs to MLflow.

The server or store comes from MLflow's own settings: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME
(default: quintet), and those of its login.
"""

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quintet.observe.sinks import PackageSink, SinkRun

ID_FILE = "mlflow.json"
"""File in the run's folder with the id that a resumed run continues."""

_MOST_PARAMS, _MOST_METRICS = 100, 1_000  # largest numbers in one request
_LONGEST = 500  # characters of a parameter


class _Open(NamedTuple):
    client: Any
    run_id: str


def _open(run: SinkRun) -> _Open:
    from mlflow import MlflowClient  # takes seconds
    from mlflow.entities import Param

    client, path = MlflowClient(), run.run_dir / ID_FILE
    run_id = _id_in(path) if run.env_steps >= 0 else ""
    if run_id:
        client.update_run(run_id, status="RUNNING")
        return _Open(client, run_id)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "quintet")
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id
    run_id = client.create_run(experiment, run_name=run.run_dir.name).info.run_id
    path.write_text(json.dumps({"run_id": run_id}))
    params = [Param(name, str(value)[:_LONGEST]) for name, value in run.options.items()]
    for begin in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[begin : begin + _MOST_PARAMS])
    return _Open(client, run_id)


def _id_in(path: Path) -> str:
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = str(json.loads(path.read_text())["run_id"])
        if re.fullmatch(r"[0-9a-f]{32}", found):
            return found
    return ""


def _write(to: _Open, report: dict[str, float]) -> None:
    from mlflow.entities import Metric

    now, step = int(1_000 * time.time()), int(report.get("env_steps", 0))
    metrics = [Metric(name, value, now, step) for name, value in report.items()]
    for begin in range(0, len(metrics), _MOST_METRICS):
        to.client.log_batch(to.run_id, metrics=metrics[begin : begin + _MOST_METRICS])


def _text(to: _Open, name: str, text: str) -> None:
    to.client.log_text(to.run_id, text, name)


def _picture(to: _Open, name: str, env_steps: int, picture: np.ndarray) -> None:
    key = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    to.client.log_image(to.run_id, picture, key=key, step=env_steps)


def _close(to: _Open) -> None:
    to.client.set_terminated(to.run_id)


SINK = PackageSink(open=_open, write=_write, text=_text, picture=_picture, close=_close)
