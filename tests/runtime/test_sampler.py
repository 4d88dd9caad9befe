"""Every row that a learner receives, against what a scripted environment says of itself."""

import numpy as np
import pytest
import torch
from scripted_helpers import Scripted
from torch import Tensor

from quintet.envs.public import make_vector_env
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime.delivery import Batch, within_budget
from quintet.runtime.sampler import SerialSampling
from quintet.runtime.seed_tree import Role, generator_seed, group_seeds
from quintet.types import ActOutput, Publication, TensorSpec

SEED, STEPS, GROUPS, SIZE = 11, 7, 2, 3
STREAMS = GROUPS * SIZE
GAMMA = 0.5
LENGTHS, ENDINGS = (3, 2, 5), ("terminate", "truncate", "terminate")


class CountingActor:
    """Takes the action that its noise names; records how often it acted and what it saw."""

    record_specs = {
        "acts": TensorSpec((), torch.int64),
        "seen": TensorSpec((4,), torch.int64),
        "first": TensorSpec((), torch.bool),
    }
    action_spec = TensorSpec((), torch.int64)
    state_specs = {"count": TensorSpec((), torch.int64)}

    def __init__(self) -> None:
        self.acts = 0
        self.loaded: list[int] = []

    def load(self, publication: Publication) -> None:
        self.loaded.append(publication.version)

    def initial_state(self, num_streams: int) -> dict[str, Tensor]:
        return {"count": torch.zeros(num_streams, dtype=torch.int64)}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return torch.randint(0, 5, (steps, num_streams, 1), generator=generator)

    def act(self, obs, state, is_first, noise) -> ActOutput:
        self.acts += 1
        action = noise[:, 0]
        record = {
            "acts": torch.full_like(action, self.acts),
            "seen": obs["obs"].clone(),
            "first": is_first.clone(),
        }
        return ActOutput(action, action, record, {"count": state["count"] + 1})


def sampling(**plan: float) -> SerialSampling:
    envs = [
        make_vector_env(lambda: Scripted(LENGTHS, ENDINGS), SIZE, reward_clip="abs_one")
        for _ in range(GROUPS)
    ]
    the_plan = DataPlan(STEPS, STREAMS, return_discount=plan.get("discount", GAMMA))
    return SerialSampling(envs, CountingActor, the_plan, SEED, PhaseTimer())


def unrolls(count: int) -> list[Batch]:
    """Batches as they come, copied, since the next unroll writes into the same slots."""
    sampler = sampling()
    sampler.publish(Publication(0, {}))
    sampler.restart(0)
    batches = []
    for version in range(count):
        batch = sampler.collect(10**9)
        batches.append(batch)
        sampler.publish(Publication(version + 1, {}))
    return batches


def script(seed: int, rows: int) -> list[tuple[tuple[int, int, int], bool]]:
    """``(seed, episode, step)`` of every row of a stream, and whether its action is executed."""
    out = []
    episode = step = 0
    while len(out) < rows:
        out.append(((seed, episode, step), step < LENGTHS[episode % 3]))
        step += 1
        if step > LENGTHS[episode % 3]:
            episode, step = episode + 1, 0
    return out


def test_every_row_is_the_scripted_one_in_next_step_layout() -> None:
    batches = unrolls(4)
    seeds = [s for g in range(GROUPS) for s in group_seeds(SEED, g, 0, SIZE)[0]]
    assert len(set(seeds)) == STREAMS
    for stream, seed in enumerate(seeds):
        expected = script(seed, 4 * STEPS + 1)
        for k, batch in enumerate(batches):
            r = batch.rollout
            for t in range(STEPS + 1):
                (_, episode, step), executed = expected[k * STEPS + t]
                assert r.obs["obs"][t, stream, :3].tolist() == [seed, episode, step]
                assert bool(r.is_first[t, stream]) == (step == 0)
                if t == STEPS:
                    continue
                assert bool(r.valid[t, stream]) == executed
                ends = executed and step + 1 == LENGTHS[episode % 3]
                kind = ENDINGS[episode % 3]
                assert bool(r.terminated[t, stream]) == (ends and kind == "terminate")
                assert bool(r.truncated[t, stream]) == (ends and kind == "truncate")
                # rewards are 100 e + s, clipped to 1; a reset pays nothing
                assert r.reward[t, stream] == (1.0 if executed else 0.0)
                assert int(r.version[t, stream]) == k
                assert bool(r.record["first"][t, stream]) == (step == 0)
                assert r.record["seen"][t, stream].tolist() == r.obs["obs"][t, stream].tolist()
                if executed:  # the environment repeats the action that it was given
                    assert int(r.obs["obs"][t + 1, stream, 3]) == int(r.action[t, stream])
    assert batches[0].rollout.stream_id.tolist() == list(range(STREAMS))


def test_one_act_is_one_forward_of_one_group() -> None:
    batch = unrolls(2)[1].rollout
    acts = batch.record["acts"]
    assert acts[:, 0].tolist() == list(range(STEPS + 1, 2 * STEPS + 1))
    assert (acts == acts[:, :1]).all()


