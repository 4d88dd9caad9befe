"""Shapes and contents of what encoders make of each kind of observation."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.errors import ConfigError
from quintet.models.encoders import (
    Mlp,
    NatureCnn,
    channels_first,
    flatten_leaf,
    image_shape,
    is_image,
)


def picture(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 36), (1, 40, 36)),
        ((40, 36, 1), (1, 40, 36)),
        ((40, 36, 3), (3, 40, 36)),
        ((4, 40, 36), (4, 40, 36)),
        ((2, 40, 36, 3), (6, 40, 36)),
        ((2, 3, 40, 36), (6, 40, 36)),
    ],
)
def test_channels_first(shape: tuple[int, ...], expected: tuple[int, int, int]):
    assert image_shape(shape) == expected
    x = torch.arange(2 * int(np.prod(shape))).view(2, *shape)
    ours = channels_first(x, shape)
    assert ours.shape == (2, *expected)
    # Entry by entry: frame k and colour c of a stack become channel k * C + c.
    for channel in range(expected[0]):
        if len(shape) == 2:
            plane = x
        elif len(shape) == 3:
            plane = x[..., channel] if shape[-1] <= 4 else x[:, channel]
        elif shape[-1] <= 4:
            plane = x[:, channel // shape[3], :, :, channel % shape[3]]
        else:
            plane = x[:, channel // shape[1], channel % shape[1]]
        assert torch.equal(ours[:, channel], plane)


def test_a_picture_of_five_dimensions_is_refused():
    with pytest.raises(ConfigError, match="2 to 4 dimensions"):
        image_shape((2, 2, 40, 36, 3))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (picture(36, 36), True),
        (picture(84, 84, 3), True),
        (picture(4, 84, 84), True),
        (picture(4, 84, 84, 3), True),
        (picture(35, 36), False),
        (picture(36, 35, 3), False),
        (picture(100), False),
        (spaces.Box(0.0, 1.0, (84, 84)), False),
        (spaces.MultiBinary((84, 84)), False),
    ],
)
def test_what_is_a_picture(space: spaces.Space, expected: bool):
    assert is_image(space) == expected


@pytest.mark.parametrize("shape", [(36, 36), (36, 40, 3), (4, 84, 84), (2, 36, 36, 3)])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8)])
def test_nature_cnn(shape: tuple[int, ...], hidden: tuple[int, ...]):
    network = NatureCnn({"screen": picture(*shape)}, hidden)
    x = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    features = network({"screen": x, "other": torch.zeros(3)})
    assert features.shape == (3, network.feature_size)
    if hidden:
        assert network.feature_size == hidden[-1]
        assert (features >= 0).all()
    first = network.convolutions[0]
    scaled = channels_first(x, shape).double() / 255.0
    expected = torch.nn.functional.conv2d(
        scaled, first.weight.double(), first.bias.double(), stride=4
    )
    seen: list[torch.Tensor] = []
    handle = first.register_forward_hook(lambda *args: seen.append(args[2]))
    again = network({"screen": x})
    handle.remove()
    torch.testing.assert_close(seen[0].double(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(again, features)


@pytest.mark.parametrize(
    "leaves",
    [
        {"obs": spaces.Box(0.0, 1.0, (84, 84))},
        {"obs": picture(30, 30)},
        {"a": picture(36, 36), "b": picture(36, 36)},
        {"a": picture(36, 36), "b": spaces.Discrete(3)},
    ],
)
def test_nature_cnn_takes_one_picture_only(leaves: dict[str, spaces.Space]):
    with pytest.raises(ConfigError, match="exactly one uint8 picture"):
        NatureCnn(leaves, (8,))


@pytest.mark.parametrize(
    ("space", "x", "expected"),
    [
        (spaces.Discrete(3), [2, 0], [[0, 0, 1], [1, 0, 0]]),
        (spaces.Discrete(3, start=5), [7, 5], [[0, 0, 1], [1, 0, 0]]),
        (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (spaces.MultiDiscrete([2, 2], start=[4, 1]), [[5, 1]], [[0, 1, 1, 0]]),
        (spaces.MultiDiscrete([[2], [3]]), [[[1], [2]]], [[0, 1, 0, 0, 1]]),
        (spaces.MultiBinary((2, 2)), [[[1, 0], [0, 1]]], [[1, 0, 0, 1]]),
        (spaces.Box(-9, 9, (2, 1), np.int64), [[[-3], [4]]], [[-3, 4]]),
    ],
)
def test_flatten_leaf(space: spaces.Space, x: list, expected: list):
    flat = flatten_leaf(torch.tensor(x), space)
    assert flat.dtype == torch.float32
    assert flat.tolist() == expected
    assert flat.shape[1] == spaces.flatdim(space)


def test_flatten_leaf_scales_pictures_but_no_vectors():
    x = torch.tensor([[[255, 0], [51, 102]]], dtype=torch.uint8)
    torch.testing.assert_close(flatten_leaf(x, picture(2, 2)), torch.tensor([[1.0, 0.0, 0.2, 0.4]]))
    assert flatten_leaf(x.view(1, 4), picture(4)).tolist() == [[255.0, 0.0, 51.0, 102.0]]


def test_flatten_leaf_agrees_with_gymnasium():
    for space in (spaces.Discrete(5), spaces.MultiDiscrete([2, 4, 3]), spaces.MultiBinary(3)):
        space.seed(0)
        for _ in range(5):
            value = space.sample()
            ours = flatten_leaf(torch.as_tensor(np.asarray(value))[None], space)[0]
            assert ours.tolist() == spaces.flatten(space, value).tolist()


def test_mlp_concatenates_in_order_of_the_leaves():
    leaves = {
        "b": spaces.Box(-1.0, 1.0, (2,)),
        "a": spaces.Discrete(3),
        "c/d": spaces.Box(-1.0, 1.0, (1, 2)),
    }
    network = Mlp(leaves, (), "tanh")
    assert network.feature_size == 7
    obs = {
        "c/d": torch.tensor([[[8.0, 9.0]]]),
        "a": torch.tensor([1]),
        "b": torch.tensor([[4.0, 5.0]]),
        "action_mask": torch.ones(1, 3),
    }
    assert network(obs).tolist() == [[4.0, 5.0, 0.0, 1.0, 0.0, 8.0, 9.0]]


@pytest.mark.parametrize(("activation", "function"), [("tanh", torch.tanh), ("relu", torch.relu)])
def test_mlp_layers(activation: str, function):
    network = Mlp({"obs": spaces.Box(-1.0, 1.0, (3,))}, (5, 4), activation)
    x = 3.0 * torch.randn(6, 3)
    expected = x
    for layer in (network.layers[0], network.layers[2]):
        expected = function(expected @ layer.weight.T + layer.bias)
    assert network.feature_size == 4
    torch.testing.assert_close(network({"obs": x}), expected)
