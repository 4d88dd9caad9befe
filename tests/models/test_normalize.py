"""Running statistics against numpy over the concatenated data; what is normalised, and when."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.models.leaves import normalized_leaves
from quintet.models.normalize import (
    ObservationNormalizer,
    RunningMoments,
    scale_of,
)
from quintet.types import ACTION_MASK


def portions(seed: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = (1, 7, 0, 100, 3, 1, 31)
    # A mean far from 0 is where sums of squares lose their digits.
    return [rng.normal(1e3 * (k + 1), 10.0**k, (n, *shape)) for k, n in enumerate(sizes)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("order", [1, -1])
def test_portions_equal_the_concatenated_data(shape: tuple[int, ...], order: int):
    moments, parts = RunningMoments(shape), portions(0, shape)[::order]
    for part in parts:
        moments.merge(torch.from_numpy(part))
    data = np.concatenate(parts)
    assert moments.count == len(data)
    for ours, expected in ((moments.mean, data.mean(0)), (moments.variance, data.var(0))):
        assert ours.dtype == torch.float64
        assert ours.shape == shape
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-14)


def test_float32_data_is_summed_in_float64():
    x = (1e4 + np.random.default_rng(1).normal(size=(5000, 2))).astype(np.float32)
    moments = RunningMoments((2,))
    for part in np.array_split(x, 7):
        moments.merge(torch.from_numpy(part))
    # A mean of 1e4 takes 8 of the digits of its square.
    np.testing.assert_allclose(moments.variance.numpy(), x.astype(np.float64).var(0), rtol=1e-13)


def test_before_any_data():
    moments = RunningMoments((2,))
    moments.merge(torch.zeros(0, 2))
    assert moments.count == 0
    assert torch.equal(moments.variance, torch.zeros(2, dtype=torch.float64))


def test_scale_has_epsilon_inside_the_root():
    moments = RunningMoments(())
    moments.merge(torch.tensor([1.0, 1.0, 1.0]))
    assert scale_of(moments, 0.25).item() == 2.0
    moments.merge(torch.tensor([1.0, 5.0, 5.0, 5.0]))
    expected = 1.0 / np.sqrt(np.var([1, 1, 1, 1, 5, 5, 5]) + 0.25)
    assert scale_of(moments, 0.25).item() == pytest.approx(expected)


def frames(seed: int, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of which some are always black, some always white, and one is white but once."""
    x = np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)
    flat = x.reshape(count, math.prod(shape))
    flat[:, 0], flat[:, 1:3] = 0, 255
    flat[count // 2 : count // 2 + 1, 2] = 254
    return x


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 36, 36)])
def test_statistics_of_bytes_are_exact(shape: tuple[int, ...]):
    """More rows at once than float32 could sum the squares of."""
    parts = [frames(seed, count, shape) for seed, count in enumerate((1, 0, 700, 1300, 2))]
    moments = RunningMoments(shape)
    for part in parts:
        moments.merge(torch.from_numpy(part))
    data = np.concatenate(parts).astype(np.float64)
    assert moments.count == len(data)
    np.testing.assert_allclose(moments.mean.numpy(), data.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.variance.numpy(), data.var(0), rtol=1e-11, atol=1e-12)
    # At once, and in any order of the rows, to the last bit.
    found = []
    for order in (data, data[::-1]):
        whole = RunningMoments(shape)
        whole.merge(torch.from_numpy(order.astype(np.uint8)))
        found.append(whole)
    total, squares = data.astype(np.int64).sum(0), np.square(data.astype(np.int64)).sum(0)
    for whole in found:
        assert np.array_equal(whole.mean.numpy(), total / len(data))
        expected = (len(data) * squares - total**2) / len(data)
        assert np.array_equal(whole.m2.numpy(), expected)


SPACE = spaces.Dict(
    {
        "float": spaces.Box(-9.0, 9.0, (2,), np.float32),
        "double": spaces.Box(-9.0, 9.0, (), np.float64),
        "picture": spaces.Box(0, 255, (2, 2), np.uint8),
        "integer": spaces.Box(-9, 9, (2,), np.int64),
        "choice": spaces.Discrete(4),
        "bits": spaces.MultiBinary(3),
        "nested": spaces.Dict({"x": spaces.Box(-9.0, 9.0, (1,), np.float32)}),
        ACTION_MASK: spaces.Box(0.0, 1.0, (3,), np.float32),
    }
)


def test_only_floats_are_normalised_and_never_a_mask():
    assert normalized_leaves(SPACE) == {"float": (2,), "double": (), "nested/x": (1,)}
    assert normalized_leaves(spaces.Box(0.0, 1.0, (3,))) == {"obs": (3,)}
    assert normalized_leaves(spaces.Discrete(3)) == {}


