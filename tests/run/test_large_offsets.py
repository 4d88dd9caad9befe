"""Observations around a large offset, in every learner: stored in float64, normalised before they
become float32.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from run_helpers import SMALL, hashes, log, weights

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError

OPTIONS = {
    "ppo": {},
    "impala": {"batch_unrolls": 4, "runtime.kind": "serial"},
    "appo": {"runtime.kind": "serial", "minibatch_steps": 64, "minibatches_per_iteration": 1},
    "ddpg": {"replay_start_steps": 64, "batch_size": 16},
    "acer": {"replay_start_steps_per_stream": 32, "runtime.kind": "serial"},
}
SHARED = {name: x for name, x in SMALL.items() if "." in name and "hidden" not in name}
SHARED |= {"preset": "none", "unroll_steps": 16, "normalize_observations": True}
SHARED |= {"runtime.compile": "off", "runtime.threads": 1}


class Clock(gymnasium.Env):
    """Say whether it is 3 seconds past the hour; ten times."""

    def __init__(self, offset: float = 1.7e9, floats: bool = False) -> None:
        time = spaces.Box(0, np.inf, (), np.float64)
        near = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(near=near, time=time)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if floats else spaces.Discrete(2)
        self.offset, self.floats = offset, floats

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._show(), {}

    def step(self, action):
        self.left -= 1
        says = np.ravel(action)[0] > (0.0 if self.floats else 0.5)
        return self._show_after(float(says == self.late))

    def _show_after(self, reward):
        return self._show(), reward, self.left == 0, False, {}

    def _show(self):
        self.late = bool(self.np_random.integers(2))
        return at(self.offset + 3.0 * self.late)


def at(time: float) -> dict[str, np.ndarray]:
    return {"near": np.zeros(2, np.float32), "time": np.array(time)}


def train(folder, algo="ppo", steps=256, offset=1.7e9, on_report=None, **more):
    config = SHARED | OPTIONS[algo] | {k.replace("__", "."): x for k, x in more.items()}
    env = partial(Clock, offset, algo == "ddpg")
    return quintet.train(algo, env, steps, run_dir=folder, config=config, on_report=on_report)


def seen(policy, time: float) -> float:
    """What the network sees of a time."""
    tensors = policy._observe(at(time))[0]
    assert tensors["time"].dtype == torch.float64
    found = policy.actor.normalizer(tensors)["time"]
    assert found.dtype == torch.float32
    return found.item()


@pytest.mark.parametrize("algo", OPTIONS)
def test_networks_see_differences_of_three_seconds(tmp_path, algo):
    result = train(tmp_path / "a", algo)
    saved = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert saved["env.observation_dtype"] == "float64"
    for policy in (result.policy, quintet.load(tmp_path / "a")):
        assert policy.spaces.observation["time"].dtype == np.float64
        # Times are late or not, about equally often, so both are about 1 from the mean.
        assert seen(policy, 1.7e9) == pytest.approx(-1, abs=0.3)
        assert seen(policy, 1.7e9 + 3) == pytest.approx(1, abs=0.3)
        policy.act(at(1.7e9))
    assert "float32, in which" not in log(tmp_path / "a")


@pytest.mark.parametrize(
    "algo",
    [
        "acer",
        pytest.param("ppo", marks=pytest.mark.slow),
        pytest.param("ddpg", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_goes_on_has_the_bytes_of_one_without_an_end(tmp_path, algo):
    often = {"checkpoint__interval_iterations": 1, "checkpoint__max_cut_frac": 1.0}
    train(tmp_path / "a", algo, 640, **often)
    stops = {"on_report": lambda report: report["env_steps"] > 300}
    assert train(tmp_path / "b", algo, 640, **often, **stops).status == "stopped"
    assert train(tmp_path / "b", algo, 640, **often, resume="exact").status == "finished"
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


@pytest.mark.slow
def test_workers_give_the_bytes_of_one_process(tmp_path):
    size = {"env__streams_per_group": 2}
    serial = train(tmp_path / "a", runtime__kind="serial", **size)
    lockstep = {"runtime__kind": "lockstep", "runtime__num_workers": 2, "runtime__lag": 0}
    assert weights(train(tmp_path / "b", **lockstep, **size)) == weights(serial)


@pytest.mark.parametrize("algo", ["ppo", "ddpg"])
@pytest.mark.slow
def test_compiled_graphs_take_float64(tmp_path, algo):
    policy = train(tmp_path / "a", algo, runtime__compile="on").policy
    assert seen(policy, 1.7e9 + 3) - seen(policy, 1.7e9) == pytest.approx(2, abs=0.1)


@pytest.mark.slow
def test_an_offset_costs_no_return(tmp_path):
    more = {"env__num_streams": 8, "unroll_steps": 32, "eval__episodes": 2}
    more["eval__env__success"] = "reward>0"  # an environment of the evaluations' own
    assert train(tmp_path / "a", "ppo", 20_000, **more).metrics["eval/return_mean"] > 9.5


def test_both_dtypes_serve_a_warm_start(tmp_path):
    near, far = train(tmp_path / "near", offset=0.0), train(tmp_path / "far")
    assert near.policy.spaces.observation["time"].dtype == np.float32
    for donor, offset in ((near, 1.7e9), (far, 0.0)):
        other = tmp_path / f"from-{donor.run_dir.name}"
        assert train(other, offset=offset, init_from=donor.run_dir).status == "finished"


def test_what_is_lost_is_said_with_its_cure(tmp_path):
    train(tmp_path / "a", normalize_observations=False)
    assert "use normalize_observations=true, so that" in log(tmp_path / "a")
    train(tmp_path / "b", env__observation_dtype="float32")
    assert "use env.observation_dtype=float64, so that" in log(tmp_path / "b")


def test_an_older_run_goes_on_in_float32(tmp_path):
    train(tmp_path / "a", steps=128, env__observation_dtype="float32")
    for folder in (tmp_path / "a" / "checkpoints").iterdir():
        found = checkpoint.read(folder)
        del found.meta["config"]["env.observation_dtype"]
        checkpoint.write(folder.parent, folder.name, found.tensors, found.meta)
    again = train(tmp_path / "a", steps=256)
    assert again.policy.spaces.observation["time"].dtype == np.float32


def test_the_option_needs_observations_of_float64(tmp_path):
    config = {**SMALL, "env.observation_dtype": "float64"}
    with pytest.raises(ConfigError, match="no effect without observations of float64"):
        quintet.train("ppo", "CartPole-v1", 128, run_dir=tmp_path, config=config)
