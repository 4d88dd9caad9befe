"""TupleFamily is the sum of its parts."""

import pytest
import torch
from torch.testing import assert_close

from quintet.ops.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Family,
    MultiCategorical,
    TanhGaussian,
    TupleFamily,
)

CHILDREN: tuple[Family, ...] = (
    Categorical(4),
    DiagGaussian(2, (-1.0, 0.0), (1.0, 3.0)),
    MultiCategorical((2, 3)),
    Bernoulli(2),
    TanhGaussian(1, (-2.0,), (2.0,)),
)
FAMILY = TupleFamily(CHILDREN)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def params(seed: int) -> torch.Tensor:
    return torch.randn((5, FAMILY.param_size), generator=generator(seed), dtype=torch.float64)


def test_sizes():
    assert FAMILY.param_size == 4 + 4 + 5 + 2 + 2
    assert FAMILY.noise_size == 4 + 2 + 5 + 2 + 1
    assert FAMILY.mask_size == 4 + 5
    assert FAMILY.action_shape == ((), (2,), (2,), (2,), (1,))
    assert FAMILY.action_dtype[:2] == (torch.int64, torch.float32)
    assert isinstance(FAMILY, Family)
    assert all(isinstance(child, Family) for child in CHILDREN)


def test_everything_is_the_sum_of_the_leaves():
    p, q = params(0), params(1)
    noise = FAMILY.draw_noise((5,), generator(2))
    assert noise.shape == (5, FAMILY.noise_size)
    action = FAMILY.sample(p, noise)
    mode, env = FAMILY.mode(p), FAMILY.to_env(action)
    log_prob = entropy = kl = torch.zeros(5, dtype=torch.float64)
    at, noise_at = 0, 0
    for i, child in enumerate(CHILDREN):
        part = slice(at, at + child.param_size)
        noise_part = slice(noise_at, noise_at + child.noise_size)
        assert torch.equal(action[i], child.sample(p[:, part], noise[:, noise_part]))
        assert torch.equal(mode[i], child.mode(p[:, part]))
        assert torch.equal(env[i], child.to_env(action[i]))
        log_prob = log_prob + child.log_prob(p[:, part], action[i])
        entropy = entropy + child.entropy(p[:, part])
        kl = kl + child.kl(p[:, part], q[:, part])
        at, noise_at = part.stop, noise_part.stop
    assert_close(FAMILY.log_prob(p, action), log_prob)
    assert_close(FAMILY.entropy(p), entropy)
    assert_close(FAMILY.kl(p, q), kl)
    assert (FAMILY.kl(p, q) > 0).all()


def test_masks_reach_the_leaves_that_take_them():
    p = params(3)
    mask = torch.ones(5, 9)
    mask[:, 1] = 0  # action 1 of the categorical
    mask[:, 4 + 2] = 0  # action 0 of the second component of the multi-categorical
    mask[0] = 0
    changed = FAMILY.apply_mask(p, mask) != p
    assert not changed[0].any()
    assert [i for i in range(FAMILY.param_size) if changed[1, i]] == [1, 4 + 4 + 2]


def test_a_tuple_of_maskless_families_takes_no_mask():
    family = TupleFamily((Bernoulli(1), Bernoulli(2)))
    with pytest.raises(ValueError, match="no action mask"):
        family.apply_mask(torch.zeros(3), torch.ones(0))


def test_tuples_nest():
    outer = TupleFamily((FAMILY, Categorical(2)))
    p = torch.cat([params(4), torch.zeros(5, 2, dtype=torch.float64)], dim=-1)
    action = outer.sample(p, outer.draw_noise((5,), generator(5)))
    assert len(action) == 2
    assert len(action[0]) == len(CHILDREN)
    inner = FAMILY.log_prob(params(4), action[0])
    assert_close(outer.log_prob(p, action), inner - torch.tensor(2.0).double().log())
