"""Encoders in bfloat16: what acts and what learns compute the same, in float32 outside."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.heads import action_family
from quintet.models.precision import Precision, fast_bf16
from quintet.types import Spaces

PICTURE = gym_spaces.Box(0, 255, (2, 36, 36), np.uint8)
VECTOR = gym_spaces.Box(-9, 9, (5,), np.float32)


def make_network(
    observation: gym_spaces.Space, model: ModelConfig, precision: Precision
) -> ActorCritic:
    spaces = Spaces(observation, gym_spaces.Discrete(3))
    family = action_family(spaces.action, "clip")
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(spaces, family, resolve_model(model, spaces), generator, precision)


# With how far bfloat16 may be from float32, twice what is seen: 8 bits round by 0.2% in the mean,
# anew in each of 4, 16, 2 and 1 layers.
CASES = [
    pytest.param(PICTURE, ModelConfig(shared_torso=True, policy_hidden=(8,)), 0.02, id="picture"),
    pytest.param(PICTURE, ModelConfig(encoder="impala_cnn", policy_hidden=(8,)), 0.07, id="impala"),
    pytest.param(PICTURE, ModelConfig(encoder="small_cnn", policy_hidden=(8,)), 0.02, id="small"),
    pytest.param(VECTOR, ModelConfig(layer_norm=True, policy_hidden=(8,)), 0.007, id="vector"),
    pytest.param(
        VECTOR, ModelConfig(core="gru", core_size=4, policy_hidden=(8,)), 0.006, id="core"
    ),
]


@pytest.mark.parametrize(("observation", "model", "apart"), CASES)
def test_acting_and_learning_agree_to_the_bit(
    observation: gym_spaces.Space, model: ModelConfig, apart: float
):
    observation.seed(1)
    obs = {"obs": torch.from_numpy(np.stack([observation.sample() for _ in range(4)]))}
    learns, acts, full = (make_network(observation, model, p) for p in ("bf16", "bf16", "fp32"))
    acts.freeze_precision()
    acts.load_state_dict(learns.state_dict())
    first = torch.zeros(4, dtype=torch.bool)
    with torch.no_grad():
        given = [network(obs, network.initial_state(4), first) for network in (learns, acts, full)]
    for part in range(2):  # parameters and values
        ours, theirs, exact = (each[part] for each in given)
        assert ours.dtype == theirs.dtype == torch.float32
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, exact)
        assert (ours - exact).norm() < apart * exact.norm()
    assert all(p.dtype == torch.float32 for p in learns.parameters())
    assert any(p.dtype == torch.bfloat16 for p in acts.parameters())
    heads = (*acts.policy_head.parameters(), *acts.value_head.parameters())
    assert all(p.dtype == torch.float32 for p in heads)


def test_gradients_arrive_in_float32():
    network = make_network(PICTURE, ModelConfig(shared_torso=True, policy_hidden=(8,)), "bf16")
    params, value, _ = network({"obs": torch.randint(0, 256, (4, 2, 36, 36), dtype=torch.uint8)})
    (params.sum() + value.sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("able", "fast"),
    [
        ({}, False),
        ({"sse4a": True}, False),
        ({"amx_bf16": True}, True),
        ({"avx512_bf16": True, "amx_bf16": False, "sse4a": False}, False),
        ({"avx512_bf16": True, "amx_bf16": False, "sse4a": True}, True),
    ],
)
def test_bf16_is_fast_with_amx_and_with_the_dot_products_of_amd(
    able: dict[str, bool], fast: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert fast_bf16(torch.device("cpu")) is fast


def test_bf16_counts_as_slow_where_pytorch_does_not_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert fast_bf16(torch.device("cpu")) is False
