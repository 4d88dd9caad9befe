"""Several policies in the same environments: the choice of the policy that acts in a group or plays
an episode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.protocols import Actor
from quintet.runtime.slots import PLAYER, VERSION, below
from quintet.runtime.torch_settings import OwnTorch
from quintet.runtime.turns import where_acted
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec


@final
@dataclass(frozen=True)
class Assignment:
    """Assigns the policies that share the streams to the groups.

    mixed: all policies act in every group, see `PolicyMix`; an act is a forward of every policy.
        Otherwise group g has policy ``g % num_policies``; an act is one forward.
    num_agents: number of agents of an environment, each of which is a stream.
    by_agent: whether in a mix agent a always has policy ``a % num_policies``.
    past_frac: fraction of games in which the last policy (past weights of the first) plays all
        agents but one; it has no learner, so no batch holds its steps.
    """

    num_policies: int = 1
    mixed: bool = False
    num_agents: int = 1
    by_agent: bool = False
    past_frac: float = 0.0

    @property
    def num_learners(self) -> int:
        """Number of policies that learn, which come first."""
        return self.num_policies - (self.past_frac > 0)

    @classmethod
    def of_groups(cls, num_policies: int, num_groups: int, num_agents: int = 1) -> Self:
        """One policy per group if all policies then get equal shares of the data, else mixed.

        num_agents: number of agents of an environment; with several, groups are mixed so that
            policies play each other.
        """
        mixed = num_policies > 1 and (num_agents > 1 or num_groups % num_policies > 0)
        return cls(num_policies, mixed=mixed, num_agents=num_agents)

    def players(self, draw: Tensor, is_first: Tensor, before: Tensor) -> Tensor:
        """The policy of each stream, ``[B]``.

        draw: ``[B]``, in [0, 1).
        is_first: ``[B]``; also true for absent agents.
        before: ``[B]``, the policies in the previous row.
        """
        agent = torch.arange(draw.numel(), device=draw.device) % self.num_agents
        if self.by_agent:
            return agent % self.num_policies
        if not self.past_frac:
            drawn = (draw * self.num_policies).long().clamp_max(self.num_policies - 1)
            return torch.where(is_first, drawn, before)
        # One draw for a game, where all of its agents begin.
        game = (-1, self.num_agents)
        begins = is_first.view(game).all(1, keepdim=True).expand(game).flatten()
        of_game = draw.view(game)[:, :1].expand(game).flatten()
        learns = (of_game / self.past_frac * self.num_agents).long()  # the agent, if one alone
        past = (of_game < self.past_frac) & (agent != learns)
        return torch.where(begins, torch.where(past, self.num_policies - 1, 0), before)

    def of(self, group: int) -> tuple[int, ...]:
        """The policies that act in a group."""
        return tuple(range(self.num_policies)) if self.mixed else (group % self.num_policies,)

    def streams_of(self, policy: int, num_streams: int, num_groups: int) -> list[int]:
        """The streams in which a policy may act, ascending."""
        size = num_streams // num_groups

        def acts_in(stream: int) -> bool:
            if self.by_agent:
                return stream % self.num_agents % self.num_policies == policy
            return policy in self.of(stream // size)

        return [stream for stream in range(num_streams) if acts_in(stream)]

    @OwnTorch()
    def make_actor(self, make_actor: Callable[[], Actor]) -> Actor:
        if not self.mixed:
            return make_actor()
        return PolicyMix([make_actor() for _ in range(self.num_policies)], self)


ONE_POLICY = Assignment()


@final
class PolicyMix:
    """K actors as one: each start of an episode draws the stream's policy, see
    `Assignment.players`.

    Every policy's network sees the whole group at every act, so a row's result does not depend on
    the policies of other rows.  The draws are one more column of the noise, so they too follow from
    the group's seed alone.  The state holds every policy's own state (``K/name``), the number of
    the policy that plays, and its recurrent state under the plain names, which is recorded.
    """

    def __init__(self, actors: Sequence[Actor], assignment: Assignment):
        self.actors, self.assignment = list(actors), assignment
        self.versions = [-1] * len(self.actors)
        self._recorded: Tensor | None = None  # the versions, where the actors are
        first, number = self.actors[0], TensorSpec((), torch.int64)
        self.action_spec, self.state_specs = first.action_spec, first.state_specs
        self.record_specs = {**first.record_specs, PLAYER: number, VERSION: number}

    def load(self, publication: Publication) -> None:
        self.actors[publication.policy].load(publication)
        self.versions[publication.policy] = publication.version
        self._recorded = None

    def initial_state(self, num_streams: int) -> State:
        states = [actor.initial_state(num_streams) for actor in self.actors]
        player = torch.zeros(num_streams, dtype=torch.int64)
        return self._mixed(states, player)

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        noise = self.actors[0].draw_noise(steps, num_streams, generator)
        draw = torch.rand(steps, num_streams, 1, generator=generator, dtype=noise.dtype)
        return torch.cat((noise, draw), -1)

    @torch.inference_mode()
    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        assert noise is not None, "a mix of policies only samples"
        player = self.assignment.players(noise[..., -1], is_first, state[PLAYER])
        outs = [
            actor.act(obs, below(state, f"{policy}/"), is_first, noise[..., :-1])
            for policy, actor in enumerate(self.actors)
        ]
        record = {
            name: _pick([out.record[name] for out in outs], player) for name in outs[0].record
        }
        record[PLAYER] = player
        if self._recorded is None:
            self._recorded = torch.tensor(self.versions, device=player.device)
        record[VERSION] = self._recorded[player]
        return ActOutput(
            _pick([out.action for out in outs], player),
            _pick([out.env_action for out in outs], player),
            record,
            self._mixed([out.state for out in outs], player),
        )

    def _mixed(self, states: Sequence[State], player: Tensor) -> State:
        mixed = {f"{k}/{name}": x for k, state in enumerate(states) for name, x in state.items()}
        for name in self.state_specs:
            mixed[name] = _pick([state[name] for state in states], player)
        return mixed | {PLAYER: player}


@final
class JointActor:
    """Actors with their own streams that play with each other, not for a learner: `act` records
    only the entropy, if the first actor has one.

    seat: ``[B]``, the index of each stream's actor.
    """

    def __init__(self, actors: Sequence[Any], seat: Tensor):
        self.actors, self.count = list(actors), len(seat)
        self.streams = [(seat == k).nonzero().squeeze(1) for k in range(len(self.actors))]

    def initial_state(self, num_streams: int) -> State:
        assert num_streams == self.count
        states = [a.initial_state(len(s)) for a, s in zip(self.actors, self.streams, strict=True)]
        return {f"{k}/{name}": x for k, state in enumerate(states) for name, x in state.items()}

    def draw_noise(
        self, steps: int, num_streams: int, generator: torch.Generator
    ) -> list[list[Tensor]]:
        """Noise by step and actor."""
        assert num_streams == self.count
        each = [
            actor.draw_noise(steps, len(streams), generator).unbind(0)
            for actor, streams in zip(self.actors, self.streams, strict=True)
        ]
        return [list(noise) for noise in zip(*each, strict=True)]

    def act(
        self, obs: Obs, state: State, is_first: Tensor, noise: list[Tensor] | None
    ) -> ActOutput:
        outs = [
            actor.act(
                {name: x[streams] for name, x in obs.items()},
                below(state, f"{k}/"),
                is_first[streams],
                None if noise is None else noise[k],
            )
            for k, (actor, streams) in enumerate(zip(self.actors, self.streams, strict=True))
        ]
        record = {}
        if "entropy" in outs[0].record:
            none = [torch.zeros(len(streams)) for streams in self.streams]
            entropies = [out.record.get("entropy", x) for out, x in zip(outs, none, strict=True)]
            record["entropy"] = self._joined(entropies)
        after = {f"{k}/{name}": x for k, out in enumerate(outs) for name, x in out.state.items()}
        action = self._joined([out.action for out in outs])
        return ActOutput(action, self._joined([out.env_action for out in outs]), record, after)

    def where_acted(self, before: State, after: State, acted: NDArray[np.bool_]) -> State:
        """Applies `turns.where_acted` to each actor's streams."""
        joined: State = {}
        for k, streams in enumerate(self.streams):
            prefix = f"{k}/"
            own = where_acted(below(before, prefix), below(after, prefix), acted[streams.numpy()])
            joined |= {f"{prefix}{name}": x for name, x in own.items()}
        return joined

    def _joined(self, each: Sequence[Tensor]) -> Tensor:
        joined = each[0].new_empty((self.count, *each[0].shape[1:]))
        for streams, x in zip(self.streams, each, strict=True):
            joined[streams] = x
        return joined


def _pick(each: Sequence[Tensor], player: Tensor) -> Tensor:
    """A tensor whose row b comes from the tensor of stream b's policy."""
    stacked = torch.stack(list(each))
    return stacked[player, torch.arange(player.numel(), device=player.device)]
