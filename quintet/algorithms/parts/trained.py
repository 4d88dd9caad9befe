"""The weights that a learner trains, and the optimizer step on its loss."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from quintet.algorithms.parts.diagnostics import not_finite, require_finite, required_finite
from quintet.algorithms.parts.minibatches import Rows
from quintet.algorithms.parts.optimizer import ADAM, Optimizer, initial_memory
from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Interval, Names, Statistics
from quintet.errors import ConfigError
from quintet.models.compiled import Graph
from quintet.models.cuda_graphs import GraphedMethod
from quintet.models.flat import ModuleTensors, Segment, flatten_in_place, join, load_into, split
from quintet.ops import adam, rmsprop
from quintet.ops.adam import AdamRates
from quintet.ops.rmsprop import RMSPropRates
from quintet.protocols import LOOK_EVERY_UPDATES
from quintet.system.transfer import to_device, to_host

Parameters = dict[str, Tensor]

B = TypeVar("B")
K = TypeVar("K", bound=tuple[Knob, ...])
Outputs = TypeVar("Outputs")

Loss = Callable[[Parameters, B, K], tuple[Tensor, Outputs]]
"""A pure function of parameters, a batch and knobs: returns the loss and the inputs of its
statistics. Each of several ranks returns its share of the whole batch's loss; the shares sum to it.
"""


AVERAGE = "average/"
"""Prefix of the names of the average's weights; the network's own have ``network/``."""

_MEMORY_STEPS = "optimizer/steps"
_SAT_OUT = "optimizer/{}_sat_out"

CLEAR_EVERY = 1024
"""Steps after which subnormal numbers in the optimizer's memory become 0."""

FOLD_EVERY = LOOK_EVERY_UPDATES
"""Number of steps whose statistics are added at once, by learners that make one step per update."""

Fetched = tuple[tuple[int, ...], float, Mapping[str, Tensor]]
"""The last publication on a GPU: that on which it depends, the weights' sum, and the tensors."""

_NOTHING: Mapping[str, Tensor] = MappingProxyType({})


Kind = tuple[Names, tuple[int, ...]]
"""Names of a step's statistics (fewer in a step whose loss has fewer terms), and numbers of the
segments that skip the step."""


class StepOptions(NamedTuple):
    """The size of one step of one segment.

    max_norm: bound of the gradient's norm; None: no bound.
    """

    rates: AdamRates | RMSPropRates
    max_norm: float | None


