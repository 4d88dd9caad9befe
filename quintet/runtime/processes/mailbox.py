"""Where a sampler and the inference server leave rows of a group for each other."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from quintet.protocols import Actor
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.messages import Place
from quintet.runtime.slots import RowSpecs
from quintet.spaces import leaf_spec, observation_leaves
from quintet.types import ACTION_MASK, ActOutput, Obs, State, TensorSpec


def mailbox_specs(rows: RowSpecs, actor: Actor, place: Place) -> dict[str, TensorSpec]:
    """What a group's mailbox takes in an arena.  `actor` must have weights: it acts once, to see
    what comes out.
    """
    streams = place.num_streams
    leaves = observation_leaves(rows.spaces.observation)
    obs = {
        name: torch.zeros((streams, *leaf_spec(leaf).shape), dtype=leaf_spec(leaf).dtype)
        for name, leaf in leaves.items()
    }
    if ACTION_MASK in obs:
        obs[ACTION_MASK].fill_(1)
    state = actor.initial_state(streams)
    is_first = torch.ones(streams, dtype=torch.bool)
    noise = actor.draw_noise(1, streams, torch.Generator())[0]
    out = actor.act(obs, state, is_first, noise)
    given = _named("obs", obs) | _named("state", state) | {"is_first": is_first, "noise": noise}
    given |= _named("record", out.record)
    given |= {"action": out.action, "env_action": out.env_action}
    given |= {name: torch.zeros(1, dtype=torch.int64) for name in ("version", "ticket")}
    specs = {name: TensorSpec(tuple(x.shape), x.dtype) for name, x in given.items()}
    return prefixed(_prefix(place.group), specs)


def _prefix(group: int) -> str:
    return f"mail/{group}/"


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": x for name, x in tensors.items()}


@final
class Mailbox:
    """A group's row of inputs and of outputs, in shared memory.

    The state is in one place: the server replaces the one that it was given.
    """

    def __init__(self, arena: Arena, group: int):
        prefix = _prefix(group)
        self.obs: Obs = arena.below(prefix + "obs/")
        self.state: State = arena.below(prefix + "state/")
        self.record = arena.below(prefix + "record/")
        self.is_first, self.noise = (
            arena.tensor(prefix + "is_first"),
            arena.tensor(prefix + "noise"),
        )
        self.action = arena.tensor(prefix + "action")
        self.env_action = arena.tensor(prefix + "env_action")
        self.version = arena.tensor(prefix + "version")
        self.ticket = arena.tensor(prefix + "ticket")

    def ask(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor, ticket: int) -> None:
        """Leaves what is to be acted on; a request with another ticket is not about it."""
        for name, x in self.obs.items():
            x.copy_(obs[name])
        for name, x in self.state.items():
            x.copy_(state[name])
        self.is_first.copy_(is_first)
        self.noise.copy_(noise)
        self.ticket.fill_(ticket)

    def answer(self, out: ActOutput, rows: slice, version: int) -> None:
        """Leaves these rows of what a forward gave."""
        self.action.copy_(out.action[rows])
        self.env_action.copy_(out.env_action[rows])
        for name, x in self.record.items():
            x.copy_(out.record[name][rows])
        for name, x in self.state.items():
            x.copy_(out.state[name][rows])
        self.version.fill_(version)

    def answered(self) -> ActOutput:
        """What the server left, as views: read before the next `ask`."""
        return ActOutput(self.action, self.env_action, self.record, self.state)
