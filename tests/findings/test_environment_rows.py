"""Findings about environments: each where it is planted, and not where it is absent."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from seen_environments_helpers import fits, near, number, pairs, played, seen

from quintet.doctor.clock import Clock
from quintet.doctor.fits import Next
from quintet.doctor.play import Play
from quintet.doctor.predict import Score
from quintet.doctor.seen import Options, Seen
from quintet.findings import environment, rewards
from quintet.findings.engine import evaluate, option_in
from quintet.findings.record import Finding


def one(name: str, facts: Seen) -> Finding | None:
    """The finding of a name; further words after a space say how it is planted."""
    found = evaluate("environment", facts)
    return next((each for each in found if each.name == name.partition(" ")[0]), None)


def _check(**own: Any) -> Any:
    usual = {
        "findings": [],
        "same_seeds": "",
        "same_again": "",
        "keeps": "",
        "lengths": [20],
        "step_s": 1e-4,
        "env": SimpleNamespace(max_steps=None, agents=()),
    }
    return SimpleNamespace(**(usual | own))


def _sound() -> Seen:
    rewards = np.random.default_rng(1).uniform(0, 1, (1_000, 4))
    return seen(played=played(reward=rewards), pairs=pairs(), fits=fits(), check=_check())


def _pays(share: float) -> Play:
    """Play in which the first of two actions pays in a share of the steps."""
    random = np.random.default_rng(3)
    action = np.eye(2)[random.integers(0, 2, (1_000, 4))]
    paid = (action[..., 0] > 0) & (random.random((1_000, 4)) < share)
    return replace(played(reward=paid * 1.0), action=action, one_choice=True)


_OBS = np.random.default_rng(2).standard_normal((1_001, 4, 2))
_RARE = np.zeros((1_000, 4))
_RARE[500, 0] = 1.0
_ENDS = played().terminated * -1.0

PLANTED: dict[str, Callable[[], Seen]] = {
    "action-ignored": lambda: seen(pairs=pairs(changed=0, rewarded=0, returns_differ=0)),
    "reward-ignores-action": lambda: seen(
        pairs=pairs(rewarded=0, returns_differ=0),
        played=played(reward=_OBS[:1_000, :, 0], terminated=False),
    ),
    "action-inconsistent": lambda: seen(fits=fits(action_by_episode=0.6)),
    "action-saturated": lambda: seen(pairs=pairs(reached=0.1)),
    "observation-late": lambda: seen(pairs=pairs(first=[2] * 98 + [1] * 2)),
    "reward-never-seen": lambda: seen(played=played(reward=0.0)),
    "reward-rare": lambda: seen(played=played(reward=_RARE)),
    "reward-constant": lambda: seen(played=played(reward=-1.0, terminated=False)),
    "reward-sign": lambda: seen(played=played(reward=-1.0)),
    "reward-sign at the end": lambda: seen(
        played=played(reward=np.where(played().terminated, -1.0, -1e-9))
    ),
    "reward-sign by the threshold": lambda: seen(
        played=played(reward=-1.0, terminated=False), threshold=100.0
    ),
    "reward-sign of a distance": lambda: seen(
        played=played(obs=_OBS, reward=np.abs(_OBS[1:, :, 0]))
    ),
    "reward-late": lambda: seen(
        fits=fits(reward=near(0.1), reward_lags={4: near(0.2), 32: near(0.9)})
    ),
    "reward-hidden": lambda: seen(fits=fits(reward=near(0.2), reward_by_episode=0.7)),
    "reward-memory": lambda: seen(fits=fits(reward=near(0.2), reward_memory=near(0.9))),
    "reward-noise": lambda: seen(fits=fits(reward=near(0.1), reward_memory=near(0.1))),
    "hidden-clock": lambda: seen(fits=fits(reward=near(0.5), clock=Clock(8, 0.4, of_reward=True))),
    "action-pays": lambda: seen(played=_pays(1.0)),
    "observation-constant": lambda: seen(played=played(obs=np.ones((1_001, 4, 2)))),
    "observation-scale": lambda: seen(played=played(obs=_OBS * [1.0, 1e6])),
    "observation-duplicate": lambda: seen(played=played(obs=_OBS[..., [0, 0]])),
    "observation-dead": lambda: seen(played=played(obs=_OBS * [1.0, 0.0])),
    "observation-noise": lambda: seen(
        fits=fits(next=(number(), number(now=0.5, value=0.0, loss=0.0)))
    ),
    "observation-memory": lambda: seen(fits=fits(next=(number(now=0.3, memory=0.95), number()))),
    "not-finite": lambda: seen(played=played(bad="observation 'obs' is nan at step 7")),
    "check-fault": lambda: seen(check=_check(findings=[Finding("it is odd", name="check-fault")])),
    "not-repeatable": lambda: seen(check=_check(same_seeds="reward at step 3")),
    "remembers": lambda: seen(remembers="a reward at step 2"),
    "same-start": lambda: seen(pairs=pairs(starts=1), played=played(obs=np.ones((1_001, 4, 2)))),
    "never-ends": lambda: seen(check=_check(lengths=[]), played=played(every=0)),
    "ends-at-once": lambda: seen(played=played(every=1, vary=False)),
    "gamma-one": lambda: seen(played=played(terminated=False), options=Options(gamma=1.0)),
    "slow-step": lambda: seen(check=_check(step_s=0.2)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_found_where_it_is_planted(name: str):
    found = one(name, PLANTED[name]())
    assert found is not None
    assert 0.0 < found.weight < 1.0
    assert found.said
    assert found.advice
    assert all(np.isfinite(x) for x in found.evidence.values())


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_not_found_where_it_is_absent(name: str):
    assert one(name, _sound()) is None


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_found_where_nothing_was_measured(name: str):
    assert one(name, seen()) is None


def test_a_number_is_large_beside_the_others():
    def found(scale: list[float], **options: Any) -> Any:
        own = seen(played=played(obs=_OBS * scale), options=Options(**options))
        return one("observation-scale", own)

    assert found([1e-3, 1e3]) is not None
    assert found([1e5, 1e5]) is None  # alike
    assert found([1e-3, 1.0]) is None  # not large
    assert found([1.0, 2e3], normalizes=False).degree == "likely"
    assert found([1.0, 2e3], normalizes=True).degree == "possible"


def test_a_start_that_each_environment_repeats():
    own = np.arange(4.0)[None, :, None] * np.ones((1_001, 4, 2))
    found = one("same-start", seen(played=played(obs=own)))
    assert found is not None
    assert found.degree == "likely"
    assert found.said.startswith("each of 4 environments begins all of its episodes")
    game = _check(env=SimpleNamespace(max_steps=None, agents=("a", "b")))
    assert one("same-start", seen(played=played(obs=own), check=game)) is None
    few = played(obs=own, every=300)  # up to four episodes of each
    assert one("same-start", seen(played=few)) is None


def test_what_the_last_actions_tell_needs_no_memory():
    told, hidden = (number(now=0.3, memory=0.95, delay=x) for x in (0.93, 0.5))
    words = []
    for each in (told, hidden):
        found = one("observation-memory", seen(fits=fits(next=(each, number()))))
        assert found is not None
        words.append(found.option)
    assert words == ["--env.observe-last true", "--model.core lstm"]
    shown = seen(fits=fits(next=(told, number())), options=Options(shows_last=True))
    found = one("observation-memory", shown)
    assert found is not None
    assert found.degree == "note"
    late = seen(pairs=pairs(first=[2] * 100), options=Options(shows_last=True))
    found = one("observation-late", late)
    assert found is not None
    assert found.degree == "possible"
    # Scores that are as uncertain do not say that actions tell it.
    unsure = Next("x", Score(0.1, 0.15), Score(0.62, 0.15), near(0.99), Score(0.15, 0.25))
    found = one("observation-memory", seen(fits=fits(next=(unsure, number()))))
    assert found is not None
    assert "the two steps before" in found.said
    assert found.option == "--model.core lstm"


def test_flags_that_are_set_once_agree_by_chance():
    once = np.zeros((1_001, 4, 2))
    once[500, 0] = 1.0
    assert one("observation-duplicate", seen(played=played(obs=once))) is None
    opposite = np.concatenate([_OBS[..., :1], -_OBS[..., :1]], -1)
    assert one("observation-duplicate", seen(played=played(obs=opposite))) is None


def test_a_goal_that_is_rarely_met_beside_the_cost_of_a_step():
    found = one("reward-rare", seen(played=played(reward=_RARE - 0.01)))
    assert found is not None
    assert "another reward than -0.01 in 1 of" in found.said
    assert found.degree == "possible"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--gamma 0.999", "--gamma 0.999"),
        ("--normalize-observations true scales floats", "--normalize-observations true"),
        (
            """if it is other, --model.encoder-kwargs '{"layout": "hwc"}'""",
            """--model.encoder-kwargs '{"layout": "hwc"}'""",
        ),
        ("a larger --total-steps, or a smaller action space", ""),
        ("--name it's; rm", """--name 'it'"'"'s;'"""),
        ("", ""),
    ],
)
def test_words_of_a_choice(option: str, words: str):
    assert option_in(option) == words


def test_every_row_is_planted():
    rows = [*rewards.finding.rows, *environment.finding.rows]
    assert {name for row in rows for name in row.names} == {x.partition(" ")[0] for x in PLANTED}


def test_a_step_that_costs_until_the_goal_is_only_asked_about():
    found = one("reward-sign", seen(played=played(reward=-1.0)))
    assert found is not None
    assert found.degree == "possible"


def test_a_number_of_two_values_is_no_distance():
    turn = np.where(np.arange(1_001) % 2, 1.0, -1.0)[:, None, None] * np.ones((1, 4, 2))
    rewards = np.abs(np.random.default_rng(1).standard_normal((1_000, 4)))
    assert one("reward-sign", seen(played=played(obs=turn, reward=rewards))) is None


@pytest.mark.parametrize(("rows", "degree"), [(1_000, "possible"), (2_500, "likely")])
def test_that_nothing_ends_is_likely_only_after_many_steps(rows: int, degree: str):
    found = one("never-ends", seen(check=_check(lengths=[]), played=played(rows, every=0)))
    assert found is not None
    assert found.degree == degree


def test_a_memory_makes_findings_about_memory_notes():
    planted = PLANTED["observation-memory"]().fits
    with_memory = seen(fits=planted, options=Options(memory=True))
    found = one("observation-memory", with_memory)
    assert found is not None
    assert found.degree == "note"


def test_positions_without_velocities_lack_a_memory_first():
    """An action that shows late is also what an observation without velocities looks like."""
    late = pairs(first=[2] * 100)
    told, hidden = (number(now=0.3, memory=0.99, delay=x) for x in (0.98, 0.7))
    for each, first in ((told, "observation-late"), (hidden, "observation-memory")):
        both = seen(pairs=late, fits=fits(next=(each, number())))
        found = [one("observation-late", both), one("observation-memory", both)]
        assert max(found, key=lambda x: x.weight if x else 0.0).name == first  # type: ignore[union-attr]


ABSENT: dict[str, tuple[str, Callable[[], Seen]]] = {
    "noise that is a hidden clock": (
        "reward-noise",
        lambda: seen(fits=fits(reward=near(0.1), clock=Clock(8, 0.4, of_reward=True))),
    ),
    "memory that is a hidden clock": (
        "observation-memory",
        lambda: seen(
            fits=fits(next=(number(now=0.3, memory=0.95),), clock=Clock(8, 0.4, of_reward=False))
        ),
    ),
    "an action that pays often": (
        "action-pays",
        lambda: seen(played=_pays(0.9)),
    ),
    "every action pays": (
        "action-pays",
        lambda: seen(played=replace(_pays(1.0), reward=np.ones((1_000, 4)))),
    ),
    "a number that is redrawn and used": (
        "observation-noise",
        lambda: seen(
            fits=fits(next=(number(), replace(number(now=0.5, value=0.0, loss=0.0), used=True)))
        ),
    ),
    "rewards that were alike while actions were compared": (
        "reward-ignores-action",
        lambda: seen(
            pairs=pairs(rewarded=0, returns_differ=0, varied=0),
            played=played(reward=_OBS[:1_000, :, 0], terminated=False),
        ),
    ),
    "a predictor that fails": (
        "reward-noise",
        lambda: seen(fits=fits(reward=Score(0.1, 0.3), reward_memory=near(0.1))),
    ),
    "a reward that the nearest observations tell": (
        "reward-noise",
        lambda: seen(
            fits=fits(reward=near(0.1), reward_memory=near(0.1), reward_nearest=near(0.6))
        ),
    ),
    "a reward that is late and not remembered": (
        "reward-memory",
        lambda: seen(
            fits=fits(reward=near(0.2), reward_memory=near(0.92), reward_lags={8: near(0.9)})
        ),
    ),
    "a good score of episodes that end at once": (
        "reward-sign",
        lambda: seen(played=played(reward=0.5, every=1, vary=False), threshold=-100.0),
    ),
    "an end after the rows": (
        "never-ends",
        lambda: seen(
            check=_check(lengths=[]),
            played=replace(played(2_500, every=0), ended=True, steps=2_600),
        ),
    ),
}


@pytest.mark.parametrize("what", ABSENT)
def test_what_is_sound_raises_no_alarm(what: str):
    name, sound = ABSENT[what]
    assert one(name, sound()) is None


def test_what_is_hidden_is_likely_only_where_it_matters():
    def weight(score: float, shown: int = 0) -> float:
        hidden = fits(reward=near(score), reward_by_episode=0.25, shown_by_episode=shown)
        found = one("reward-hidden", seen(fits=hidden))
        assert found is not None
        return found.weight

    assert weight(0.75) < 0.5 < weight(0.2)
    assert weight(0.2, shown=2) < 0.5


def test_random_play_that_counts_as_solved_is_told() -> None:
    above = seen(played=played(reward=1.0), threshold=-100.0)
    found = one("reward-sign", above)
    assert found is not None
    assert "random play is above it" in found.said
    assert found.evidence["mean return of random play"] > 0
    assert one("reward-sign", seen(played=played(reward=1.0), threshold=1e6)) is None


def test_what_counts_as_solved_inside_a_wrapper_says_less():
    rewards = played(reward=-1.0)
    inside, own = (
        one("reward-sign", seen(played=rewards, threshold=475.0, wrapped=wrapped))
        for wrapped in (True, False)
    )
    assert inside is not None
    assert own is not None
    assert 0.5 < inside.weight < own.weight


def test_the_step_that_is_to_be_remembered_is_named():
    found = one(
        "reward-memory", seen(fits=fits(reward=near(0.0), reward_memory=near(0.9), memory_steps=4))
    )
    assert found is not None
    assert "what was 4 steps before" in found.said


def test_numbers_that_a_task_draws_anew_are_no_likely_noise():
    noise, drawn = number(now=0.5, value=0.0, loss=0.0), number(now=0.5, value=0.0, loss=0.0)
    for used, degree in ((False, "likely"), (True, "possible")):
        own = (number(), number(), noise, replace(drawn, used=used))
        found = one("observation-noise", seen(fits=fits(next=own)))
        assert found is not None
        assert found.degree == degree


@pytest.mark.parametrize(("rewarded", "degree"), [(0, "likely"), (50, "possible")])
def test_a_task_of_one_decision_is_no_likely_fault(rewarded: int, degree: str):
    once = played(every=1, vary=False)
    found = one("ends-at-once", seen(played=once, pairs=pairs(rewarded=rewarded)))
    assert found is not None
    assert found.degree == degree
