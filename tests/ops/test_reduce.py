"""Masked sums and means: plain sums, junk in invalid entries, weights, gradients."""

import math

import pytest
import torch
from ops_helpers import assert_near, gradients_agree
from torch import Tensor

from quintet.ops.reduce import mean_valid, normalize_valid, sum_valid


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 4, generator=g, dtype=torch.float64)
    return x, torch.rand(6, 4, generator=g) < 0.6


def test_means_by_loop():
    x, valid = data()
    kept = [a for a, ok in zip(x.flatten().tolist(), valid.flatten().tolist(), strict=True) if ok]
    assert 0 < len(kept) < x.numel()
    for mask in (valid, valid.double()):
        assert mean_valid(x, mask).item() == pytest.approx(math.fsum(kept) / len(kept))
        assert sum_valid(x, mask).item() == pytest.approx(math.fsum(kept))


def test_weights():
    x = torch.tensor([1.0, 2.0, 4.0])
    weight = torch.tensor([0.5, 0.0, 1.5])
    assert mean_valid(x, weight).item() == pytest.approx((0.5 * 1 + 1.5 * 4) / 2.0)
    assert sum_valid(x, weight).item() == pytest.approx(0.5 * 1 + 1.5 * 4)
    z = normalize_valid(x, weight)
    mean, var = 3.25, (0.5 * 2.25**2 + 1.5 * 0.75**2) / 2.0
    expected = [(1 - mean) / math.sqrt(var), 0.0, (4 - mean) / math.sqrt(var)]
    assert_near(z, torch.tensor(expected))


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf"), 1e300])
@pytest.mark.parametrize("reduce", [mean_valid, sum_valid])
@pytest.mark.parametrize("as_float", [False, True])
def test_invalid_entries_are_never_read(reduce, junk: float, as_float: bool):
    x, valid = data(1)
    mask = valid.double() if as_float else valid
    clean = torch.where(valid, x, 0.0).requires_grad_()
    spoilt = torch.where(valid, x, junk).requires_grad_()
    a, b = reduce(clean, mask), reduce(spoilt, mask)
    a.backward()
    b.backward()
    assert torch.equal(a, b)
    assert torch.equal(clean.grad, spoilt.grad)
    assert not spoilt.grad[~valid].any()
    assert spoilt.grad[valid].all()


@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
def test_normalize_ignores_junk_and_returns_zero_there(junk: float):
    x, valid = data(2)
    clean = normalize_valid(torch.where(valid, x, 0.0), valid)
    spoilt = normalize_valid(torch.where(valid, x, junk), valid)
    assert torch.equal(clean, spoilt)
    assert not spoilt[~valid].any()
    assert abs(spoilt[valid].mean().item()) < 1e-12
    # Epsilon, 1e-8, is added to a variance near 1.
    assert spoilt[valid].var(correction=0).item() == pytest.approx(1.0, abs=4e-8)


@pytest.mark.parametrize("reduce", [mean_valid, sum_valid])
def test_nothing_valid_gives_zero_and_no_gradient(reduce):
    x = torch.full((3, 2), float("nan"), requires_grad=True)
    result = reduce(x, torch.zeros(3, 2, dtype=torch.bool))
    result.backward()
    assert result.item() == 0.0
    assert not x.grad.any()
    assert not normalize_valid(x, torch.zeros(3, 2)).any()


def test_gradients_against_differences():
    x, valid = data(3)
    for function in (mean_valid, normalize_valid):
        assert gradients_agree(function, (x.clone().requires_grad_(), valid))


def test_duplicating_every_stream_leaves_the_mean():
    x, valid = data(4)
    twice = mean_valid(torch.cat([x, x], dim=1), torch.cat([valid, valid], dim=1))
    assert_near(twice, mean_valid(x, valid))


def test_epsilon_is_inside_the_root():
    x = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    z = normalize_valid(x, torch.ones(2, dtype=torch.bool), 3.0)
    assert_near(z, x / 2.0)
    same = normalize_valid(torch.full((4,), 7.0), torch.ones(4))
    assert not same.any()


def test_dtype_is_kept():
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(3, dtype=dtype)
        mask = torch.tensor([True, False, True])
        assert mean_valid(x, mask).dtype == dtype
        assert normalize_valid(x, mask).dtype == dtype
