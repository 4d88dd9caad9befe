"""Wrappers of any vector environment: frame stacks, clipped rewards, success by the last reward,
the last action and reward as observations, and weights of the parts of rewards.

An environment declares such weights by an attribute ``reward_shaping``, a dict of numbers by name
that it reads in ``step``; a wrapper may have it instead.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs.config import RewardClip
from quintet.envs.vector import Array, ObsArrays, StepRow, VectorEnv, allocate_obs
from quintet.errors import ConfigError
from quintet.spaces import (
    Space,
    action_leaves,
    as_choices,
    leaf_dtype,
    map_leaves,
    observation_leaves,
    space_parts,
    with_observation,
)
from quintet.system import memory
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, Spaces

_SHAPING = "reward_shaping"


@final
class FrameStack:
    """Stacks the newest `k` observations, oldest first, on a new leading axis: ``[B, k, ...]``.

    Box leaves are stacked, except an action mask, which is valid for the current step only. The
    first observation of an episode fills its whole stack, so no stack spans two episodes.

    env: the environments whose observations are stacked.
    """

    def __init__(self, env: VectorEnv, k: int) -> None:
        assert k >= 1
        self.env, self.num_streams, self.description = env, env.num_streams, env.description
        self.send, self.render, self.close = env.send, env.render, env.close
        inner = env.spaces.observation
        boxes = {
            path: leaf
            for path, leaf in observation_leaves(inner).items()
            if isinstance(leaf, spaces.Box) and path != ACTION_MASK
        }
        if k > 1 and not boxes:
            raise ConfigError(
                f"env.frame_stack={k} must have a Box in the observation, got {inner}: leave it "
                "out, or choose a learner with a memory (--model.core lstm)"
            )
        self._stacked = list(boxes)
        one = sum(math.prod(leaf.shape) * leaf_dtype(leaf).itemsize for leaf in boxes.values())
        memory.require(
            one * k * (env.num_streams + 2),  # the stacks, and both bounds of their space
            f"env.frame_stack={k} of {env.num_streams} streams",
            "lower env.frame_stack or env.num_streams",
        )

        def stacked(path: str, leaf: Space) -> Space:
            if not isinstance(leaf, spaces.Box) or path not in boxes:
                return leaf
            low, high = np.stack([leaf.low] * k), np.stack([leaf.high] * k)
            return spaces.Box(low, high, dtype=leaf.dtype)

        self.spaces = with_observation(env.spaces, lambda of: map_leaves(of.observation, stacked))
        self._newest = allocate_obs(inner, (env.num_streams,))
        # A copy, since the caller may write over the rows of `out`.
        history = allocate_obs(self.spaces.observation, (env.num_streams,))
        self._history = {path: history[path] for path in self._stacked}

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        inner = {**out, **{path: self._newest[path] for path in self._stacked}}
        self.env.restart(seeds, inner)
        for path in self._stacked:
            self._history[path][:] = self._newest[path][:, None]
            out[path][:] = self._history[path]

    def recv(self, out: StepRow) -> None:
        inner = {**out.obs, **{path: self._newest[path] for path in self._stacked}}
        self.env.recv(replace(out, obs=inner))
        first = ~out.valid  # a reset led here
        for path in self._stacked:
            history, newest = self._history[path], self._newest[path]
            history[:, :-1] = history[:, 1:]
            history[:, -1] = newest
            if first.any():
                history[first] = newest[first][:, None]
            out.obs[path][:] = history


@final
class FromRewards:
    """Clips `reward` in place; `raw_reward` stays unchanged.  With `above`, from the rule
    `success`, an episode is won if its last raw reward is greater.  Rows may be tensors.

    env: the environments whose rewards are clipped.
    """

    def __init__(
        self, env: VectorEnv, clip: RewardClip, success: str | None, above: float | None
    ) -> None:
        self.env, self._clip = env, clip
        # The rewards' own precision: a reward of 0.8 is not greater than 0.8.
        self._above = None if above is None else float(np.float32(above))
        self.num_streams, self.spaces = env.num_streams, env.spaces
        self.description = replace(env.description, success=success)
        self.restart, self.send = env.restart, env.send
        self.render, self.close = env.render, env.close

    def recv(self, out: StepRow) -> None:
        self.env.recv(out)
        if self._above is not None:
            out.success[...] = out.raw_reward > self._above
        clip_reward(out.reward, self._clip)


@dataclass(frozen=True)
class _LastLeaf:
    """A leaf of the last action: its places in a packed action, and its value for no action.

    box: the action space of the leaf, if it is a Box.
    """

    path: str
    places: slice
    none: Array
    box: spaces.Box | None


@final
class ObserveLast:
    """Adds the last action and reward to the observation, which becomes a Dict.

    A plain observation becomes its leaf ``obs``; the top-level parts of a Dict or Tuple keep their
    names. The new leaves are

    - ``last_action``: the action as the environment received it, in the form of its space. A
      Discrete(n), and every component of a MultiDiscrete, has one more value, n, for "none yet"; a
      MultiBinary and a Box, which is float32 in its own units, are then 0.
    - ``last_reward``: the raw reward clamped to -1 .. 1, float32 of shape (); 0 for none. It is raw
      so that it is the same in evaluations, where rewards aren't clipped.

    The true final observation has the action and reward before it; the first observation of an
    episode has none.

    env: the environments that are observed.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Raises ConfigError if the observation already has leaves of these names."""
        parts = space_parts(env.spaces.observation)
        clashes = {LAST_ACTION, LAST_REWARD} & parts.keys()
        if clashes:
            raise ConfigError(
                f"env.observe_last must have an observation without {sorted(clashes)}; "
                f"{env.description.id} has {sorted(parts)}; leave the option out, or rename "
                "them"
            )
        self.env, self.num_streams, self.description = env, env.num_streams, env.description
        self.render, self.close = env.render, env.close
        self.spaces = with_observation(env.spaces, _with_last)
        self._leaves = _last_leaves(self.spaces)
        self._action: Array | None = None

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        self.env.restart(seeds, out)
        for leaf in self._leaves:
            out[leaf.path][:] = leaf.none
        out[LAST_REWARD][:] = 0.0

    def send(self, action: Array) -> None:
        self.env.send(action)
        self._action = action  # callers leave it unchanged until `recv`

    def recv(self, out: StepRow) -> None:
        self.env.recv(out)
        action, first = self._action, ~out.valid  # a reset led there
        assert action is not None, "send before recv"
        resets = bool(first.any())
        flat = action.reshape(len(action), -1)
        for leaf in self._leaves:
            into = out.obs[leaf.path]
            np.copyto(into, flat[:, leaf.places].reshape(into.shape), casting="unsafe")
            if leaf.box is not None:  # environments receive clipped actions
                np.clip(into, leaf.box.low, leaf.box.high, out=into, casting="unsafe")
                if leaf.box.dtype.kind in "iu":
                    np.trunc(into, out=into)
            if resets:
                into[first] = leaf.none
        np.clip(out.raw_reward, -1.0, 1.0, out=out.obs[LAST_REWARD])
        if resets:
            out.obs[LAST_REWARD][first] = 0.0


def _with_last(of: Spaces) -> Space:
    """The observation space with the leaves of the last action and reward."""
    seen = OrderedDict(space_parts(of.observation))  # ordered: gymnasium sorts plain dicts
    seen[LAST_ACTION] = map_leaves(of.action, lambda _, leaf: _seen_action(leaf))
    seen[LAST_REWARD] = spaces.Box(-1.0, 1.0, (), np.float32)
    return spaces.Dict(seen)


def _seen_action(leaf: Space) -> Space:
    """The observation space of a leaf of the action space."""
    leaf = as_choices(leaf)
    if isinstance(leaf, spaces.Discrete):
        return spaces.Discrete(int(leaf.n) + 1, start=leaf.start)
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(leaf.nvec + 1, dtype=leaf.dtype.type, start=leaf.start)
    if isinstance(leaf, spaces.Box):
        low, high = np.minimum(leaf.low, 0), np.maximum(leaf.high, 0)  # 0 stands for none
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    return leaf


def _last_leaves(of: Spaces) -> list[_LastLeaf]:
    """The leaves of the last action in the order in which actions are packed."""
    seen = observation_leaves(of.observation)
    paths = [path for path in seen if path.split("/")[0] == LAST_ACTION]
    found, begin = [], 0
    for path, leaf in zip(paths, action_leaves(of.action), strict=True):
        end = begin + math.prod(leaf.shape or ())
        none = leaf.n if isinstance(leaf, spaces.Discrete) else getattr(leaf, "nvec", 0)
        box = leaf if isinstance(leaf, spaces.Box) else None
        found.append(_LastLeaf(path, slice(begin, end), np.asarray(none), box))
        begin = end
    return found


@final
class ShapedRewards:
    """Single environments, made by `shaped`, whose values may change from episode to episode.

    shaping: ``[B, N]``, values of each stream by sorted name; changes apply from the next `send`
        on.
    """

    def __init__(
        self,
        env: VectorEnv,
        singles: Callable[[], Sequence["gymnasium.Env[Any, Any]"]],
        values: Mapping[str, float],
    ):
        """singles: returns the environments of `env`, which restarts may make again.

        Raises ConfigError where environments share their values.
        """
        self.env, self._singles, self._names = env, singles, sorted(values)
        self.num_streams, self.spaces = env.num_streams, env.spaces
        self.description, self.recv = env.description, env.recv
        self.render, self.close = env.render, env.close
        self._first_weights = np.tile([values[name] for name in self._names], (env.num_streams, 1))
        self.shaping = self._first_weights.copy()
        self._find()

    def _find(self) -> None:
        """Finds the dicts of the environments, which still have the given values."""
        self._declared = [declared_by(each) for each in self._singles()]
        if len({id(declared) for declared in self._declared}) < self.num_streams:
            raise ConfigError(
                "env.reward_shaping must be a separate dict in each environment, but those of "
                f"{self.description.id} share one; make it in __init__"
            )
        self._in_force = self._first_weights.copy()

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        self.env.restart(seeds, out)
        declared = [declared_by(each) for each in self._singles()]
        if any(new is not old for new, old in zip(declared, self._declared, strict=True)):
            self._find()  # others were made

    def send(self, action: Array) -> None:
        changed = (self.shaping != self._in_force).any(1)
        if changed.any():
            for stream in changed.nonzero()[0]:
                values = zip(self._names, self.shaping[stream].tolist(), strict=True)
                self._declared[stream].update(values)
            self._in_force[:] = self.shaping
        self.env.send(action)


def shaped(env: Any, values: Mapping[str, float], env_id: str) -> Any:
    """The same environment, which now weighs its rewards by `values`; other objects stay as they
    are.  Raises ConfigError where the environment declares no such values.
    """
    if isinstance(env, gymnasium.Env):
        declared = declared_by(env)
        if unknown := sorted(values.keys() - declared.keys()):
            env.close()
            raise ConfigError(
                f"env.reward_shaping must name values that {env_id} declares in its attribute "
                f"{_SHAPING} ({', '.join(sorted(declared)) or 'there are none'}), got "
                f"{', '.join(unknown)}; correct the names, or declare them"
            )
        declared.update(values)
    return env


def declared_by(env: "gymnasium.Env[Any, Any]") -> dict[str, float]:
    """The dict that an environment declares; {} without one."""
    declared = env.get_wrapper_attr(_SHAPING) if env.has_wrapper_attr(_SHAPING) else {}
    return declared if isinstance(declared, dict) else {}


def innermost(env: VectorEnv) -> VectorEnv:
    """The environments below these wrappers."""
    while isinstance(env, FrameStack | FromRewards | ObserveLast | ShapedRewards):
        env = env.env
    return env


def tasks_of(env: VectorEnv) -> Any:
    """The attribute `tasks` of the environments below these wrappers, None without one.  It passes
    a curriculum's options to resets; its `options` are those of the last resets, by stream.
    """
    return getattr(innermost(env), "tasks", None)


def clip_reward(reward: Any, kind: RewardClip) -> None:
    """Clips `reward`, an array or a tensor of a GPU, in place.

    ``abs_one``: ``clamp(r, -1, 1)``. ``soft_asymmetric``: ``5 tanh(r / 5)``, times 0.3 where r < 0.
    """
    if kind == "none":
        return
    if not isinstance(reward, np.ndarray):
        soft = 5.0 * (reward / 5.0).tanh()
        soft = soft.where(reward >= 0.0, 0.3 * soft)
        reward.copy_(reward.clamp(-1.0, 1.0) if kind == "abs_one" else soft)
    elif kind == "abs_one":
        np.clip(reward, -1.0, 1.0, out=reward)
    else:
        negative = reward < 0
        np.divide(reward, 5.0, out=reward)
        np.tanh(reward, out=reward)
        np.multiply(reward, 5.0, out=reward)
        np.multiply(reward, 0.3, out=reward, where=negative)
