"""The trust region against a search for the nearest gradient that it allows."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from quintet.ops.discrete import Categorical
from quintet.ops.policy_statistics import kl_gradient
from quintet.ops.trust_region import project

ROWS, SIZE = 60, 4


def draw(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    both = torch.randn((2, ROWS, SIZE), generator=g, dtype=torch.float64)
    return both[0].mul(3.0).to(dtype), both[1].to(dtype)


def change(k: Tensor, z: Tensor) -> Tensor:
    """First-order change of the KL, in float64."""
    return (k.double() * z.double()).sum(-1)


def searched(g: list[float], k: list[float], delta: float) -> tuple[list[float], float]:
    """The minimum of ``|g - z|^2 / 2 + price * (k . z - delta)`` over z, descended step by step, at
    the smallest price at which z keeps the bound, found by halving an interval.
    """

    def descended(price: float) -> list[float]:
        z = [0.0] * len(g)
        for _ in range(60):
            slopes = [z[i] - g[i] + price * k[i] for i in range(len(g))]
            z = [z[i] - 0.7 * slopes[i] for i in range(len(g))]
        return z

    def over(price: float) -> bool:
        return math.fsum(a * b for a, b in zip(k, descended(price), strict=True)) > delta

    if not over(0.0):
        return descended(0.0), 0.0
    low, high = 0.0, 1.0
    while over(high):
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if over(middle) else (low, middle)
    return descended(high), high


@pytest.mark.parametrize("delta", [0.0, 0.3, 2.0])
def test_a_search_finds_the_same(delta: float) -> None:
    g, k = (x[:25] for x in draw(0))
    z, factor = project(g, k, delta)
    pairs = zip(g.tolist(), k.tolist(), strict=True)
    points, prices = zip(*(searched(*pair, delta) for pair in pairs), strict=True)
    assert_close(z, torch.tensor(points, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert_close(factor, torch.tensor(prices, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert 5 < (factor > 0).sum() < 20  # both cases are here


def test_no_other_gradient_that_is_allowed_is_nearer() -> None:
    g, k = draw(1)
    z, factor = project(g, k, 0.5)
    assert (change(k, z) <= 0.5 + 1e-12).all()
    others = g + 3.0 * torch.randn(
        (500, ROWS, SIZE), generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    allowed = change(k, others) <= 0.5
    assert allowed.any(0).all()
    nearer = (others - g).norm(dim=-1) < (z - g).norm(dim=-1)
    assert not (nearer & allowed).any()
    assert (nearer & ~allowed).any()
    assert torch.equal(factor > 0, change(k, g) > 0.5)


def test_the_factor_is_how_much_of_k_is_taken_away() -> None:
    g, k = draw(2)
    z, factor = project(g, k, 0.1)
    assert factor.shape == (ROWS,)
    assert_close(z, g - factor.unsqueeze(-1) * k)
    active = factor > 0
    assert active.any()
    assert torch.equal(z[~active], g[~active])
    assert_close(change(k, z)[active], torch.full((int(active.sum()),), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [math.inf, torch.tensor(math.inf)])
def test_no_bound_leaves_every_bit(dtype: torch.dtype, delta: float | Tensor) -> None:
    g, k = draw(3, dtype)
    scales = torch.logspace(-30, 30, ROWS, dtype=dtype).unsqueeze(-1)
    for direction in (k, k * scales, 0.0 * k):
        z, factor = project(g, direction, delta)
        assert torch.equal(z, g)
        assert not factor.any()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_bound_of_0_lets_the_kl_grow_by_nothing(size: float) -> None:
    """In float32 to the rounding of the products: less than a millionth of them."""
    g, k = draw(4, torch.float32)
    k = k * size
    z, factor = project(g, k, 0.0)
    reach = (k.double() * g.double()).abs().sum(-1)
    assert (change(k, z) <= 1e-6 * reach).all()
    still = change(k, g) < -1e-6 * reach  # what lowers the KL may go on
    assert still.any()
    assert torch.equal(z[still], g[still])
    assert not factor[still].any()
    assert (factor > 0).any()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30, 8e37])
def test_the_size_of_k_does_not_matter_but_for_the_bound(size: float) -> None:
    """The square of k is out of the range of float32."""
    g, k = draw(5, torch.float32)
    delta = 0.5 * size
    z, factor = project(g, k * size, delta)
    exact, exact_factor = project(g.double(), k.double() * size, delta)
    assert z.isfinite().all()
    assert_close(z.double(), exact, rtol=1e-5, atol=1e-5)
    assert_close(factor.double() * size, exact_factor * size, rtol=1e-5, atol=1e-5)
    assert (factor > 0).any()


def test_without_a_direction_of_the_kl_nothing_is_held_back() -> None:
    g, _ = draw(6, torch.float32)
    for delta in (0.0, 1.0):
        z, factor = project(g, torch.zeros_like(g), delta)
        assert torch.equal(z, g)
        assert not factor.any()


def test_samples_do_not_touch_each_other() -> None:
    """With any leading dimensions, none of them too, and one sample beyond all bounds."""
    g, k = draw(7, torch.float32)
    z, factor = project(g, k, 0.2)
    block, factors = project(g.view(5, 12, SIZE), k.view(5, 12, SIZE), 0.2)
    assert torch.equal(block.view(ROWS, SIZE), z)
    assert torch.equal(factors.flatten(), factor)
    one, its_factor = project(g[3], k[3], 0.2)
    assert its_factor.shape == ()
    assert_close(one, z[3])
    g[0], k[1] = math.nan, 1e38
    spoilt, _ = project(g, k, 0.2)
    assert torch.equal(spoilt[2:], z[2:])


def test_the_bound_may_be_a_tensor_and_nothing_carries_a_gradient() -> None:
    g, k = draw(8, torch.float32)
    z, factor = project(g, k, 0.2)
    other, other_factor = project(g.requires_grad_(), k.requires_grad_(), torch.tensor(0.2))
    assert_close(other, z)
    assert_close(other_factor, factor)
    assert not other.requires_grad
    assert not other_factor.requires_grad


def test_a_step_along_z_keeps_the_kl_where_one_along_g_raises_it() -> None:
    """The sign of the constraint: of a categorical that is far from the average already."""
    family, step = Categorical(3), 1e-4
    average = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    params = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    f, g = params.softmax(-1), torch.tensor([-2.0, 1.0, 1.0], dtype=torch.float64)
    k = kl_gradient(family, average, params, learn_std=False)

    def kl(f: Tensor) -> float:
        p = average.softmax(-1)
        return (p * (p / f).log()).sum().item()

    z, _ = project(g, k, 0.0)
    assert kl(f + step * g) > kl(f) + step
    assert kl(f + step * z) == pytest.approx(kl(f), abs=1e-6)
