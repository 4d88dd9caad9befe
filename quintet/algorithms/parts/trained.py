"""The weights that a learner trains, and the optimizer step that follows from its loss."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Interval, Names, Statistics
from quintet.errors import ConfigError, NonFiniteError
from quintet.models.compiled import Graph
from quintet.models.flat import ModuleTensors, flatten_in_place, load_into, views_of
from quintet.ops import adam, rmsprop
from quintet.ops.adam import AdamRates
from quintet.ops.rmsprop import RMSPropRates

Parameters = dict[str, Tensor]

B = TypeVar("B")
K = TypeVar("K", bound=tuple[Knob, ...])

Loss = Callable[[Parameters, B, K], tuple[Tensor, Statistics]]
"""Of parameters, a batch and knobs: the loss and what it tells.  Of several ranks each gives its
share of the whole batch's loss, so that their sum is that.
"""


class Optimizer(NamedTuple):
    """Which rule follows the gradient.

    kind: rmsprop_tf: TensorFlow's form, see `quintet.ops.rmsprop`.
    momentum: whether RMSProp keeps a velocity.
    """

    kind: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    momentum: bool = False


ADAM = Optimizer()

AVERAGE = "average/"
"""How the names of an average's weights begin, where the network's own begin with ``network/``."""

_MEMORY_STEPS = "optimizer/steps"

CLEAR_EVERY = 1024
"""Steps after which subnormal numbers in the optimizer's memory become 0."""

FOLD_EVERY = 16
"""Steps whose statistics are put together at once by learners that make one step per update."""


class Segment(NamedTuple):
    """Views of one segment's part of the vectors.  In a graph they stand for the vectors: a part
    that is cut out within it is written back by a select over the whole vector.
    """

    theta: Tensor
    memory: dict[str, Tensor]
    average: Tensor | None
    shapes: dict[str, torch.Size]


class Descent(NamedTuple):
    """How far a segment goes in one step.

    max_norm: of its gradient; None: any.
    """

    rates: AdamRates | RMSPropRates
    max_norm: float | None


