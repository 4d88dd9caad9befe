"""The sink with MLflow's real store; needs the package installed: pytest plugins/mlflow."""

import json

import pytest

import quintet

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("quintet_mlflow")


def test_a_run_and_its_resume_are_one_run_of_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = {
        "report.sinks": ["jsonl", "mlflow"],
        "report.interval_s": 0.0,
        "report.progress": False,
        "eval.episodes": 1,
        "runtime.compile": "off",
        "env.num_streams": 2,
        "unroll_steps": 32,
    }
    run = tmp_path / "run"
    for steps in (256, 384):
        quintet.train("ppo", "CartPole-v1", steps, run_dir=run, config=config)
    client = mlflow.MlflowClient(f"file:{tmp_path}/store")
    (experiment,) = client.search_experiments(filter_string="name = 'quintet'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["algo"] == "ppo"
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    history = client.get_metric_history(found.info.run_id, "wall_s")
    assert {x.step for x in history} == {x["env_steps"] for x in lines}
    assert "log.txt" in [x.path for x in client.list_artifacts(found.info.run_id)]
