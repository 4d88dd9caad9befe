"""Numbers of environments reach makers that ask for them, equally in every runtime."""

import socket
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet.envs.env_source import Numbers, makes_groups
from quintet.errors import ConfigError

CONFIG = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "report.progress": False,
    "eval.episodes": 2,
    "runtime.compile": "off",
}


def make(env_index=0, num_envs=1, worker_index=0, seed=0, name="", **_):
    """Asks for everything."""


def test_a_maker_gets_what_its_signature_names():
    numbers = Numbers(first=0, seed=7, worker=2)
    given = numbers.arguments(make, {"name": "scene{index}.usd"}, 8, 5)
    seed = given.pop("seed")
    assert given == {"env_index": 5, "num_envs": 8, "worker_index": 2, "name": "scene5.usd"}
    assert seed == Numbers(0, 7, worker=1).arguments(make, {}, 8, 5)["seed"]
    assert seed != numbers.arguments(make, {}, 8, 4)["seed"]
    assert seed != Numbers(0, 8).arguments(make, {}, 8, 5)["seed"]
    assert numbers.arguments(make, {"seed": 3, "env_index": 1}, 8, 5)["seed"] == 3
    assert numbers.arguments(lambda **_: None, {"a": 1}, 8, 5) == {"a": 1}
    assert "seed" not in numbers.arguments(partial(make, seed=3), {}, 8, 5)
    assert Numbers().arguments(make, {}, 8, 1)["env_index"] == 9


def test_a_parameter_num_envs_alone_makes_groups():
    assert makes_groups(lambda num_envs: None)
    assert not makes_groups(make)
    asked = Numbers(0).arguments(lambda num_envs, worker_index: None, {}, 8, 0)
    assert asked == {"worker_index": 0}


class Numbered(gymnasium.Env):
    """Notes its numbers, has a port of its own, and shows a part of its task in the reward."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index, num_envs, worker_index, seed, folder, first_port):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", first_port + env_index))
        self.socket.listen()
        self.pay = (seed % 7) / 7
        note = Path(f"{folder}", f"{env_index} {num_envs} {worker_index} {seed}")
        note.touch()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return self.np_random.random(2, np.float32), self.pay * action, self.left == 0, False, {}

    def close(self):
        self.socket.close()


def test_numbers_are_the_same_in_every_runtime(tmp_path):
    kinds = {
        "serial": {"runtime.kind": "serial"},
        "one": {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 1},
        "two": {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 2},
        "async": {"runtime.kind": "async", "runtime.num_workers": 2, "minibatch_steps": 64},
    }
    seen, weights = {}, {}
    for number, (name, more) in enumerate(kinds.items()):
        folder = tmp_path / f"notes-{name}"
        folder.mkdir()
        kwargs = {"folder": str(folder), "first_port": 21_300 + 20 * number}
        algo = "appo" if name == "async" else "ppo"
        config = CONFIG | more | {"env.kwargs": kwargs, "env.streams_per_group": 2}
        run = tmp_path / name
        quintet.train(algo, Numbered, 256, seed=3, run_dir=run, config=config)
        notes = sorted(tuple(map(int, each.name.split())) for each in folder.iterdir())
        seen[name] = {(index, seed) for index, _, _, seed in notes}
        assert {index for index, *_ in notes} >= {0, 1, 2, 3, 4, 5, 6}  # also looks, evaluations
        assert {total for index, total, *_ in notes if index < 8} == {4}
        in_training = {worker for index, _, worker, _ in notes if index < 4}
        assert in_training == ({0, 1} if name in ("two", "async") else {0})
        files = (run / "policy").glob("*.safetensors")
        weights[name] = b"".join(file.read_bytes() for file in files)
    assert len({frozenset(x for x in each if x[0] < 4) for each in seen.values()}) == 1
    assert weights["serial"] == weights["one"] == weights["two"]


def test_a_port_that_is_in_use_names_the_parameter(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        def make_env():
            return Numbered(0, 1, 0, 0, tmp_path, port)

        with pytest.raises(ConfigError, match="depends on the parameter env_index"):
            quintet.train("ppo", make_env, 64, run_dir=tmp_path / "run", config=CONFIG)
