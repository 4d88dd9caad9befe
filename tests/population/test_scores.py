"""What policies are ranked by: equal spans of their own env_steps, with enough episodes."""

import json
from typing import Any

import pytest

from quintet.population.scores import MEANS, MOST_WINDOWS, Record, compared
from quintet.runtime.batch import Episode

RETURN = "episode/return_mean"


def played(
    length: int, until: int, first: float = 0.0, rise: float = 0.0, since: int = 0, **rest: Any
) -> Record:
    """A policy whose episodes are all of one length, and end one after another up to `until`; the
    return of one that ends at t is ``first + rise * t``.
    """
    record = Record(rest.pop("longest", 100_000))
    record.env_steps = since
    record.begin_anew()
    for end in range(since + length, until + 1, length):
        record.add(end, [Episode(0, 0, first + rise * end, length, **rest)])
    record.add(until, [])
    return record


def test_short_and_long_episodes_are_compared_over_the_same_span() -> None:
    """Both returns rise by 1 per env_step.  Over the last 20 episodes of each the short ones would
    be 2,350 ahead; over the same span they are as new as the long ones.
    """
    short, long = played(10, 10_000, rise=1.0), played(500, 10_000, rise=1.0)
    assert compared([short, long], RETURN, 1_000, 1) == [9_505.0, 9_750.0]
    assert compared([short, long], RETURN, 1_000, 10) == [7_750.0, 7_750.0]


def test_the_span_is_the_window_where_it_holds_enough_episodes_of_all() -> None:
    records = [played(10, 2_000, rise=1.0), played(20, 2_000, rise=1.0)]
    assert compared(records, RETURN, 400, 20) == [1_805.0, 1_810.0]


def test_a_copy_with_too_few_episodes_is_not_ranked_and_others_are() -> None:
    """Its short episodes end first."""
    ready, copy = played(10, 1_000, 1.0), played(10, 1_000, 9.0, since=960)
    assert compared([ready, copy], RETURN, 100, 5) == [1.0, None]
    assert compared([ready, copy], RETURN, 20, 4) == [1.0, 9.0]
    assert compared([ready, copy], RETURN, 100, 4) == [1.0, None], "not for the whole window"
    long = played(100, 1_000, 3.0)  # needs a longer span, which the copy has not
    assert compared([ready, copy, long], RETURN, 20, 4) == [1.0, None, 3.0]


def test_a_policy_that_hardly_ends_an_episode_holds_up_nobody() -> None:
    longest = MOST_WINDOWS * 100
    slow = played(400, 4_000, 7.0, longest=longest)
    others = [played(10, 4_000, x, longest=longest) for x in (1.0, 2.0)]
    assert compared([*others, slow], RETURN, 100, 5) == [1.0, 2.0, None]
    assert compared([*others, slow], RETURN, 100, 2) == [1.0, 2.0, 7.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [(RETURN, 1.0), ("episode/length_mean", 10.0), ("episode/success_rate", 0.5)],
)
def test_means(name: str, expected: float) -> None:
    record = Record(1_000)
    record.add(
        20, [Episode(0, k, float(k), 10, success) for k, success in enumerate((True, False))]
    )
    record.add(30, [Episode(0, 0, 2.0, 10)])
    assert MEANS.keys() == {RETURN, "episode/length_mean", "episode/success_rate"}
    assert compared([record], name, 30, 2) == [expected]
    assert compared([record], name, 30, 4) == [None]
    judged = None if name == "episode/success_rate" else expected
    assert compared([record], name, 30, 3) == [judged], "success is not defined in one of them"


def test_a_record_goes_on_where_it_was_saved() -> None:
    record, resumed = played(10, 500, rise=1.0, since=100, longest=300), Record(300)
    resumed.load(json.loads(json.dumps(record.save(), allow_nan=False)))
    for each in (record, resumed):
        each.add(510, [Episode(0, 0, 5.0, 10)])
    assert resumed.save() == record.save()
    assert record.span(RETURN, 31) is None, "older than the longest span"
    assert record.span(RETURN, 30) == 291