def knobs_of(kind: type[K], options: object, **others: float | None) -> K:
    """Knobs from the options of the same names; none becomes infinity, a bound that never applies.

    others: knobs given here instead.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    values = [others[name] if name in others else getattr(options, name) for name in names]
    make: Callable[..., K] = kind
    return make(*(math.inf if x is None else x for x in values))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


@final
class Trained(Generic[B, K]):
    """All weights of a network as one vector, its optimizer's memory, and `step`.

    A step is the gradient of the loss, the sum over all ranks, clipping, and the optimizer's rule.
    Compiled or captured it is one graph, or two if ranks exchange gradients in between.

    parameters: views of the vector by name.
    average: a vector of the same form with a Polyak average of the weights, if there is one.
    loss, statistics: called one after the other; in one graph if compiled.
    steps: optimizer steps made.
    memory_steps: steps in the optimizer's memory, for Adam's bias correction; differs from `steps`
        if the memory came from another learner.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss[B, K, Outputs],
        statistics: Callable[[Outputs, B, K], Statistics],
        knobs: type[K],
        setup: Setup,
        optimizer: Optimizer = ADAM,
        *,
        modules: Mapping[str, nn.Module] = MappingProxyType({}),
        only_learning: tuple[str, ...] = (),
        segments: Sequence[str] = (),
        delayed: Sequence[str] = (),
        averages: bool = False,
        check_numerics: bool = False,
    ):
        """modules: modules that are published and saved with the network, by name.
        only_learning: prefixes of the names of weights that are saved but not published, since no
            actor needs them.
        segments: children of the network, each with its own `StepOptions` and the rate SEGMENT_lr;
            none: the whole network is one segment, with the rate learning_rate.
        delayed: segments that may skip a step, as the policy of TD3.
        averages: whether to keep an `average`; actors never get it.
        check_numerics: whether steps look for NaN and infinity in ``checked`` of the outputs.

        Raises:
            ConfigError: numbers are to be checked in steps that are graphs.
        """
        compiles, captures = setup.compute.compile, setup.compute.graph
        if check_numerics and (compiles or captures):
            how = "on" if compiles else "graph"
            raise ConfigError(f"check_numerics must have --runtime.compile off, got {how}")
        named = dict(sorted(network.named_parameters()))
        groups = {
            segment: {name: p for name, p in named.items() if name.startswith(f"{segment}.")}
            for segment in segments
        } or {"": named}
        self.parameters: Parameters = {k: p for group in groups.values() for k, p in group.items()}
        assert len(self.parameters) == len(named), "every parameter belongs to a segment"
        self.theta = flatten_in_place([named[name] for name in self.parameters])
        self._numpy_dtype = torch.empty(0, dtype=self.theta.dtype).numpy().dtype
        self.optimizer = optimizer
        self.memory = initial_memory(optimizer, self.theta)
        self.average = self.theta.clone() if averages else None
        self.segments = split(groups, self.theta, self.memory, self.average)
        self.modules = {"network": network, **modules}
        self._tensors, self._only_learning = ModuleTensors(self.modules), only_learning
        self.loss: Loss[B, K, Any] = loss
        self.statistics: Callable[[Any, B, K], Statistics] = statistics
        self.check_numerics, self.ranks = check_numerics, setup.ranks
        rates = " and ".join(f"--{x}-lr" for x in segments) or "--learning-rate"
        self._advice = (
            f"begin again (another --run-dir) with a lower {rates}, or with --env.reward-clip "
            "abs_one"
        )
        if not check_numerics:
            self._advice += ", or find the tensor with --check-numerics true"
        self.gradient: Tensor | None = None
        self.interval = Interval()
        # Actors on the CPU need what is published there.
        self._copies_to_cpu = self.theta.is_cuda and setup.compute.act_on == "cpu"
        self._fetched: Fetched | None = None
        self.steps = self.memory_steps = 0
        self._sat_out = dict.fromkeys(delayed, 0)  # steps, by segment
        self._knobs: Callable[..., K] = knobs
        # Names of a step's own statistics, which stand before those of the loss.
        self._norm_names = tuple(f"optim/{segment}_grad_norm" for segment in segments)
        self._norm_names = self._norm_names or ("optim/grad_norm", "optim/grad_clip_frac")
        self._num_knobs = len(knobs._fields)  # type: ignore[attr-defined]
        self._names = Names(())
        self._pending: list[tuple[Kind, Tensor]] = []
        # One graph, or two where ranks exchange gradients in between.
        self._graph_step: Callable[[B, Tensor], Tensor] | None = None
        self._parts: Any = None
        if compiles and self.ranks.size == 1:
            self._graph_step = Graph(self._compiled_step)
        elif compiles:
            self._parts = Graph(self._compiled_gradient), Graph(self._compiled_apply)
        elif captures and self.ranks.size == 1:
            self._graph_step = GraphedMethod(self._eager_step, self._changed, ("_names",), (Rows,))
        elif captures:
            gradient = GraphedMethod(self._gradient, sets=("_names",), kept=(Rows,))
            self._parts = gradient, GraphedMethod(self._apply, self._changed)

    def keep_gradient(self) -> None:
        """Keeps the gradient of the last step, before clipping, in `gradient`."""
        self.gradient = torch.zeros_like(self.theta)

    def step(self, batch: B, knobs: K, *options: StepOptions | None, polyak: float = 0.0) -> None:
        """Makes one optimizer step on the batch.

        options: one for each segment; None: a `delayed` segment skips the step, so that its weights
            and its optimizer's memory stay unchanged.
        polyak: weight of the new weights in the average; 1 makes it their copy.
        """
        resting = tuple(i for i, each in enumerate(options) if each is None)
        for segment, each in zip(self.segments, options, strict=True):
            if each is None:
                if self.optimizer.momentum:
                    raise ValueError("RMSProp's momentum must be 0 where a segment skips steps")
                self._sat_out[segment.name] += 1
        self.steps += 1
        self.memory_steps += 1
        if self.memory_steps % CLEAR_EVERY == 0:
            self._clear_subnormals()
        packed = self._packed(knobs, options, polyak)
        if self._graph_step is not None:
            vector = self._graph_step(batch, packed)
            self._pending.append(((self._names, resting), vector))
            return
        gradient, apply = self._parts or (self._gradient, self._apply)
        grad, of_loss = gradient(batch, packed)
        if self.ranks.size > 1:
            grad = self.ranks.sum(grad)
            of_loss = self._names.over_ranks(self.ranks.gather(of_loss))
        vector = torch.cat((apply(grad, packed), of_loss))
        self._pending.append(((self._names, resting), vector))

    def _clear_subnormals(self) -> None:
        """Sets subnormal numbers in the optimizer's memory to 0.  The moments of weights whose
        gradient stays 0, as of a dead ReLU, become subnormal, and processors are slow with such
        numbers.
        """
        for x in self.memory.values():
            x.masked_fill_(x.abs() < torch.finfo(x.dtype).tiny, 0.0)

    def _packed(self, knobs: K, options: Iterable[StepOptions | None], polyak: float) -> Tensor:
        """The numbers of one step, each of which may differ at the next step."""
        numbers: list[Knob] = [*knobs]
        rest = adam.REST if self.optimizer.kind == "adam" else rmsprop.REST
        for each in options:
            rates, max_norm = each or StepOptions(rest, None)
            numbers += [math.inf if max_norm is None else max_norm, *rates]
        numbers.append(polyak)
        # NumPy is three times as fast on a list of numbers.
        packed = np.array(numbers, self._numpy_dtype)
        return to_device(torch.from_numpy(packed), self.theta.device)

    def step_options(
        self,
        learning_rate: float,
        options: Any,
        segment: str = "",
        betas: tuple[float, float] = (adam.BETA1, adam.BETA2),
    ) -> StepOptions:
        """The next step's rates and bound, from the options whose names all learners share.

        options: has ``max_grad_norm``, and ``adam_epsilon`` or ``rmsprop_*`` (``rmsprop_momentum``
            only with momentum).
        segment: only for a `delayed` segment, whose memory has seen fewer steps.
        """
        rates: AdamRates | RMSPropRates
        if self.optimizer.kind == "adam":
            step = self.memory_steps - self._sat_out.get(segment, 0) + 1
            rates = adam.rates(step, learning_rate, options.adam_epsilon, *betas)
        else:
            momentum = options.rmsprop_momentum if self.optimizer.momentum else 0.0
            decay, epsilon = options.rmsprop_decay, options.rmsprop_epsilon
            rates = rmsprop.rates(learning_rate, decay, momentum, epsilon)
        return StepOptions(rates, options.max_grad_norm)

    def views(self) -> Parameters:
        """New views of the parameters; a graph gets whole segments, since each input costs time."""
        return join((each.theta, each.shapes) for each in self.segments)

    # The graphs

    def _eager_step(self, batch: B, numbers: Tensor) -> Tensor:
        """The whole step of a single learner, in the operations that an eager step makes."""
        grad, of_loss = self._gradient(batch, numbers)
        return torch.cat((self._apply(grad, numbers), of_loss))

    def _changed(self) -> list[Tensor]:
        """The tensors that a step writes to."""
        tensors = self.theta, *self.memory.values(), self.average, self.gradient
        return [x for x in tensors if x is not None]

    def _compiled_step(self, batch: B, numbers: Tensor) -> Tensor:
        """The whole step of a single learner."""
        grad, of_loss = self._compiled_gradient(batch, numbers)
        return torch.cat((self._apply(grad, numbers), of_loss))

    def evaluate(self, parameters: Parameters, batch: B, knobs: K) -> tuple[Tensor, Statistics]:
        """The loss at any parameters, and its statistics."""
        loss, outputs = self.loss(parameters, batch, knobs)
        return loss, self.statistics(outputs, batch, knobs)

    def _gradient(self, batch: B, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The loss's gradient ``[P]`` and its packed statistics."""
        knobs = self._knobs_in(numbers)
        loss, outputs = self.loss(self.parameters, batch, knobs)
        if self.check_numerics:
            require_finite(outputs.checked, f"at update {self.steps}", self._advice)
        statistics = self.statistics(outputs, batch, knobs)
        del outputs  # frees memory for the gradient
        self._names = statistics.names
        # A coefficient of 0 takes its term, and so whole layers, out of the graph.
        gradients = torch.autograd.grad(loss, [*self.parameters.values()], materialize_grads=True)
        return _flat(gradients), statistics.pack()

    def _compiled_gradient(self, batch: B, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """`_gradient` for torch.compile: the graph's inputs are whole segments, not parameters."""
        gradients, statistics = torch.func.grad(self.evaluate, has_aux=True)(
            self.views(), batch, self._knobs_in(numbers)
        )
        self._names = statistics.names
        return _flat(gradients.values()), statistics.pack()

    def _compiled_apply(self, grad: Tensor, numbers: Tensor) -> Tensor:
        """`_apply` in a form that compiles by itself, without a wrapper."""
        return self._apply(grad, numbers)

    @torch.no_grad()
    def _apply(self, grad: Tensor, numbers: Tensor) -> Tensor:
        """A step with the whole batch's gradient ``[P]``; returns its statistics, float64."""
        if self.gradient is not None:
            self.gradient.copy_(grad)
        own: list[Tensor] = []
        record = AdamRates if self.optimizer.kind == "adam" else RMSPropRates
        numbers_of = numbers[self._num_knobs : -1].view(-1, 1 + len(record._fields))
        parts = torch.split(grad, [segment.theta.numel() for segment in self.segments])
        for segment, part, each in zip(self.segments, parts, numbers_of.unbind(), strict=True):
            max_norm, *rates = each.unbind()
            clipped, norm = adam.clip_norm(part, max_norm)
            self._move(clipped, segment, rates)
            if segment.average is not None:
                segment.average.lerp_(segment.theta, numbers[-1])
            own.append(norm)
        if len(own) == 1:
            own.append(torch.where(max_norm.isinf(), math.nan, norm > max_norm))
        return torch.stack(own).double()

    def _move(self, grad: Tensor, segment: Segment, rates: list[Tensor]) -> None:
        """Applies the optimizer's rule to a segment, in place."""
        theta, memory = segment.theta, segment.memory
        if self.optimizer.kind == "adam":
            adam.adam_(theta, grad, memory["exp_avg"], memory["exp_avg_sq"], AdamRates(*rates))
        else:
            rmsprop.rmsprop_(
                theta,
                grad,
                memory["mean_sq"],
                memory.get("velocity"),
                RMSPropRates(*rates),
                epsilon_inside_sqrt=self.optimizer.kind == "rmsprop_tf",
            )

    def _knobs_in(self, numbers: Tensor) -> K:
        return self._knobs(*numbers[: self._num_knobs].unbind())

    def on_device(self, knobs: K) -> K:
        """The knobs as tensors on the parameters' device, as the loss gets them in a step: some GPU
        kernels don't take CPU numbers.
        """
        return self._knobs_in(self._packed(knobs, (), 0.0))

    # Statistics of steps

    @property
    def pending(self) -> int:
        """Number of steps since `fold`."""
        return len(self._pending)

    def recent(self, begin: int = 0, end: int | None = None) -> dict[str, Tensor]:
        """Statistics by name over the steps since `fold` that have these numbers; not for learners
        whose segments skip steps.
        """
        vectors = torch.stack([vector for _, vector in self._pending[begin:end]])
        return self._all(self._names).by_name(vectors)

    def _all(self, names: Names) -> Names:
        """Names of all statistics of a step, with its own in front of those of the loss."""
        return Names((*self._norm_names, *names.means), *names[1:])

    def end_update(self) -> None:
        """Folds, but leaves it to `published` where a GPU would be waited for, unless other ranks
        wait for an error of this one.
        """
        if not self.theta.is_cuda or self.ranks.size > 1:
            self.fold()

    def fold(self) -> None:
        """Adds the waiting steps' statistics to the interval, on the CPU.  Waits for a GPU, once.

        Raises:
            NonFiniteError: a loss or the gradient's norm is not finite; names the first such step
                and loss or norm.
        """
        if self._pending:
            self._fold(_NOTHING)

    def _fold(self, also: Mapping[str, Tensor]) -> tuple[float, Mapping[str, Tensor]]:
        """Folds; on a GPU also returns the weights' sum and further tensors, on the CPU."""
        pending, self._pending = self._pending, []
        rows: dict[Kind, list[int]] = {}
        for i, (kind, _) in enumerate(pending):
            rows.setdefault(kind, []).append(i)
        every = [torch.stack([pending[i][1] for i in each]) for each in rows.values()]
        total, here = math.nan, also
        if self.theta.is_cuda:
            found = to_host({**also, **dict(enumerate([*every, self.theta.sum()]))})
            *every, last = (found[k] for k in range(len(every) + 1))
            total, here = last.item(), {name: found[name] for name in also}
        for (kind, each), vectors in zip(rows.items(), every, strict=True):
            self._add(kind, vectors, [self.steps - len(pending) + i for i in each])
        return total, here

    def _add(self, kind: Kind, vectors: Tensor, steps: list[int]) -> None:
        """Adds the vectors ``[K, N]`` of K steps, counted from 0, to the interval."""
        names, resting = kind
        columns = required_finite(self._norm_names, names.means)
        looked_at = vectors[:, columns]
        finite = looked_at.isfinite()
        if not finite.all():
            row, column = (~finite).nonzero()[0].tolist()
            name, update = self._all(names).means[columns[column]], steps[row] + 1
            found, when = looked_at[row, column], f"at update {update}"
            raise not_finite(name, found, when, self._advice, update)
        if resting:
            vectors[:, list(resting)] = torch.nan  # gradients that were not needed
        self.interval.add_vectors(self._all(names), vectors)

    def fold_when_due(self) -> None:
        """Folds every FOLD_EVERY steps, and at once if a loss or the gradient of the last step was
        not finite, unless that means a wait for a GPU.

        Raises:
            NonFiniteError: as `fold`.
        """
        due = self.pending >= FOLD_EVERY
        if not due and not (self.theta.is_cuda and self.ranks.size == 1):
            (names, _), vector = self._pending[-1]
            last, columns = vector.tolist(), required_finite(self._norm_names, names.means)
            due = not all(math.isfinite(last[k]) for k in columns)
        if due:
            self.fold()

    # Saving

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the network, of its average and of the further modules, by name."""
        average = {f"{AVERAGE}{name}": x for name, x in self.averaged().items()}
        return self._tensors.read() | average

    def averaged(self) -> Parameters:
        """The average as views by the parameters' names; {} without an average."""
        parts = [(each.average, each.shapes) for each in self.segments]
        return join((x, shapes) for x, shapes in parts if x is not None)

    def current(self) -> dict[str, Tensor]:
        """The part of `weights` that actors need, as views."""
        return self._tensors.read(but=self._only_learning)

    def published(self, also: Mapping[str, Tensor] = _NOTHING) -> dict[str, Tensor]:
        """The tensors of `current` and `also`, as copies on the CPU where a learner on a GPU has
        actors on the CPU.  On a GPU it folds pending updates and waits once, and again only after
        one of the tensors has changed.

        Raises:
            NonFiniteError: a parameter is not finite; on a GPU also for the reasons of `fold`.
        """
        tensors: Mapping[str, Tensor] = {**self.current(), **also}
        if self.theta.is_cuda:
            state = self.steps, *(x._version for x in tensors.values())
            if self._pending or self._fetched is None or self._fetched[0] != state:
                self._fetched = state, *self._fold(tensors if self._copies_to_cpu else _NOTHING)
            _, total, here = self._fetched
            tensors = here if self._copies_to_cpu else tensors
        else:
            total = self.theta.sum().item()
        # The sum of all parameters is infinite or NaN where one of them is.
        if not math.isfinite(total):
            require_finite(self.parameters, f"after update {self.steps}", self._advice)
        return dict(tensors)

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies what `weights` returned; the optimizer stays unchanged."""
        self._fetched = None
        load_into(self.modules, tensors)
        for name, x in self.averaged().items():
            x.copy_(tensors[f"{AVERAGE}{name}"])

    def save(self) -> dict[str, Tensor]:
        """The weights and the optimizer's memory, by name."""
        tensors = {f"optimizer/{name}": x for name, x in self.memory.items()}
        tensors |= {_SAT_OUT.format(name): torch.tensor(n) for name, n in self._sat_out.items()}
        return self.weights() | tensors | {_MEMORY_STEPS: torch.tensor(self.memory_steps)}

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Copies what `save` returned, and sets `steps`."""
        self.load_weights(tensors)
        for name, x in self.memory.items():
            x.copy_(tensors[f"optimizer/{name}"])
        self.steps = steps
        self.memory_steps = int(tensors[_MEMORY_STEPS])
        self._sat_out = {name: int(tensors[_SAT_OUT.format(name)]) for name in self._sat_out}
        self._pending = []  # drops an update that was given up half-way
