"""The encoder of small pictures: which leaves it reads, in which layout, and what it computes."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.algorithms import registry
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.encoders import Cnn
from quintet.models.leaves import small_picture, small_pictures
from quintet.models.small_cnn import SmallCnn, channels_of, small_trunk
from quintet.types import Spaces


def bits(*shape: int) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.bool_)


@pytest.mark.parametrize(
    ("shape", "expected", "channels_last", "doubtful"),
    [
        ((10, 10, 4), (4, 10, 10), True, False),
        ((4, 10, 10), (4, 10, 10), False, False),
        ((10, 10, 7), (7, 10, 10), True, False),
        ((7, 10, 10), (7, 10, 10), False, False),
        ((10, 10, 16), (16, 10, 10), True, False),
        ((16, 10, 10), (16, 10, 10), False, False),
        ((10, 10, 10), (10, 10, 10), True, True),  # MinAtar's Seaquest
        ((9, 5, 7), (7, 9, 5), True, True),
        ((7, 5, 9), (7, 5, 9), False, True),
        ((5, 5), (1, 5, 5), True, False),
        ((5, 6, 1), (1, 5, 6), True, False),
    ],
)
def test_layouts(shape, expected, channels_last, doubtful):
    found = small_picture(bits(*shape))
    assert found is not None
    assert (found.channels, found.height, found.width) == expected
    assert (found.channels_last, found.doubtful) == (channels_last, doubtful)


def test_a_given_layout_decides():
    assert small_picture(bits(10, 10, 10), "chw")[1:5] == (10, 10, 10, False)
    assert small_picture(bits(9, 5, 7), "chw")[1:5] == (9, 5, 7, False)
    assert small_picture(bits(10, 10, 4), "chw") is None  # 10 x 4 pixels


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (bits(5, 5, 1), True),
        (spaces.MultiBinary((6, 6, 2)), True),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), True),
        (spaces.Box(-1.0, 1.0, (84, 84, 3), np.float32), True),
        (spaces.Box(-1.0, 1.0, (3, 9, 9), np.float64), True),
        (spaces.Box(0, 1, (4, 8, 8, 2), np.bool_), True),
        (bits(4, 5, 4), False),
        (bits(25), False),
        (bits(2, 2, 5, 5, 5), False),
        (spaces.Box(-9, 9, (7, 7, 3), np.int32), False),  # ids, or anything
        (spaces.MultiDiscrete(np.full((7, 7, 3), 4)), False),
    ],
)
def test_what_is_a_picture(space: spaces.Space, expected: bool):
    assert (small_picture(space) is not None) == expected


def test_tables_beside_pictures_stay_tables():
    table = spaces.Box(-1.0, 1.0, (8, 9))
    assert list(small_pictures({"a": bits(6, 6, 3), "b": table})) == ["a"]
    assert list(small_pictures({"b": table})) == ["b"]
    assert list(small_pictures({"last_action": bits(6, 6, 3), "b": table})) == ["b"]


@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 3), (3, 6, 7), (2, 6, 7, 3), (2, 3, 6, 7)])
def test_channels(shape: tuple[int, ...]):
    picture = small_picture(bits(*shape))
    assert picture is not None
    x = torch.arange(2 * int(np.prod(shape))).view(2, *shape)
    found = channels_of(x, picture)
    assert found.shape == (2, picture.frames * picture.channels, 6, 7)
    frames = x.view(2, picture.frames, *shape[-3:]) if len(shape) > 2 else x[:, None, :, :, None]
    for k in range(picture.frames):
        for c in range(picture.channels):
            plane = frames[:, k, :, :, c] if picture.channels_last else frames[:, k, c]
            assert torch.equal(found[:, k * picture.channels + c], plane)


@pytest.mark.parametrize(
    ("size", "convolutions"), [(5, 2), (6, 2), (10, 2), (13, 3), (24, 3), (84, 5)]
)
def test_the_last_convolution_leaves_at_most_6_x_6(size: int, convolutions: int):
    picture = small_picture(bits(size, size, 3))
    assert picture is not None
    trunk = small_trunk(picture)
    assert sum(isinstance(m, torch.nn.Conv2d) for m in trunk) == convolutions
    left = trunk[:-1](torch.zeros(1, 3, size, size)).shape[-1]
    assert 3 <= left <= 6


@pytest.mark.parametrize(
    "space",
    [
        bits(10, 10, 6),
        spaces.Box(0, 4, (10, 10, 6), np.uint8),
        spaces.Box(0, 255, (6, 10, 10), np.uint8),
        spaces.Box(-2.0, 2.0, (6, 10, 10), np.float32),
        spaces.MultiBinary((10, 10, 6)),
    ],
    ids=["bool", "few", "uint8", "float", "bits"],
)
def test_what_the_first_convolution_reads(space: spaces.Space):
    """A picture of any type, scaled by the largest value of its space, if that is of integers."""
    space.seed(3)
    drawn = np.stack([space.sample() for _ in range(3)])
    network = SmallCnn({"obs": space}, (16, 8), "auto")
    seen: list[torch.Tensor] = []
    network.convolutions[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    x = torch.from_numpy(drawn)
    copy = x.clone()
    features = network({"obs": x})
    assert features.shape == (3, network.feature_size) == (3, 8)
    assert torch.equal(x, copy)
    first = drawn if drawn.shape[1] == 6 else np.moveaxis(drawn, -1, 1)
    most = float(space.high.max()) if space.dtype == np.uint8 else 1.0
    torch.testing.assert_close(seen[0], torch.from_numpy(first).float() / most, rtol=1e-6, atol=0)
    # What a normaliser made floats of is not scaled again.
    if space.dtype == np.uint8:
        network({"obs": x.float()})
        assert torch.equal(seen[1], torch.from_numpy(first).float())


def test_pictures_beside_other_leaves():
    leaves = {"a": bits(6, 6, 3), "gear": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2, 7, 7))}
    network = SmallCnn(leaves, (), "auto")
    obs = {
        "a": torch.rand(4, 6, 6, 3) > 0.5,
        "gear": torch.tensor([0, 2, 1, 1]),
        "b": torch.randn(4, 2, 7, 7),
    }
    features = network(obs)
    parts = [
        network.convolutions[0](obs["a"].float().permute(0, 3, 1, 2)),
        network.convolutions[1](obs["b"]),
        torch.nn.functional.one_hot(obs["gear"], 3).float(),
    ]
    torch.testing.assert_close(features, torch.cat(parts, 1))


def test_refusals():
    with pytest.raises(ConfigError, match=r"small_cnn must have a picture .*--model\.encoder mlp"):
        SmallCnn({"obs": spaces.Box(-1.0, 1.0, (4,))}, (8,), "auto")
    of = Spaces(bits(10, 10, 4), spaces.Discrete(2))
    wrong = ModelConfig(encoder="small_cnn", encoder_kwargs={"layout": "nchw"})
    with pytest.raises(ConfigError, match=r"must be arguments of small_cnn: layout: .*'hwc'"):
        resolve_model(wrong, of)


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_others_that_refuse_a_picture_name_it(kind: str):
    with pytest.raises(ConfigError, match=r"use --model\.encoder small_cnn, which reads"):
        Cnn(kind, {"obs": bits(10, 10, 4)}, (8,))
    with pytest.raises(ConfigError, match=r"use --model\.encoder mlp$"):
        Cnn(kind, {"obs": spaces.Box(-1.0, 1.0, (9,))}, (8,))


def test_every_learner_takes_it():
    for algo in registry.LEARNERS.names():
        continuous = spaces.Box(-1.0, 1.0, (1,))
        actions = continuous if algo == "ddpg" else spaces.Discrete(3)
        of = Spaces(bits(10, 10, 4), actions)
        algorithm = registry.find(algo)
        from quintet.algorithms.parts.setup import PLAIN

        model = resolve_model(ModelConfig(), of)
        assert model.encoder == "small_cnn"
        actor = algorithm.make_actor(algorithm.config(), model, of, PLAIN)
        assert actor is not None
