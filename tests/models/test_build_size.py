"""The memory of a network is known before it is made."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.models.build import ActorCritic, weights_bytes
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.heads import action_family
from quintet.types import Spaces

VECTOR = spaces.Box(-1, 1, (5,), np.float32)
PICTURE = spaces.Box(0, 255, (84, 84, 4), np.uint8)
GRID = spaces.Dict(
    direction=spaces.Discrete(4),
    image=spaces.Box(0, 255, (7, 7, 3), np.uint8),
    mission=spaces.Box(0, 255, (40,), np.uint8),
)


@pytest.mark.parametrize(
    ("observation", "options"),
    [
        (VECTOR, {}),
        (VECTOR, {"shared_torso": True, "policy_hidden": (300, 20)}),
        (VECTOR, {"core": "lstm", "core_layers": 2}),
        (VECTOR, {"core": "gru", "shared_torso": True}),
        (PICTURE, {}),
        (PICTURE, {"encoder": "impala_cnn", "layer_norm": True}),
        (PICTURE, {"encoder": "small_cnn"}),
        (GRID, {}),
        (GRID, {"encoder_kwargs": {"tokenizer": "bytes", "text_pooling": "attention"}}),
    ],
)
def test_it_is_that_of_the_network(observation, options):
    of = Spaces(observation, spaces.Discrete(6))
    model = resolve_model(ModelConfig(**options), of)
    family = action_family(of.action, model.action_bounds)
    network = ActorCritic(of, family, model, torch.Generator().manual_seed(0))
    real = sum(weight.nbytes for weight in network.parameters())
    small = sum(
        x.nbytes for x in (*network.value_head.parameters(), network.policy_head.linear.bias)
    )
    assert weights_bytes(model, of) == real - small


def test_a_giant_network_is_measured_without_being_made():
    of = Spaces(spaces.Box(-1, 1, (10**6,), np.float32), spaces.Discrete(10**6))
    model = resolve_model(ModelConfig(policy_hidden=(10**6, 10**6)), of)
    assert weights_bytes(model, of) > 10**13
