"""What `Interval` makes of the statistics of many updates."""

import math

import pytest
import torch

from quintet.algorithms.parts.statistics import SUM_EVERY, Interval, Statistics


@pytest.mark.parametrize("calls", [1, SUM_EVERY, 2 * SUM_EVERY + 3])
def test_an_interval_is_that_of_all_its_updates(calls: int) -> None:
    """NaN is no value of an update, and the next interval begins anew."""
    interval = Interval()
    for begin in (0, 1000):
        numbers = torch.randperm(calls, generator=torch.Generator().manual_seed(0)) + begin
        given = numbers.double().where(numbers % 3 != 1, math.nan)
        for number, x in zip(numbers.double(), given, strict=True):
            interval.add(Statistics({"mean": number, "some": x}, {"least": x}, {"greatest": x}))
            if number % 2 == 0:
                interval.add(Statistics({"even": number}))
        found = interval.read()
        some = given[~given.isnan()]
        expected = {
            "mean": numbers.double().mean(),
            "even": numbers[numbers % 2 == 0].double().mean(),
        }
        if len(some):
            expected |= {"some": some.mean(), "least": some.min(), "greatest": some.max()}
        assert found == pytest.approx({name: x.item() for name, x in expected.items()})
    assert interval.read() == {}
