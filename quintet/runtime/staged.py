"""Acting on a GPU for environments whose rows are on the CPU: one copy to the GPU, one back, and
one wait per act."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from quintet.protocols import Actor
from quintet.system.transfer import fetched, page_locked, sent_all
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec

_LARGE = 2**18
"""Size in bytes from which a separate copy takes the host less time than a copy into the block."""


@final
class Shared:
    """An actor on a GPU that several groups use: it loads each publication once, by one copy."""

    def __init__(self, actor: Actor, device: torch.device):
        self.actor, self.device = actor, device
        self._newest: dict[int, Publication] = {}

    def load(self, publication: Publication) -> None:
        if self._newest.get(publication.policy) is publication:
            return
        self._newest[publication.policy] = publication
        # Flags are read on the CPU.
        away = {k: x for k, x in publication.tensors.items() if x.is_cpu and x.dtype != torch.bool}
        if away:
            there = dict(zip(away, sent_all([*away.values()], self.device), strict=True))
            publication = replace(publication, tensors={**publication.tensors, **there})
        self.actor.load(publication)


@final
class StagedActor:
    """An actor on a GPU as an actor of the CPU.

    All inputs of an act travel in one page-locked block, except for large ones that are page-locked
    themselves; all outputs that leave the GPU travel in another, for which the host waits.  Private
    state stays on the GPU.
    """

    def __init__(self, shared: Shared):
        self._actor, self._device = shared.actor, shared.device
        self.action_spec, self.state_specs = self._actor.action_spec, self._actor.state_specs
        self.record_specs: Mapping[str, TensorSpec] = self._actor.record_specs
        self.draw_noise, self.load = self._actor.draw_noise, shared.load
        self._blocks: dict[tuple[int, ...], list[Tensor]] = {}

    @torch.inference_mode()
    def initial_state(self, num_streams: int) -> State:
        state = self._actor.initial_state(num_streams)
        return {
            name: x.cpu() if name in self.state_specs else x.to(self._device)
            for name, x in state.items()
        }

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        return self.act_together([obs], [state], [is_first], None if noise is None else [noise])

    @torch.inference_mode()
    def act_together(
        self,
        obs: Sequence[Obs],
        states: Sequence[State],
        is_first: Sequence[Tensor],
        noise: Sequence[Tensor] | None,
    ) -> ActOutput:
        """One forward for several groups, whose rows follow one another."""
        recorded = [*self.state_specs]
        inputs: list[Sequence[Tensor]] = [[each[name] for each in obs] for name in obs[0]]
        inputs += [[each[name] for each in states] for name in recorded]
        inputs += [is_first] if noise is None else [is_first, noise]
        on_gpu = self._sent(inputs)
        seen = {name: next(on_gpu) for name in obs[0]}
        state = {name: next(on_gpu) for name in recorded}
        state |= {
            name: torch.cat([each[name] for each in states]) if len(states) > 1 else x
            for name, x in states[0].items()
            if name not in state
        }
        out = self._actor.act(seen, state, next(on_gpu), next(on_gpu, None))
        leaving = {"action": out.action, "env_action": out.env_action}
        leaving |= {f"record/{name}": x for name, x in out.record.items()}
        leaving |= {f"state/{name}": out.state[name] for name in recorded}
        here = fetched(leaving)
        return ActOutput(
            here["action"],
            here["env_action"],
            {name: here[f"record/{name}"] for name in out.record},
            out.state | {name: here[f"state/{name}"] for name in recorded},
        )

    def _sent(self, inputs: Sequence[Sequence[Tensor]]) -> Iterator[Tensor]:
        """The inputs on the GPU, each joined from its parts; the host does not wait."""
        alone = [len(x) == 1 and x[0].nbytes >= _LARGE and x[0].is_pinned() for x in inputs]
        together = [x for x, by_itself in zip(inputs, alone, strict=True) if not by_itself]
        rows = sum(map(len, inputs[0]))
        block = self._block((rows, *alone), rows, together)
        for into, parts in zip(block, together, strict=True):
            torch.cat([*parts], out=into)
        of_block = iter(sent_all(block, self._device))
        for parts, by_itself in zip(inputs, alone, strict=True):
            yield parts[0].to(self._device, non_blocking=True) if by_itself else next(of_block)

    def _block(
        self, key: tuple[int, ...], rows: int, inputs: Sequence[Sequence[Tensor]]
    ) -> list[Tensor]:
        """The page-locked block of acts of this kind, cut into one tensor for each input; it is
        free, since the previous act has ended.
        """
        if key not in self._blocks:
            self._blocks[key] = page_locked(
                [torch.zeros((rows, *x[0].shape[1:]), dtype=x[0].dtype) for x in inputs]
            )
        return self._blocks[key]


def actors_of(make_actor: Callable[[], Actor], device: str) -> Callable[[tuple[int, ...]], Actor]:
    """A function that makes the actor of a group, from the policies that act in it.

    make_actor: makes an actor on `device`; on a GPU, groups with the same policies share one.
    """
    if device == "cpu":
        return lambda _: make_actor()
    shared: dict[tuple[int, ...], Shared] = {}

    def actor_of(policies: tuple[int, ...]) -> Actor:
        if policies not in shared:
            shared[policies] = Shared(make_actor(), torch.device(device))
        return StagedActor(shared[policies])

    return actor_of
