"""Functions that are given in Python: encoders and schedules, in workers and in resumed runs."""

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_helpers import SMALL, TOY, weights
from safetensors.torch import load_file
from torch import nn

import quintet
from quintet.errors import ConfigError

OWN = {k: v for k, v in SMALL.items() if k != "model.policy_hidden"}


def quarter(done: float) -> float:
    return 0.25 if done > 0.5 else 1.0


class Net(nn.Module):
    def __init__(self, leaves, width=4):
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.feature_size = width

    def forward(self, obs):
        return self.linear(obs["obs"]).tanh()


def last_rate(folder: Path, name: str = "optim/learning_rate") -> float:
    line = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    rate: float = json.loads(line)[name]
    return rate


LEARNERS = {
    "ppo": {"minibatch_steps": 32, "num_epochs": 1},
    "impala": {"batch_unrolls": 4},
    "appo": {"minibatch_steps": 64},
    "acer": {"replay_ratio": 0},
}


@pytest.mark.parametrize("algo", LEARNERS)
def test_a_schedule_and_a_model_without_names(algo, tmp_path):
    config = {k: v for k, v in OWN.items() if k not in ("minibatch_steps", "num_epochs")}
    config |= LEARNERS[algo] | {"learning_rate": 8e-3, "runtime.kind": "serial"}
    own = {"model": lambda leaves: Net(leaves, 5), "lr_schedule": lambda done: quarter(done)}
    result = quintet.train(algo, TOY, 256, 0, tmp_path, config, **own)
    assert last_rate(tmp_path) == 2e-3
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["model.encoder"] == saved["lr_schedule"]
    assert saved["lr_schedule"].endswith(
        "<test_a_schedule_and_a_model_without_names.<locals>.<lambda>>"
    )
    with pytest.raises(
        ConfigError, match=r"give the same function again as model= of quintet.train"
    ):
        quintet.train(algo, TOY, 320, 0, tmp_path, lr_schedule=own["lr_schedule"])
    with pytest.raises(ConfigError, match=r"function again as lr_schedule= of quintet.train"):
        quintet.train(algo, TOY, 320, 0, tmp_path, model=own["model"])
    with pytest.raises(
        ConfigError, match=r"lr_schedule: the run has .*<lambda>>', this command has 'linear'"
    ):
        quintet.train(algo, TOY, 320, 0, tmp_path, {"lr_schedule": "linear"}, model=own["model"])
    quintet.train(algo, TOY, 320, 0, tmp_path, **own)

    obs = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match=r"encoder= of quintet.load"):
        quintet.load(tmp_path)
    again = quintet.load(tmp_path, encoder=own["model"])
    assert again.act(obs)[0] == quintet.load(tmp_path, encoder=own["model"]).act(obs)[0]
    if algo == "ppo":  # its value's network is made when it is first asked for
        assert np.isfinite(result.policy.value(obs))


ONE_BOX = {"replay_start_steps": 0, "batch_size": 8}


@pytest.mark.parametrize(
    "algo",
    [
        each if each in ("ppo", "ddpg") else pytest.param(each, marks=pytest.mark.slow)
        for each in (*LEARNERS, "ddpg")
    ],
)
@pytest.mark.parametrize(
    ("given", "policy", "value"),
    [
        ({}, [], []),
        ({"model.policy_hidden": [6]}, [6], [6]),
        ({"model.policy_hidden": [6, 3], "model.value_hidden": [5]}, [6, 3], [5]),
        ({"model.value_hidden": [5], "model.layer_norm": True}, [], [5]),
    ],
    ids=["none", "one", "both", "of the value"],
)
def test_hidden_layers_after_an_own_encoder(algo, given, policy, value, tmp_path):
    """Those that were given, and not those that a learner or a preset has for other encoders."""
    config = {k: v for k, v in OWN.items() if k not in ("minibatch_steps", "num_epochs")}
    config |= LEARNERS.get(algo, ONE_BOX) | given | {"env.num_streams": 2}
    if algo == "acer":
        config |= {"model.shared_torso": False}
    env = "Pendulum-v1" if algo == "ddpg" else TOY
    result = quintet.train(algo, env, 64, 0, tmp_path, config, model=Net)
    newest = max((tmp_path / "checkpoints").iterdir())
    files = [load_file(newest / f"{name}.safetensors") for name in ("policy", "learner")]
    tensors = {k: x for file in files for k, x in file.items()}
    shapes = [
        [x.shape[0] for k, x in sorted(tensors.items()) if k.startswith(start) and x.ndim == 2]
        for start in OF_LAYERS.get(algo, OF_LAYERS[""])
    ]
    if algo == "ddpg" and not value:
        value = [64]  # its own, which reads the action
    assert shapes == [policy, value]
    obs = np.zeros(3, np.float32)
    assert np.all(quintet.load(tmp_path, encoder=Net).act(obs)[0] == result.policy.act(obs)[0])


