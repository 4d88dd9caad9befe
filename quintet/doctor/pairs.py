"""Episodes that begin alike and continue with other actions: what actions change.

All streams get one seed and the same random actions up to a step; there each takes another action,
and afterwards all take the same ones again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from quintet.envs.random_play import Chooser, chosen_rows, uniform_chooser
from quintet.envs.vector import VectorEnv
from quintet.spaces import action_leaves, mask_sizes, observation_leaves
from quintet.types import ACTION_MASK, LAST_ACTION, Obs

AFTER = 12  # steps after the other action that are compared
AGAIN = 30  # steps of an episode that is repeated
LEAST_COMPARED = 20
LEAST_RESETS = 4  # resets of all streams that a comparison makes at least
_PREFIXES = (0, 1, 3, 6, 10, 20)
_LATER = (60, 150, 400)  # tried if nothing has changed so far: some games begin with a scene
_PARTS = (1.0, 0.5, 0.25, 0.1)  # parts of the greatest action of a Box


@final
@dataclass
class Pairs:
    """Comparisons of streams that took another action with one that did not.

    compared: number of comparisons; changed: number of them in which an observation changed within
        AFTER steps, `rewarded` a reward, `ended` the ending.
    first: steps after which an observation changed, one for each of `changed`.
    seeds: number of seeds; returns_differ: number of those for which entirely other actions gave
        other rewards or another ending; varied: number of those in which rewards varied.
    unlike: what differed although seed and actions were the same; "" if nothing did.
    reached: fraction of the greatest action up to which larger actions made a difference; 1: all
        did; nan: no Box with bounds.
    starts: number of different first observations of `seeds` seeds.
    looked: number of steps of an episode within which actions were compared; cut: whether there
        was no time for more, if nothing had changed.
    """

    compared: int = 0
    changed: int = 0
    rewarded: int = 0
    ended: int = 0
    first: list[int] = field(default_factory=list)
    seeds: int = 0
    returns_differ: int = 0
    varied: int = 0
    unlike: str = ""
    reached: float = math.nan
    starts: int = 0
    looked: int = 0
    cut: bool = False

    @property
    def alike(self) -> bool:
        """Whether streams with the same seed and actions stayed alike in enough comparisons."""
        return not self.unlike and self.compared >= LEAST_COMPARED

    @property
    def pays(self) -> bool:
        """Whether other actions gave other rewards or another ending."""
        return bool(self.rewarded or self.returns_differ)


def compare(env: VectorEnv, seed: int, most_s: float) -> Pairs:
    """Compares as many beginnings as `most_s` seconds allow."""
    found, begin = Pairs(), perf_counter()
    count, starts = env.num_streams, set[bytes]()
    greatest = _greatest(env, seed)
    fractions: list[float] = []
    for number in range(8):
        own = seed + 1000 * number
        for prefix in (*_PREFIXES, *_LATER):
            if prefix in _LATER and (found.changed or found.unlike):
                break
            other = _Branch(env, own, prefix, ())
            track = _track(env, own, prefix + 1 + AFTER, other)
            starts.add(track.start)
            if track.unlike:
                found.unlike = found.unlike or track.unlike
            found.looked = max(found.looked, _add(found, track, prefix, other.unlike))
            if greatest is not None and prefix < 7:
                parts = [part * sign for part in _PARTS for sign in (1.0, -1.0)]
                branch = _Branch(env, own, prefix, [greatest * part for part in parts[: count - 2]])
                fractions.append(
                    _largest_fraction(_track(env, own, prefix + 1 + AFTER, branch), prefix)
                )
            if perf_counter() - begin > most_s:
                found.cut = prefix != _LATER[-1]
                break
        if found.seeds and perf_counter() - begin > most_s:
            break
        found.seeds += 1
        track = _track(env, own, 60, uniform_chooser(env, own))
        found.returns_differ += _other_returns(track)
        found.varied += bool((track.reward != track.reward[0, 0]).any())
        if perf_counter() - begin > most_s:
            break
    known = [x for x in fractions if not math.isnan(x)]
    found.reached = max(known) if known else math.nan
    found.starts = len(starts)
    return found


@final
@dataclass
class _Track:
    """Rows ``[T, B]`` of streams with one seed: hashes of observations, rewards, endings."""

    start: bytes
    obs: NDArray[np.int64]
    reward: NDArray[np.float64]
    ended: NDArray[np.bool_]
    unlike: str


def _track(env: VectorEnv, seed: int, steps: int, choose: Chooser) -> _Track:
    """Rows that copies with the same seed give for the chosen actions."""
    count = env.num_streams
    names = [
        name
        for name in observation_leaves(env.spaces.observation)
        if name != ACTION_MASK and name.split("/")[0] != LAST_ACTION
    ]
    obs, reward, ended, unlike, start = [], [], [], "", b""
    for step in chosen_rows(env, steps, [seed] * count, choose):
        row = step.row
        hashes = [hash(tuple(row.obs[n][b].tobytes() for n in names)) for b in range(count)]
        if not step.number:
            start = b"".join(row.obs[name][0].tobytes() for name in names)
            if len(set(hashes)) > 1:
                unlike = "the first observation"
            continue
        obs.append(hashes)
        reward.append(row.raw_reward.astype(np.float64))
        ended.append(row.terminated | row.truncated)
        equal = np.array_equal(row.raw_reward[:1], row.raw_reward[1:2], equal_nan=True)
        pair = hashes[0] != hashes[1], not equal
        if not unlike and any(pair):
            what = "an observation" if pair[0] else "a reward"
            unlike = f"{what} at step {step.number}"
    shape = (len(obs), count)
    return _Track(
        start,
        np.array(obs, np.int64).reshape(shape),
        np.array(reward, float).reshape(shape),
        np.array(ended, bool).reshape(shape),
        unlike,
    )


def _add(found: Pairs, track: _Track, prefix: int, unlike: Sequence[int]) -> int:
    """Compares the streams that took another action with stream 0, as long as no episode has ended;
    returns the number of steps that were compared, with those before the other action."""
    if track.unlike or track.ended[:prefix].any():
        return 0
    for stream in unlike:
        other_end = False
        last = len(track.obs)
        for t in range(prefix, len(track.obs)):
            if track.ended[t, 0] or track.ended[t, stream]:
                other_end = track.ended[t, 0] != track.ended[t, stream]
                last = t + 1
                break
        rows = slice(prefix, last)
        other = track.obs[rows, stream] != track.obs[rows, 0]
        paid = track.reward[rows, stream] != track.reward[rows, 0]
        found.compared += 1
        found.changed += bool(other.any() or other_end)
        found.rewarded += bool(paid.any())
        found.ended += bool(other_end)
        if other.any():
            found.first.append(int(other.argmax()) + 1)
    return len(track.obs) if unlike else 0


def _largest_fraction(track: _Track, prefix: int) -> float:
    """The largest fraction of the greatest action whose effect differs from the next smaller's."""
    if track.unlike or track.ended[: prefix + 1].any():
        return math.nan
    rows = track.obs[prefix:, 2:]
    for place in range(rows.shape[1] - 2):
        larger, smaller = rows[:, place], rows[:, place + 2]
        if (larger != smaller).any():
            return _PARTS[place // 2]
    return 0.0 if rows.shape[1] >= 2 * len(_PARTS) else math.nan


def _other_returns(track: _Track) -> bool:
    """Whether entirely other actions gave any other reward, or another ending."""
    totals = np.cumsum(track.reward, 0)
    for stream in range(1, track.reward.shape[1]):
        if (totals[:, stream] != totals[:, 0]).any():
            return True
        if (track.ended[:, stream] != track.ended[:, 0]).any():
            return True
    return False


def _greatest(env: VectorEnv, seed: int) -> NDArray[Any] | None:
    """A packed action at the edge of a space that is one Box with bounds: in a random direction,
    since an environment may heed only how its numbers differ from each other.
    """
    leaves = action_leaves(env.spaces.action)
    if len(leaves) != 1 or not isinstance(leaves[0], gym.Box) or env.num_streams < 10:
        return None
    leaf = leaves[0]
    symmetric = np.allclose(leaf.low, -leaf.high)
    if not (leaf.is_bounded() and symmetric and (leaf.high > 0).all()):
        return None
    high = leaf.high.reshape(-1)
    random = np.random.default_rng(seed)
    part = random.uniform(0.5, 1.0, high.shape) * random.choice((-1.0, 1.0), high.shape)
    greatest: NDArray[Any] = (high * part / np.abs(part).max()).astype(np.float32)
    return greatest


@final
class _Branch:
    """The same random actions for all streams, except at one step, where streams 2 and on take
    others: those given, else random ones.  A stream whose action mask differs from the first
    stream's takes random actions that its own mask allows."""

    def __init__(self, env: VectorEnv, seed: int, at: int, given: Sequence[NDArray[Any]]) -> None:
        self.common, self.own = uniform_chooser(env, seed), uniform_chooser(env, seed + 1)
        self.at, self.given, self.step = at, given, 0
        self.unlike: Sequence[int] = ()  # streams whose action differed from the first one's

    def __call__(self, leaves: Obs) -> NDArray[Any]:
        same = self.common(leaves)
        action = np.repeat(same[:1], len(same), 0)
        if (mask := leaves.get(ACTION_MASK)) is not None:
            unlike = ((mask != 0) != (mask[:1] != 0)).any(1).numpy()
            action[unlike] = same[unlike]
        if self.step == self.at:
            others = self.own(leaves)
            action[2:] = others[2:]
            for place, each in enumerate(self.given):
                action[2 + place] = each
            rows = action.reshape(len(action), -1)
            self.unlike = [int(b) for b in np.flatnonzero((rows != rows[0]).any(1)) if b >= 2]
        self.step += 1
        return action


def remembers(single: gymnasium.Env[Any, Any], seed: int) -> str:
    """The difference of a second episode with the same seed and actions in one environment; "" if
    there is none.
    """
    single.action_space.seed(seed)
    generator = np.random.default_rng(seed)
    actions, first = list[Any](), list[tuple[Any, ...]]()
    for number in range(3):
        obs, _ = single.reset(seed=seed)
        row: tuple[Any, ...] = (_bytes(obs),)
        for step in range(AGAIN + 1):
            if not number:
                first.append(row)
                actions.append(_random_action(single.action_space, obs, generator))
            elif row != first[step]:
                pairs = zip(row, first[step], strict=True)
                place = next(i for i, (x, y) in enumerate(pairs) if x != y)
                what = ("an observation", "a reward", "the ending", "the ending")[place]
                return f"{what} at step {step}" if step else "the first observation"
            if any(row[2:]) or step == AGAIN:
                break
            obs, reward, terminated, truncated, _ = single.step(actions[step])
            row = _bytes(obs), float(reward), bool(terminated), bool(truncated)
    return ""


def has_one_mask(space: gym.Space[Any]) -> bool:
    """Whether `remembers` can choose allowed actions of an environment's own action space."""
    return isinstance(space, gym.Discrete | gym.MultiDiscrete)


def _random_action(space: gym.Space[Any], obs: Any, generator: np.random.Generator) -> Any:
    """A random action of an environment, which its mask allows if it has one."""
    if not (isinstance(obs, dict) and ACTION_MASK in obs):
        return space.sample()
    ends = np.cumsum(mask_sizes(space))[:-1]
    allowed = np.split(np.asarray(obs[ACTION_MASK]).reshape(-1) != 0, ends)
    # At an ending nothing may be allowed.
    chosen = [generator.choice(np.flatnonzero(x)) if x.any() else 0 for x in allowed]
    if isinstance(space, gym.Discrete):
        return space.start + space.dtype.type(chosen[0])
    assert isinstance(space, gym.MultiDiscrete)
    return (space.start + np.reshape(chosen, space.shape)).astype(space.dtype)


def _bytes(obs: Any) -> bytes:
    if isinstance(obs, dict):
        return b"".join(_bytes(obs[key]) for key in sorted(obs, key=str))
    if isinstance(obs, tuple | list):
        return b"".join(_bytes(each) for each in obs)
    return np.asarray(obs).tobytes() if not isinstance(obs, str) else obs.encode()
