"""What a user's own schedule of the learning rate is warned of."""

import math

import pytest
from conformance_helpers import LEARNERS

from quintet.algorithms.parts.schedule import schedule_warnings

ALGOS = [name for name, entry in LEARNERS.items() if "lr_schedule" in entry.config.model_fields]


def rates(done: float) -> float:
    return 3e-4 * (1.0 - done)


def of_what_is_left(left: float) -> float:
    return left


def rates_of_what_is_left(left: float) -> float:
    return 3e-4 * left


def constant_rate(_: float) -> float:
    return 3e-4


def cosine(done: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * done)


def warm_up(done: float) -> float:
    return min(1.0, 10.0 * done)


def one_cycle(done: float) -> float:
    return 2.0 * done if done < 0.5 else 2.0 - 2.0 * done


A_RATE, OF_LEFT = "gives a factor of the rate, not a rate", "rises until the end"


def said(algo: str, function: object, **options: float) -> list[str]:
    name = getattr(function, "__name__", function)
    whole = f"{__name__}:{name}" if callable(function) else name
    return schedule_warnings(LEARNERS[algo].config(lr_schedule=whole, **options))


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (rates, [A_RATE]), (constant_rate, [A_RATE]), (rates_of_what_is_left, [A_RATE, OF_LEFT]),
        (of_what_is_left, [OF_LEFT]), (cosine, []), (warm_up, []), (one_cycle, []),
        ("constant", []), ("linear", []),
    ],
)  # fmt: skip
def test_rates_and_functions_of_what_is_left(algo: str, function: object, words: list[str]) -> None:
    found = said(algo, function)
    assert len(found) == len(words)
    assert all(word in each for word, each in zip(words, found, strict=True)), found


def test_a_function_of_rates_beside_a_rate_of_1_is_none() -> None:
    assert not said("ppo", rates, learning_rate=1.0)
    assert "learning_rate=0.0003 to at most 9e-08" in said("ppo", rates)[0]