OF_LAYERS = {
    "": ("network/encoder.layers.", "network/value_encoder.layers."),
    "acer": ("network/encoder.layers.", "network/critic_encoder.layers."),
    "ddpg": ("network/actor.encoder.layers.", "network/critic.layers."),
}
"""Names of the weights of the hidden layers of policy and value."""


def test_a_run_that_goes_on_has_the_bytes_of_one_without_an_end(tmp_path):
    own = {"model": partial(Net, width=5), "lr_schedule": lambda done: 1.0 - done**2}
    config = OWN | {"checkpoint.interval_iterations": 1}
    once = quintet.train("ppo", TOY, 2048, 0, tmp_path / "a", config, **own)
    stops = {"on_report": lambda report: report["env_steps"] > 1000}
    quintet.train("ppo", TOY, 2048, 0, tmp_path / "b", config, **stops, **own)
    exactly = {"resume": "exact"}
    again = quintet.train("ppo", TOY, 2048, 0, tmp_path / "b", exactly, **own)
    assert again.status == once.status == "finished"
    assert weights(once) == weights(again)


def test_names_that_can_be_imported_need_not_be_given_again(tmp_path):
    given = {"model": Net, "lr_schedule": quarter}
    quintet.train("ppo", TOY, 128, 0, tmp_path, OWN, **given)
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["lr_schedule"] == "test_given_functions:quarter"
    assert quintet.train("ppo", TOY, 192, 0, tmp_path).status == "finished"


@pytest.mark.parametrize("population", [{}, {"population.size": 2}], ids=["one", "population"])
def test_a_schedule_of_rates_is_told(tmp_path, population):
    """As Stable-Baselines3 has them: rates, of what is left."""
    quintet.train("ppo", TOY, 128, 0, tmp_path, OWN | population, lr_schedule=lambda x: 5e-4 * x)
    said = (tmp_path / "log.txt").read_text()
    assert "gives a factor of the rate, not a rate: factors of at most 0.0005 lower" in said
    assert "learning_rate=0.0003 to at most 1.5e-07" in said
    assert said.count("rises until the end, from 0 to 0.0005") == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lr_schedule": "linear"}, "lr_schedule must be a function of the share of the budget"),
        ({"lr_schedule": lambda: 1.0}, "lr_schedule must be a function of the share"),
        ({"lr_schedule": lambda done: -1.0}, "finite number of at least 0, got -1"),
        (
            {"lr_schedule": quarter, "config": {"lr_schedule": "linear"}},
            "lr_schedule must be what the given lr_schedule says",
        ),
    ],
)
def test_what_is_refused(given, says, tmp_path):
    config = OWN | given.pop("config", {})
    with pytest.raises(ConfigError, match=says):
        quintet.train("ppo", TOY, 128, 0, tmp_path / "run", config, **given)
    assert not (tmp_path / "run").exists()


WORKERS = {
    "runtime.kind": "async",
    "runtime.num_workers": 1,
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "eval.episodes": 0,
    "report.progress": False,
}


def test_workers_are_sent_them(tmp_path):
    own = {"model": lambda leaves: Net(leaves, 5), "lr_schedule": lambda done: 0.5}
    assert quintet.train("appo", TOY, 128, 0, tmp_path / "a", WORKERS, **own).status == "finished"
    lock = threading.Lock()

    def locked(leaves):
        assert lock is not None
        return Net(leaves)

    with pytest.raises(ConfigError, match=r"a model and a schedule that can be sent to them"):
        quintet.train("appo", TOY, 128, 0, tmp_path / "b", WORKERS, model=locked)
    assert not (tmp_path / "b").exists()


SCRIPT = f"""
import quintet
from torch import nn

class Net(nn.Module):
    def __init__(self, leaves):
        super().__init__()
        self.linear, self.feature_size = nn.Linear(3, 4), 4

    def forward(self, obs):
        return self.linear(obs["obs"]).tanh()

if __name__ == "__main__":
    for name, model in {{"class": Net, "lambda": lambda leaves: Net(leaves)}}.items():
        own = {{"model": model, "lr_schedule": lambda done: 0.5}}
        result = quintet.train("appo", "{TOY}", 128, 0, name, {WORKERS}, **own)
        assert result.status == "finished"
        result, = quintet.train("appo", "{TOY}", 128, None, name + "s", {WORKERS}, seeds=[1], **own)
        assert result.status == "finished"
        quintet.load(name, encoder=model)
"""


@pytest.mark.slow
def test_a_script_gives_its_own_to_workers_and_seed_groups(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