def test_every_group_draws_noise_of_its_own() -> None:
    actions = unrolls(1)[0].rollout.action
    assert not torch.equal(actions[:, :SIZE], actions[:, SIZE:])


def test_running_returns_restart_with_every_episode() -> None:
    batches = unrolls(3)
    carry = np.zeros(STREAMS)
    for batch in batches:
        r = batch.rollout
        for t in range(STEPS):
            for b in range(STREAMS):
                carry[b] = carry[b] * GAMMA + float(r.reward[t, b])
                if r.valid[t, b]:
                    assert float(r.return_carry[t, b]) == pytest.approx(carry[b], abs=1e-12)
                if r.terminated[t, b] or r.truncated[t, b]:
                    carry[b] = 0.0


def test_episodes_are_whole_raw_and_counted_once() -> None:
    batches = unrolls(6)
    found = [
        (k * STEPS + episode.row, episode.column, episode.return_, episode.length)
        for k, batch in enumerate(batches)
        for episode in batch.episodes
    ]
    expected = []
    for column in range(STREAMS):
        for row, ((_, episode, step), executed) in enumerate(script(0, 6 * STEPS)):
            length = LENGTHS[episode % 3]
            if executed and step + 1 == length:
                raw = sum(100.0 * episode + s for s in range(1, length + 1))
                expected.append((row, column, raw, length))
    assert found == sorted(expected)


def test_episodes_are_won_by_the_rule_of_their_environment() -> None:
    assert {episode.success for batch in unrolls(2) for episode in batch.episodes} == {None}
    envs = [
        make_vector_env(lambda: Scripted(LENGTHS, ENDINGS), SIZE, success="reward>101.5")
        for _ in range(GROUPS)
    ]
    sampler = SerialSampling(envs, CountingActor, DataPlan(STEPS, STREAMS), SEED, PhaseTimer())
    sampler.publish(Publication(0, {}))
    sampler.restart(0)
    found = [
        (e.column, e.length, e.success) for _ in range(6) for e in sampler.collect(10**9).episodes
    ]
    for column in range(STREAMS):
        mine = [(length, success) for at, length, success in found if at == column]
        assert len(mine) > 6
        # Rewards are 1, 2, 3; 101, 102; 201, ...
        assert mine == [(LENGTHS[e % 3], e >= 1) for e in range(len(mine))]


def test_the_budget_is_exact_in_order_of_row_and_column() -> None:
    whole = unrolls(1)[0]
    count = int(whole.rollout.valid.sum())
    assert whole.env_steps == count
    for left in range(1, count + 3):
        batch, steps = within_budget(whole.rollout, left)
        assert steps == min(left, count) == int(batch.valid.sum())
        kept = batch.valid.flatten().nonzero().flatten()
        assert kept.tolist() == whole.rollout.valid.flatten().nonzero().flatten()[:left].tolist()


def test_episodes_past_the_budget_do_not_count() -> None:
    sampler = sampling()
    sampler.publish(Publication(0, {}))
    sampler.restart(0)
    # Three rows of every stream: all first episodes end in row 2, the last stream's past the
    # budget.
    batch = sampler.collect(3 * STREAMS - 1)
    assert batch.env_steps == 3 * STREAMS - 1
    assert [episode.column for episode in batch.episodes] == list(range(STREAMS - 1))


def test_restart_depends_on_the_iteration_and_on_nothing_before_it() -> None:
    def fresh(iteration: int, before: int) -> Batch:
        sampler = sampling()
        sampler.publish(Publication(0, {}))
        sampler.restart(0)
        for _ in range(before):
            sampler.collect(10**9)
        sampler.restart(iteration)
        return sampler.collect(10**9)

    a, b, other = fresh(5, before=0), fresh(5, before=3), fresh(6, before=0)
    for x, y in (
        (a.rollout.obs["obs"], b.rollout.obs["obs"]),
        (a.rollout.action, b.rollout.action),
    ):
        assert torch.equal(x, y)
    assert torch.equal(a.rollout.return_carry, b.rollout.return_carry)
    assert [e.return_ for e in a.episodes] == [e.return_ for e in b.episodes]
    # the environments' own seeds, without the actions that observations repeat
    assert not torch.equal(a.rollout.obs["obs"][..., 0], other.rollout.obs["obs"][..., 0])
    assert not torch.equal(a.rollout.action, other.rollout.action)


def test_no_carry_without_a_return_discount() -> None:
    sampler = sampling(discount=None)
    sampler.publish(Publication(0, {}))
    sampler.restart(0)
    assert sampler.collect(10**9).rollout.return_carry is None


def test_seeds_are_a_tree() -> None:
    nodes = [
        generator_seed(s, role, index, iteration)
        for s in (0, 1)
        for role in Role
        for index in (0, 1)
        for iteration in (0, 1)
    ]
    assert len(set(nodes)) == len(nodes)
    assert group_seeds(3, 1, 4, 5)[0] == group_seeds(3, 1, 4, 5)[0]
    assert group_seeds(3, 1, 4, 5)[0][:2] == group_seeds(3, 1, 4, 2)[0]
    assert all(0 <= seed < 2**31 for seed in group_seeds(3, 1, 4, 100)[0])
