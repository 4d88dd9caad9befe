"""The seam carries all five learners: fakes with their data plans check every row they receive."""

import math
from collections import Counter

import pytest
import torch
from seam_helpers import Ledger, SeamLearner, World, drive, length_of

from quintet.algorithms.parts.minibatches import Chunks, Rows
from quintet.protocols import DataPlan, ReplayPlan
from quintet.types import Rollout

KINDS = ("serial", "lockstep0x2", "lockstep1x1", "lockstep0x1server", "asyncx2server", "asyncx2")
"""Runtimes that must bring the same rows: kind, lag, x, number of workers."""


def kinds(*often: str) -> pytest.MarkDecorator:
    """Every kind; only some of them outside of the slow tests."""
    each = [k if k in often else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
    return pytest.mark.parametrize("kind", each)


LAG = {"serial": 0, "lockstep0x2": 0, "lockstep1x1": 1, "lockstep0x1server": 0}


def rows_up_to(ledger: Ledger) -> None:
    """Each stream's rows came once each, without a gap, from its first on.

    The last batch may have two unrolls of a stream, and the budget end in the middle of both.
    """
    fresh, past = ledger.fresh, ledger.past_budget
    assert not past & fresh.keys()
    for seed in ledger.restarts:
        mine = sorted((e, s) for s0, e, s in past.union(fresh) if s0 == seed)
        expected, episode, step = [], 0, 0
        while len(expected) < len(mine):
            expected.append((episode, step))
            step += 1
            if step == length_of(episode):
                episode, step = episode + 1, 0
        assert mine == expected
    assert set(fresh.values()) == {1}


def steps_by_stream(ledger: Ledger) -> list[int]:
    counts = Counter(ledger.restarts[seed][1] for seed, _, _ in ledger.fresh)
    return [counts[stream] for stream in range(ledger.streams)]


@kinds("serial")
def test_ppo_chunks_for_minibatches(kind: str) -> None:
    """Chunks of 4 rows stay whole, begin at their recorded state, and come once per pass."""
    chunk = 4
    plan = DataPlan(unroll_steps=12, columns_per_batch=6, state_every=chunk)
    ledger = Ledger(6, 3, chunk)
    generator = torch.Generator().manual_seed(0)

    def passes(_: SeamLearner, batch: Rollout) -> None:
        where = batch.obs["where"][:-1].flatten(0, 1)
        unused = torch.zeros(where.shape[0])
        rows = Rows(
            {"where": where}, batch.is_first[:-1].flatten(), *[unused] * 6,
            state={"s": batch.state["rows_and_sum"][:-1].flatten(0, 1)},
        )  # fmt: skip
        use = batch.valid.flatten()
        chunks = Chunks(batch.valid.shape, chunk, use.device)
        found = chunks.one_pass(use, 16, False, generator)
        seen: Counter[tuple[int, ...]] = Counter()
        for minibatch in found.minibatches(rows, unused[found.index], 0, 1):
            mini, weight = minibatch.take(), minibatch.weight
            assert math.isclose(float(weight.sum()), 1.0, rel_tol=1e-6)
            table = mini.obs["where"].view(chunk, -1, 3)
            for c in range(table.shape[1]):
                _, _episode, step = table[0, c].tolist()
                if step > 0:
                    assert int(mini.state["s"][c, 0]) == step
                for k in range(1, chunk):
                    s, e, t = table[k - 1, c].tolist()
                    over = t == length_of(e)
                    if table[k, c].tolist() == [s, e, t]:  # the run ended before this row
                        assert float(weight[k * table.shape[1] + c]) == 0.0
                        continue
                    assert table[k, c].tolist() == ([s, e + 1, 0] if over else [s, e, t + 1])
            for row in (weight > 0).nonzero().squeeze(1).tolist():
                seen[tuple(mini.obs["where"][row].tolist())] += 1
        assert sorted(seen) == sorted(tuple(w) for w in where[use].tolist())
        assert set(seen.values()) == {1}

    learner = SeamLearner(plan, ledger, on_update=passes)
    _, counters, reports = drive(kind, World(2, 3, 1000, checkpoint_iterations=5), [learner])
    assert counters.env_steps == 1000 == sum(ledger.fresh.values())
    rows_up_to(ledger)
    if kind in LAG:
        lags = {report.get("policy_lag/max") for report in reports}
        assert lags == ({0.0, 1.0} if LAG[kind] else {None})  # without any there is nothing to say


@kinds("serial")
def test_impala_takes_24_columns_out_of_groups_of_16(kind: str) -> None:
    """What a round leaves over comes in the next batch, one version old and nothing twice."""
    plan = DataPlan(unroll_steps=5, columns_per_batch=24, state_every=5, return_discount=0.5)
    ledger = Ledger(32, 16, 5, discount=0.5)
    learner = SeamLearner(plan, ledger)
    _, counters, reports = drive(kind, World(2, 16, 2000), [learner])
    assert counters.env_steps == 2000 == sum(ledger.fresh.values())
    assert set(ledger.fresh.values()) == {1}
    if kind not in LAG:  # how old the weights are, and whose rows come, is for the scheduler to say
        return
    assert {report["policy_lag/max"] for report in reports} == set(range(LAG[kind] + 2))
    # every stream gives its share: none is ahead of another by more than one unroll
    shares = steps_by_stream(ledger)
    assert max(shares) - min(shares) <= 2 * 5
    # columns that wait when streams begin anew, and at the end, are dropped and counted; the budget
    # is exact
    again = SeamLearner(plan, Ledger(32, 16, 5, discount=0.5))
    _, counters, reports = drive(kind, World(2, 16, 2000, 1), [again])
    assert counters.env_steps == 2000
    assert reports[-1]["data/discarded_columns"] == 8 * len(reports)
    assert reports[-1]["policy_lag/max"] == 0.0
    # and the streams take turns at it: each is left over every fourth time
    shares = steps_by_stream(again.ledger)
    assert min(shares) > 0.8 * max(shares)


@kinds("serial")
def test_appo_two_policies_share_the_streams(kind: str) -> None:
    """Each row belongs to one policy; a column that straddles a change goes to both learners, each
    with the other's rows masked.
    """
    plan = DataPlan(unroll_steps=8, columns_per_batch=4, state_every=8)
    ledger = Ledger(6, 3, 8)
    straddling: list[set[tuple[int, int, int]]] = [set(), set()]

    def note(me: SeamLearner, batch: Rollout) -> None:
        for b in range(4):
            if len(set(batch.policy_id[:, b].tolist())) == 2:
                straddling[me.policy].add(tuple(batch.obs["where"][0, b].tolist()))

    learners = [SeamLearner(plan, ledger, policy, note) for policy in range(2)]
    _, counters, _ = drive(kind, World(2, 3, 3000), learners)
    assert counters.env_steps == 3000 == sum(ledger.fresh.values())
    assert set(ledger.fresh.values()) == {1}  # no row goes to both
    assert min(learner.updates for learner in learners) > 20
    assert len(straddling[0] & straddling[1]) > 10


@kinds("serial")
def test_appo_groups_of_one_policy_each(kind: str) -> None:
    """Columns are wholly one policy's, and every group has it from the first row to the last."""
    plan = DataPlan(unroll_steps=8, columns_per_batch=4, state_every=8)
    ledger = Ledger(8, 2, 8)

    def of_my_groups(me: SeamLearner, batch: Rollout) -> None:
        assert (batch.policy_id == me.policy).all()
        assert (batch.group_id % 2 == me.policy).all()

    learners = [SeamLearner(plan, ledger, policy, of_my_groups) for policy in range(2)]
    world = World(4, 2, 3000, checkpoint_iterations=7, mixed=False)
    _, counters, _ = drive(kind, world, learners)
    assert counters.env_steps == 3000 == sum(ledger.fresh.values())
    assert set(ledger.fresh.values()) == {1}
    assert min(learner.updates for learner in learners) > 20


@kinds("serial")
def test_appo_drops_what_is_too_old(kind: str) -> None:
    """Batches of 2 columns out of rounds of 8: the third and fourth of a round are too old."""
    plan = DataPlan(unroll_steps=6, columns_per_batch=2, state_every=6, max_policy_lag=1)
    ledger = Ledger(8, 4, 6)
    learner = SeamLearner(plan, ledger)
    _, counters, reports = drive(kind, World(2, 4, 1000), [learner])
    assert counters.env_steps == 1000
    if kind not in LAG:
        assert reports[-1]["data/discarded_columns"] > 0
        return
    assert {report["policy_lag/max"] for report in reports} == {0.0, 1.0}
    assert reports[-1]["data/discarded_columns"] == 4 * (len(reports) // 2)
    shares = steps_by_stream(ledger)
    assert min(shares) > 0.8 * max(shares)


@kinds("lockstep0x2")
def test_ddpg_windows_and_updates_owed(kind: str) -> None:
    """Half an update per executed step, from windows of 3 rows that begin at any of them."""
    replay = ReplayPlan("windows", 400, steps=3, columns=16, draws="owed", rate=0.5)
    plan = DataPlan(unroll_steps=10, columns_per_batch=4, replay=replay)
    ledger = Ledger(4, 2, 1)

    def whole_up_to_its_cut(_: SeamLearner, batch: Rollout) -> None:
        if not batch.replayed:
            return
        assert batch.valid.shape == (3, 16)
        assert batch.valid[0].all()
        ended = batch.not_cut_t == 0
        for t in range(1, 3):  # valid goes on exactly as far as nothing cuts
            assert torch.equal(batch.valid[t], batch.valid[t - 1] & ~ended[t - 1])

    learner = SeamLearner(plan, ledger, on_update=whole_up_to_its_cut)
    _, counters, _ = drive(kind, World(2, 2, 1001, checkpoint_iterations=7), [learner])
    assert counters.env_steps == 1001 == sum(ledger.fresh.values())
    rows_up_to(ledger)
    drawn = learner.kinds.count("replayed")
    assert drawn == 1001 // 2
    assert set(ledger.replayed) <= set(ledger.fresh)
    # Draws come after the fresh batch that owes them, never before, with its env_steps.
    before = done = 0
    for what, env_steps in zip(learner.kinds, learner.env_steps, strict=True):
        if what == "fresh":
            assert done == env_steps // 2
            before = env_steps
        else:
            done += 1
            assert env_steps == before


@kinds("asyncx2server")
def test_acer_poisson_draws_of_sequences(kind: str) -> None:
    """Whole unrolls of each stream with their states; none before the start size."""
    replay = ReplayPlan(
        "sequences", 600, steps=6, columns=4, draws="poisson", rate=3.0, start_steps=200,
        column_source="per_stream",
    )  # fmt: skip
    plan = DataPlan(unroll_steps=6, columns_per_batch=4, state_every=3, replay=replay)
    ledger = Ledger(4, 2, 3)

    def of_each_stream(_: SeamLearner, batch: Rollout) -> None:
        if batch.replayed or kind in LAG:
            assert batch.stream_id.tolist() == [0, 1, 2, 3]
        assert batch.state["rows_and_sum"].shape == (3, 4, 2)

    learner = SeamLearner(plan, ledger, on_update=of_each_stream)
    drive(kind, World(2, 2, 3000, checkpoint_iterations=20), [learner])
    assert sum(ledger.fresh.values()) == 3000
    first = learner.kinds.index("replayed")
    assert sum(1 for k in learner.kinds[:first] if k == "fresh") >= 200 // 24
    fresh = learner.kinds.count("fresh") - learner.kinds[:first].count("fresh") + 1
    draws = learner.kinds.count("replayed")
    assert abs(draws / fresh - 3.0) < 5 * math.sqrt(3.0 / fresh)
    assert set(ledger.replayed) <= set(ledger.fresh)
