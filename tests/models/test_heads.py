"""Heads of several families at once: sizes, names, starts; refusals."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.heads import PolicyHead, action_family
from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import LARGEST_EXACT, Family, TupleFamily, multi_categorical
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Spaces

UNIT = DiagGaussian(2, (-1.0, -1.0), (1.0, 1.0))
MIXED = TupleFamily((Categorical(3), UNIT, Bernoulli(2), DiagGaussian(1, (0.0,), (2.0,), "action")))
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
HYBRID = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1, 2))]),
        "a": spaces.Dict({"x": spaces.MultiBinary((2, 1)), "y": spaces.MultiDiscrete([[2], [4]])}),
    }
)


def test_a_nested_space_is_the_tuple_of_its_leaves_in_its_order():
    gaussian = DiagGaussian(2, (-1.0, -1.0), (1.0, 1.0))
    leaves = (Bernoulli(2), multi_categorical((2, 4)), Categorical(3), gaussian)
    assert action_family(HYBRID, "clip") == TupleFamily(leaves)
    squashed = action_family(HYBRID, "squash")
    assert isinstance(squashed, TupleFamily)
    assert squashed.families[-1] == DiagGaussian(2, (-1.0, -1.0), (1.0, 1.0), "action")


@pytest.mark.parametrize(
    ("space", "family"),
    [
        (spaces.Box(-1.0, 1.0, ()), DiagGaussian(1, (-1.0,), (1.0,))),
        (spaces.Box(-2.0, 1.0, (1, 2)), DiagGaussian(2, (-2.0, -2.0), (1.0, 1.0))),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), multi_categorical((2, 3, 4, 5))),
        (spaces.MultiBinary((2, 3)), Bernoulli(6)),
        (spaces.Tuple([spaces.Discrete(2)]), TupleFamily((Categorical(2),))),
    ],
)
def test_leaves_of_any_shape(space: spaces.Space, family: Family):
    assert action_family(space, "clip") == family


def test_too_many_integers_beside_floats_are_refused():
    box = spaces.Box(-1.0, 1.0, (1,))
    with pytest.raises(ConfigError, match=r"must stay within 16777216 values.*action space is"):
        action_family(spaces.Tuple([spaces.Discrete(LARGEST_EXACT + 1), box]), "clip")


@pytest.mark.parametrize(
    ("family", "std", "names"),
    [
        (Categorical(3), "softplus", ["linear"]),
        (TupleFamily((Categorical(3), Bernoulli(2))), "state_dependent", ["linear"]),
        (UNIT, "state_independent", ["linear", "std_param"]),
        (UNIT, "softplus", ["linear", "std_param"]),
        (UNIT, "state_dependent", ["linear", "std_linear"]),
        (MIXED, "state_independent", ["linear", "std_param"]),
        (MIXED, "state_dependent", ["linear", "std_linear"]),
    ],
)
def test_names_of_parameters(family: Family, std: str, names: list[str]):
    """Saved policies depend on them."""
    head = PolicyHead(family, 5, std, 1.0)
    assert sorted({name.split(".")[0] for name, _ in head.named_parameters()}) == names
    assert head(torch.zeros(4, 5)).shape == (4, family.param_size)
    assert head(torch.zeros(2, 4, 5)).shape == (2, 4, family.param_size)


@pytest.mark.parametrize("std", ["state_independent", "softplus", "state_dependent"])
def test_every_part_of_the_parameters_reaches_its_own_family(std: str):
    """Means and logits in the order of the families, deviations behind their own means."""
    head = PolicyHead(MIXED, 1, std, 0.5)
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.copy_(torch.arange(8.0))
        if std == "state_dependent":
            head.std_linear.weight.zero_()
            head.std_linear.bias.zero_()
    start = math.log(0.5)
    expected = [0.0, 1.0, 2.0, 3.0, 4.0, start, start, 5.0, 6.0, 7.0, start]
    torch.testing.assert_close(head(torch.zeros(1, 1))[0], torch.tensor(expected))
    mode = MIXED.mode(head(torch.zeros(1, 1)))[0]
    torch.testing.assert_close(mode, torch.tensor([2.0, 3.0, 4.0, 1.0, 1.0, 7.0]))


@pytest.mark.parametrize("std", ["state_independent", "softplus", "state_dependent"])
def test_each_deviation_is_a_parameter_of_its_own(std: str):
    head = PolicyHead(MIXED, 2, std, 1.0)
    output = head(torch.ones(1, 2))[0]
    places = [5, 6, 10]  # log_std of the first Gaussian's two dimensions, and of the second
    own = head.std_linear.bias if std == "state_dependent" else head.std_param
    for i, place in enumerate(places):
        (gradient,) = torch.autograd.grad(output[place], own, retain_graph=True)
        assert gradient[i] > 0
        assert gradient.count_nonzero() == 1


@pytest.mark.parametrize("size", [0.3, 29.0, 31.0, 1e4])
def test_softplus_begins_with_any_std(size: float):
    head = PolicyHead(MIXED, 2, "softplus", size)
    found = torch.nn.functional.softplus(head.std_param)
    torch.testing.assert_close(found, torch.full_like(found, size))


@pytest.mark.parametrize("std", ["state_independent", "softplus", "state_dependent"])
def test_options_of_gaussians_apply_inside_a_tuple(std: str):
    of = Spaces(OBSERVATION, HYBRID)
    config = ModelConfig(policy_hidden=(8,), action_std=std, action_std_init=0.3)
    resolved = resolve_model(config, of)
    family = action_family(of.action, resolved.action_bounds)
    network = ActorCritic(of, family, resolved, torch.Generator().manual_seed(0))
    shape = (16, network.policy_head.linear.in_features)
    params = network.policy_head(torch.randn(shape))
    torch.testing.assert_close(params[:, -2:].exp(), torch.full((16, 2), 0.3), rtol=0.05, atol=0.0)
    assert (params[:, :-2].abs() < 0.2).all()  # the gain of the policy head is 0.01