def knobs_of(kind: type[K], options: object, **others: float | None) -> K:
    """Knobs from the options of the same names; none is infinite: a bound that never holds.

    others: in place of options.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    values = [others[name] if name in others else getattr(options, name) for name in names]
    make: Callable[..., K] = kind
    return make(*(math.inf if x is None else x for x in values))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def non_finite(name: str, value: float, update: int) -> str:
    """What is said of a loss or norm that became NaN or infinite."""
    return (
        f"finite losses are required, {name} became {value} at update {update}; begin anew "
        "(another --run-dir) with a lower --learning-rate or --env.reward-clip abs_one, or find "
        "the tensor with --check-numerics true"
    )


@final
class Trained(Generic[B, K]):
    """All weights of a network as one vector, its optimizer's memory, and `step`.

    A step is the gradient of the loss, its sum over all ranks, clipping, and the optimizer's rule;
    compiled it is one graph, or two where ranks exchange gradients in between.

    parameters: views of the vector by name.
    average: another such vector, which follows the first from step to step, if it is asked for.
    steps: optimizer steps made.
    memory_steps: steps that the optimizer's memory holds, by which Adam corrects its bias; others
        than `steps` where the memory is another learner's.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss[B, K],
        knobs: type[K],
        setup: Setup,
        optimizer: Optimizer = ADAM,
        *,
        modules: Mapping[str, nn.Module] = MappingProxyType({}),
        only_learning: tuple[str, ...] = (),
        segments: Sequence[str] = (),
        averages: bool = False,
        check_numerics: bool = False,
    ):
        """modules: what is published and saved beside the network, by name.
        only_learning: how the names of weights begin that are saved and not published, since no
            actor needs them.
        segments: children of the network, each with a `Descent` of its own; none: it is one.
        averages: whether there is an `average`, which actors never need.

        Raises:
            ConfigError: the loss is to look at its tensors, which compiled it can't.
        """
        if check_numerics and setup.compute.compile:
            raise ConfigError("check_numerics requires --runtime.compile off, it is on")
        named = dict(sorted(network.named_parameters()))
        groups = [
            {name: p for name, p in named.items() if name.startswith(f"{segment}.")}
            for segment in segments
        ] or [named]
        self.parameters: Parameters = {name: p for group in groups for name, p in group.items()}
        assert len(self.parameters) == len(named), "every parameter belongs to a segment"
        self.theta = flatten_in_place([named[name] for name in self.parameters])
        self._numpy_dtype = torch.empty(0, dtype=self.theta.dtype).numpy().dtype
        self.optimizer = optimizer
        self.memory = _memory(optimizer, self.theta)
        self.average = self.theta.clone() if averages else None
        self.segments = self._segments_of(groups)
        self.modules = {"network": network, **modules}
        self._tensors, self._only_learning = ModuleTensors(self.modules), only_learning
        self.loss, self.ranks = loss, setup.ranks
        self.gradient: Tensor | None = None
        self.interval = Interval()
        self.steps = self.memory_steps = 0
        self._knobs: Callable[..., K] = knobs
        # What each step tells beside the loss's statistics.
        self._own = tuple(f"optim/{segment}_grad_norm" for segment in segments)
        self._own = self._own or ("optim/grad_norm", "optim/grad_clip_frac")
        self._num_knobs = len(knobs._fields)  # type: ignore[attr-defined]
        self._names = Names(())
        self._told: list[Tensor] = []
        compiles, alone = setup.compute.compile, self.ranks.size == 1
        self._whole = Graph(self._compiled_step) if compiles and alone else None
        self._parts = None
        if compiles and not alone:  # they exchange gradients in between
            self._parts = Graph(self._compiled_gradient), Graph(self._compiled_descend)

    def _segments_of(self, groups: Sequence[Mapping[str, Tensor]]) -> list[Segment]:
        found: list[Segment] = []
        begin = 0
        for group in groups:
            end = begin + sum(p.numel() for p in group.values())
            found.append(
                Segment(
                    self.theta[begin:end],
                    {name: x[begin:end] for name, x in self.memory.items()},
                    None if self.average is None else self.average[begin:end],
                    {name: p.shape for name, p in group.items()},
                )
            )
            begin = end
        return found

    def keep_gradient(self) -> None:
        """Keeps the gradient of the last step, before clipping, in `gradient`."""
        self.gradient = torch.zeros_like(self.theta)

    def step(self, batch: B, knobs: K, *descents: Descent, follow: float = 0.0) -> None:
        """One optimizer step on the batch, one `Descent` for each segment.

        follow: how far the average then goes towards the weights: 1 makes it their copy.
        """
        self.steps += 1
        self.memory_steps += 1
        if self.memory_steps % CLEAR_EVERY == 0:
            self._clear_subnormals()
        packed = self._packed(knobs, descents, follow)
        if self._whole is not None:
            self._told.append(self._whole(batch, packed))
            return
        gradient, descend = self._parts or (self._gradient, self._descend)
        grad, told = gradient(batch, packed)
        if self.ranks.size > 1:
            grad, told = self.ranks.sum(grad), self._names.over_ranks(self.ranks.gather(told))
        self._told.append(torch.cat((descend(grad, packed), told)))

    def _clear_subnormals(self) -> None:
        """Makes subnormal numbers in the optimizer's memory 0.  The moments of a weight whose
        gradient stays 0, as of a ReLU that is never active again, shrink to such numbers and stay
        there, and processors are slow on them.
        """
        for x in self.memory.values():
            x.masked_fill_(x.abs() < torch.finfo(x.dtype).tiny, 0.0)

    def _packed(self, knobs: K, descents: Iterable[Descent], follow: float) -> Tensor:
        """The numbers of a step, of which each may be another at the next one."""
        numbers: list[Knob] = [*knobs]
        for rates, max_norm in descents:
            numbers += [math.inf if max_norm is None else max_norm, *rates]
        numbers.append(follow)
        # By way of NumPy, which is three times as fast on a list of numbers.
        packed = np.array(numbers, self._numpy_dtype)
        return torch.from_numpy(packed).to(self.theta.device)

    def descent(self, learning_rate: float, options: Any) -> Descent:
        """The next step's rates and bound, from the options that learners name alike.

        options: has ``max_grad_norm``, and ``adam_epsilon`` or ``rmsprop_*`` (``rmsprop_momentum``
            only where there is momentum).
        """
        rates: AdamRates | RMSPropRates
        if self.optimizer.kind == "adam":
            rates = adam.rates(self.memory_steps + 1, learning_rate, options.adam_epsilon)
        else:
            rates = rmsprop.rates(
                learning_rate,
                options.rmsprop_decay,
                options.rmsprop_momentum if self.optimizer.momentum else 0.0,
                options.rmsprop_epsilon,
            )
        return Descent(rates, options.max_grad_norm)

    def views(self) -> Parameters:
        """The parameters as views that are made anew: a graph looks at each of its inputs at every
        call, and so has the segments alone.
        """
        return _joined((each.theta, each.shapes) for each in self.segments)

    # The graphs

    def _compiled_step(self, batch: B, numbers: Tensor) -> Tensor:
        """The whole step of one learner."""
        grad, told = self._compiled_gradient(batch, numbers)
        return torch.cat((self._descend(grad, numbers), told))

    def _gradient(self, batch: B, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The loss's gradient ``[P]`` and its packed statistics."""
        loss, statistics = self.loss(self.parameters, batch, self._knobs_in(numbers))
        self._names = statistics.names
        # A coefficient of 0 takes its term, and so whole layers, out of the graph.
        gradients = torch.autograd.grad(loss, [*self.parameters.values()], materialize_grads=True)
        return _flat(gradients), statistics.pack()

    def _compiled_gradient(self, batch: B, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """`_gradient` in the form that compiles, whose only weights are the segments."""
        gradients, statistics = torch.func.grad(self.loss, has_aux=True)(
            self.views(), batch, self._knobs_in(numbers)
        )
        self._names = statistics.names
        return _flat(gradients.values()), statistics.pack()

    def _compiled_descend(self, grad: Tensor, numbers: Tensor) -> Tensor:
        """`_descend` in the form that compiles by itself, without a wrapper."""
        return self._descend(grad, numbers)

    @torch.no_grad()
    def _descend(self, grad: Tensor, numbers: Tensor) -> Tensor:
        """A step against the whole batch's gradient ``[P]``; what it tells, float64."""
        if self.gradient is not None:
            self.gradient.copy_(grad)
        told: list[Tensor] = []
        record = AdamRates if self.optimizer.kind == "adam" else RMSPropRates
        per_segment = 1 + len(record._fields)
        place = 0
        for index, segment in enumerate(self.segments):
            begin = self._num_knobs + index * per_segment
            max_norm, *rates = numbers[begin : begin + per_segment].unbind()
            end = place + segment.theta.numel()
            clipped, norm = adam.clip_norm(grad[place:end], max_norm)
            self._follow(clipped, segment, rates)
            if segment.average is not None:
                segment.average.lerp_(segment.theta, numbers[-1])
            told.append(norm)
            place = end
        if len(told) == 1:
            told.append(torch.where(max_norm.isinf(), math.nan, norm > max_norm))
        return torch.stack(told).double()

    def _follow(self, grad: Tensor, segment: Segment, rates: list[Tensor]) -> None:
        """The optimizer's rule on a segment, in place."""
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
        """The knobs as tensors on the parameters' device, as the loss gets them in a step: not
        every kernel of a GPU takes numbers that are on the CPU.
        """
        return self._knobs_in(self._packed(knobs, (), 0.0))

    # What steps have told

    @property
    def untold(self) -> int:
        """How many steps were made since `fold`."""
        return len(self._told)

    def recent(self, begin: int = 0, end: int | None = None) -> dict[str, Tensor]:
        """What the steps since `fold` with these numbers have told, by name."""
        return self._all_names.by_name(torch.stack(self._told[begin:end]))

    @property
    def _all_names(self) -> Names:
        return Names((*self._own, *self._names.means), *self._names[1:])

    def fold(self) -> None:
        """Adds what steps have told to the interval.  A GPU is waited for, as it is by the
        publication that follows.

        Raises:
            NonFiniteError: a loss or the gradient's norm is not finite; names the first step and
                what of it is not finite.
        """
        vectors, self._told = torch.stack(self._told), []
        columns = _required_finite(self._own, self._names.means)
        looked_at = vectors[:, columns]
        finite = looked_at.isfinite()
        if not finite.all():
            row, column = (~finite).nonzero()[0].tolist()
            update = self.steps - len(vectors) + row + 1
            name = self._all_names.means[columns[column]]
            raise NonFiniteError(non_finite(name, looked_at[row, column].item(), update))
        self.interval.add_vectors(self._all_names, vectors)

    def fold_when_due(self) -> None:
        """Folds every FOLD_EVERY steps, and at once where a loss or the gradient of the last step
        was not finite: the batch at hand is then the one at fault, and weights which it has spoilt
        never act.  A GPU is waited for, as it is by the next batch's copy.

        Raises:
            NonFiniteError: as `fold`.
        """
        told = self._told[-1].tolist()
        columns = _required_finite(self._own, self._names.means)
        if self.untold >= FOLD_EVERY or not all(math.isfinite(told[k]) for k in columns):
            self.fold()

    def _require_finite_weights(self) -> None:
        """Raises NonFiniteError that names a parameter which is not finite: a step may reach one by
        a gradient that is finite.
        """
        # One sum of all, since it is infinite or NaN where an element is.
        if math.isfinite(self.theta.sum().item()):
            return
        for name, x in self.parameters.items():
            wrong = x.detach()[~x.detach().isfinite()]
            if wrong.numel():
                raise NonFiniteError(
                    f"finite weights are required, {name} holds {wrong[0].item()} after update "
                    f"{self.steps}; begin anew (another --run-dir) with a lower --learning-rate"
                )

    # Saving

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the network, of its average and of the modules beside it, by name."""
        average = {f"{AVERAGE}{name}": x for name, x in self.averaged().items()}
        return self._tensors.read() | average

    def averaged(self) -> Parameters:
        """The average as views by the parameters' names; {} where there is none."""
        parts = [(each.average, each.shapes) for each in self.segments]
        return _joined((x, shapes) for x, shapes in parts if x is not None)

    def published(self) -> dict[str, Tensor]:
        """Those of `weights` that actors need.

        Raises:
            NonFiniteError: a parameter is not finite.
        """
        self._require_finite_weights()
        return self._tensors.read(but=self._only_learning)

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies what `weights` gave, and leaves the optimizer as it is."""
        load_into(self.modules, tensors)
        for name, x in self.averaged().items():
            x.copy_(tensors[f"{AVERAGE}{name}"])

    def save(self) -> dict[str, Tensor]:
        """The weights and the optimizer's memory by name."""
        held = {f"optimizer/{name}": x for name, x in self.memory.items()}
        return self.weights() | held | {_MEMORY_STEPS: torch.tensor(self.memory_steps)}

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Copies what `save` gave; `steps` become its own."""
        self.load_weights(tensors)
        for name, x in self.memory.items():
            x.copy_(tensors[f"optimizer/{name}"])
        self.steps = steps
        self.memory_steps = int(tensors[_MEMORY_STEPS])
        self._told = []  # of an update that was given up half-way


@lru_cache
def _required_finite(own: tuple[str, ...], means: tuple[str, ...]) -> list[int]:
    """The columns of what a step tells, named `own` and `means`, that must be finite: a loss comes
    before the norm that it has spoilt.
    """
    losses = [len(own) + k for k, name in enumerate(means) if name.startswith("loss/")]
    return losses + [k for k, name in enumerate(own) if name.endswith("grad_norm")]


def _joined(parts: Iterable[tuple[Tensor, dict[str, torch.Size]]]) -> Parameters:
    """The tensors of these shapes in flat vectors, by name."""
    return {name: x for part, shapes in parts for name, x in views_of(part, shapes).items()}


def _memory(optimizer: Optimizer, theta: Tensor) -> dict[str, Tensor]:
    """The optimizer's memory at the start, by name."""
    if optimizer.kind == "adam":
        return {"exp_avg": torch.zeros_like(theta), "exp_avg_sq": torch.zeros_like(theta)}
    inside = optimizer.kind == "rmsprop_tf"
    memory = {"mean_sq": rmsprop.initial_mean_sq(theta, epsilon_inside_sqrt=inside)}
    if optimizer.momentum:
        memory["velocity"] = torch.zeros_like(theta)
    return memory
