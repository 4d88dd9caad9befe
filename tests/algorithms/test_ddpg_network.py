"""DDPG's networks: where the action enters, and what they see."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conformance_helpers import CONTINUOUS, NUMBERS, Case, Task, options_without_effect
from ddpg_helpers import NETWORK, PLAIN, case, replayed
from torch import Tensor

from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.parts.setup import Compute
from quintet.algorithms.registry import find
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, resolve_model
from quintet.types import Spaces


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ([-1.0, -np.inf], [1.0, 1.0], "ddpg must have finite bounds of actions"),
        ([-3e38, -1.0], [3e38, 1.0], "ddpg must have finite bounds of actions"),
        ([-1.0, 1.0], [1.0, 1.0], "low must be below high"),
    ],
)
def test_bounds_that_are_refused(low: Any, high: Any, words: str) -> None:
    box = gymnasium.spaces.Box(np.float32(low), np.float32(high))
    with pytest.raises(ConfigError, match=words):
        Case("ddpg", Task(NUMBERS, box)).actor()


@pytest.mark.parametrize("layer", [1, 2])
def test_the_action_enters_the_critic_where_it_is_told_to(layer: int) -> None:
    learner = case(action_layer=layer).learner()
    kernels = [
        tuple(p.shape) for name, p in learner.network.critic.named_parameters() if p.ndim == 2
    ]
    sizes = [(8, 3), (6, 8), (1, 6)]
    sizes[layer - 1] = (sizes[layer - 1][0], sizes[layer - 1][1] + 2)
    assert kernels == sizes or sorted(kernels) == sorted(sizes)
    assert len(learner.penalised) == 2
    for head in (learner.network.actor.head, learner.network.critic.head):
        assert head.weight.abs().max() <= 3e-3
        assert head.weight.abs().max() > 1e-3


def test_a_layer_without_an_activation_after_it_is_refused() -> None:
    model = resolve_model(ModelConfig(policy_hidden=(8,)), Spaces(*CONTINUOUS[:2]))
    entry = Case("ddpg").algorithm
    faults = entry.check(DDPGConfig(action_layer=2), model, 1, 10_000)
    assert "action_layer must be at most 1" in faults[0]
    assert entry.check(DDPGConfig(action_layer=1), model, 1, 10_000) == []
    like_the_policy = ModelConfig(policy_hidden=(8, 8))
    faults = entry.check(DDPGConfig(action_layer=3), like_the_policy, 1, 10_000)
    assert "action_layer must be at most 2" in faults[0]


class OwnEncoder(torch.nn.Module):
    def __init__(self, leaves: dict[str, gymnasium.Space[Any]]):
        super().__init__()
        self.layer = torch.nn.Linear(math.prod(leaves["obs"].shape or ()), 7)
        self.feature_size = 7

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.layer(obs["obs"]).relu()


OWN = {"encoder": f"{__name__}:OwnEncoder"}


@pytest.mark.parametrize(
    ("network", "layer"), [(OWN, 2), (NETWORK, 1), (NETWORK, 2), ({"policy_hidden": (8,)}, 1)]
)
def test_which_action_is_best_depends_on_the_observation(
    network: dict[str, Any], layer: int
) -> None:
    learner = Case("ddpg", options={"action_layer": layer}, network=network).learner()
    generator = torch.Generator().manual_seed(0)
    learner.trained.theta.data += torch.randn(learner.trained.theta.shape, generator=generator)
    action = torch.zeros(64, 2, requires_grad=True)
    q = learner.network.critic({"obs": torch.randn(64, 3, generator=generator)}, action)
    (slope,) = torch.autograd.grad(q.sum(), action)
    assert (slope.std(0) > 0.1).all()


def test_few_features_leave_the_hidden_layer_its_width() -> None:
    critic = Case("ddpg", network=OWN).learner().network.critic
    assert critic.trunk.feature_size == 7
    assert critic.head.in_features == 64


def test_own_encoders_take_no_layer_for_the_action() -> None:
    spaces = Spaces(*CONTINUOUS[:2])
    entry, model = find("ddpg"), resolve_model(ModelConfig(**OWN), spaces)
    assert "action_layer" in options_without_effect(DDPGConfig(), model, spaces)
    assert "action_layer" not in options_without_effect(DDPGConfig(), Case("ddpg").model, spaces)
    [said] = entry.warnings(DDPGConfig(), model)
    assert f"LayerNorm in {model.encoder}" in said


@pytest.mark.parametrize("layer", [1, 2])
def test_bfloat16_is_for_the_layers_after_the_action_too(layer: int) -> None:
    of = case(**PLAIN, action_layer=layer)
    plain, half = (of.learner(Compute(precision=x)).network.critic for x in ("fp32", "bf16"))
    seen: list[torch.dtype] = []
    for module in half.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *of: seen.append(of[2].dtype))
    generator = torch.Generator().manual_seed(0)
    obs = {"obs": torch.randn(32, 3, generator=generator)}
    action = 2.0 * torch.rand(32, 2, generator=generator) - 1.0
    found = half(obs, action)
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
    torch.testing.assert_close(found, plain(obs, action), rtol=0.0, atol=1e-3)


PICTURE_AND_NUMBERS = Task(
    gymnasium.spaces.Dict(
        {
            "numbers": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32),
            "picture": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        }
    ),
    CONTINUOUS.action,
)


@pytest.mark.parametrize("layer", [1, 2])
def test_a_picture_and_numbers_together_with_the_action(layer: int) -> None:
    """Both networks read both leaves, the critic beside the action, wherever that enters."""
    of = Case("ddpg", PICTURE_AND_NUMBERS, {"action_layer": layer}, network=NETWORK)
    assert of.model.encoder == "nature_cnn"
    learner = of.learner()
    torch.manual_seed(0)
    obs = {
        "numbers": torch.randn(4, 3),
        "picture": torch.randint(256, (4, 36, 36, 3), dtype=torch.uint8),
    }
    action = torch.rand(4, 2)
    network = learner.network
    before = network.actor(obs), network.critic(obs, action)
    others = {"numbers": -obs["numbers"], "picture": 255 - obs["picture"]}
    for name, x in others.items():
        assert (network.actor(obs | {name: x}) != before[0]).any(1).all(), name
        assert (network.critic(obs | {name: x}, action) != before[1]).all(), name
    assert (network.critic(obs, -action) != before[1]).all()


def test_pictures_are_drawn_as_bytes_and_every_layer_learns_from_them() -> None:
    of = Case("ddpg", PICTURE_AND_NUMBERS, network=NETWORK)
    learner, batches = of.learner(), replayed(of)
    assert batches[0].obs["picture"].dtype == torch.uint8
    for batch in batches[:3]:
        before = {name: x.clone() for name, x in learner.trained.parameters.items()}
        learner.update(batch, 0)
    for name, x in learner.trained.parameters.items():
        assert not torch.equal(x, before[name]), name
