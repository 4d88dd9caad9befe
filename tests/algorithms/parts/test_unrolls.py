"""What a loss is given of a batch has one layout, however the batch lies in memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance_helpers import MASKED, NUMBERS, Case, Task
from gymnasium import spaces as gym
from torch import Tensor

from quintet.models.compiled import _layout
from quintet.runtime.batch import select
from quintet.types import Rollout

TASKS = {"choice": Task(NUMBERS, gym.Discrete(3)), "masked": MASKED}


def every_other(x: Any) -> Any:
    """Of a tensor ``[T, B, ...]``, or of several by name, every other column as a view."""
    return {k: each[:, ::2] for k, each in x.items()} if isinstance(x, dict) else x[:, ::2]


def scattered(batch: Rollout) -> Rollout:
    """The same rows, with other columns' between them in memory."""
    columns = torch.arange(batch.stream_id.numel())
    wide = select(batch, columns.repeat_interleave(2))
    with_time = {
        name: every_other(x)
        for name, x in vars(wide).items()
        if isinstance(x, dict) or (isinstance(x, Tensor) and x.ndim > 1)
    }
    return replace(wide, **with_time)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algo", ["acer", "impala"])
def test_batches_have_one_layout_and_keep_their_rows(algo: str, task: str, core: str) -> None:
    """Fresh and drawn ones, and columns of wider memory."""
    case = Case(algo, TASKS[task], core=core)
    batches = [batch for some in case.batches(3) for batch in some]
    assert algo == "impala" or {batch.replayed for batch in batches} == {False, True}
    apart = [scattered(batch) for batch in batches]
    assert not any(batch.valid.is_contiguous() for batch in apart)
    plain, others = (
        [learner._unrolls(batch) for batch in each]
        for learner, each in ((case.learner(), batches), (case.learner(), apart))
    )
    assert len({_layout(each) for each in plain + others}) == 1
    for one, other in zip(plain, others, strict=True):
        for name, x in vars(one).items():
            leaves = x if isinstance(x, dict) else {"": x}
            beside = getattr(other, name)
            for key, leaf in leaves.items():
                same = beside[key] if key else beside
                both = torch.as_tensor(leaf), torch.as_tensor(same)
                assert torch.equal(*(z.nan_to_num(-1.0) for z in both)), (name, key)
