"""ACER's learner around its loss: the average policy, the optimizer's step, what it draws from
replay, recurrent states, what it publishes and reports.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from acer_helpers import STEPS, STREAMS, apart, config, loss_of, make_batch, make_learner, numbers
from conformance_helpers import CONTINUOUS as BOX
from conformance_helpers import MASKED as MULTI_MASKED
from conformance_helpers import NUMBERS, Case, Noise, Run, Task, learn
from conformance_helpers import STEPS as UNROLL
from conformance_helpers import STREAMS as COLUMNS
from gymnasium import spaces as gym
from ppo_helpers import CONTINUOUS, DISCRETE, TOTAL, make_rollout
from torch import Tensor
from torch.testing import assert_close

from quintet.algorithms.parts.acting import masked
from quintet.runtime.batch import join, select
from quintet.types import Rollout

CHOICE = Task(NUMBERS, gym.Discrete(3))

# The average policy


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.01])
def test_the_average_follows_every_update_of_either_sort(tau: float) -> None:
    learner = make_learner(config(tau=tau, learning_rate=0.05))
    trained = learner.trained
    assert trained.average is not None
    assert torch.equal(trained.average, trained.theta)
    expected = trained.theta.double()
    for seed in range(6):
        before = trained.theta.clone()
        learner.update(replace(make_batch(learner, seed=seed), replayed=seed % 3 != 0), 0)
        assert (trained.theta - before).abs().max() > 1e-3
        expected = (1.0 - tau) * expected + tau * trained.theta.double()
        assert_close(trained.average.double(), expected, rtol=0, atol=1e-6)
        assert torch.equal(trained.average, trained.theta) == (tau == 1.0)


def test_there_is_no_average_without_a_trust_region() -> None:
    learner = make_learner(config(trust_region=False))
    assert learner.trained.average is None
    assert not [name for name in learner.weights() if name.startswith("average/")]
    learner.update(make_batch(learner), 0)
    assert not [name for name in learner.metrics() if name.startswith("trust_region/")]


def test_updates_with_a_bound_beyond_reach_are_those_without_a_trust_region() -> None:
    learners = [
        make_learner(config(**options), CONTINUOUS)
        for options in ({"trust_region": False}, {"trust_region_delta": 1e30})
    ]
    for learner in learners:
        apart(learner, size=0.3)
        if learner.trained.average is not None:
            learner.trained.average.add_(0.5)
        for seed in range(4):
            learner.update(make_batch(learner, CONTINUOUS, seed), 0)
    off, beyond = (learner.trained.theta for learner in learners)
    assert_close(off, beyond, rtol=0, atol=1e-6)


# The optimizer's step


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_two_steps_of_rmsprop(inside: bool, max_norm: float | None) -> None:
    """TensorFlow's rule begins with mean squares of 1, PyTorch's with 0; the norm that is reported
    is that before clipping, whether there is a bound or not.
    """
    options = config(
        rmsprop_epsilon_inside_sqrt=inside, max_grad_norm=max_norm, rmsprop_decay=0.9,
        rmsprop_epsilon=1e-3, learning_rate=0.01, lr_schedule="constant",
    )  # fmt: skip
    learner = apart(make_learner(options))
    theta = learner.trained.theta.double()
    squares = torch.full_like(theta, float(inside))
    for seed in range(2):
        batch = make_batch(learner, seed=seed)
        gradients = loss_of(learner, batch)[1].values()
        g = torch.cat([x.flatten() for x in gradients]).double()
        told = learn(learner, [batch])
        assert told["optim/grad_norm"] == pytest.approx(g.norm().item(), rel=1e-5)
        if max_norm is not None:
            assert g.norm() > max_norm
            g = g * (max_norm / g.norm())
        squares = 0.9 * squares + 0.1 * g.square()
        root = (squares + 1e-3).sqrt() if inside else squares.sqrt() + 1e-3
        theta = theta - 0.01 * g / root
        assert_close(learner.trained.theta.double(), theta, rtol=0, atol=1e-6)


RATES = {
    "constant": (1.0, 1.0, 1.0, 1.0),
    "linear": (1.0, 0.75, 0.25, 0.0),
    "double_linear_con": (1.0, 0.5, 0.125, 0.125),
    "middle_drop": (1.0, 0.75, 0.075, 0.075),
    "double_middle_drop": (1.0, 0.75, 0.075, 0.125),
}
"""At the start, at a quarter, at three quarters and at the end of the run."""


@pytest.mark.parametrize("name", RATES)
def test_the_rate_follows_env_steps(name: str) -> None:
    learner = make_learner(config(lr_schedule=name, learning_rate=0.02))
    for quarters, factor in zip((0, 1, 3, 4), RATES[name], strict=True):
        before = learner.trained.theta.clone()
        told = learn(learner, [make_batch(learner)], quarters * TOTAL // 4)
        assert told["optim/learning_rate"] == pytest.approx(0.02 * factor, abs=1e-12)
        assert torch.equal(learner.trained.theta, before) == (factor == 0.0)


# Replay


def test_the_plan_counts_streams_and_steps() -> None:
    plan = make_learner(
        config(
            replay_ratio=2.5, replay_capacity_steps_per_stream=70, replay_start_steps_per_stream=30,
            replay_sampling="any_stream",
        )
    ).plan  # fmt: skip
    assert (plan.unroll_steps, plan.columns_per_batch) == (STEPS, STREAMS)
    replay = plan.replay
    assert replay is not None
    assert (replay.kind, replay.steps, replay.columns) == ("sequences", STEPS, STREAMS)
    assert (replay.draws, replay.rate, replay.column_source) == ("poisson", 2.5, "any_stream")
    assert (replay.capacity_steps, replay.start_steps) == (70 * STREAMS, 30 * STREAMS)
    assert make_learner(config()).plan.replay.column_source == "per_stream"


def test_running_returns_are_asked_for_where_rewards_are_divided_by_theirs() -> None:
    def discount(**options: Any) -> float | None:
        return make_learner(config(gamma=0.7, **options)).plan.return_discount

    assert discount(reward_normalizer="return_std") == 0.7
    assert discount(reward_normalizer="return_std", update_normalizers=False) is None
    assert discount(reward_normalizer="step_std") is None
    assert discount() is None


def test_without_replay_it_learns_from_what_is_fresh() -> None:
    case = Case("acer", CHOICE)
    vars(case)["config"] = config(replay_ratio=0.0, unroll_steps=UNROLL)
    learner = case.learner()
    assert learner.plan.replay is None
    before = learner.trained.theta.clone()
    run = Run(case, learner)
    told = [run.iterate() for _ in range(3)]
    run.close()
    assert [len(batches) for _, batches in told] == [1, 1, 1]
    assert learner.updates == 3
    assert (learner.trained.theta - before).abs().max() > 1e-4
    assert told[-1][0]["replay/updates_per_batch"] == 0.0
    assert "replay/age_mean" not in told[-1][0]


class Stored:
    """A run of a case whose learner makes no updates, and its replay."""

    def __init__(self, case: Case):
        self.case, self.learner = case, case.learner()
        self.run = Run(case, self.learner)
        self.fresh: list[Rollout] = []

    def collect(self, count: int) -> "Stored":
        for _ in range(count):
            self.fresh.append(self.run.collect()[0])
        return self

    def draws(self, iteration: int) -> list[Rollout]:
        assert self.run.replay is not None
        return list(self.run.replay.draws(1, iteration))

    def number(self, batch: Rollout, column: int) -> tuple[int, int]:
        """Which fresh batch a column is of, and which of its columns; by the rewards."""
        found = [
            (i, b)
            for i, fresh in enumerate(self.fresh)
            for b in range(COLUMNS)
            if torch.equal(fresh.reward[:, b], batch.reward[:, column])
        ]
        assert len(found) == 1
        return found[0]


@pytest.fixture
def stored() -> Iterator[Any]:
    made: list[Stored] = []

    def make(case: Case) -> Stored:
        made.append(Stored(case))
        return made[-1]

    yield make
    for each in made:
        each.run.close()


def test_updates_from_replay_are_a_poisson_number_of_the_ratio(stored: Any) -> None:
    """Mean and variance over 1,500 iterations, to four standard errors."""
    options = {"replay_ratio": 1.5, "unroll_steps": 2, "replay_capacity_steps_per_stream": 8}
    of = stored(Case("acer", CHOICE, {**options, "replay_start_steps_per_stream": 1})).collect(3)
    counts = np.array([len(of.draws(i)) for i in range(1_500)])
    assert abs(counts.mean() - 1.5) < 4 * math.sqrt(1.5 / 1_500)
    spread = math.sqrt((1.5 + 2 * 1.5**2) / 1_500)  # of the variance of a Poisson number
    assert abs(counts.var() - 1.5) < 4 * spread


def test_nothing_is_drawn_before_the_start() -> None:
    options = {"replay_ratio": 9.0, "replay_start_steps_per_stream": 3 * UNROLL}
    case = Case("acer", CHOICE, {**options, "replay_capacity_steps_per_stream": 10 * UNROLL})
    run = Run(case, case.learner())
    steps, drawn = 0, []
    for _ in range(8):
        batches = run.collect()
        steps += int(batches[0].valid.sum())
        drawn.append((steps, len(batches) - 1))
    run.close()
    begin = 3 * UNROLL * COLUMNS
    assert [count > 0 for _, count in drawn] == [steps >= begin for steps, _ in drawn]
    assert drawn[0][1] == 0
    assert drawn[-1][1] > 0


@pytest.mark.parametrize("source", ["per_stream", "any_stream"])
def test_unrolls_are_drawn_equally_often(stored: Any, source: str) -> None:
    """Of the newest three, those that the capacity has room for; each column of a batch of its own
    stream, or of any.
    """
    options = {
        "replay_ratio": 5.0, "replay_sampling": source, "unroll_steps": 2,
        "replay_capacity_steps_per_stream": 7, "replay_start_steps_per_stream": 1,
    }  # fmt: skip
    of = stored(Case("acer", CHOICE, options)).collect(5)
    counts = np.zeros((5, COLUMNS))
    for iteration in range(60):
        for batch in of.draws(iteration):
            assert batch.replayed
            assert batch.valid.shape == (2, COLUMNS)
            for column in range(COLUMNS):
                i, b = of.number(batch, column)
                assert batch.stream_id[column] == of.fresh[i].stream_id[b]
                assert source == "any_stream" or b == column
                counts[i, b] += 1
    assert not counts[:2].any()  # the oldest were overwritten
    expected = counts[2:].mean()
    assert expected > 50
    statistic = ((counts[2:] - expected) ** 2 / expected).sum()
    freedom = 3 * COLUMNS - (COLUMNS if source == "per_stream" else 1)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


class Film(Noise):
    """Stacks of four frames that move on by one frame a step."""

    def draw(self) -> Any:
        frame = self.np_random.integers(0, 255, self.inner.shape[1:], np.uint8)
        if self.begins:
            self.stack = deque([frame] * 4, 4)
        self.stack.append(frame)
        return np.stack(self.stack)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begins = True
        found = super().reset(seed=seed, options=options)
        self.begins = False
        return found


FILM = Task(gym.Box(0, 255, (4, 3, 5), np.uint8), gym.Discrete(3))
PLAIN = {"encoder": "mlp", "policy_hidden": (8,)}


@pytest.mark.parametrize(
    "case",
    [
        Case("acer", FILM, network=PLAIN, env=Film),
        Case("acer", MULTI_MASKED, core="gru"),
        Case("acer", BOX, core="lstm", network={"shared_torso": False}),
    ],
    ids=["film", "masked-gru", "box-lstm"],
)
def test_a_replayed_batch_is_the_fresh_one_byte_for_byte(stored: Any, case: Case) -> None:
    """And so is what is learned of it."""
    of = stored(case).collect(6)
    if case.env is Film:
        assert "stacked frames kept once" in of.run.replay.describe()
    seen = set()
    for iteration in range(4):
        for batch in of.draws(iteration):
            for column in range(COLUMNS):
                i, b = of.number(batch, column)
                seen.add(i)
                found, fresh = select(batch, torch.tensor([column])), of.fresh[i]
                same(found, select(fresh, torch.tensor([b])))
    assert len(seen) > 3
    learners = [case.learner(), case.learner()]
    batch = of.draws(0)[0]
    origin = [of.number(batch, column) for column in range(COLUMNS)]
    # Columns of the same stream as in the draw, put together of the fresh ones they are.
    parts = [select(of.fresh[i], torch.tensor([b])) for i, b in origin]
    again = join([replace(part, trace_cut=None) for part in parts])
    for learner, given in zip(learners, (batch, again), strict=True):
        apart(learner, size=0.3)
        learner.update(replace(given, replayed=True), 0)
    assert torch.equal(learners[0].trained.theta, learners[1].trained.theta)


def same(one: Rollout, other: Rollout) -> None:
    assert torch.equal(one.not_cut_t, other.not_cut_t)
    for field in fields(Rollout):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("replayed", "trace_cut"):
            continue
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for name, x in a.items():
                assert x.dtype == b[name].dtype
                assert x.numpy().tobytes() == b[name].numpy().tobytes(), (field.name, name)
        elif isinstance(a, Tensor):
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes(), field.name
        else:
            assert a == b, field.name


# Recurrent states


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("task", [CHOICE, MULTI_MASKED], ids=["plain", "masked"])
def test_stored_states_replay_what_was_acted_by(task: Task, core: str, shared: bool) -> None:
    """Also in the middle of episodes, and over episodes that begin within the unroll; so the ratios
    of a fresh batch are 1.
    """
    case = Case("acer", task, core=core, network={"shared_torso": shared})
    learner = apart(case.learner(), size=0.3)
    run = Run(case, learner)
    run.collect()
    run.sampling.publish(learner.publication())
    batch = run.collect()[0]
    run.close()
    assert (~batch.is_first[0]).any()
    assert batch.is_first[1:].any()
    assert all(x[0].any() for x in batch.state.values())
    flat = learner._unrolls(batch)
    with torch.no_grad():
        params, _, _ = learner.network(flat.obs, flat.state, flat.is_first)
        params = masked(learner.family, params, flat.obs).view(UNROLL + 1, COLUMNS, -1)[:-1]
        blank = {name: torch.zeros_like(x) for name, x in flat.state.items()}
        forgetful, _, _ = learner.network(flat.obs, blank, flat.is_first)
    assert_close(params, batch.record["params_mu"], rtol=0, atol=1e-6)
    zeroed = masked(learner.family, forgetful, flat.obs).view(UNROLL + 1, COLUMNS, -1)[:-1]
    assert (zeroed - params).abs().max() > 1e-3
    told = learn(learner, [batch])
    assert told["policy/ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert told["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert told["loss/policy_correction"] == 0.0


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("shared", [True, False])
def test_actors_get_no_more_of_the_critic_than_its_memory(core: str, shared: bool) -> None:
    case = Case("acer", BOX, core=core, network={"shared_torso": shared})
    learner, actor = case.learner(), case.actor()
    published = {name for name in learner.publication().tensors if "critic" in name}
    kept = {name for name in learner.weights() if name.startswith("network/critic_")}
    if shared:
        assert published == set()
        assert kept == {name for name in kept if ".critic_head." in f".{name.split('/')[1]}"}
    elif core == "none":
        assert published == set()
        assert any("critic_encoder" in name for name in kept)
    else:
        wanted = {name for name in kept if "critic_head" not in name}
        assert published == wanted
        assert any("critic_core" in name for name in published)
    assert not [name for name in published if "critic_head" in name]
    actor.load(learner.publication())
    leaves = {"value/h0"} & set(actor.state_specs)
    assert bool(leaves) == (core != "none" and not shared)


# Reports


def test_the_age_of_replayed_rows_is_counted_in_updates() -> None:
    """Over valid rows alone; fresh batches have none."""
    learner = make_learner(config())
    batch = make_batch(learner)
    for _ in range(5):
        learner.update(batch, 0)
    assert "replay/age_mean" not in learn(learner, [replace(batch, replayed=False)])
    rows = torch.arange(STEPS).unsqueeze(1).expand(-1, STREAMS) % 4
    version = torch.where(batch.valid, rows, -1000)
    expected = (6 - rows[batch.valid].double()).mean().item()  # after six updates
    told = learn(learner, [replace(batch, version=version)])
    assert told["replay/age_mean"] == pytest.approx(expected, rel=1e-6)
    # The next is one older, and a fresh batch in between is left out of the mean.
    given = replace(batch, version=version)
    told = learn(learner, [given, replace(batch, replayed=False), given])
    assert told["replay/age_mean"] == pytest.approx(expected + 2.0, rel=1e-6)


def test_updates_from_replay_are_counted_by_fresh_batch() -> None:
    learner = make_learner(config())
    replayed = make_batch(learner)
    fresh = replace(replayed, replayed=False)
    told = learn(learner, [fresh, replayed, replayed, fresh, replayed])
    assert told["replay/updates_per_batch"] == 1.5
    assert learn(learner, [fresh, replayed])["replay/updates_per_batch"] == 1.0
    assert "replay/updates_per_batch" not in learn(learner, [replayed])
    assert (learner.updates, learner.version) == (8, 8)


def test_only_fresh_batches_move_the_normalisers() -> None:
    learner = make_learner(config(normalize_observations=True, reward_normalizer="return_std"))
    carry = make_rollout(DISCRETE, STEPS, STREAMS).return_carry
    batch = replace(make_batch(learner), return_carry=carry)
    normalizers = learner.normalizers

    def statistics() -> list[Tensor]:
        return [
            x.clone() for each in normalizers.modules.values() for x in each.state_dict().values()
        ]

    before = statistics()
    learner.update(batch, 0)
    assert all(map(torch.equal, statistics(), before))
    learner.update(replace(batch, replayed=False), 0)
    assert not any(map(torch.equal, statistics(), before))
    assert batch.return_carry is not None
    carried = batch.return_carry[batch.valid]
    expected = carried.var(correction=0).sqrt().item()
    assert learner.metrics()["normalizer/reward_std"] == pytest.approx(expected)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_rewards_are_divided_when_they_are_learned_from(clip: float | None) -> None:
    """Old rewards too are divided by what is known now; the raw ones are told."""
    options = {"reward_normalizer": "step_std", "reward_norm_clip": clip}
    learner, plain = make_learner(config(**options)), make_learner(config())
    batch = make_batch(learner)
    learner.normalizers.merge(replace(batch, reward=5.0 * batch.reward))
    std = (5.0 * batch.reward[batch.valid]).double().var(correction=0)
    by_hand = batch.reward / (std + learner.config.normalizer_variance_epsilon).sqrt().float()
    by_hand = by_hand if clip is None else by_hand.clamp(-clip, clip)
    fresh = replace(batch, replayed=False)
    told = learn(learner, [fresh])
    same = learn(plain, [replace(fresh, reward=by_hand)])
    assert_close(learner.trained.theta, plain.trained.theta)
    assert told["value/target_mean"] == pytest.approx(same["value/target_mean"])
    assert told["reward/mean"] == pytest.approx(batch.reward[batch.valid].mean().item())
    assert told["reward/normalized_mean"] == pytest.approx(same["reward/mean"])
    clipped = (by_hand[batch.valid].abs() >= 0.3).float().mean().item()
    assert told.get("normalizer/reward_clip_frac") == (None if clip is None else clipped)
    now = learner.normalizers.rewards(batch.reward)  # the fresh batch has moved the statistics
    assert not torch.allclose(now, by_hand)
    learner.update(batch, 0)
    plain.update(replace(batch, reward=now), 0)
    assert_close(learner.trained.theta, plain.trained.theta)


@pytest.mark.parametrize("c_bar", [0.6, 1.0, 1.5])
def test_shares_of_ratios_at_their_caps(c_bar: float) -> None:
    """In traces it is the ratio's root that is capped."""
    learner = apart(make_learner(config(c_bar=c_bar, importance_clip=2.0), CONTINUOUS), size=0.3)
    batch = make_batch(learner, CONTINUOUS)
    assert learner.dimensions == 2
    unrolls = learner._unrolls(batch)
    params, _, _ = learner.network(unrolls.obs)
    rho = learner._rows(params.detach(), unrolls, numbers(learner.config)).log_rho.exp()
    rho = rho[batch.valid].double()
    _, _, told = loss_of(learner, unrolls)
    expected = (rho.sqrt() > c_bar).double().mean().item()
    assert 0.0 < expected < 1.0
    assert told.means["policy/c_clip_frac"].item() == pytest.approx(expected)
    above = (rho > 2.0).double().mean().item()
    assert told.means["policy/rho_clip_frac"].item() == pytest.approx(above)
    assert told.means["policy/ratio_mean"].item() == pytest.approx(rho.mean().item(), rel=1e-5)
