"""Curves of text."""

import pytest

from quintet.observe.text_curve import TextCurve, label


def curve(*points: tuple[float, float]) -> TextCurve:
    made = TextCurve()
    for x, y in points:
        made.add(x, y)
    return made


def test_rising_line_in_ascii_and_braille() -> None:
    rising = curve((0, 0.0), (10, 8.0))
    assert rising.lines(11, 3, ascii_only=True) == [
        "8       .-'",
        "     .-'   ",
        "0 .-'      ",
    ]
    for ascii_only in (True, False):
        drawn = rising.lines(30, 3, ascii_only)
        assert [line[0] for line in drawn] == ["8", " ", "0"]
        blank = " " if ascii_only else "\u2800"
        first = [min(i for i, c in enumerate(line[2:]) if c != blank) for line in drawn]
        assert first[0] > first[1] > first[2] == 0, "it rises to the right"
        assert all(len(line) == 30 for line in drawn)


def test_no_line_without_two_points_or_room() -> None:
    assert curve().lines(30, 3, True) == []
    assert curve((5, 1.0)).lines(30, 3, True) == []
    assert curve((5, 1.0), (5, 2.0)).lines(30, 3, True) == []
    assert curve((0, 0.0), (1, 1.0)).lines(5, 3, True) == []
    assert curve((0, 0.0), (1, 1.0)).lines(30, 0, True) == []
    assert len(curve((0, 0.0), (1, 1.0)).lines(30, 1, False)) == 1


@pytest.mark.parametrize("ascii_only", [True, False])
def test_constant_line_stays_at_its_foot(ascii_only: bool) -> None:
    drawn = curve((0, 7.0), (1, 7.0)).lines(20, 2, ascii_only)
    assert set(drawn[0][2:]) <= {" ", "\u2800"}
    assert len(set(drawn[1][2:])) == 1


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    made = curve(*((x, float(x)) for x in range(10_001)))
    assert (made._points[0][0], made._points[-1][0]) == (0, 10_000)
    assert len(made._points) <= 1024
    assert made.lines(40, 3, True)[0].startswith("10,000")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (231.44, "231.4"),
        (-10.0, "-10.0"),
        (0.0123456, "0.0123"),
        (1.2e-5, "1.2e-05"),
        (0.0, "0"),
        (3e9, "3e+09"),
    ],
)
def test_labels(value: float, text: str) -> None:
    assert label(value) == text
