"""The order of entries, and sentences about it."""

from quintet.search.race_journal import Look, Runner
from quintet.search.score import better_sampled, score
from quintet.search.standing import behind, ranked, standing


def runner(
    name: str,
    returns: list[float],
    training: float | None = 0.0,
    algo: str = "ppo",
    sampled: list[float] | None = None,
    env_steps: int = 100,
) -> Runner:
    look = Look(
        returns=returns, sampled=sampled or [], env_steps=env_steps, at_s=1.0, training=training
    )
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
    assert standing(ranked([a, c, b]), 2).endswith("; the order of equal scores means nothing")
    assert "equal" not in standing(ranked([runner("e", [1.0]), a]), 1)


def test_a_policy_is_judged_by_the_actions_that_are_surely_better() -> None:
    """Greedy actions of a wide policy are noise: their mean may be higher by luck."""
    wide = runner("wide", [0.0, 0.0, 0.0, 0.0, 250.0], sampled=[40.0, 41.0, 42.0, 43.0, 44.0])
    sharp = runner("sharp", [45.0, 46.0, 47.0], sampled=[1.0, 2.0, 3.0])
    assert [score(each.looks[0]).how for each in (wide, sharp)] == ["sampled", "greedy"]
    assert order(wide, sharp) == ["sharp", "wide"]  # 50 greedily, which is one lucky episode
    said = standing(ranked([wide, sharp]), 1)
    assert said == "sharp 46 [45, 47] (greedy) stays; out: wide 42 [40.8, 43.2] (sampled)"
    told = better_sampled(wide.looks[0])
    assert "42 [40.8, 43.2] (sampled) against 50 [0, 150] (greedy)" in told
    assert "quintet eval --stochastic" in told
    assert better_sampled(sharp.looks[0]) == ""
    assert better_sampled(runner("a", [], sampled=[1.0, 2.0]).looks[0]) == ""


def test_the_default_may_fall_out_when_it_has_had_as_many_env_steps() -> None:
    default, fast, slow = (
        runner("default", [1.0], env_steps=1_000),
        runner("fast", [3.0], env_steps=5_000),
        runner("slow", [2.0], env_steps=500),
    )
    by_score = ranked([default, fast, slow])
    assert behind(by_score, 2, "default") == 5_000
    assert behind(by_score, 3, "default") == 0  # it stays anyway
    assert behind(by_score, 2, "fast") == 0
    near = runner("default", [1.0], env_steps=4_600)
    assert behind(ranked([near, fast, slow]), 2, "default") == 0
