"""Shapes and contents of what encoders make of each kind of observation."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quintet.errors import ConfigError
from quintet.models.cores import Core
from quintet.models.encoders import (
    Cnn,
    LeafForm,
    Mlp,
    ResidualBlock,
    channels_first,
    flatten_leaf,
    impala_trunk,
)
from quintet.models.leaves import image_shape, is_image


@pytest.mark.parametrize("make", [spaces.Discrete, lambda n: spaces.MultiDiscrete([n - 7, 7])])
def test_too_many_discrete_values_are_not_made_one_hot(make):
    assert Mlp({"x": make(2**16)}, (1,), "relu").layers[0].in_features == 2**16
    leaves = {"x": make(2**16 + 1), "picture": picture(36, 36)}
    with pytest.raises(ConfigError, match=r"leaf 'x' must have at most 65,536 .*an embedding"):
        Mlp(leaves, (1,), "relu")
    with pytest.raises(ConfigError, match=r"leaf 'x' must have at most 65,536"):
        Cnn("nature_cnn", leaves, (1,))


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
        ((40, 40, 12), (12, 40, 40)),  # frames that are stacked along the channels
        ((40, 50, 9), (9, 40, 50)),
        ((9, 40, 50), (9, 40, 50)),
        ((12, 40, 40), (12, 40, 40)),
        ((2, 40, 40, 9), (18, 40, 40)),
        ((2, 9, 40, 40), (18, 40, 40)),
    ],
)
def test_channels_first(shape: tuple[int, ...], expected: tuple[int, int, int]):
    assert image_shape(shape) == expected
    x = torch.arange(2 * int(np.prod(shape))).view(2, *shape)
    ours = channels_first(x, shape)
    assert ours.shape == (2, *expected)
    last = shape[-1] in (1, 3, 9, 12)
    # Entry by entry: frame k and colour c of a stack become channel k * C + c.
    for channel in range(expected[0]):
        if len(shape) == 2:
            plane = x
        elif len(shape) == 3:
            plane = x[..., channel] if last else x[:, channel]
        elif last:
            plane = x[:, channel // shape[3], :, :, channel % shape[3]]
        else:
            plane = x[:, channel // shape[1], channel % shape[1]]
        assert torch.equal(ours[:, channel], plane)


@pytest.mark.parametrize("high", [1, 2, 255])
def test_bytes_are_scaled_by_the_largest_value_of_their_space(high: int):
    """A board of 0, 1 and 2 would else be 0, 0.004 and 0.008."""
    g = torch.Generator().manual_seed(0)
    for shape in ((6, 7), (3, 3, 2), (4, 20)):
        board = spaces.Box(0, high, shape, np.uint8)
        x = torch.randint(0, high + 1, (5, *shape), dtype=torch.uint8, generator=g)
        flat = Mlp({"x": board}, (), "relu").flat({"x": x})
        torch.testing.assert_close(flat, x.flatten(1) / high)
    shape = (36, 36, 3)
    x = torch.randint(0, high + 1, (2, *shape), dtype=torch.uint8, generator=g)
    network = Cnn("nature_cnn", {"x": spaces.Box(0, high, shape, np.uint8)}, (4,))
    torch.testing.assert_close(network({"x": x}), network({"x": x / high}))
    chw = spaces.Box(0, high, (5, 36, 40), np.uint8)
    x = torch.randint(0, high + 1, (2, 5, 36, 40), dtype=torch.uint8, generator=g)
    found = Cnn("nature_cnn", {"x": chw}, (4,)).scaled({"x": x})["x"]
    torch.testing.assert_close(found, x / high)


def test_a_picture_of_five_dimensions_is_refused():
    with pytest.raises(ConfigError, match="2 to 4 dimensions"):
        image_shape((2, 2, 40, 36, 3))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (picture(36, 36), True),
        (picture(84, 84, 3), True),
        (picture(84, 84, 9), True),
        (picture(40, 40, 40, 40, 3), False),
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
@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_pictures(kind: str, shape: tuple[int, ...], hidden: tuple[int, ...]):
    network = Cnn(kind, {"screen": picture(*shape)}, hidden)
    x = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    features = network({"screen": x, "other": torch.zeros(3)})
    assert features.shape == (3, network.feature_size)
    assert (features >= 0).all()
    if hidden:
        assert network.feature_size == hidden[-1]
    first = network.convolutions[0][0]
    scaled = channels_first(x, shape).double() / 255.0
    expected = torch.nn.functional.conv2d(
        scaled, first.weight.double(), first.bias.double(), first.stride, first.padding
    )
    seen: list[torch.Tensor] = []
    handle = first.register_forward_hook(lambda *args: seen.append(args[2]))
    again = network({"screen": x})
    handle.remove()
    # Sums of up to 4 x 64 float32 terms.
    torch.testing.assert_close(seen[0].double(), expected, rtol=0, atol=4e-6)
    assert torch.equal(again, features)


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_a_cnn_needs_a_picture(kind: str):
    small = picture(7, 7, 3)
    for leaves in ({"obs": spaces.Box(0.0, 1.0, (84, 84))}, {"a": small, "b": spaces.Discrete(3)}):
        with pytest.raises(ConfigError, match=f"{kind} must have a uint8 picture of at least"):
            Cnn(kind, leaves, (8,))


@pytest.mark.parametrize(("kind", "smallest"), [("nature_cnn", 36), ("impala_cnn", 8)])
def test_the_smallest_picture(kind: str, smallest: int):
    network = Cnn(kind, {"obs": picture(smallest, smallest, 3)}, (8,))
    x = torch.zeros((1, smallest, smallest, 3), dtype=torch.uint8)
    assert network({"obs": x}).shape == (1, 8)
    with pytest.raises(ConfigError, match=f"at least {smallest} x {smallest}"):
        Cnn(kind, {"obs": picture(smallest, smallest - 1, 3)}, (8,))


def test_the_residual_network_of_the_paper():
    """15 convolutions over three sections that halve 96 x 72, the size of the paper's frames."""
    network = Cnn("impala_cnn", {"obs": picture(72, 96, 3)}, (256,))
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 15

    def section(size_in: int, size: int) -> int:
        return (9 * size_in + 1) * size + 4 * (9 * size + 1) * size

    count = section(3, 16) + section(16, 32) + section(32, 32)
    assert count == 97_600
    count += (9 * 12 * 32 + 1) * 256
    assert sum(p.numel() for p in network.parameters()) == count
    # With the paper's LSTM of 256 units that is its 1.6 million, less the part that reads language.
    assert 1.45e6 < count + sum(p.numel() for p in Core("lstm", 256, 256, 1).parameters()) < 1.6e6


