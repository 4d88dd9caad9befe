"""The order of entries, and sentences about it."""

from quintet.race.journal import Look, Runner
from quintet.race.standing import ranked, standing


def runner(
    name: str, returns: list[float], training: float | None = 0.0, algo: str = "ppo"
) -> Runner:
    look = Look(returns=returns, env_steps=100, at_s=1.0, training=training)
    return Runner(name=name, algo=algo, options={}, why="a test", looks=[look])


def order(*runners: Runner) -> list[str]:
    return [each.name for each in ranked(runners)]


def test_greedy_episodes_are_not_compared_with_sampled_ones() -> None:
    a, b, c = runner("a", [5.0], 9.0), runner("b", [6.0], 7.0), runner("c", [], 8.0)
    assert order(a, b) == ["b", "a"]
    assert order(b, c, a) == ["a", "c", "b"]


def test_entries_without_an_episode_are_the_last() -> None:
    a, b, c = runner("a", [], None), runner("b", [-9.0], -9.0), runner("c", [], None)
    assert order(a, b, c) == ["b", "a", "c"]


def test_of_equal_entries_each_learner_stays_with_one() -> None:
    a, b = runner("a", [0.0]), runner("b", [0.0])
    c, d = runner("c", [0.0], algo="acer"), runner("d", [0.0], algo="acer")
    assert order(a, b, c, d) == ["a", "c", "b", "d"]
    assert order(runner("e", [1.0]), a, c, d) == ["e", "c", "a", "d"]
    assert standing(ranked([a, c, b]), 2).endswith("; equal scores decide nothing")
    assert "equal" not in standing(ranked([runner("e", [1.0]), a]), 1)
