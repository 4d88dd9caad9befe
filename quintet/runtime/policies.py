"""Several policies in the same environments: which one acts in a group, or plays an episode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from quintet.protocols import Actor
from quintet.runtime.slots import PLAYER, VERSION, below
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec


@final
@dataclass(frozen=True)
class Assignment:
    """Assigns the policies that share the streams to the groups.

    mixed: all policies act in every group, see `PolicyMix`; an act is a forward of every policy.
        Otherwise group g has the policy ``g % num_policies``; an act is one forward.
    """

    num_policies: int = 1
    mixed: bool = False

    @classmethod
    def of_groups(cls, num_policies: int, num_groups: int) -> Self:
        """One policy per group where all policies then get equal shares of the data, else mixed."""
        return cls(num_policies, mixed=num_groups % num_policies > 0)

    def of(self, group: int) -> tuple[int, ...]:
        """The policies that act in a group."""
        return tuple(range(self.num_policies)) if self.mixed else (group % self.num_policies,)

    def make_actor(self, make_actor: Callable[[], Actor]) -> Actor:
        if not self.mixed:
            return make_actor()
        return PolicyMix([make_actor() for _ in range(self.num_policies)])


ONE_POLICY = Assignment()


@final
class PolicyMix:
    """K actors as one: each start of an episode draws the stream's policy uniformly.

    Every policy's network sees the whole group at every act, so a row's result does not depend on
    the policies of other rows; each row takes the output of the policy that plays it.  The draws
    are one more column of the noise, so they too follow from the group's seed alone.

    The state holds every policy's own state (``K/name``), the number of the policy that plays, and,
    under the plain names, the recurrent state of that policy, which is recorded.
    """

    def __init__(self, actors: Sequence[Actor]):
        self.actors = list(actors)
        self.versions = [-1] * len(self.actors)
        first, number = self.actors[0], TensorSpec((), torch.int64)
        self.action_spec, self.state_specs = first.action_spec, first.state_specs
        self.record_specs = {**first.record_specs, PLAYER: number, VERSION: number}

    def load(self, publication: Publication) -> None:
        """Gives all policies the same weights; `load_policy` gives one policy its own."""
        for policy in range(len(self.actors)):
            self.load_policy(policy, publication)

    def load_policy(self, policy: int, publication: Publication) -> None:
        self.actors[policy].load(publication)
        self.versions[policy] = publication.version

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
        count = len(self.actors)
        drawn = (noise[..., -1] * count).long().clamp_max(count - 1)
        player = torch.where(is_first, drawn, state[PLAYER])
        outs = [
            actor.act(obs, below(state, f"{policy}/"), is_first, noise[..., :-1])
            for policy, actor in enumerate(self.actors)
        ]
        record = {
            name: _pick([out.record[name] for out in outs], player) for name in outs[0].record
        }
        record[PLAYER] = player
        record[VERSION] = torch.tensor(self.versions, device=player.device)[player]
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


def load_policy(actor: Actor, policy: int, publication: Publication) -> None:
    """Gives a group's actor the weights of one of its policies."""
    if isinstance(actor, PolicyMix):
        actor.load_policy(policy, publication)
    else:
        actor.load(publication)


def _pick(each: Sequence[Tensor], player: Tensor) -> Tensor:
    """Row b comes from the tensor of the policy that plays stream b."""
    stacked = torch.stack(list(each))
    return stacked[player, torch.arange(player.numel())]
