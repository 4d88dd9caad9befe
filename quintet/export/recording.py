"""Records what a policy sees and answers over whole episodes, for the certificate of an export."""

from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from quintet import spaces
from quintet.envs.gymnasium import Leaf
from quintet.envs.policy_input import leaf_array
from quintet.envs.vector import VectorEnv, allocate_obs, allocate_row
from quintet.errors import ExportError
from quintet.export.interface import Port
from quintet.export.steps import Arrays, Steps
from quintet.export.whole import WholePolicy, recorded_fields
from quintet.policies.evaluation import environment_of
from quintet.policies.policy import Policy
from quintet.runtime.torch_settings import OwnTorch
from quintet.runtime.turns import Begun, where_acted
from quintet.types import ACTION_MASK

STREAMS = 8
"""Streams that are recorded side by side, unless the environment must have another number."""

_FIRST_FRAC = 0.02
"""Fraction of sampled observations with which an episode begins."""

_MOST_TURNS = 20
"""Most rows of a game in turn that are played for a decision of each agent."""

_WIDE = 100.0
"""Largest absolute value of samples of a Box of floats with wider bounds."""


@final
class Seen:
    """Observations in the environment's form by leaf, and starts of episodes ``[T, B]``.

    whence: where they are from, in words.
    """

    def __init__(self, obs: Arrays, is_first: NDArray[np.bool_], whence: str):
        self.obs, self.is_first, self.whence = obs, is_first, whence


