"""Functions as CUDA graphs: one launch in place of hundreds, with the bytes of eager calls."""

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import is_dataclass, replace
from types import MethodType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, final

import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.system.memory import memory_fault
from quintet.system.transfer import pack, views_in, whole_block
from quintet.system.user_code import first_line, traced

P = ParamSpec("P")
R = TypeVar("R")

WARM_UPS = 3
"""Calls before a capture, in which libraries choose their kernels and allocate their memory."""

MOST_LAYOUTS = 32
"""Number of graphs of a method; the one unused for longest makes room for another."""


@final
class GraphedMethod(Generic[P, R]):
    """A bound method as CUDA graphs, called as `quintet.models.compiled.Graph` is.

    The first call with tensors of a layout captures the kernels that the method launches.  Later
    calls copy their tensors to where these kernels read, and launch all of them at once.

    The method must not wait for the GPU or draw random numbers.  Everything that it reads from its
    object must stay the same, except for the values of tensors, which must stay in their place.
    """

    def __init__(
        self,
        method: Callable[P, R],
        changes: Callable[[], Iterable[Tensor]] = tuple,
        sets: Sequence[str] = (),
        kept: tuple[type, ...] = (),
    ):
        """changes: function that returns the tensors of the object that the method writes to.
        sets: names of the attributes that the method assigns; their values follow from the layout.
        kept: dataclasses whose tensors only PyTorch's operations write to; such a tensor is copied
            again only after a write, or if it is another object.
        """
        assert isinstance(method, MethodType)
        self._method, self._object = method, method.__self__
        self._changes, self._sets, self._kept = changes, sets, kept
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()

    def from_host(self, device: torch.device, block: Tensor, *args: Any) -> "HostCall[R]":
        """A function that calls the method by one launch and one wait, with the values that
        page-locked tensors of the CPU have then; the next call overwrites its result.  The method
        must write to no tensor of its object.

        block: bytes; some tensors in `args` are views of it.  The others are page-locked tensors
            of their own, which the function takes as arguments, in order.
        """
        with _memory_of(device) as memory:
            return HostCall(self._method, device, block, args, memory)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Tensors may stand in dicts, tuples and dataclasses; everything else in the arguments is a
        constant of the graph.  The result holds new tensors.
        """
        assert not kwargs
        tensors: list[Tensor] = []
        layout = _layout(args, tensors)
        with _memory_of(tensors[0].device) as memory:
            graph = self._graphs.get(layout)
            if graph is None:
                graph = self._graphs[layout] = self._captured(args, tensors, memory)
                if len(self._graphs) > MOST_LAYOUTS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(layout)
            graph.inputs.fill(tensors)
            graph.replay()
            for name, value in graph.attributes.items():
                setattr(self._object, name, value)
            result: R = graph.outputs.copied()
        return result

    def _captured(
        self, args: tuple[Any, ...], tensors: list[Tensor], memory: "_GraphMemory"
    ) -> "_Graph":
        """The graph of a call; what the call would change keeps its values."""
        inputs = _Inputs(tensors, _inside(args, self._kept))
        buffers = iter(inputs.buffers)
        static = _mapped(args, lambda _: next(buffers))
        changed = [*self._changes()]
        before = [x.clone() for x in changed]
        replay, outputs = _recorded(
            self._method.__qualname__, lambda: _Outputs(self._method(*static)), memory
        )
        with torch.no_grad():
            for x, kept in zip(changed, before, strict=True):
                x.copy_(kept)
        attributes = {name: getattr(self._object, name) for name in self._sets}
        return _Graph(inputs, replay, outputs, attributes, memory)


@final
class HostCall(Generic[R]):
    """A graph that also copies a method's arguments from page-locked memory, and its result there;
    see `GraphedMethod.from_host`.
    """

    def __init__(
        self,
        method: Callable[..., R],
        device: torch.device,
        block: Tensor,
        args: tuple[Any, ...],
        memory: "_GraphMemory",
    ):
        tensors: list[Tensor] = []
        _layout(args, tensors)
        begin, copy = block.data_ptr(), torch.empty_like(block, device=device)
        inside = [x.untyped_storage().data_ptr() == begin for x in tensors]
        own = zip(tensors, inside, strict=True)
        self._alone = [x.to(device) for x, of_block in own if not of_block]
        copied = [x for x, of_block in zip(tensors, inside, strict=True) if of_block]
        views = views_in(copied, copy)
        parts = {True: iter(views), False: iter(self._alone)}
        static = iter([next(parts[of_block]) for of_block in inside])
        on_gpu = _mapped(args, lambda _: next(static))
        here: list[Tensor] = []

        def run() -> _Outputs:
            copy.copy_(block, non_blocking=True)
            outputs = _Outputs(method(*on_gpu))
            written = outputs.block
            if not here:  # not while a graph is captured
                here.append(torch.empty(written.shape, dtype=written.dtype, pin_memory=True))
            here[0].copy_(written, non_blocking=True)
            return outputs

        self._replay, outputs = _recorded(method.__qualname__, run, memory)
        # Made once: new views take as long as a small network's act.
        self._result: R = outputs.of_copy(here[0])
        self._memory = memory
        self._kept = block, copy, outputs  # kept while the graph copies between them

    def __call__(self, *alone: Tensor) -> R:
        """The result on the CPU, which the next call overwrites."""
        with self._memory:
            if alone:
                with torch.inference_mode():  # the mode in which the buffers were made
                    for buffer, x in zip(self._alone, alone, strict=True):
                        buffer.copy_(x, non_blocking=True)
            self._replay()
            torch.cuda.current_stream(self._memory.device).synchronize()
        return self._result


@final
class _Inputs:
    """The memory from which a graph reads its arguments.

    A kept tensor that is in it already, unchanged, is not copied again: several minibatches of a
    batch are indices into the same rows.  Others are always copied, since a simulator or a graph
    may write to them without PyTorch's knowledge.
    """

    def __init__(self, tensors: list[Tensor], kept: list[bool]):
        self._kept = kept
        self.buffers = [x.detach() for x in tensors]
        self._blocks: list[tuple[list[int], list[int], Tensor]] = []
        memory: dict[int, list[int]] = {}
        for k, x in enumerate(tensors):
            memory.setdefault(x.untyped_storage().data_ptr(), []).append(k)
        for group in memory.values():
            views = [tensors[k] for k in group]
            block = whole_block(views)
            if block is not None:
                copy, places = block.clone(), [int(x.storage_offset()) for x in views]
                self._blocks.append((group, places, copy))
            own = [x.clone() for x in views] if block is None else views_in(views, copy)
            for k, x in zip(group, own, strict=True):
                self.buffers[k] = x
        self._last: list[tuple[weakref.ref[Tensor], int] | None] = [None] * len(tensors)

    def fill(self, tensors: list[Tensor]) -> None:
        """Copies the tensors: views of one block together, others by one kernel per dtype."""
        done: set[int] = set()
        for group, places, copy in self._blocks:
            views = [tensors[k] for k in group]
            block = whole_block(views)
            alike = block is not None and block.shape == copy.shape
            if alike and [x.storage_offset() for x in views] == places:
                copy.copy_(block)  # type: ignore[arg-type]
                done.update(group)
        into: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for k, x in enumerate(tensors):
            if k in done:
                self._last[k] = None
                continue
            # Inference tensors do not count their changes.
            version = x._version if self._kept[k] and not x.is_inference() else -1
            last = self._last[k]
            if last is not None and last[0]() is x and last[1] == version:
                continue
            self._last[k] = None if version < 0 else (weakref.ref(x), version)
            buffers, sources = into.setdefault(x.dtype, ([], []))
            buffers.append(self.buffers[k])
            sources.append(x)
        with torch.no_grad():
            for buffers, sources in into.values():
                torch._foreach_copy_(buffers, sources)


@final
class _Outputs:
    """The memory for a method's result in a graph, one block if it has several tensors."""

    def __init__(self, result: Any):
        self._result, self._tensors = result, list[Tensor]()
        _layout(result, self._tensors)
        self._block: Tensor | None = None
        if len(self._tensors) > 1:
            self._block, self._tensors = pack(self._tensors)
            views = iter(self._tensors)
            self._result = _mapped(result, lambda _: next(views))

    @property
    def block(self) -> Tensor:
        """The memory of a result of several tensors."""
        assert self._block is not None
        return self._block

    def copied(self) -> Any:
        """The result, in new memory."""
        if self._block is None:
            return _mapped(self._result, Tensor.clone)
        return self.of_copy(self._block.clone())

    def of_copy(self, block: Tensor) -> Any:
        """The result in a copy of its memory."""
        copies = iter(views_in(self._tensors, block))
        return _mapped(self._result, lambda _: next(copies))


