"""Columns that wait: which of them a batch takes, and what becomes of the others."""

from collections.abc import Sequence

import torch

from quintet.protocols import DataPlan
from quintet.runtime.batch import ColumnBlock, Episode, Lease, Unroll
from quintet.runtime.delivery import Delivery
from quintet.runtime.policies import Assignment
from quintet.types import Publication, Rollout

STEPS = 4


def unroll(
    versions: Sequence[Sequence[int]],
    streams: Sequence[int] = (0, 1, 2),
    policies: Sequence[int] = (0, 0, 0),
    freed: list[int] | None = None,
    ends: Sequence[tuple[int, int]] = (),
) -> Unroll:
    """Rows of these versions ``[T, B]``, all valid, in which episodes end in the rows `ends`.

    freed: gets the first stream once nobody reads the unroll any more.
    """
    count = len(streams)
    zeros = torch.zeros(STEPS, count, dtype=torch.int64)
    column = torch.tensor(streams)
    rollout = Rollout(
        obs={}, action=zeros, reward=zeros.float(), terminated=zeros.bool(),
        truncated=zeros.bool(), valid=torch.ones(STEPS, count, dtype=torch.bool),
        is_first=torch.zeros(STEPS + 1, count, dtype=torch.bool), record={},
        version=torch.tensor(versions), policy_id=zeros + torch.tensor(policies),
        stream_id=column, group_id=column, episode_id=column,
        last_action=column, last_reward=column.float(), state={},
    )  # fmt: skip
    told = [] if freed is None else freed
    lease = Lease(lambda: told.append(streams[0]))
    episodes = [Episode(row, column, 1.0, 1) for row, column in ends]
    return Unroll(ColumnBlock(rollout, episodes, lease), streams[0], STEPS * count, 0)


def rows(*versions: int) -> list[list[int]]:
    """One version for each column, in all rows."""
    return [list(versions)] * STEPS


def make(columns: int, streams: int = 3, policies: int = 1, lag: int | None = None) -> Delivery:
    plan = DataPlan(unroll_steps=STEPS, columns_per_batch=columns, max_policy_lag=lag)
    return Delivery(plan, streams, Assignment(policies), may_lag=True)


def taken(delivery: Delivery, env_steps_left: int = 1_000) -> ColumnBlock:
    found = delivery.take(env_steps_left)
    assert found is not None
    return found[0]


def test_rows_of_old_weights_are_masked_and_the_others_of_the_column_kept() -> None:
    delivery = make(2, lag=2)
    (queue,) = delivery.queues
    versions = [[7, 3, 8], [7, 3, 8], [8, 3, 8], [8, 4, 8]]
    delivery.put(unroll(versions))
    delivery.publish(Publication(7, {}))
    queue.learned = 11  # by updates that were not published
    assert delivery.take(1_000) is None  # oldest allowed is 9: all go
    assert (queue.dropped_columns, queue.dropped_steps) == (3, 12)
    delivery.put(unroll(versions))
    queue.learned = 10
    block = taken(delivery)
    assert block.rollout.stream_id.tolist() == [0, 2]
    assert block.rollout.valid[:, 0].tolist() == [False, False, True, True]
    assert block.rollout.valid[:, 1].all()
    assert (queue.dropped_columns, queue.dropped_steps) == (4, 18)


def test_columns_that_are_joined_ahead_are_a_batch_as_they_stand() -> None:
    """Their slots are free at once; one unroll that is a batch by itself is not copied."""
    delivery, freed = make(4), list[int]()
    delivery.put(unroll(rows(0, 0), (2, 3), (0, 0), freed))
    delivery.put(unroll(rows(0, 0), (0, 1), (0, 0), freed))
    delivery.put(unroll(rows(0, 0, 0, 0), (4, 5, 6, 7), (0, 0, 0, 0), freed))
    assert delivery.batches == 2
    delivery.join_ahead(2)
    assert sorted(freed) == [0, 2]
    joined, whole = delivery.queues[0].waiting
    assert joined.rollout.stream_id.tolist() == [0, 1, 2, 3]
    assert taken(delivery) is joined
    assert taken(delivery) is whole
    assert delivery.take(1_000) is None
    whole.release()
    assert freed[2:] == [4]


def test_columns_that_age_once_they_are_joined_give_their_place_to_the_next() -> None:
    delivery = make(3, lag=2)
    delivery.put(unroll(rows(0, 5, 5), ends=[(1, 0), (3, 1)]))
    delivery.put(unroll(rows(6, 6, 6)))
    delivery.join_ahead(2)
    delivery.publish(Publication(6, {}))
    block = taken(delivery)
    assert block.rollout.stream_id.tolist() == [0, 1, 2]
    assert block.rollout.version[0].tolist() == [6, 5, 5]
    assert block.rollout.valid.all()
    batch = delivery.batch(block, 0, 1_000)
    ended = [(episode.row, episode.column) for episode in batch.episodes]
    assert ended == [(-1, -1), (3, 1)]  # the first one in a row that was dropped
    assert batch.steps.discarded == STEPS
    assert delivery.queues[0].columns == 2


def test_each_policy_takes_the_columns_in_which_it_acted_and_the_slot_is_free() -> None:
    delivery, freed = make(2, policies=2), list[int]()
    delivery.put(unroll(rows(0, 0, 0), policies=(0, 1, 0), freed=freed, ends=[(2, 1), (3, 2)]))
    assert freed == [0]
    assert [queue.columns for queue in delivery.queues] == [2, 1]
    block = taken(delivery)
    assert block.rollout.stream_id.tolist() == [0, 2]
    assert [(episode.row, episode.column) for episode in block.episodes] == [(3, 1)]
    # The last columns are too few for a batch: invalid ones make it one.
    assert delivery.take(STEPS + 1) is None
    rest = taken(delivery, STEPS)
    assert rest.rollout.stream_id.tolist() == [1, 1]
    assert rest.rollout.valid.any(0).tolist() == [True, False]
