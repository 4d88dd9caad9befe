"""A leak is said while there is room; caches that fill are not."""

import math

import pytest

from quintet.observe.growth import Growth, Held

HOUR_S = 3600.0


def said(held, *, left_s=HOUR_S, free=4e9, minutes=30, every_s=10.0):
    """What is said over some minutes, and when first; held: bytes of worker 3 after so long."""
    now, told = 0.0, []
    growth = Growth(lambda: now, lambda: free)
    while now < 60 * minutes:
        told += [(now, line) for line in growth.look({7: Held("worker 3", held(now))}, left_s)]
        now += every_s
    return told


def leak(now):
    return 1e9 + 2e6 * now  # 120 MB a minute


@pytest.mark.parametrize("every_s", [1.0, 10.0, 100.0])
def test_a_leak_is_said_once_while_there_is_room(every_s):
    ((when, line),) = said(leak, every_s=every_s)
    assert when <= 120 + 7 * max(30.0, every_s) + every_s
    assert "worker 3 (pid 7) holds" in line
    assert "grows by 120 MB a minute" in line
    assert "4.0 GB that are free last 33 minutes, and about 60 are left" in line


@pytest.mark.parametrize(
    "held",
    [
        lambda now: 3e9,
        lambda now: 3e9 * (1 - math.exp(-now / 60)),  # a cache that fills
        lambda now: 1e9 + 3e6 * min(now, 150),  # a first minutes' growth that ends
        lambda now: 1e9 + 5e8 * (now > 400),  # a step
        lambda now: 1e9 + 2e8 * math.sin(now / 40),
        lambda now: 1e9 + 1e3 * now,  # less than is worth a word
    ],
)
def test_no_false_alarms(held):
    assert said(held) == []


def test_a_run_that_ends_long_before_is_left_alone():
    assert said(leak, left_s=600.0) == []
    assert said(leak, free=400e9) == []


def test_a_new_process_has_its_own_first_minutes():
    now = 0.0
    growth = Growth(lambda: now, lambda: 4e9)
    for pid in (7, 8):
        begin = now
        for _ in range(40):
            now += 10.0
            lines = growth.look({pid: Held("worker 3", leak(now))}, HOUR_S)
            if lines:
                assert now - begin > 120 + 170
                break
        else:
            pytest.fail("nothing was said")