def draw(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "float": 3.0 + 2.0 * torch.randn((5, 4, 2), generator=g),
        "double": torch.randn((5, 4), generator=g) - 7.0,
        "picture": torch.randint(0, 256, (5, 4, 2, 2), generator=g).to(torch.uint8),
        "integer": torch.randint(-9, 9, (5, 4, 2), generator=g),
        "choice": torch.randint(0, 4, (5, 4), generator=g),
        "bits": torch.randint(0, 2, (5, 4, 3), generator=g).to(torch.int8),
        "nested/x": torch.randn((5, 4, 1), generator=g),
        ACTION_MASK: torch.randint(0, 2, (5, 4, 3), generator=g).float(),
    }


def test_normalisation_of_a_dict():
    normalizer = ObservationNormalizer(normalized_leaves(SPACE), 1.2, 1e-3)
    first, second = draw(1), draw(2)
    valid = torch.rand((5, 4), generator=torch.Generator().manual_seed(3)) < 0.7
    normalizer.merge(first, valid)
    copy = {name: x.clone() for name, x in second.items()}
    out = normalizer(second)
    assert all(torch.equal(second[name], x) for name, x in copy.items())  # not in place
    assert list(out) == list(second)
    for name, x in out.items():
        if name not in normalizer.names:
            assert x is second[name]
            continue
        data = first[name][valid].double()
        mean, std = data.mean(0), (data.var(0, correction=0) + 1e-3).sqrt()
        expected = ((second[name] - mean) / std).clamp(-1.2, 1.2).float()
        torch.testing.assert_close(x, expected)
        assert x.dtype == torch.float32
    assert (out["float"].abs() == 1.2).any()
    assert (out["float"].abs() < 1.2).any()


@pytest.mark.parametrize(("epsilon", "white"), [(1e-3, 255.0), (1.0, 255.0), (1e-3, 9.0)])
def test_pictures_are_scaled_to_1_and_normalised_by_pixel(epsilon: float, white: float):
    leaves, pictures = {"float": (2,)}, {"picture": (2, 2)}
    normalizer = ObservationNormalizer(leaves, 1.2, epsilon, pictures, white={"picture": white})
    assert normalizer.names == ("float", "picture")
    first, second = draw(1), draw(2)
    torch.testing.assert_close(normalizer(second)["picture"], second["picture"] / white)
    valid = torch.rand((5, 4), generator=torch.Generator().manual_seed(3)) < 0.7
    normalizer.merge(first, valid)
    copy = second["picture"].clone()
    found = normalizer(second)["picture"]
    assert torch.equal(second["picture"], copy)
    assert found.dtype == torch.float32
    data = first["picture"][valid].double() / white
    std = (data.var(0, correction=0) + epsilon).sqrt()
    expected = ((second["picture"] / white - data.mean(0)) / std).clamp(-1.2, 1.2).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_before_any_data_observations_stay_as_they_are():
    normalizer = ObservationNormalizer({"obs": (2,)}, 5.0, 1e-3)
    obs = {"obs": torch.tensor([[1.0, -4.9], [300.0, -40.0]])}
    assert torch.equal(normalizer(obs)["obs"], obs["obs"])


def test_state_goes_into_another_normaliser():
    leaves = normalized_leaves(SPACE)
    one, other = (ObservationNormalizer(leaves, 5.0, 1e-3) for _ in range(2))
    one.merge(draw(1), torch.ones((5, 4), dtype=torch.bool))
    assert not torch.equal(one(draw(2))["float"], other(draw(2))["float"])
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(draw(2))["float"], other(draw(2))["float"])


def test_nothing_to_normalise_gives_the_observation_itself():
    obs = {"obs": torch.zeros(3, dtype=torch.uint8)}
    assert ObservationNormalizer({}, 5.0, 1e-3)(obs)["obs"] is obs["obs"]


@pytest.mark.parametrize("shape", [(), (2,)])
def test_float64_is_normalised_before_it_becomes_float32(shape):
    offset, rng = 1.7e9, np.random.default_rng(0)
    near = 3.0 * rng.integers(0, 2, (50, 4, *shape))
    x = {"obs": torch.from_numpy(offset + near), "more": torch.full((50, 4), offset).double()}
    names = frozenset(x)
    normalizer = ObservationNormalizer({"obs": shape}, 5.0, 1e-8, float64=names)
    assert {each.dtype for each in normalizer(x).values()} == {torch.float32}  # without data too
    for part in range(0, 50, 7):  # as batches come
        rows = {name: each[part : part + 7] for name, each in x.items()}
        normalizer.merge(rows, torch.ones(rows["obs"].shape[:2], dtype=torch.bool))
    flat = near.reshape(200, *shape)
    variance = normalizer.leaf_moments("obs").variance.numpy()
    np.testing.assert_allclose(variance, flat.var(0), rtol=1e-6)
    seen = normalizer(x)
    assert seen["obs"].dtype == seen["more"].dtype == torch.float32
    assert seen["obs"].shape == x["obs"].shape
    expected = (near - flat.mean(0)) / flat.std(0)
    np.testing.assert_allclose(seen["obs"].numpy(), expected, atol=1e-5)
