"""Functions as compiled graphs that cost little to call."""

from collections.abc import Callable, Hashable, Mapping
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast, final

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: Mapping[str, Any] = {
    "cpp_wrapper": True,  # kernels are called from C++, not from Python
    # As 2 * sigmoid(2x) - 1: twice as fast as the library's, and off by 1e-7 at most.
    "cpp.use_decompose_tanh": True,
}


def one_graph(method: Callable[P, R]) -> Callable[P, R]:
    """A bound method as one compiled graph, which is called thousands of times a second.

    On small networks half of such a call is not arithmetic.  Checking whether anything but the
    tensors has changed since compiling takes a quarter of it, and is left out: what else the method
    reads of its object, and how many rows it is given, must stay as it is.

    Graphs belong to code objects and not to what they are bound to; as nothing tells two objects'
    graphs apart then, each call here gets a code object of its own.
    """
    assert isinstance(method, MethodType)
    function = method.__func__
    assert isinstance(function, FunctionType)
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    options = {**_OPTIONS, "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    compiled: Callable[P, R] = torch.compile(
        MethodType(own, method.__self__), fullgraph=True, options=options
    )
    return compiled


@final
class RowsGraph(Generic[P, R]):
    """A bound method on a few rows as a compiled graph: acts are called most and compute least.

    What `torch.compile` does at a call takes longer than such a graph.  So it is compiled ahead,
    for the layout of the first call's tensors, and that layout is all that is looked at later: each
    has a graph of its own.  What else the method reads of its object must stay as it is, but for
    the values in its tensors.
    """

    def __init__(self, method: Callable[P, R]):
        assert isinstance(method, MethodType)
        self._function, self._object = method.__func__, method.__self__
        self._graphs: dict[Hashable, Callable[..., R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "only tensors, and dicts of them, by position"
        layout = tuple([_layout(arg) for arg in args])
        if layout not in self._graphs:
            self._graphs[layout] = self._compiled(args)
        return self._graphs[layout](self._object, *args)

    def _compiled(self, args: tuple[Any, ...]) -> Callable[..., R]:
        options = {**_OPTIONS, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        method: Any = torch.compile(self._function, fullgraph=True, dynamic=False, options=options)
        graph: Any = method.aot_compile(((self._object, *args), {}))
        graph.disable_guard_check()
        return cast(Callable[..., R], graph)


def _layout(arg: Any) -> Hashable:
    """Of a tensor, or of a dict of them."""
    if isinstance(arg, Tensor):
        return arg.dtype, arg.shape, arg.stride()
    return tuple([(name, _layout(each)) for name, each in arg.items()])
