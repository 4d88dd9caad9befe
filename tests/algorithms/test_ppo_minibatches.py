"""Which rows an epoch visits and with what weight; which rows count, and which never do."""

import math
from dataclasses import replace

import pytest
import torch
from conformance_helpers import everything
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    MASKED,
    SMALL,
    columns,
    knobs,
    learn,
    make_learner,
    make_rollout,
    map_rows,
    minibatch,
    valid_rows,
    with_states,
)
from torch import Tensor

from quintet.algorithms.parts.minibatches import Chunks, Rows, ended_rows
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.models.config import ModelConfig
from quintet.ops import reduce
from quintet.runtime.delivery import within_budget
from quintet.types import Rollout, Spaces


def numbered_rows(count: int) -> Rows:
    """Rows that carry their number."""
    number = torch.arange(count, dtype=torch.float32)
    return Rows(
        {"obs": number},
        number > 3,
        number.long(),
        number,
        number[:, None],
        number,
        number,
        number,
        {},
    )


def one_pass(learner: PPOLearner, index: Tensor, count: int) -> list[tuple[list[int], Tensor]]:
    """Numbers of the rows that count, and the weights, of each minibatch of a pass."""
    parts = []
    use = torch.zeros(count, dtype=torch.bool).index_fill(0, index, True)
    chunks = Chunks((count // 4, 4), 1, use.device)
    for each in learner._minibatches(numbered_rows(count), chunks, use):
        rows, weight = each.take(), each.weight
        assert torch.equal(rows.is_first, rows.action > 3)
        assert torch.equal(rows.obs["obs"].long(), rows.action)
        for name in ("logp_mu", "value_mu", "advantage", "target"):
            assert torch.equal(getattr(rows, name).long(), rows.action), name
        assert torch.equal(rows.params_mu.squeeze(1).long(), rows.action)
        parts.append((rows.action[weight > 0].tolist(), weight))
    return parts


INDEX = torch.tensor([i for i in range(64) if i % 5 != 3 and i not in (0, 17, 62)])


@pytest.mark.parametrize("size", [1, 7, 10, 16, 49, 50, 64, None])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_visits_every_valid_row_once(size: int | None, drop_last: bool):
    if size is None and drop_last:
        return
    config = PPOConfig(minibatch_steps=size, drop_last=drop_last)
    learner = make_learner(config)
    parts = one_pass(learner, INDEX, 64)
    count, rows = len(INDEX), size or 64
    visited = [i for numbers, _ in parts for i in numbers]
    assert len(set(visited)) == len(visited)
    assert set(visited) <= set(INDEX.tolist())
    if drop_last and count >= rows:
        assert len(parts) == count // rows
        assert all(len(numbers) == rows for numbers, _ in parts)
    else:
        assert len(parts) == math.ceil(count / rows)
        assert sorted(visited) == INDEX.tolist()
        lengths = [len(numbers) for numbers, _ in parts]
        assert max(lengths) - min(lengths) <= 1
    for numbers, weight in parts:
        assert weight.shape == (rows,)  # one shape, so that one compiled graph serves all
        assert weight.sum().item() == pytest.approx(1.0, abs=1e-6)
        used = weight[weight > 0]
        assert used.numel() == len(numbers)
        assert torch.equal(used, used[:1].expand_as(used))


@pytest.mark.parametrize("size", [4, 24, 64])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_over_chunks_visits_every_valid_row_once(size: int, drop_last: bool):
    chunks, use = Chunks((16, 4), 4, torch.device("cpu")), torch.ones(16, 4, dtype=torch.bool)
    use[5, 1] = use[8:12, 2] = use[15] = False  # a row, a chunk, the last rows
    generator = torch.Generator().manual_seed(1)
    found = chunks.one_pass(use.flatten(), size, drop_last, generator)
    rows, numbers, weights = found.index, found.chunk_index, found.weight
    assert rows.shape == weights.shape == (len(numbers), size)
    visited = []
    parts = zip(rows, numbers, weights, strict=True)
    for row, number, weight in parts:
        assert torch.equal(row.view(4, -1), chunks.rows[:, number])
        assert weight.sum().item() == pytest.approx(1.0)
        used = weight[weight > 0]
        assert torch.equal(used, used[:1].expand_as(used))
        visited += row[weight > 0].tolist()
    wanted = use.flatten().nonzero().squeeze(1).tolist()
    assert len(set(visited)) == len(visited)
    if drop_last and size == 24:
        assert len(weights) == 15 // 6
        assert set(visited) < set(wanted)
    else:
        assert sorted(visited) == wanted


def test_every_pass_has_an_order_of_its_own():
    learner = make_learner(PPOConfig(minibatch_steps=16))
    orders = [[i for part, _ in one_pass(learner, INDEX, 64) for i in part] for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert INDEX.tolist() not in orders
    again = make_learner(PPOConfig(minibatch_steps=16))
    assert [i for part, _ in one_pass(again, INDEX, 64) for i in part] == orders[0]


@pytest.mark.parametrize(
    ("size", "drop_last", "expected"),
    [(16, False, math.ceil), (10, False, math.ceil), (10, True, math.floor), (None, False, None)],
)
def test_number_of_updates(size: int | None, drop_last: bool, expected):
    batch = make_rollout(seed=2)
    count = int(batch.valid.sum())
    assert count % 10
    assert count % 16
    learner = make_learner(PPOConfig(minibatch_steps=size, drop_last=drop_last, num_epochs=3))
    learner.update(batch, 0)
    assert learner.updates == 3 * (1 if expected is None else expected(count / size))


@pytest.mark.parametrize("advantage", ["batch", "minibatch"])
def test_rows_of_weight_0_change_nothing(advantage: str):
    learner = make_learner(
        PPOConfig(normalize_advantage=advantage, entropy_coef=0.1, kl_coef_init=1.0, value_clip=0.2)
    )
    rows, index = valid_rows(learner, make_rollout(seed=4))
    rows = rows.take(index[:12], index[:12])
    weight = (torch.arange(12) < 9) / 9.0

    def advantages(rows: Rows, weight: Tensor) -> Tensor:
        if advantage == "batch":
            return rows.advantage
        return reduce.normalize_rows(rows.advantage[None], weight[None])[0]

    def gradient(rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor]:
        given = minibatch(replace(rows, advantage=advantages(rows, weight)), weight)
        loss, stats = learner.trained.evaluate(
            learner.trained.parameters, given, knobs(learner, 0.5)
        )
        parts = torch.autograd.grad(loss, list(learner.trained.parameters.values()))
        return torch.cat([x.flatten() for x in parts]), stats.pack()

    whole, stats = gradient(rows, weight)

    def repeat(x: Tensor) -> Tensor:
        return torch.cat([x[:9], x[:3].flip(0)])

    spoilt, first = map_rows(rows, repeat), torch.arange(9)
    assert not torch.equal(spoilt.advantage, rows.advantage)
    for other in (
        gradient(spoilt, weight),
        gradient(rows.take(first, first), torch.full((9,), 1 / 9.0)),
    ):
        torch.testing.assert_close(other[0], whole, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(other[1], stats, rtol=1e-6, atol=1e-7)
    assert (gradient(spoilt, torch.full((12,), 1 / 12.0))[0] - whole).abs().max() > 1e-4


def behind_truncation(batch: Rollout) -> Tensor:
    """Invalid rows whose observation is worth something: the true final one of a truncation."""
    before = torch.cat([torch.zeros_like(batch.truncated[:1]), batch.truncated[:-1]])
    return before & ~batch.valid


def spoil(batch: Rollout, seed: int = 9, worst: float = float("nan")) -> Rollout:
    """The batch with garbage wherever a row is invalid, but for what the bootstrap reads."""
    g = torch.Generator().manual_seed(seed)
    junk = ~batch.valid

    def garbage(x: Tensor, where: Tensor, value: float) -> Tensor:
        x = x.clone()
        x[: where.shape[0]][where] = value if x.is_floating_point() else 1
        return x

    unread = junk & ~behind_truncation(batch)
    # The mask stays a mask; observations behind a truncation are those that the bootstrap reads.
    obs = {name: garbage(x, unread, 1e3) for name, x in batch.obs.items()}
    record = {
        "logp_mu": garbage(batch.record["logp_mu"], junk, worst),
        "params_mu": garbage(batch.record["params_mu"], junk, worst),
        "value": garbage(batch.record["value"], unread, 1e4),
    }
    action = batch.action.clone()
    other = torch.rand(action[junk].shape, generator=g) * 1e3
    action[junk] = other if action.is_floating_point() else (action[junk] + 1) % 3
    return replace(
        batch,
        obs=obs,
        action=action,
        record=record,
        reward=garbage(batch.reward, junk, worst),
        return_carry=garbage(batch.return_carry, junk, worst),
    )


CONFIGS = {
    "default": PPOConfig(minibatch_steps=16, num_epochs=2),
    "all": PPOConfig(
        minibatch_steps=16,
        num_epochs=2,
        value_clip=0.2,
        entropy_coef=0.1,
        kl_coef_init=1.0,
        kl_cutoff_coef=10.0,
        refresh_advantages="per_epoch",
        normalize_advantage="minibatch",
        reward_normalizer="step_std",
    ),
    "monte_carlo": PPOConfig(
        minibatch_steps=16,
        num_epochs=2,
        advantage_estimator="monte_carlo",
        value_target="monte_carlo",
        unfinished_episode="drop",
        normalize_observations=False,
    ),
    "over_all": PPOConfig(
        minibatch_steps=16, num_epochs=2, reduction="mean_over_all", lr_schedule="kl_adaptive"
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(
    "spaces", [DISCRETE, CONTINUOUS, MASKED], ids=["discrete", "continuous", "masked"]
)
def test_data_in_invalid_rows_change_nothing(config: PPOConfig, spaces: Spaces):
    results = []
    for change in (lambda x: x, spoil):
        learner = make_learner(config, spaces)
        for seed in (3, 4):
            batch = make_rollout(spaces, seed=seed)
            assert (~batch.valid).sum() >= 5
            assert behind_truncation(batch).any()
            learner.update(change(batch), 0)
        results.append(everything(learner))
    assert results[0] == results[1]


RECURRENT = ModelConfig(policy_hidden=(8,), core="gru", core_size=6)
CHUNKED = {"unroll_steps": 16, "bptt_steps": 8, "minibatch_steps": 16}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_data_in_invalid_rows_of_chunks_change_nothing(config: PPOConfig, spaces: Spaces):
    """They ride along there, at weight 0; what an actor records is finite."""
    config = config.model_copy(update=CHUNKED)
    results = []

    def absurd(batch: Rollout) -> Rollout:
        batch = spoil(batch, worst=5.0)
        batch.record["logp_mu"][~batch.valid] = -1e3  # an infinite ratio
        return batch

    for change in (lambda x: x, absurd):
        learner = make_learner(config, spaces, RECURRENT)
        for seed in (3, 4):
            learner.update(with_states(learner, change(make_rollout(spaces, seed=seed))), 0)
        results.append(everything(learner))
    assert results[0] == results[1]


def test_data_behind_a_truncation_do_count():
    # The garbage above leaves out what the bootstrap reads: here is the proof that it is read.
    batch = make_rollout(seed=3)
    value = batch.record["value"].clone()
    value[behind_truncation(batch)] += 1.0
    other = replace(batch, record=batch.record | {"value": value})
    learners = [make_learner(CONFIGS["default"]) for _ in range(2)]
    for learner, x in zip(learners, (batch, other), strict=True):
        learner.update(make_rollout(seed=4), 0)  # of the first batch values are computed anew
        learner.update(x, 0)
    assert not torch.equal(learners[0].trained.theta, learners[1].trained.theta)


def test_rows_past_the_budget_are_in_no_mean_and_no_normaliser():
    batch, left = within_budget(make_rollout(seed=3), 30)
    assert left == 30
    learner = make_learner(PPOConfig(minibatch_steps=None, num_epochs=2))
    metrics = learn(learner, batch, 0)
    assert int(batch.valid.sum()) == 30
    assert metrics["data/valid_frac"] == pytest.approx(30 / 64)
    assert metrics["reward/mean"] == pytest.approx(batch.reward[batch.valid].mean().item())
    assert learner.normalizers.rewards.moments.count == 30
    assert learner.normalizers.observations.leaf_moments("obs").count == 30
    # What was done past the budget, and with what probability, is nothing to learn from.
    outside = ~batch.valid
    record = {name: x.clone() for name, x in batch.record.items()}
    record["logp_mu"][outside] = record["params_mu"][outside] = float("nan")
    action = torch.where(outside, (batch.action + 1) % 3, batch.action)
    again = make_learner(learner.config)
    again.update(replace(batch, record=record, action=action), 0)
    assert everything(again) == everything(learner)


every_network = pytest.mark.parametrize("model", [SMALL, RECURRENT], ids=["plain", "recurrent"])


@every_network
@pytest.mark.parametrize("reduction", ["mean", "mean_over_all"])
def test_duplicating_every_stream_leaves_the_mean_loss(reduction: str, model: ModelConfig):
    config = PPOConfig(
        minibatch_steps=None,
        num_epochs=1,
        entropy_coef=0.1,
        kl_coef_init=1.0,
        reduction=reduction,
        unroll_steps=16,
        bptt_steps=8,
    )
    learner = make_learner(config, model=model)
    batch = with_states(learner, make_rollout(seed=6))
    once = learn(learner, batch, 0)
    double = make_learner(config, model=model, streams=8)
    twice = learn(double, columns(batch, [*range(4), *range(4)]), 0)
    assert set(once) == set(twice)
    for name, value in once.items():
        # Sums of 64 and 128 float32 terms.
        assert twice[name] == pytest.approx(value, rel=3e-6, abs=1e-7), name
    learner = make_learner(config, model=model)
    other = learn(learner, with_states(learner, make_rollout(seed=7)), 0)
    assert other["loss/total"] != pytest.approx(once["loss/total"], rel=1e-3)


@every_network
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_permuting_streams_permutes_advantages(config: PPOConfig, model: ModelConfig):
    learner = make_learner(config.model_copy(update=CHUNKED), model=model)
    batch, order = with_states(learner, make_rollout(seed=8)), [2, 0, 3, 1]
    plain, _ = learner._rows(batch, batch.valid)
    moved, _ = learner._rows(columns(batch, order), batch.valid[:, order])
    for name in ("advantage", "target", "value_mu"):
        ours = getattr(moved, name).view(16, 4)
        expected = getattr(plain, name).view(16, 4)[:, order]
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)
        assert not torch.allclose(ours, getattr(plain, name).view(16, 4))


@pytest.mark.parametrize("way", ["terminated", "truncated"])
@pytest.mark.parametrize("estimator", ["gae", "monte_carlo"])
def test_a_batch_with_a_cut_equals_two_trajectories(way: str, estimator: str):
    config = PPOConfig(
        advantage_estimator=estimator, value_source="recomputed", normalize_advantage="none"
    )
    learner, batch = make_learner(config), make_rollout(seed=8)
    ends = {name: torch.zeros_like(batch.valid) for name in ("terminated", "truncated")}
    ends[way][7] = True
    valid = torch.ones_like(batch.valid)
    valid[8] = False
    whole = replace(batch, **ends, valid=valid)
    rows, _ = learner._rows(whole, whole.valid)

    def part(first: int, last: int) -> Rollout:
        def cut(x: Tensor) -> Tensor:
            return x[first : last + (len(x) == 17)]  # observations have a row more

        return replace(
            whole,
            obs={name: cut(x) for name, x in whole.obs.items()},
            record={name: cut(x) for name, x in whole.record.items()},
            **{
                name: cut(getattr(whole, name))
                for name in ("action", "reward", "terminated", "truncated", "valid", "is_first")
            },
        )

    for first, last in ((0, 8), (9, 16)):
        alone, _ = learner._rows(part(first, last), valid[first:last])
        for name in ("advantage", "target"):
            expected = getattr(rows, name).view(16, 4)[first:last]
            torch.testing.assert_close(getattr(alone, name).view(-1, 4), expected)


def test_a_row_holds_what_belongs_together():
    batch = make_rollout(seed=8)
    learner = make_learner(PPOConfig(normalize_advantage="none"))
    rows, index = valid_rows(learner, batch)
    assert torch.equal(
        rows.obs["obs"], learner.normalizers.observations(batch.obs)["obs"][:-1].flatten(0, 1)
    )
    for row in index.tolist():
        t, b = divmod(row, 4)
        assert rows.action[row] == batch.action[t, b]
        assert rows.logp_mu[row] == batch.record["logp_mu"][t, b]
        assert torch.equal(rows.params_mu[row], batch.record["params_mu"][t, b])
        assert rows.value_mu[row] == batch.record["value"][t, b]
        error = rows.target[row] - rows.advantage[row] - batch.record["value"][t, b]
        assert abs(error) < 1e-5


def test_an_ending_past_the_budget_is_no_ending():
    """unfinished_episode=drop in a run's last batch."""
    batch = make_rollout(steps=8, streams=1)
    never = torch.zeros_like(batch.valid)
    terminated = never.clone()
    terminated[6] = True
    batch = replace(batch, terminated=terminated, truncated=never, valid=~never)
    assert ended_rows(batch)[:7].all()
    cut, _ = within_budget(batch, 4)
    assert not ended_rows(cut).any()
