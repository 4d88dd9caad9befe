"""Small policies of every kind that quintet makes, untrained, with statistics and decided actions.

A cell is a learner, spaces, options of its network, and an environment of noise, which a policy
needs only to be recorded in it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import Setup
from quintet.envs.config import EnvConfig
from quintet.envs.fixed_shape import FixedShape
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig, resolve_model
from quintet.policies.policy import Policy, describe
from quintet.spaces import is_fixed
from quintet.system import trust
from quintet.types import ACTION_MASK, Publication

INF = np.inf


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which gives its first result again, whatever it gets."""
    results: list[Any] = []

    def first(*given: Any) -> Any:
        results.extend([] if results else [function(*given)])
        return results[0]

    return first


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-INF, INF, (3,), np.float32),
    "doubles": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(3, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "bits": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-INF, INF, (2,))]),
    "nested": spaces.Dict(
        {
            "a": spaces.Tuple([spaces.Dict({"x": spaces.Discrete(3)}), spaces.MultiBinary(1)]),
            "b": spaces.Box(-INF, INF, ()),
        }
    ),
    "text": spaces.Dict({"said": spaces.Text(9), "x": spaces.Box(-1.0, 1.0, (2,))}),
    "sequence": spaces.Dict(
        {"many": spaces.Sequence(spaces.Discrete(3)), "one": spaces.Discrete(2)}
    ),
    "picture": spaces.Box(0, 255, (36, 38, 3), np.uint8),
    "small_picture": spaces.Dict(
        {"image": spaces.Box(0, 255, (9, 10), np.uint8), "x": spaces.Box(-1.0, 1.0, (2,))}
    ),
    "grid": spaces.Dict(
        {
            "direction": spaces.Discrete(4),
            "image": spaces.Box(0, 3, (5, 5, 3), np.uint8),
            "mission": spaces.Box(0, 127, (12,), np.uint8),
        }
    ),
    "bools": spaces.Box(0, 1, (5, 6, 3), np.bool_),
    "shorts": spaces.Box(0, 700, (3,), np.uint16),
    "halves": spaces.Box(-3.0, 4.0, (3,), np.float16),
}

ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=-1),
    "multi_discrete": spaces.MultiDiscrete(
        [[2, 3], [4, 2]], start=[[5, -2], [0, 1]], dtype=np.int8
    ),
    "bits": spaces.MultiBinary((2, 2)),
    "whole_numbers": spaces.Box(-2, np.array([[1, 2]], np.int8), (1, 2), np.int8),
    "box": spaces.Box(-2.0, 1.0, (2,), np.float32),
    "unbounded": spaces.Box(-INF, np.array([INF, 3.0], np.float32), (2,), np.float32),
    "doubles": spaces.Box(-0.1, 0.7, (2, 2), np.float64),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1.0, 1.0, (2,))]),
    "nested": spaces.Dict(
        {
            "b": spaces.Tuple([spaces.Box(-1.0, 1.0, ()), spaces.Discrete(2)]),
            "a": spaces.Dict({"x": spaces.MultiBinary(1), "y": spaces.MultiDiscrete([3, 2])}),
        }
    ),
}


class Noise(gymnasium.Env[Any, Any]):
    """Random observations and endings; an action outside of its space is an error."""

    def __init__(self, observation: str, action: str, masked: bool = False) -> None:
        # Spaces hold random state, which no two environments may share.
        self.inner, self.action_space = copy.deepcopy((OBSERVATIONS[observation], ACTIONS[action]))
        self.observation_space: spaces.Space[Any] = self.inner
        self.sizes: list[int] = []
        if masked:
            assert isinstance(self.action_space, spaces.Discrete)
            self.sizes = [int(self.action_space.n)]
            mask = spaces.MultiBinary(sum(self.sizes))
            self.observation_space = spaces.Dict({"inner": self.inner, ACTION_MASK: mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        coin = self.np_random.random()
        return self._draw(), self.np_random.normal(), bool(coin < 0.1), bool(0.1 <= coin < 0.2), {}

    def _draw(self) -> Any:
        if not self.sizes:
            return self.inner.sample()
        mask = (self.np_random.random(self.sizes[0]) < 0.4).astype(np.int8)
        mask[self.np_random.integers(len(mask))] = 1
        return {"inner": self.inner.sample(), ACTION_MASK: mask}


@dataclass(frozen=True)
class Cell:
    """A policy's kind.

    network: options of the network; options: of the learner; env: of the environment.
    """

    algo: str = "ppo"
    observation: str = "box"
    action: str = "discrete"
    network: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    masked: bool = False

    def environment(self) -> gymnasium.Env[Any, Any]:
        made = Noise(self.observation, self.action, self.masked)
        return made if is_fixed(made.observation_space) else FixedShape(made)

    def policy(self) -> Policy:
        """A new policy; weights and statistics depend on nothing but the cell."""
        algorithm = registry.find(self.algo)
        vector = make_vector_env(self.environment, 1, backend="gymnasium", **self.env)
        vector.close()
        hidden = (8, 8) if self.algo == "ddpg" else (8,)
        given: dict[str, Any] = (
            {} if ":" in self.network.get("encoder", "") else {"policy_hidden": hidden}
        )
        if self.network.get("core", "none") != "none":
            given |= {"core_size": 5}
        model = resolve_model(ModelConfig(**{**given, **self.network}), vector.spaces)
        config = algorithm.config(**self.options)
        setup = Setup(4, 10_000, (1, 2), torch.device("cpu"))
        learner: Any = algorithm.make_learner(config, model, vector.spaces, setup)
        tensors = {k: x.detach().clone() for k, x in learner.publication().tensors.items()}
        _decide(tensors)
        env = EnvConfig(id="cells_helpers:Noise", **self.env)
        about = describe(self.algo, config, model, env, vector.spaces)
        return Policy(about, Publication(1, tensors), trust.OWN)


def _is_picture(x: Tensor) -> bool:
    """Whether statistics are those of bytes."""
    return x.dtype == torch.float64 and x.numel() > 80


def _decide(tensors: dict[str, Tensor]) -> None:
    """Draws what an untrained policy lacks: statistics, biases, and outputs that differ."""
    generator = torch.Generator().manual_seed(7)
    for name, x in sorted(tensors.items()):
        if name.endswith("count"):
            x.fill_(50.0)
        elif name.endswith((".mean", "bias")):
            x.copy_(0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype))
            x.add_(127.0 * _is_picture(x))
        elif name.endswith(".m2"):
            x.copy_(50.0 * (0.2 + torch.rand(x.shape, generator=generator, dtype=x.dtype)))
            x.mul_(80.0**2 if _is_picture(x) else 1.0)
        elif "policy_head" in name and x.ndim == 2:
            x.copy_(0.3 * torch.randn(x.shape, generator=generator))