class _Graph(NamedTuple):
    """A graph of one layout.

    outputs: where `replay` writes the method's result.
    attributes: values of the object's attributes that the method sets.
    memory: kept as long as a graph uses it.
    """

    inputs: _Inputs
    replay: Callable[[], None]
    outputs: _Outputs
    attributes: dict[str, Any]
    memory: "_GraphMemory"


@final
class _GraphMemory:
    """The memory that all graphs of a stream share.  One graph runs at a time, and what it leaves
    there is used up before the next one begins.
    """

    def __init__(self, device: torch.device):
        self.device, self.lock = device, threading.Lock()
        self._pool: tuple[torch.cuda.Stream, Any, torch.cuda.CUDAGraph] | None = None

    def pool(self) -> tuple[torch.cuda.Stream, Any]:
        """The stream on which graphs are captured, and PyTorch's handle of their memory."""
        if self._pool is None:
            stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            handle = torch.cuda.graph_pool_handle()
            anchor = torch.cuda.CUDAGraph()  # without a graph PyTorch gives the handle up
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns that it is empty
                with _capturing(anchor, stream, handle):
                    pass
            self._pool = stream, handle, anchor
        return self._pool[:2]

    def __enter__(self) -> "_GraphMemory":
        self.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()


_memories: weakref.WeakValueDictionary[tuple[torch.device, int], _GraphMemory] = (
    weakref.WeakValueDictionary()
)


