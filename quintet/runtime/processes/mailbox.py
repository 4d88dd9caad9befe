"""Shared memory through which a sampler and the inference server exchange a group's rows."""

from typing import final

import torch
from torch import Tensor

from quintet.protocols import Actor
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.messages import Place
from quintet.spaces import action_spec, leaf_spec, observation_leaves
from quintet.types import ActOutput, Obs, Spaces, State, TensorSpec


def mailbox_specs(spaces: Spaces, actor: Actor, place: Place) -> dict[str, TensorSpec]:
    """The tensors of a group's mailbox in an arena."""
    noise = actor.draw_noise(1, 1, torch.Generator())[0, 0]
    leaves = observation_leaves(spaces.observation)
    specs = {f"obs/{name}": leaf_spec(leaf) for name, leaf in leaves.items()}
    specs |= prefixed("state/", actor.state_specs) | prefixed("record/", actor.record_specs)
    specs |= {
        "is_first": TensorSpec((), torch.bool),
        "noise": TensorSpec(tuple(noise.shape), noise.dtype),
        "action": actor.action_spec,
        "env_action": action_spec(spaces.action),
    }
    streams = place.num_streams
    specs = {name: TensorSpec((streams, *s.shape), s.dtype) for name, s in specs.items()}
    specs |= {name: TensorSpec((1,), torch.int64) for name in ("version", "ticket")}
    return prefixed(_prefix(place.group), specs)


def _prefix(group: int) -> str:
    return f"mail/{group}/"


@final
class Mailbox:
    """A group's row of inputs and of outputs, in shared memory.

    The recorded state has one place: the server replaces its input by its output.
    """

    def __init__(self, arena: Arena, group: int):
        prefix = _prefix(group)
        self.obs: Obs = arena.below(prefix + "obs/")
        self.state: State = arena.below(prefix + "state/")
        self.record = arena.below(prefix + "record/")
        self.is_first = arena.tensor(prefix + "is_first")
        self.noise = arena.tensor(prefix + "noise")
        self.action = arena.tensor(prefix + "action")
        self.env_action = arena.tensor(prefix + "env_action")
        self.version = arena.tensor(prefix + "version")
        self.ticket = arena.tensor(prefix + "ticket")

    def ask(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor, ticket: int) -> None:
        """Writes the inputs of an act; only a request with this ticket refers to them."""
        for name, x in self.obs.items():
            x.copy_(obs[name])
        for name, x in self.state.items():
            x.copy_(state[name])
        self.is_first.copy_(is_first)
        self.noise.copy_(noise)
        self.ticket.fill_(ticket)

    def answer(self, out: ActOutput, rows: slice, version: int) -> None:
        """Writes these rows of a forward's outputs."""
        self.action.copy_(out.action[rows])
        self.env_action.copy_(out.env_action[rows])
        for name, x in self.record.items():
            x.copy_(out.record[name][rows])
        for name, x in self.state.items():
            x.copy_(out.state[name][rows])
        self.version.fill_(version)
