"""A policy as one pure function, from an environment's observation to its action."""

import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn

from quintet import spaces
from quintet.algorithms.parts.setup import Recorded
from quintet.checkpoints.spaces_as_json import to_json
from quintet.envs.gymnasium import Leaf
from quintet.export.interface import Choice, DType, Port, Role
from quintet.policies.policy import Policy
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, ActOutput

Tensors = tuple[Tensor, ...]


@final
class WholePolicy(nn.Module):
    """The function of `Policy.act` for a batch, without its checks.

    Without noise, or with noise of 0, actions are greedy.

    parts: the actor's modules.
    inputs, outputs: the ports, in the order of `forward`'s tensors.
    state: inputs of the state, and the outputs that follow them, by name.
    choices: the discrete choices of an action.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        own = policy.spaces.own or policy.spaces
        self.actor = policy.recorder(*recorded_fields(policy))
        modules = {k: x for k, x in vars(self.actor).items() if isinstance(x, nn.Module)}
        self.parts = nn.ModuleDict(modules)
        self.leaves, self.action_space = policy.leaves, own.action
        self.inputs = [_observation(leaf, policy) for leaf in self.leaves]
        states = self.actor.state_specs
        if states:
            self.inputs.append(_port("is_first", "is_first", (), torch.bool, _IS_FIRST))
        self._names = tuple(states)
        memory = [
            _port(f"state/{name}", "state", spec.shape, spec.dtype, _STATE)
            for name, spec in states.items()
        ]
        self.inputs += memory
        noise_size = self._noise_size()
        if noise_size is not None:
            meaning = f"0: the greedy action; to sample, {_noise_meaning(own.action)}"
            self.inputs.append(_port("noise", "noise", (noise_size,), torch.float32, meaning))
        self.outputs = [_action(path, leaf) for path, leaf in _leaves_of(own.action)]
        self.outputs += [
            _port(f"next_{port.name}", "next_state", port.shape, torch.float32, _NEXT)
            for port in memory
        ]
        self.state = {port.name: f"next_{port.name}" for port in memory}
        records = self.actor.record_specs
        for name, output, meaning in (("params_mu", "params", _PARAMS), ("value", "value", _VALUE)):
            if name in records:
                spec = records[name]
                role: Role = "params" if output == "params" else "value"
                self.outputs.append(_port(output, role, spec.shape, spec.dtype, meaning))
        sizes = records["params_mu"].shape[0] if "params_mu" in records else 0, noise_size or 0
        self.choices = _choices(own.action, *sizes)

    def _noise_size(self) -> int | None:
        """Numbers of noise per action; None for a policy without a distribution, whose noise is
        exploration for training.
        """
        if "params_mu" not in self.actor.record_specs:
            return None
        noise = self.actor.draw_noise(1, 1, torch.Generator("cpu").manual_seed(0))
        return int(noise.shape[-1]) if noise.ndim == 3 and noise.dtype == torch.float32 else None

    def forward(self, inputs: Tensors) -> Tensors:
        """All outputs ``[B, ...]``, from all inputs ``[B, ...]``, in the order of the ports."""
        given = {port.name: x for port, x in zip(self.inputs, inputs, strict=True)}
        batch = inputs[0].shape[0]
        obs = {leaf.path: _stored(leaf, given[_name("obs", leaf.path)]) for leaf in self.leaves}
        state = {
            name: given[f"state/{name}"] if name in self._names else begin
            for name, begin in self.actor.initial_state(batch).items()
        }
        first = given.get("is_first")
        if first is None:
            first = torch.zeros(batch, dtype=torch.bool)
        # Without its inference mode, which can't be traced.
        act = inspect.unwrap(type(self.actor).act)
        out: ActOutput = act(self.actor, obs, state, first, given.get("noise"))
        found = list(env_form(self.action_space, out.env_action))
        found += [out.state[name] for name in self._names]
        found += [out.record[name] for name in ("params_mu", "value") if name in out.record]
        return tuple(found)


def recorded_fields(policy: Policy) -> tuple[Recorded, ...]:
    """Records of a policy besides its actions; the value only if it reads no other leaves than the
    actions."""
    return ("params_mu",) if policy.critic_leaves else ("params_mu", "value")


def _stored(leaf: Leaf, x: Tensor) -> Tensor:
    """A leaf in the form in which networks read it, see `quintet.envs.policy_input.leaf_array`."""
    stored = x.to(_torch_dtype(leaf.dtype))
    if leaf.start is None:
        return stored
    return stored - torch.tensor(np.asarray(leaf.start).tolist(), dtype=stored.dtype)


def env_form(space: spaces.Space, packed: Tensor) -> Iterator[Tensor]:
    """The leaves of packed actions ``[B, ...]`` in the environment's form, as by
    `quintet.spaces.unpack_action`.
    """
    rows = packed.unsqueeze(-1) if packed.ndim == 1 else packed
    begin = 0
    for leaf in spaces.action_leaves(space):
        size = math.prod(leaf.shape or ())
        own = rows[:, begin : begin + size].reshape(rows.shape[0], *(leaf.shape or ()))
        begin += size
        dtype = _torch_dtype(spaces.leaf_dtype(leaf))
        choices = spaces.as_choices(leaf)
        if isinstance(choices, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
            own = own.long() + torch.tensor(np.asarray(choices.start).tolist())
        own = own.to(dtype)
        if isinstance(leaf, gym_spaces.Box):
            low, high = (torch.tensor(x.tolist(), dtype=dtype) for x in (leaf.low, leaf.high))
            own = torch.minimum(torch.maximum(own, low), high)
        yield own


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _name(kind: str, path: str) -> str:
    return kind if path in ("", "obs") else f"{kind}/{path}"


def _port(name: str, role: Role, shape: Any, dtype: torch.dtype, meaning: str) -> Port:
    kind: Any = str(dtype).removeprefix("torch.")
    return Port(name=name, role=role, shape=list(shape), dtype=kind, meaning=meaning)


_IS_FIRST = "true where an episode begins with this observation: the state is then reset"
_STATE = "memory of the policy; zeros at the start, then the next state of the step before"
_NEXT = "memory after this step, the state of the next one"
_PARAMS = "parameters of the action's distribution, under the mask if there is one"
_VALUE = "expected discounted sum of the following rewards, as the learner saw them"


def _observation(leaf: Leaf, policy: Policy) -> Port:
    """The input for a leaf of the observation, with its meaning."""
    dtype: DType = str(spaces.leaf_dtype(leaf.space))  # type: ignore[assignment]
    first = leaf.path.split("/")[0]
    role: Role = "action_mask" if leaf.path == ACTION_MASK else "observation"
    what = "the observation" if leaf.path == "obs" else f"leaf {leaf.path!r} of the observation"
    meaning = f"{what}, as the environment gives it"
    if leaf.path == ACTION_MASK:
        meaning = "not 0 where an action is allowed, at least one in each choice"
    elif first == LAST_ACTION:
        meaning = (
            f"{what}: the last action; where an episode begins, the largest value for a discrete "
            "choice and 0 for other numbers"
        )
    elif first == LAST_REWARD:
        meaning = f"{what}: the last reward, clamped to -1 .. 1; 0 where an episode begins"
    elif policy.env.frame_stack > 1 and isinstance(leaf.space, gym_spaces.Box):
        meaning = (
            f"{what}: the newest {policy.env.frame_stack} frames as the environment gives them, "
            "oldest first; the first one of an episode fills all places"
        )
    elif leaf.dtype == np.uint8 and len(leaf.shape) == 1:
        meaning += "; a text as its UTF-8 bytes, filled up with zeros"
    space = to_json(leaf.space)
    name = _name("obs", leaf.path)
    return Port(
        name=name, role=role, shape=list(leaf.shape), dtype=dtype, meaning=meaning, space=space
    )


def _leaves_of(space: spaces.Space) -> list[tuple[str, spaces.Space]]:
    """The leaves of an action space with their paths; "" for a plain one."""
    return [("/".join(map(str, keys)), leaf) for keys, leaf in spaces.walk_leaves(space)]


def _action(path: str, leaf: spaces.Space) -> Port:
    what = f"leaf {path!r} of the action" if path else "the action"
    dtype: DType = str(spaces.leaf_dtype(leaf))  # type: ignore[assignment]
    return Port(
        name=_name("action", path), role="action", shape=list(leaf.shape or ()), dtype=dtype,
        meaning=f"{what}, as the environment takes it", space=to_json(leaf),
    )  # fmt: skip


class _Segment(NamedTuple):
    """A part of the noise: numbers of one kind, for one choice or one leaf of numbers."""

    kind: str
    name: str
    place: int
    size: int


def _segments(space: spaces.Space) -> Iterator[_Segment]:
    """The discrete choices, bits and normals of an action, in order."""
    for path, leaf in _leaves_of(space):
        name = _name("action", path)
        if isinstance(leaf, gym_spaces.Discrete):
            yield _Segment("categorical", name, 0, int(leaf.n))
        elif isinstance(leaf, gym_spaces.MultiDiscrete):
            for place, n in enumerate(leaf.nvec.ravel().tolist()):
                yield _Segment("categorical", name, place, int(n))
        elif isinstance(leaf, gym_spaces.MultiBinary):
            for place in range(math.prod(leaf.shape)):
                yield _Segment("bit", name, place, 1)
        else:
            yield _Segment("normal", name, 0, math.prod(leaf.shape or ()))


_NOISES = {
    "categorical": "standard Gumbel: -log(-log(u))",
    "bit": "standard logistic: log(u / (1 - u))",
    "normal": "standard normal",
}


def _noise_meaning(space: spaces.Space) -> str:
    """Kinds of noise to draw, by columns."""
    ranges: list[tuple[str, int, int]] = []
    begin = 0
    for kind, _, _, size in _segments(space):
        if ranges and ranges[-1][0] == kind:
            ranges[-1] = kind, ranges[-1][1], begin + size
        else:
            ranges.append((kind, begin, begin + size))
        begin += size
    return "; ".join(f"[{a}:{b}] {_NOISES[kind]}" for kind, a, b in ranges)


def _choices(space: spaces.Space, num_params: int, num_noise: int) -> list[Choice]:
    """The discrete choices; none if the parameters are not those of quintet's families."""
    found, params, noise = [], 0, 0
    for kind, name, place, size in _segments(space):
        if kind != "normal":
            found.append(
                Choice(
                    kind="bit" if kind == "bit" else "categorical",
                    action=name, place=place, params=params, noise=noise, size=size,
                )
            )  # fmt: skip
        params += 2 * size if kind == "normal" else size
        noise += size
    return found if (params, noise) == (num_params, num_noise) else []
