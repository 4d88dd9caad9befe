"""The statistics of a policy's distribution, and derivatives with respect to them.

ACER's trust region bounds how far one sample moves the statistics ``f`` of the distribution, not
the weights: the probabilities of a categorical, the probability of 1 of each bit, the mean of a
Gaussian (and the log of its standard deviation, if learned).  Statistics of independent families
are concatenated.  All functions take parameters ``[..., param_size]`` of a `Family` and return
``[..., S]``.  Only `statistics` is differentiable; the others are closed forms that carry no
gradient.

A probability below the smallest normal number counts as that number: no quotient overflows, and its
factor on the way to the weights is almost 0.

Source: Wang et al., arXiv 1611.01224, sections 3.3 and 5.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import Family, TupleFamily
from quintet.ops.gaussian import DiagGaussian


def statistics(family: Family, params: Tensor, *, learn_std: bool) -> Tensor:
    """The statistics ``f``, through which gradients flow to the parameters.

    learn_std: whether the log of a Gaussian's standard deviation is one of them.
    """
    if isinstance(family, TupleFamily):
        parts = zip(family.families, family.split_params(params), strict=True)
        return torch.cat([statistics(leaf, p, learn_std=learn_std) for leaf, p in parts], -1)
    if isinstance(family, Categorical):
        return params.softmax(-1)
    if isinstance(family, Bernoulli):
        return params.sigmoid()
    mean, log_std = _gaussian(family, params)
    return torch.cat((mean, log_std), -1) if learn_std else mean


@torch.no_grad()
def score(family: Family, params: Tensor, action: Tensor, *, learn_std: bool) -> Tensor:
    """``d log pi(action) / df``: for a categorical 1 / f at the action taken and 0 elsewhere."""

    def of_leaf(leaf: Family, p: Tensor, a: Tensor) -> Tensor:
        if isinstance(leaf, Categorical):
            taken = torch.zeros_like(p).scatter_(-1, a.unsqueeze(-1), 1.0)
            return taken / _above_0(p.softmax(-1))
        if isinstance(leaf, Bernoulli):
            one, zero = _above_0(p.sigmoid()), _above_0((-p).sigmoid())
            return torch.where(a != 0, 1.0 / one, -1.0 / zero)
        mean, log_std = _gaussian(leaf, p)
        z = (a - mean) * (-log_std).exp()
        slope = z * (-log_std).exp()
        return torch.cat((slope, z.square() - 1.0), -1) if learn_std else slope

    if isinstance(family, TupleFamily):
        parts = zip(
            family.families, family.split_params(params), family.unpack(action), strict=True
        )
        return torch.cat([score(leaf, p, a, learn_std=learn_std) for leaf, p, a in parts], -1)
    return of_leaf(family, params, action)


@torch.no_grad()
def kl_gradient(family: Family, average: Tensor, params: Tensor, *, learn_std: bool) -> Tensor:
    """``d KL(average || pi) / df``, with both policies given by parameters.

    For a categorical it is ``-f_average / f``, for a Gaussian's mean ``(f - f_average) / std^2``.
    """

    def of_leaf(leaf: Family, p: Tensor, q: Tensor) -> Tensor:
        if isinstance(leaf, Categorical):
            return -p.softmax(-1) / _above_0(q.softmax(-1))
        if isinstance(leaf, Bernoulli):
            one, zero = _above_0(q.sigmoid()), _above_0((-q).sigmoid())
            # The less likely of 1 and 0: the difference of two that are nearly 1 has lost its
            # digits.
            by_one, by_zero = q.sigmoid() - p.sigmoid(), (-p).sigmoid() - (-q).sigmoid()
            return torch.where(q > 0, by_zero, by_one) / one / zero
        (mean_p, log_std_p), (mean_q, log_std_q) = _gaussian(leaf, p), _gaussian(leaf, q)
        z = (mean_q - mean_p) * (-log_std_q).exp()
        slope = z * (-log_std_q).exp()
        if not learn_std:
            return slope
        wider = torch.expm1(2.0 * (log_std_p - log_std_q)) + z.square()
        return torch.cat((slope, -wider), -1)

    return _of_leaves(family, of_leaf, average, params)


@torch.no_grad()
def entropy_gradient(family: Family, params: Tensor, *, learn_std: bool) -> Tensor:
    """``dH / df``: for a categorical ``-(log f + 1)``, and 0 where f is 0, as for masked actions.
    For a Gaussian it uses the raw sample: 0 for the mean and 1 for the log of the standard
    deviation.
    """

    def of_leaf(leaf: Family, p: Tensor) -> Tensor:
        if isinstance(leaf, Categorical):
            f = p.softmax(-1)
            return torch.where(f > 0, -(_above_0(f).log() + 1.0), 0.0)
        if isinstance(leaf, Bernoulli):
            return -p  # d H / d prob = -logit
        mean, log_std = _gaussian(leaf, p)
        zero = torch.zeros_like(mean)
        return torch.cat((zero, torch.ones_like(log_std)), -1) if learn_std else zero

    return _of_leaves(family, of_leaf, params)


def _of_leaves(family: Family, of_leaf: Callable[..., Tensor], *params: Tensor) -> Tensor:
    """Results of `of_leaf` for every leaf of the family, joined."""
    if not isinstance(family, TupleFamily):
        return of_leaf(family, *params)
    parts = zip(family.families, *(family.split_params(p) for p in params), strict=True)
    return torch.cat([_of_leaves(leaf, of_leaf, *each) for leaf, *each in parts], -1)


def _gaussian(family: Family, params: Tensor) -> tuple[Tensor, Tensor]:
    assert isinstance(family, DiagGaussian), family
    return family.mean_and_log_std(params)


def _above_0(probability: Tensor) -> Tensor:
    return probability.clamp_min(torch.finfo(probability.dtype).tiny)
