"""What a user's code sets in PyTorch changes no byte, and is as it was afterwards."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import quintet
from quintet.algorithms import registry
from quintet.runtime.torch_settings import OwnTorch

SIZES: dict[str, Any] = {
    "env.num_streams": 4,
    "model.policy_hidden": (8,),
    "report.progress": False,
    "report.sinks": [],
    "env.num_processes": 1,
    "eval.episodes": 2,
    "runtime.compile": "off",
}
OF_LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {"unroll_steps": 8, "minibatch_steps": 16, "num_epochs": 1},
    "impala": {"unroll_steps": 8, "batch_unrolls": 4, "runtime.kind": "serial"},
    "appo": {
        "unroll_steps": 8,
        "minibatch_steps": 16,
        "minibatches_per_iteration": 2,
        "runtime.kind": "serial",
    },
    "ddpg": {
        "unroll_steps": 8,
        "batch_size": 8,
        "replay_start_steps": 16,
        "normalize_returns": True,
        "popart": True,
    },
    "acer": {
        "unroll_steps": 8,
        "replay_start_steps_per_stream": 8,
        "replay_capacity_steps_per_stream": 64,
    },
}


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


GLOBALS: dict[str, Callable[[], Any]] = {
    "float64": default_dtype,
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another device": lambda: torch.device("meta"),
}


class Guess(gymnasium.Env[Any, Any]):
    """Pays for the sign of what is seen; `spoils` sets globals wherever its code runs."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, box: bool = False, spoils: bool = False) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if box else spaces.Discrete(2)
        self.spoils, self.steps = spoils, 0
        self.spoil()

    def spoil(self) -> None:
        if self.spoils:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)

    def show(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.spoil()
        self.steps, self.seen = 0, self.show()
        return self.seen, {}

    def step(self, action: Any) -> Any:
        if self.spoils:
            assert torch.ones(1).dtype == torch.float64  # it finds what it has set
        self.spoil()
        self.steps += 1
        reward = float(np.ravel(action)[0] * self.seen[0])
        self.seen = self.show()
        return self.seen, reward, self.steps == 5, False, {}


def trained(algo: str, folder: Path, steps: int = 64, **more: Any) -> quintet.Policy:
    env = {"env.kwargs": {"box": algo == "ddpg", **more.pop("kwargs", {})}}
    config = {**SIZES, **OF_LEARNERS[algo], **env, **more}
    result = quintet.train(algo, "test_torch_globals:Guess", steps, 1, folder, config)
    assert result.status == "finished"
    return result.policy


def bytes_of(policy: quintet.Policy) -> dict[str, bytes]:
    return {name: x.numpy().tobytes() for name, x in policy.publication.tensors.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, quintet.Policy]:
    folder = tmp_path_factory.mktemp("globals")
    return {algo: trained(algo, folder / algo) for algo in registry.LEARNERS.names()}


PAIRS = [
    pytest.param(algo, what, marks=[] if algo == "ppo" or what == "float64" else pytest.mark.slow)
    for algo in registry.LEARNERS.names()
    for what in GLOBALS
]


@pytest.mark.parametrize(("algo", "what"), PAIRS)
def test_of_the_caller(algo: str, what: str, plain: dict[str, quintet.Policy], tmp_path: Path):
    with GLOBALS[what]():
        policy = trained(algo, tmp_path / "run", 48)
        policy = trained(algo, tmp_path / "run", 48)  # finished
        loaded = quintet.load(tmp_path / "run")
        scores = quintet.evaluate(loaded, episodes=2)
        obs = np.array([0.5, -0.5], np.float32)
        action = [loaded.act(obs, None, greedy)[0] for greedy in (True, False)]
        if algo not in ("ddpg", "acer"):
            loaded.value(obs)
        whole = trained(algo, tmp_path / "whole")
        inside = torch.get_default_dtype(), torch.is_grad_enabled()
        assert inside[0] == (torch.float64 if what == "float64" else torch.float32)
        assert inside[1] == (what not in ("no gradients", "inference mode"))
    assert bytes_of(whole) == bytes_of(plain[algo])
    again = quintet.load(tmp_path / "run")
    assert bytes_of(policy) == bytes_of(again)
    assert np.array_equal(action[0], again.act(obs)[0])
    assert scores.returns.tolist() == quintet.evaluate(again, episodes=2).returns.tolist()


@pytest.fixture
def as_before() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("algo", registry.LEARNERS.names())
@pytest.mark.usefixtures("as_before")
def test_of_an_environment(algo: str, plain: dict[str, quintet.Policy], tmp_path: Path):
    policy = trained(algo, tmp_path / "run", kwargs={"spoils": True})
    assert bytes_of(policy) == bytes_of(plain[algo])


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(  # the same sampler as above, in another process
            {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 1},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.inference": "server"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"runtime.num_learners": 2}, marks=pytest.mark.slow),
    ],
    ids=["workers", "server", "learners"],
)
@pytest.mark.usefixtures("as_before")
def test_in_other_processes(
    more: dict[str, Any], plain: dict[str, quintet.Policy], tmp_path: Path
) -> None:
    with default_dtype():
        spoilt = trained("ppo", tmp_path / "a", kwargs={"spoils": True}, **more)
    torch.set_grad_enabled(True)
    # Without a lag, a lockstep run of workers that act has the bytes of a serial one.
    serial = "runtime.num_workers" in more
    assert bytes_of(spoilt) == bytes_of(
        plain["ppo"] if serial else trained("ppo", tmp_path / "b", **more)
    )


def test_one_block_in_another_and_errors_leave_all_as_it_was() -> None:
    @OwnTorch(3)
    def own() -> None:
        with OwnTorch():
            x = torch.ones(1, requires_grad=True)
            assert (x.dtype, x.device.type, torch.get_num_threads()) == (torch.float32, "cpu", 3)
            (x @ x).backward()
            raise ZeroDivisionError

    with ExitStack() as ends:
        for each in GLOBALS.values():
            ends.enter_context(each())
        with pytest.raises(ZeroDivisionError):
            own()
        assert torch.get_default_dtype() == torch.float64
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
        assert torch.empty(0).device.type == "meta"
    assert torch.get_default_dtype() == torch.float32
    before = torch.get_num_threads()
    OwnTorch(before + 1)(lambda: None)()
    assert torch.get_num_threads() == before