def test_sections_round_odd_sizes_up():
    """84, 42, 21, 11: pooling reaches over the border."""
    assert Cnn("impala_cnn", {"obs": picture(4, 84, 84)}, ()).feature_size == 32 * 11 * 11
    pools = [m for m in impala_trunk(1).modules() if isinstance(m, nn.MaxPool2d)]
    assert [(m.kernel_size, m.stride) for m in pools] == [(3, 2)] * 3


def test_a_residual_block():
    block = ResidualBlock(2)
    x = torch.randn(3, 2, 5, 5)
    inner = block.second(torch.relu(block.first(torch.relu(x))))
    assert torch.equal(block(x), x + inner)
    with torch.no_grad():
        block.second.weight.zero_()
        block.second.bias.zero_()
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_pictures_beside_other_leaves(kind: str):
    leaves = {
        "speed": spaces.Box(-1.0, 1.0, (2,)),
        "left": picture(36, 36, 3),
        "gear": spaces.Discrete(3),
        "right": picture(40, 36),
    }
    network = Cnn(kind, leaves, ())
    g = torch.Generator().manual_seed(0)
    obs = {
        "speed": torch.randn((4, 2), generator=g),
        "left": torch.randint(0, 256, (4, 36, 36, 3), generator=g).byte(),
        "gear": torch.tensor([0, 2, 1, 1]),
        "right": torch.randint(0, 256, (4, 40, 36), generator=g).byte(),
    }
    features = network(obs)
    alone = [Cnn(kind, {name: leaves[name]}, ()) for name in ("left", "right")]
    for one, trunk in zip(alone, network.convolutions, strict=True):
        one.convolutions[0].load_state_dict(trunk.state_dict())
    gear = torch.tensor([[1.0, 0, 0], [0, 0, 1.0], [0, 1.0, 0], [0, 1.0, 0]])
    expected = torch.cat((*(one(obs) for one in alone), obs["speed"], gear), -1)
    assert torch.equal(features, expected)
    assert network.feature_size == expected.shape[1]


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
    flat = flatten_leaf(torch.tensor(x), LeafForm.of(space))
    assert flat.dtype == torch.float32
    assert flat.tolist() == expected
    assert flat.shape[1] == spaces.flatdim(space)


