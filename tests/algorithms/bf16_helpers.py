"""What is compiled in bfloat16 beside what is eager: the error of bfloat16 itself is the yardstick.

Both round the same tensors to the same 8 bits, so they must be much nearer to each other than to
float32: a wrong factor of 1% is 10 to 100% of that distance.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from ppo_helpers import learn
from torch import Tensor

from quintet.types import Rollout


def assert_nearer(compiled: Tensor, eager: Tensor, exact: Tensor, most: float, name: str) -> None:
    """most: largest error of bfloat16, as a share of what is exact."""
    rounding = (eager - exact).norm()
    assert 0 < rounding < most * exact.norm(), (name, rounding, exact.norm())
    apart = (compiled - eager).norm()
    assert apart < 0.1 * rounding, (name, apart, rounding)


def assert_same_gradients(
    learners: Sequence[Any], first_moment: Callable[[Any], Tensor], batches: Sequence[Rollout]
) -> None:
    """Of every tensor of parameters at every update, each from equal weights.

    learners: one in float32, an eager one in bfloat16 and a compiled one.  Their updates are one
        step of Adam, so that the first moment tells the gradient.
    """
    exact, *others = learners
    for update, batch in enumerate(batches):
        for other in others:
            other.load(deepcopy(exact.save()))
        before = first_moment(exact).clone()
        found = [learn(each, batch, 100 * update) for each in learners]
        assert found[1].keys() == found[2].keys()
        sizes = [x.numel() for x in exact.parameters.values()]
        parts = [(first_moment(each) - 0.9 * before).split(sizes) for each in learners]
        for name, whole, eager, compiled in zip(exact.parameters, *parts, strict=True):
            assert_nearer(compiled, eager, whole, 0.2, name)
