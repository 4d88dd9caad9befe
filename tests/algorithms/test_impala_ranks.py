"""Several learners of IMPALA make together the step that one makes with the whole batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from impala_helpers import COLUMNS, make_batch, make_learner
from ppo_helpers import CONTINUOUS, DISCRETE, MASKED, PICTURE, SMALL, learn
from rank_threads_helpers import RankThreads, states
from test_impala_aux import OWN

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.errors import NonFiniteError
from quintet.models.config import ModelConfig
from quintet.types import Rollout, Spaces

LSTM = ModelConfig(policy_hidden=(8,), core="lstm", core_size=6)


def batches(spaces: Spaces, model: ModelConfig) -> list[Rollout]:
    """Rows that are not valid in all; the second is cut by the budget, in the third the first two
    columns have no valid row, in the fourth none has.
    """
    probe = make_learner(ImpalaConfig(), spaces, model)
    plain, cut, half, none, last = (make_batch(probe, spaces, seed=seed) for seed in range(5))
    end = torch.zeros_like(cut.valid)
    end[4, 1:], end[5, 0] = True, True
    cut = replace(cut, trace_cut=end)
    cut.valid[5:, 1:] = cut.valid[6:, 0] = False
    half.valid[:, :2] = False
    none.valid[:] = False
    return [plain, cut, half, none, last]


def assert_same_as_one(
    config: ImpalaConfig, spaces: Spaces, model: ModelConfig, size: int = 4
) -> None:
    """As two learners do for every option in `test_every_learner.py`."""
    one = make_learner(config, spaces, model)
    start = one.trained.theta.clone()
    given = batches(spaces, model)
    wanted = [learn(one, batch, 1_000 * i) for i, batch in enumerate(given)]
    assert (one.trained.theta - start).abs().max() > 1e-3
    (whole,) = states([one])
    threads = RankThreads(size, lambda ranks: make_learner(config, spaces, model, ranks=ranks))
    for i, (batch, expected) in enumerate(zip(given, wanted, strict=True)):
        found = threads.update(batch, 1_000 * i)
        assert found.keys() == expected.keys()
        # Sums of 64 float32 terms in another order; differences of moments lose a digit.
        assert found == pytest.approx(expected, rel=1.5e-5, abs=1e-6), i
    first, *others = states(threads.learners)
    for name, x in first.items():
        assert all(torch.equal(x, other[name]) for other in others), name
        torch.testing.assert_close(x, whole[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("options", "spaces", "model"),
    [
        ({"max_grad_norm": 0.2, "reduction": "sum"}, DISCRETE, SMALL),
        (
            {"rmsprop_epsilon_inside_sqrt": True, "rmsprop_momentum": 0.5, "learning_rate": 0.02},
            MASKED,
            SMALL,
        ),
        ({"optimizer": "adam", "learning_rate": 2e-3, "reduction": "mean"}, CONTINUOUS, LSTM),
        ({"aux_loss_weights": {"scalar": 0.3}, "entropy_schedule": "linear"}, DISCRETE, OWN),
    ],
    ids=["clipped", "tensorflow", "adam-lstm", "auxiliary"],
)
def test_four_learners_give_the_parameters_of_one(
    options: dict[str, Any], spaces: Spaces, model: ModelConfig
) -> None:
    assert_same_as_one(ImpalaConfig(entropy_coef=0.01, **options), spaces, model)


@pytest.mark.parametrize("update", [True, False])
def test_the_normaliser_takes_the_whole_batch_in_once(update: bool) -> None:
    config = ImpalaConfig(
        normalize_observations=True, observation_clip=1.0, update_normalizers=update
    )
    assert_same_as_one(config, CONTINUOUS, SMALL)


def test_so_it_does_with_pictures() -> None:
    config = ImpalaConfig(normalize_pictures=True, observation_clip=1.0)
    model = ModelConfig(policy_hidden=(8,), shared_torso=True)
    assert_same_as_one(config, PICTURE, model, size=2)


def test_the_norm_is_clipped_after_the_sum() -> None:
    """Shares that are clipped each by itself would add up to more than the bound."""
    config = ImpalaConfig(reduction="sum", max_grad_norm=0.01)
    (batch, *_) = batches(DISCRETE, SMALL)
    threads = RankThreads(2, lambda ranks: make_learner(config, ranks=ranks))
    found = threads.update(batch, 0)
    alone = learn(make_learner(config), batch, 0)
    assert found["optim/grad_norm"] == pytest.approx(alone["optim/grad_norm"], rel=1e-6)
    assert found["optim/grad_clip_frac"] == 1.0


def test_a_nan_in_any_share_is_told_by_all() -> None:
    (batch, *_) = batches(DISCRETE, SMALL)
    row = int(batch.valid[:, COLUMNS - 1].nonzero()[0])
    batch.reward[row, COLUMNS - 1] = torch.nan
    threads = RankThreads(4, lambda ranks: make_learner(ImpalaConfig(), ranks=ranks))
    with pytest.raises(NonFiniteError, match="loss/policy must be finite, got nan at update 1"):
        threads.update(batch, 0)
