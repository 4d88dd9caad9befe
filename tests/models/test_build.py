"""Networks as configured: automatic choices, heads, weights at the start, groups of kernels."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quintet.errors import ConfigError
from quintet.models.build import ActorCritic, ModelConfig, resolve_model
from quintet.models.heads import PolicyHead, action_family
from quintet.ops.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    MultiCategorical,
    TanhGaussian,
)
from quintet.types import ACTION_MASK, Spaces

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MASK = spaces.Box(0, 255, (40, 40), np.uint8)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


def build(config: ModelConfig, of: Spaces | None = None, seed: int = 0) -> ActorCritic:
    of = of or Spaces(VECTOR, BOX)
    family = action_family(of.action, config.action_bounds)
    generator = torch.Generator().manual_seed(seed)
    return ActorCritic(of, family, resolve_model(config, of), generator)


@pytest.mark.parametrize(
    ("given", "observation", "expected"),
    [
        ({}, VECTOR, ("mlp", (64, 64), (64, 64), "tanh")),
        ({}, PICTURE, ("nature_cnn", (512,), (512,), "relu")),
        ({"encoder": "mlp"}, PICTURE, ("mlp", (64, 64), (64, 64), "tanh")),
        ({"policy_hidden": (7,)}, VECTOR, ("mlp", (7,), (7,), "tanh")),
        ({"policy_hidden": ()}, VECTOR, ("mlp", (), (), "tanh")),
        ({"value_hidden": (9, 8)}, VECTOR, ("mlp", (64, 64), (9, 8), "tanh")),
        ({"shared_torso": True}, VECTOR, ("mlp", (64, 64), None, "tanh")),
        ({"activation": "relu"}, VECTOR, ("mlp", (64, 64), (64, 64), "relu")),
        ({}, spaces.Dict({"x": VECTOR, ACTION_MASK: MASK}), ("mlp", (64, 64), (64, 64), "tanh")),
        ({}, spaces.Dict({"x": PICTURE}), ("nature_cnn", (512,), (512,), "relu")),
    ],
)
def test_resolve_model(given: dict, observation: spaces.Space, expected: tuple):
    config = ModelConfig(**given)
    model = resolve_model(config, Spaces(observation, BOX))
    found = (model.encoder, model.policy_hidden, model.value_hidden, model.activation)
    assert found == expected
    assert resolve_model(model, Spaces(observation, BOX)) == model
    others = ("shared_torso", "init", "action_std", "action_std_init", "action_bounds")
    assert all(getattr(model, name) == getattr(config, name) for name in others)


@pytest.mark.parametrize(
    ("space", "bounds", "expected"),
    [
        (spaces.Discrete(4), "clip", Categorical(4)),
        (spaces.MultiDiscrete([2, 3]), "clip", MultiCategorical((2, 3))),
        (spaces.MultiBinary(3), "clip", Bernoulli(3)),
        (BOX, "clip", DiagGaussian(2, (-2.0, -2.0), (2.0, 2.0))),
        (BOX, "mean_tanh", DiagGaussian(2, (-2.0, -2.0), (2.0, 2.0), squash_mean=True)),
        (BOX, "squash", TanhGaussian(2, (-2.0, -2.0), (2.0, 2.0))),
    ],
)
def test_action_family(space: spaces.Space, bounds: str, expected):
    assert action_family(space, bounds) == expected


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,), np.int64),
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.MultiDiscrete([[2, 3]]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2)]),
    ],
)
def test_other_action_spaces_are_refused(space: spaces.Space):
    with pytest.raises(ConfigError, match="an action space of Box"):
        action_family(space, "clip")


def test_squash_needs_finite_bounds():
    space = spaces.Box(-np.inf, np.inf, (2,))
    with pytest.raises(ConfigError, match=r"model\.action_bounds=squash requires finite"):
        action_family(space, "squash")
    assert isinstance(action_family(space, "clip"), DiagGaussian)


@pytest.mark.parametrize("kind", ["state_independent", "softplus", "state_dependent"])
@pytest.mark.parametrize("start", [0.1, 0.35, 1.0, 2.5])
def test_std_at_the_start(kind: str, start: float):
    network = build(ModelConfig(policy_hidden=(16,), action_std=kind, action_std_init=start))
    obs = {"obs": torch.randn(64, 3)}
    std = network(obs)[0][:, 2:].exp()
    # A head of gain 0.01 makes a state-dependent one nearly the same everywhere.
    tolerance = 0.05 if kind == "state_dependent" else 1e-5
    torch.testing.assert_close(std, torch.full_like(std, start), rtol=tolerance, atol=0.0)
    assert bool((std != std[:1]).any()) == (kind == "state_dependent")


def test_state_dependent_log_std_is_kept_in_bounds():
    head = PolicyHead(DiagGaussian(1, (-1.0,), (1.0,)), 1, "state_dependent", 1.0)
    with torch.no_grad():
        head.std_linear.weight.fill_(1.0)
        head.std_linear.bias.zero_()
    log_std = head(torch.tensor([[-100.0], [-5.0], [1.0], [100.0]]))[:, 1]
    assert log_std.tolist() == [-20.0, -5.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", ["state_independent", "softplus", "state_dependent"])
def test_a_discrete_head_has_no_std(kind: str):
    head = PolicyHead(Categorical(4), 5, kind, 1.0)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    assert head(torch.zeros(2, 5)).shape == (2, 4)


def gain_of(name: str) -> float:
    return {"policy_head": 0.01, "value_head": 1.0}.get(name.split(".")[0], math.sqrt(2.0))


@pytest.mark.parametrize("observation", [VECTOR, PICTURE], ids=["vector", "picture"])
@pytest.mark.parametrize("shared", [False, True])
def test_orthogonal_start(observation: spaces.Space, shared: bool):
    config = ModelConfig(policy_hidden=(32, 16), action_std="state_dependent", shared_torso=shared)
    network = build(config, Spaces(observation, BOX))
    kernels = 0
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
            continue
        matrix = parameter.detach().flatten(1).double()
        rows, columns = matrix.shape
        gram = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
        identity = torch.eye(min(rows, columns), dtype=torch.float64)
        torch.testing.assert_close(gram, gain_of(name) ** 2 * identity, rtol=0, atol=1e-4)
        kernels += 1
    assert kernels >= 5


def test_truncated_normal_start():
    config = ModelConfig(policy_hidden=(256, 256), init="truncated_normal")
    of = Spaces(spaces.Box(-1.0, 1.0, (200,)), spaces.Box(-1.0, 1.0, (100,)))
    network = build(config, of)
    wide = {"policy_head.linear.weight": 0.1, "encoder.layers.0.weight": 2.0}
    wide |= {"encoder.layers.2.weight": 2.0, "value_encoder.layers.2.weight": 2.0}
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        if name not in wide:
            continue
        x = parameter.detach().double()
        expected = math.sqrt(wide[name] / x.shape[1])
        assert x.std().item() == pytest.approx(expected, rel=0.02), name
        assert abs(x.mean().item()) < 0.02 * expected
        assert x.abs().max().item() <= 2 * expected / 0.8796 * (1 + 1e-4)
        assert x.abs().max().item() > 1.9 * expected / 0.8796


def test_weights_follow_from_the_generator():
    config = ModelConfig(policy_hidden=(8,))
    one, same, other = (build(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    body, value_body = one["encoder.layers.0.weight"], one["value_encoder.layers.0.weight"]
    assert not torch.equal(body, value_body)


@pytest.mark.parametrize("std", ["state_independent", "state_dependent"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("observation", [VECTOR, PICTURE], ids=["vector", "picture"])
def test_kernel_groups(observation: spaces.Space, shared: bool, std: str):
    config = ModelConfig(policy_hidden=(6,), shared_torso=shared, action_std=std)
    network = build(config, Spaces(observation, BOX))
    groups = network.kernel_groups()
    assert set(groups) == {"policy", "value", "shared"}
    listed = [name for names in groups.values() for name in names]
    kernels = [
        f"{path}.weight"
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    assert sorted(listed) == sorted(kernels)
    assert bool(groups["shared"]) == shared
    # By the gradient: who uses a kernel.
    shape = (2, *observation.shape)
    obs = torch.rand(shape) if observation is VECTOR else torch.randint(0, 256, shape).byte()
    parameters = dict(network.named_parameters())
    params, value = network({"obs": obs})
    users = {}
    for user, output in (("policy", params), ("value", value)):
        found = torch.autograd.grad(
            output.sum(), list(parameters.values()), retain_graph=True, allow_unused=True
        )
        users[user] = {n for n, g in zip(parameters, found, strict=True) if g is not None}
    for group, names in groups.items():
        for name in names:
            both = name in users["policy"], name in users["value"]
            assert both == {"policy": (True, False), "value": (False, True)}.get(
                group, (True, True)
            )


@pytest.mark.parametrize("shared", [False, True])
def test_value_alone_is_the_value_of_the_whole(shared: bool):
    network = build(ModelConfig(policy_hidden=(6,), shared_torso=shared))
    obs = {"obs": torch.randn(5, 3)}
    params, value = network(obs)
    assert params.shape == (5, 4)
    assert value.shape == (5,)
    assert torch.equal(network.value(obs), value)


def test_the_mask_is_no_input_of_the_network():
    of = Spaces(spaces.Dict({"x": VECTOR, ACTION_MASK: spaces.MultiBinary(3)}), spaces.Discrete(3))
    network = build(ModelConfig(policy_hidden=(6,)), of)
    assert network.encoder.layers[0].in_features == 3
    x = torch.randn(4, 3)
    with_mask = network({"x": x, ACTION_MASK: torch.zeros(4, 3)})
    assert torch.equal(with_mask[0], network({"x": x})[0])


@pytest.mark.parametrize(
    ("given", "of", "says"),
    [
        ({"activation": "tanh"}, Spaces(PICTURE, BOX), "activation=tanh requires an mlp"),
        ({"action_std": "softplus"}, Spaces(VECTOR, spaces.Discrete(2)), "continuous actions"),
        ({"action_std_init": 0.5}, Spaces(VECTOR, spaces.Discrete(2)), "continuous actions"),
        ({"action_bounds": "squash"}, Spaces(VECTOR, spaces.Discrete(2)), "continuous actions"),
    ],
)
def test_options_without_effect_are_refused(given: dict, of: Spaces, says: str):
    with pytest.raises(ConfigError, match=says):
        resolve_model(ModelConfig(**given), of)


@pytest.mark.parametrize(
    ("observation", "action", "says"),
    [
        (spaces.Box(0.0, 1.0, (0,)), spaces.Discrete(2), "at least one number"),
        (spaces.Dict({}), spaces.Discrete(2), "at least one number"),
        (spaces.Dict({"x": VECTOR, ACTION_MASK: spaces.MultiBinary(3)}), BOX, "discrete actions"),
        (
            spaces.Dict({"x": VECTOR, ACTION_MASK: spaces.MultiBinary(3)}),
            spaces.Discrete(2),
            r"shape \(2,\) is required",
        ),
    ],
)
def test_observations_that_can_not_be(observation: spaces.Space, action: spaces.Space, says: str):
    with pytest.raises(ConfigError, match=says):
        build(ModelConfig(), Spaces(observation, action))


def test_a_single_number_can_be_observed():
    network = build(ModelConfig(), Spaces(spaces.Box(0.0, 1.0, ()), BOX))
    assert network.value({"obs": torch.zeros(5)}).shape == (5,)
