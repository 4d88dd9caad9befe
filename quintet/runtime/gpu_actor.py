"""Acting on a GPU for environments whose rows are on the CPU: one copy to the GPU, one back, and
one wait per act."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from quintet.protocols import Actor, HostActor
from quintet.system.transfer import all_to_device, page_locked, to_host
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec

_LARGE = 2**18
"""Size in bytes from which a separate copy takes the host less time than a copy into the block."""

_MOST_KINDS = 32
"""Number of kinds of acts whose memory is kept; the one unused for longest makes room."""

Inputs = Sequence[Sequence[Tensor]]
"""The tensors of each input of an act, one for each group."""


@final
@dataclass
class _Stage:
    """The page-locked block of acts of one kind; it is free, since the previous act has ended.

    inputs: views of the block, one for each input that travels in it.
    arrays: the same as arrays.
    call: the act as one graph with its copies.
    """

    inputs: list[Tensor]
    arrays: list[np.ndarray[Any, Any]]
    call: Callable[..., ActOutput] | None = None

    @classmethod
    def of(cls, rows: int, inputs: Inputs) -> "_Stage":
        forms = [torch.zeros((rows, *x[0].shape[1:]), dtype=x[0].dtype) for x in inputs]
        views = page_locked(forms)
        return cls(views, [x.numpy() for x in views])

    @property
    def block(self) -> Tensor:
        """All of its bytes."""
        memory = self.inputs[0].untyped_storage()
        return torch.empty(0, dtype=torch.uint8).set_(memory)

    def fill(self, inputs: Inputs) -> None:
        """Copies the parts of each input one after the other."""
        for parts, into, array in zip(inputs, self.inputs, self.arrays, strict=True):
            if len(parts) == 1:
                np.copyto(array, parts[0].numpy())
            else:
                torch.cat([*parts], out=into)


@final
class SharedGpuActor:
    """An actor on a GPU that several groups use, one after the other: it loads each publication
    once, by one copy.
    """

    def __init__(self, actor: Actor, device: torch.device):
        self.actor, self.device = actor, device
        self._newest: dict[int, Publication] = {}
        self._stages: OrderedDict[tuple[int, ...], _Stage] = OrderedDict()

    def load(self, publication: Publication) -> None:
        if self._newest.get(publication.policy) is publication:
            return
        self._newest[publication.policy] = publication
        # Flags are read on the CPU.
        away = {k: x for k, x in publication.tensors.items() if x.is_cpu and x.dtype != torch.bool}
        if away:
            copies = dict(zip(away, all_to_device([*away.values()], self.device), strict=True))
            publication = replace(publication, tensors={**publication.tensors, **copies})
        self.actor.load(publication)

    def stage(self, rows: int, alone: Sequence[bool], inputs: Inputs) -> _Stage:
        """The stage of acts on this number of rows with the same inputs alone; `inputs`: those that
        travel in the block.
        """
        key = (rows, *alone)
        if key not in self._stages:
            self._stages[key] = _Stage.of(rows, inputs)
            if len(self._stages) > _MOST_KINDS:
                self._stages.popitem(last=False)
        self._stages.move_to_end(key)
        return self._stages[key]


@final
class GpuActor:
    """An actor on a GPU as an actor of the CPU.

    All inputs of an act travel in one page-locked block, except for large ones that are page-locked
    themselves; all outputs that leave the GPU travel in another, for which the host waits.  In CUDA
    graphs these copies are part of the graph (`HostActor`).  Private state stays on the GPU.
    """

    def __init__(self, shared: SharedGpuActor):
        self._shared, self._actor, self._device = shared, shared.actor, shared.device
        self._host = shared.actor if isinstance(shared.actor, HostActor) else None
        self.action_spec, self.state_specs = self._actor.action_spec, self._actor.state_specs
        self.record_specs: Mapping[str, TensorSpec] = self._actor.record_specs
        self.draw_noise, self.load = self._actor.draw_noise, shared.load

    @torch.inference_mode()
    def initial_state(self, num_streams: int) -> State:
        state = self._actor.initial_state(num_streams)
        return {
            name: x.cpu() if name in self.state_specs else x.to(self._device)
            for name, x in state.items()
        }

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        return self.act_together([obs], [state], [is_first], None if noise is None else [noise])

    def act_together(
        self,
        obs: Sequence[Obs],
        states: Sequence[State],
        is_first: Sequence[Tensor],
        noise: Sequence[Tensor] | None,
    ) -> ActOutput:
        """One forward for several groups, whose rows follow one another; each group has the result
        of its own act up to rounding, which depends on the number of rows.  The next act overwrites
        ``action`` and ``record``.
        """
        inputs: list[Sequence[Tensor]] = [[each[name] for each in obs] for name in obs[0]]
        inputs += [[each[name] for each in states] for name in self.state_specs]
        inputs += [is_first] if noise is None else [is_first, noise]
        alone = [len(x) == 1 and x[0].nbytes >= _LARGE and x[0].is_pinned() for x in inputs]
        together, own = inputs, list[Tensor]()
        if any(alone):
            together = [x for x, by_itself in zip(inputs, alone, strict=True) if not by_itself]
            own = [x[0] for x, by_itself in zip(inputs, alone, strict=True) if by_itself]
        stage = self._shared.stage(sum(x.shape[0] for x in is_first), alone, together)
        stage.fill(together)
        host = self._host
        if noise is None or host is None or not host.one_graph:
            return self._act(stage, alone, own, obs[0], states)
        if stage.call is None:
            parts = _merged(alone, stage.inputs, own)
            seen = {name: next(parts) for name in obs[0]}
            state = {name: next(parts) for name in self.state_specs}
            with torch.inference_mode():
                stage.call = host.from_host(stage.block, seen, state, next(parts), next(parts))
        out = stage.call(*own)
        # Both must outlive the next act, which may be another group's: an environment reads its
        # action until its step ends.
        state = {name: x.clone() for name, x in out.state.items()}
        return replace(out, env_action=out.env_action.clone(), state=state)

    @torch.inference_mode()
    def _act(
        self,
        stage: _Stage,
        alone: Sequence[bool],
        own: Sequence[Tensor],
        names: Iterable[str],
        states: Sequence[State],
    ) -> ActOutput:
        """The actor's own act, between two copies; `names`: those of the observation's leaves."""
        on_gpu = self._sent(stage, alone, own)
        seen = {name: next(on_gpu) for name in names}
        state = {name: next(on_gpu) for name in self.state_specs}
        state |= {
            name: torch.cat([each[name] for each in states]) if len(states) > 1 else x
            for name, x in states[0].items()
            if name not in state
        }
        out = self._actor.act(seen, state, next(on_gpu), next(on_gpu, None))
        leaving = {"action": out.action, "env_action": out.env_action}
        leaving |= {f"record/{name}": x for name, x in out.record.items()}
        leaving |= {f"state/{name}": out.state[name] for name in self.state_specs}
        here = to_host(leaving)
        return ActOutput(
            here["action"],
            here["env_action"],
            {name: here[f"record/{name}"] for name in out.record},
            out.state | {name: here[f"state/{name}"] for name in self.state_specs},
        )

    def _sent(
        self, stage: _Stage, alone: Sequence[bool], own: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """The inputs on the GPU; the host does not wait."""
        by_themselves = [x.to(self._device, non_blocking=True) for x in own]
        return _merged(alone, all_to_device(stage.inputs, self._device), by_themselves)


def _merged(
    alone: Sequence[bool], together: Sequence[Tensor], own: Sequence[Tensor]
) -> Iterator[Tensor]:
    """All inputs in order, from those in the block and those by themselves."""
    parts = {False: iter(together), True: iter(own)}
    return (next(parts[by_itself]) for by_itself in alone)


def actors_of(make_actor: Callable[[], Actor], device: str) -> Callable[[tuple[int, ...]], Actor]:
    """A function that makes the actor of a group, from the policies that act in it.

    make_actor: makes an actor on `device`; on a GPU, groups with the same policies share one.
    """
    if device == "cpu":
        return lambda _: make_actor()
    shared: dict[tuple[int, ...], SharedGpuActor] = {}

    def actor_of(policies: tuple[int, ...]) -> Actor:
        if policies not in shared:
            shared[policies] = SharedGpuActor(make_actor(), torch.device(device))
        return GpuActor(shared[policies])

    return actor_of
