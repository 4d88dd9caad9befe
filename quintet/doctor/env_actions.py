"""Findings about actions."""

import math

from quintet.doctor.env_observations import hides_state
from quintet.doctor.finding import Finding
from quintet.doctor.seen import Seen

_LEAST = 20  # comparisons
_SHARE = 0.25  # share of the effect of actions that belongs to episodes
_REACHED = 0.3  # part of the range of actions


def action_ignored(seen: Seen) -> Finding | None:
    """Other actions change neither observations, nor rewards, nor endings."""
    pairs = seen.pairs
    if pairs is None or pairs.unlike or pairs.compared < _LEAST:
        return None
    if pairs.changed or pairs.rewarded or pairs.returns_differ:
        return None
    return Finding(
        "action-ignored",
        0.6 if pairs.cut else 0.97,
        f"actions change nothing in the first {pairs.looked} steps of an episode: with the same "
        "seed, other actions gave the same observations, rewards and endings",
        {"comparisons": pairs.compared, "in which anything changed": 0},
        "look at what step() does with its action, and at wrappers that replace it",
        seen.options.check,
    )


def reward_ignores_action(seen: Seen) -> Finding | None:
    """Other actions change observations, but no reward and no ending."""
    pairs, played = seen.pairs, seen.played
    if pairs is None or played is None or pairs.unlike or pairs.compared < _LEAST:
        return None
    if not pairs.changed or pairs.rewarded or pairs.returns_differ:
        return None
    if pairs.varied < 3:
        return None  # alike in all of these steps: nothing is known of later ones
    rewards = played.reward[played.valid]
    if not len(rewards) or rewards.min() == rewards.max():
        return None  # reward_constant says more
    _, lengths, terminated = played.returns(held=True)
    if terminated.any() and lengths.min() != lengths.max():
        return None
    return Finding(
        "reward-ignores-action",
        0.75,
        "no reward depends on the actions: with the same seed, entirely other actions gave "
        "the same rewards and endings",
        {"seeds": pairs.seeds, "with other rewards": 0},
        "compute the reward from the state that the action has led to",
        seen.options.check,
    )


def action_inconsistent(seen: Seen) -> Finding | None:
    """The same action has another effect in each episode."""
    fits = seen.fits
    if fits is None or fits.action_by_episode < _SHARE or fits.clock is not None:
        return None
    return Finding(
        "action-inconsistent",
        min(0.95, 0.6 + fits.action_by_episode / 2),
        "the same action has another effect in each episode, and no observation shows which",
        {"share of its effect that differs between episodes": fits.action_by_episode},
        "give actions a fixed meaning, or show in the observation which one holds",
        seen.options.check,
    )


def action_saturated(seen: Seen) -> Finding | None:
    """Most actions in the range of a Box have the same effect."""
    pairs = seen.pairs
    if pairs is None or math.isnan(pairs.reached) or pairs.reached >= _REACHED:
        return None
    if pairs.unlike or not pairs.changed:
        return None
    return Finding(
        "action-saturated",
        0.7,
        f"actions beyond {pairs.reached or 0.1:.0%} of their bounds have the same effect as "
        "the bounds, and a policy that is scaled to the bounds acts there nearly always",
        {"part of the range that matters": pairs.reached},
        "give the Box the bounds within which actions differ",
        seen.options.check,
    )


def observation_late(seen: Seen) -> Finding | None:
    """An action changes only observations after the next one."""
    pairs = seen.pairs
    if pairs is None or pairs.unlike or len(pairs.first) < _LEAST:
        return None
    late = sum(each > 1 for each in pairs.first) / len(pairs.first)
    if late < 0.9:
        return None
    usual = sorted(pairs.first)[len(pairs.first) // 2]
    known = seen.options.memory or seen.options.shows_last
    weight = 0.3 if known else 0.91 if late > 0.98 else 0.6
    if hides_state(seen.fits):
        weight *= 0.5  # positions without velocities follow an action late too
    return Finding(
        "observation-late",
        weight,
        f"an action changes only the observation {usual} steps later, not the next one",
        {"share of the actions with a late effect": late, "steps until the effect": usual},
        "return from step() the observation after the action; if the delay belongs to the task, "
        "the policy needs a memory, or its last actions in the observation",
        "" if seen.options.memory else f"{seen.options.train} {seen.options.remember}",
    )


FINDINGS = (
    action_ignored,
    reward_ignores_action,
    action_inconsistent,
    action_saturated,
    observation_late,
)