def test_flatten_leaf_scales_pictures_but_no_vectors():
    x = torch.tensor([[[255, 0], [51, 102]]], dtype=torch.uint8)
    torch.testing.assert_close(
        flatten_leaf(x, LeafForm.of(picture(2, 2))), torch.tensor([[1.0, 0.0, 0.2, 0.4]])
    )
    assert flatten_leaf(x.view(1, 4), LeafForm.of(picture(4))).tolist() == [
        [255.0, 0.0, 51.0, 102.0]
    ]


def test_flatten_leaf_agrees_with_gymnasium():
    for space in (spaces.Discrete(5), spaces.MultiDiscrete([2, 4, 3]), spaces.MultiBinary(3)):
        space.seed(0)
        for _ in range(5):
            value = space.sample()
            ours = flatten_leaf(torch.as_tensor(np.asarray(value))[None], LeafForm.of(space))[0]
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


def test_layer_norm_stands_before_each_activation():
    network = Mlp({"obs": spaces.Box(-1.0, 1.0, (3,))}, (5, 4), "tanh", layer_norm=True)
    names = [type(layer).__name__ for layer in network.layers]
    assert names == ["Linear", "LayerNorm", "Tanh"] * 2
    x = torch.randn(6, 3)
    first = network.layers[0]
    pre = x @ first.weight.T + first.bias
    pre = (pre - pre.mean(1, True)) / (pre.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(network.layers[:3](x), pre.tanh())
    assert network({"obs": x}).shape == (6, 4)


def test_layer_norm_behind_convolutions():
    network = Cnn("nature_cnn", {"obs": picture(36, 36)}, (8,), layer_norm=True)
    assert [type(layer).__name__ for layer in network.layers] == ["Linear", "LayerNorm", "ReLU"]
    assert not [m for m in network.convolutions.modules() if isinstance(m, nn.LayerNorm)]


@pytest.mark.parametrize("encoder", ["nature_cnn", "impala_cnn", "mlp"])
def test_what_is_floats_already_is_not_scaled_again(encoder: str):
    """As pictures are that were normalised."""
    leaves = {"obs": spaces.Box(0, 255, (36, 36, 3), np.uint8)}
    network = Mlp(leaves, (8,), "tanh") if encoder == "mlp" else Cnn(encoder, leaves, (8,))
    x = torch.randint(0, 256, (5, 36, 36, 3), dtype=torch.uint8)
    copy = x.clone()
    found, floats = network({"obs": x}), x / 255.0
    torch.testing.assert_close(network({"obs": floats}), found, rtol=1e-4, atol=1e-5)
    assert torch.equal(x, copy)
    assert torch.equal(floats, copy / 255.0)


def test_scaled_pictures_give_the_same_features_and_gradients():
    """As bytes, for each shape of a picture; other leaves are left as they are."""
    leaves = {
        "first": picture(4, 36, 40),
        "last": picture(36, 40, 3),
        "stack": picture(2, 36, 40, 3),
        "x": spaces.Box(-1.0, 1.0, (3,), np.float32),
    }
    network = Cnn("nature_cnn", leaves, (5,))
    g = torch.Generator().manual_seed(0)
    obs = {
        name: torch.randint(0, 256, (6, *leaf.shape), dtype=torch.uint8, generator=g)
        for name, leaf in leaves.items()
    } | {"x": torch.rand(6, 3, generator=g)}
    scaled = network.scaled(obs)
    assert torch.equal(scaled["first"], obs["first"].float() * (1 / 255))
    assert all(scaled[name] is obs[name] for name in ("last", "stack", "x"))
    assert network.scaled(scaled)["first"] is scaled["first"]  # floats are so already
    found = []
    for given in (obs, scaled):
        features = network(given)
        found.append((features, *torch.autograd.grad(features.sum(), [*network.parameters()])))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
