"""Curves of text."""

import pytest

from quintet.observe.text_curve import TextCurve, label


def curve(*points: tuple[float, float]) -> TextCurve:
    made = TextCurve()
    for x, y in points:
        made.add(x, y)
    return made


def test_rising_line() -> None:
    rising = curve((0, 0.0), (10, 8.0))
    assert rising.lines(8, 2) == ["8 ⠀⠀⠀⣀⠔⠊", "0 ⡠⠔⠉⠀⠀⠀"]
    drawn = rising.lines(30, 3)
    assert [line[0] for line in drawn] == ["8", " ", "0"]
    first = [min(i for i, c in enumerate(line[2:]) if c != "\u2800") for line in drawn]
    assert first[0] > first[1] > first[2] == 0, "it rises to the right"
    assert all(len(line) == 30 for line in drawn)


def test_no_line_without_two_points_or_room() -> None:
    assert curve().lines(30, 3) == []
    assert curve((5, 1.0)).lines(30, 3) == []
    assert curve((5, 1.0), (5, 2.0)).lines(30, 3) == []
    assert curve((0, 0.0), (1, 1.0)).lines(5, 3) == []
    assert curve((0, 0.0), (1, 1.0)).lines(30, 0) == []
    assert len(curve((0, 0.0), (1, 1.0)).lines(30, 1)) == 1


def test_constant_line_stays_at_its_foot() -> None:
    drawn = curve((0, 7.0), (1, 7.0)).lines(20, 2)
    assert set(drawn[0][2:]) <= {" ", "\u2800"}
    assert len(set(drawn[1][2:])) == 1


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    made = curve(*((x, float(x)) for x in range(10_001)))
    assert (made._points[0][0], made._points[-1][0]) == (0, 10_000)
    assert len(made._points) <= 1024
    assert made.lines(40, 3)[0].startswith("10,000")


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