def in_environment(policy: Policy, env: Any, steps: int, seed: int) -> Seen:
    """Plays the policy in its environment, or in `env`: greedy in the first half of the rows, then
    sampling.
    """
    with environment_of(policy, env, STREAMS) as vector:
        count, about = vector.num_streams, vector.description
        rows = -(-steps // count)
        obs, is_first = _played(policy, vector, rows, seed)
    own = {leaf.path: _own_form(policy, leaf, obs[leaf.path]) for leaf in policy.leaves}
    return Seen(own, is_first, f"{about.id} ({about.backend})")


def _played(
    policy: Policy, vector: VectorEnv, rows: int, seed: int
) -> tuple[Arrays, NDArray[np.bool_]]:
    """Observations as they are stored ``[T, B, ...]``, final ones of episodes included, and starts
    of episodes.  Where agents act in turn, those of decisions alone.
    """
    count, space = vector.num_streams, vector.spaces.observation
    seen, is_first = allocate_obs(space, (rows, count)), np.zeros((rows, count), np.bool_)
    row, before = allocate_row(space, count), allocate_obs(space, (count,))
    in_turn = Begun(count) if vector.description.turns else None
    vector.restart([seed + i for i in range(count)], row.obs)
    generator = torch.Generator("cpu").manual_seed(seed)
    with OwnTorch():
        state = policy.actor.initial_state(count)
    first, acted = np.ones(count, np.bool_), np.ones(count, np.bool_)
    leaves = {name: torch.from_numpy(x) for name, x in row.obs.items()}
    done = np.zeros(count, np.int64)  # rows of each stream
    for _ in range(_MOST_TURNS * rows):
        for name, x in row.obs.items():
            np.copyto(before[name], x)
        with OwnTorch(policy.threads):
            noise = None
            if 2 * done.min() >= rows:
                noise = policy.actor.draw_noise(1, count, generator)[0]
            out = policy.actor.act(leaves, state, torch.from_numpy(first), noise)
        vector.send(out.env_action.numpy())
        vector.recv(row)
        if in_turn is not None:
            acted = row.valid.copy()
        streams = np.nonzero(acted & (done < rows))[0]
        at = done[streams], streams
        is_first[at] = first[streams]
        for name, x in before.items():
            seen[name][at] = x[streams]
        done[streams] += 1
        if done.min() == rows:
            break
        if in_turn is None:
            state, first = out.state, ~row.valid
        else:
            state = where_acted(state, out.state, acted)
            first = in_turn.after(acted, row.terminated | row.truncated)
    least = int(done.min())
    if least == 0:
        raise ExportError(
            f"each agent must act in {vector.description.id}, got one that did not in "
            f"{_MOST_TURNS * rows} rows: give another env"
        )
    return {name: x[:least] for name, x in seen.items()}, is_first[:least]


def _own_form(policy: Policy, leaf: Leaf, stored: NDArray[Any]) -> NDArray[Any]:
    """Stored observations as the environment gives them."""
    own = stored if leaf.start is None else stored + leaf.start
    own = own.astype(spaces.leaf_dtype(leaf.space))
    if leaf.path == ACTION_MASK:
        _allow(policy, own)
    return own


def _allow(policy: Policy, mask: NDArray[Any]) -> None:
    """Allows all actions of a choice that allows none, as where an episode has ended."""
    ends = np.cumsum(spaces.mask_sizes(policy.spaces.action))
    for part in np.split(mask, ends[:-1], -1):
        part[~part.astype(np.bool_).any(-1)] = 1


def of_space(policy: Policy, steps: int, seed: int) -> Seen:
    """Samples the observation space; some begin an episode."""
    rows = -(-steps // STREAMS)
    obs: Arrays = {}
    for k, leaf in enumerate(policy.leaves):
        space = _narrowed(leaf.space)
        space.seed(seed + k)
        flat = [space.sample() for _ in range(rows * STREAMS)]
        dtype = spaces.leaf_dtype(leaf.space)
        obs[leaf.path] = np.array(flat, dtype).reshape(rows, STREAMS, *leaf.shape)
        if leaf.path == ACTION_MASK:
            _allow(policy, obs[leaf.path])
    is_first = np.random.default_rng(seed).random((rows, STREAMS)) < _FIRST_FRAC
    is_first[0] = True
    return Seen(obs, is_first, "samples of the observation space")


def _narrowed(space: spaces.Space) -> spaces.Space:
    """The space; a Box of floats with wider bounds than `_WIDE`, between which samples would mean
    nothing, gets these."""
    if not isinstance(space, gym_spaces.Box) or np.dtype(space.dtype).kind != "f":
        return space
    low, high = space.low.copy(), space.high.copy()
    low[np.isfinite(low) & (low < -_WIDE) & (high > -_WIDE)] = -_WIDE
    high[np.isfinite(high) & (high > _WIDE) & (low < _WIDE)] = _WIDE
    return gym_spaces.Box(low, high, dtype=space.dtype)


def answered(policy: Policy, whole: WholePolicy, seen: Seen, seed: int) -> Steps:
    """The answers of `Policy.act` to all that was seen: greedy, and with recorded noise."""
    rows, count = seen.is_first.shape
    inputs = {_port(whole, path): x for path, x in seen.obs.items()}
    if whole.state:
        inputs["is_first"] = seen.is_first
    greedy = {port.name: port.zeros(rows, count) for port in whole.outputs}
    noise = next((port.zeros(rows, count) for port in whole.inputs if port.role == "noise"), None)
    sampled: Arrays = {}
    actions = [port for port in whole.outputs if port.role == "action"]
    if noise is not None:
        inputs["noise"] = noise
        sampled = {port.name: port.zeros(rows, count) for port in actions}
    recorder = policy.recorder(*recorded_fields(policy))
    before = policy.generator.get_state()
    policy.generator.manual_seed(seed)
    twin = torch.Generator("cpu").manual_seed(seed)
    state = None
    try:
        for t in range(rows):
            obs, first = {path: x[t] for path, x in seen.obs.items()}, seen.is_first[t]
            if noise is not None:
                noise[t] = policy.actor.draw_noise(1, count, twin)[0].numpy()
                moved, _ = policy.act(obs, state, False, is_first=first)
                _put(sampled, whole, moved, actions, t)
            action, after = policy.act(obs, state, True, is_first=first)
            _put(greedy, whole, action, actions, t)
            stored = {
                leaf.path: torch.from_numpy(leaf_array(obs[leaf.path], leaf))
                for leaf in policy.leaves
            }
            begin = recorder.initial_state(count) if state is None else state
            out = recorder.act(stored, begin, torch.from_numpy(first), None)
            for name, record in out.record.items():
                if (output := {"params_mu": "params"}.get(name, name)) in greedy:
                    greedy[output][t] = record.numpy()
            for given, follows in whole.state.items():
                greedy[follows][t] = after[given.removeprefix("state/")].numpy()
            state = after
    finally:
        policy.generator.set_state(before)
    return Steps(inputs, greedy, sampled)


def _port(whole: WholePolicy, path: str) -> str:
    """The input of a leaf."""
    names = [port.name for port in whole.inputs]
    return names[[leaf.path for leaf in whole.leaves].index(path)]


def _put(into: Arrays, whole: WholePolicy, action: Any, ports: list[Port], t: int) -> None:
    """Stores an action's leaves in row t."""
    for port, (keys, _) in zip(ports, spaces.walk_leaves(whole.action_space), strict=True):
        value: Any = action
        for key in keys:
            value = value[key]
        into[port.name][t] = value