def _memory_of(device: torch.device) -> _GraphMemory:
    return _memories.setdefault((device, stream_of(device)), _GraphMemory(device))


def stream_of(device: torch.device) -> int:
    """PyTorch's number of the stream on which this thread launches kernels."""
    return torch.cuda.current_stream(device).stream_id


def record(run: Callable[[], R], memory: _GraphMemory) -> tuple[Callable[[], None], R]:
    """Captures what `run` launches, after warm-up calls; tensors that it changes are left changed.

    Returns: a function that launches it again, and the result, whose tensors it writes to.
    """
    with torch.cuda.device(memory.device):
        stream, handle = memory.pool()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _capturing(graph, stream, handle):
            outputs = run()
    return graph.replay, outputs


def _recorded(
    name: str, run: Callable[[], R], memory: _GraphMemory
) -> tuple[Callable[[], None], R]:
    """The result of `record`; raises QuintetError if no graph can hold what the method of that name
    launches.
    """
    try:
        return record(run, memory)
    except Exception as error:  # raised by CUDA, PyTorch, or a user's module
        if memory_fault(error) is not None:
            raise
        # The end of a capture raises again, in words that name no cause.
        first = first_line(error.__context__ or error)
        fault = QuintetError(
            f"runtime.compile=graph: a CUDA graph can't hold {name} ({first}); begin another run "
            "with --runtime.compile off"
        )
        raise traced(fault, error) from error


def _capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, handle: Any) -> Any:
    # Other threads may use the GPU meanwhile, as those that page-lock batches do.
    return torch.cuda.graph(graph, handle, stream, capture_error_mode="thread_local")


def _layout(arg: Any, tensors: list[Tensor]) -> Hashable:
    """Dtype, shape and order of memory of every tensor in an argument, and all else in it; the
    tensors are added to `tensors`.
    """
    if isinstance(arg, Tensor):
        tensors.append(arg)
        return arg.dtype, arg.shape, arg.is_contiguous() or _order(arg)
    if isinstance(arg, dict):
        return tuple([(name, _layout(each, tensors)) for name, each in arg.items()])
    if isinstance(arg, tuple):
        return tuple([_layout(each, tensors) for each in arg])
    if is_dataclass(arg):
        return tuple([_layout(each, tensors) for each in vars(arg).values()])
    assert isinstance(arg, Hashable)
    return arg


def _inside(arg: Any, kinds: tuple[type, ...], inside: bool = False) -> list[bool]:
    """Whether each tensor of an argument, in the order of `_layout`, is part of an object of one of
    these types."""
    if isinstance(arg, Tensor):
        return [inside]
    inside = inside or isinstance(arg, kinds)
    parts: Any = vars(arg).values() if is_dataclass(arg) else ()
    parts = arg.values() if isinstance(arg, dict) else arg if isinstance(arg, tuple) else parts
    return [x for part in parts for x in _inside(part, kinds, inside)]


def _order(x: Tensor) -> Hashable:
    """The dimensions of a tensor by stride, for a copy without gaps; True for C's order."""
    strides, natural = x.stride(), range(x.ndim)
    order = sorted(natural, key=lambda k: -strides[k] if x.shape[k] > 1 else 0)
    return order == [*natural] or tuple(order)


def _mapped(arg: Any, of: Callable[[Tensor], Tensor]) -> Any:
    """The argument with every tensor replaced, in the order of `_layout`."""
    if isinstance(arg, Tensor):
        return of(arg)
    if isinstance(arg, dict):
        return {name: _mapped(each, of) for name, each in arg.items()}
    if isinstance(arg, tuple):
        each = [_mapped(x, of) for x in arg]
        return tuple(each) if type(arg) is tuple else type(arg)(*each)
    if is_dataclass(arg) and not isinstance(arg, type):
        return replace(arg, **{name: _mapped(each, of) for name, each in vars(arg).items()})
    return arg
