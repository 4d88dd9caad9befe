"""Functions as compiled graphs with little overhead per call."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import is_dataclass
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast, final

import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.system.compiler import too_old
from quintet.system.memory import memory_fault
from quintet.system.user_code import first_line, traced

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: Mapping[str, Any] = {
    "cpp_wrapper": True,  # kernels are called from C++, not from Python
    # tanh is 2 * sigmoid(2x) - 1: twice as fast as the library's, and off by 1e-7 at most.
    "cpp.use_decompose_tanh": True,
}


def _inductor(graph: Any, inputs: Any) -> Any:
    """PyTorch's compiler with its cache on the disk, which compiling ahead turns off."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        with torch._functorch.config.patch("bundled_autograd_cache", False):
            return compile_fx_inner(*args, **kwargs)

    return compile_fx(graph, inputs, inner_compile=inner, config_patches=dict(_OPTIONS))


@final
class Graph(Generic[P, R]):
    """A bound method as a compiled graph, which is called thousands of times a second.

    With small networks the overhead of a `torch.compile` call takes as long as the arithmetic.  So
    the method is compiled ahead, for the layout of the first call's tensors, and only that layout
    is checked later: each layout has its own graph.  Everything else that the method reads from its
    object must stay the same, except tensors, which may change their values and be replaced by
    tensors of the same layout.
    """

    def __init__(self, method: Callable[P, R]):
        assert isinstance(method, MethodType)
        self._function, self._object = method.__func__, method.__self__
        assert isinstance(self._function, FunctionType)
        self._graphs: dict[Hashable, Callable[..., R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Layout of tensors, and of dicts, tuples and dataclasses of them, by position. Tensors
        without dimensions must not be float64, which PyTorch can't compile ahead.
        """
        assert not kwargs
        layout = _layout(args)
        if layout not in self._graphs:
            self._graphs[layout] = self._compiled(args)
        return self._graphs[layout](self._object, *args)

    def _compiled(self, args: tuple[Any, ...]) -> Callable[..., R]:
        if lacking := too_old():
            raise QuintetError(lacking)
        method: Any = torch.compile(
            self._function,
            fullgraph=True,
            dynamic=False,
            backend=_inductor,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        # Python's floats can't be compiled ahead as inputs, which is the default.
        try:
            with torch._dynamo.config.patch(specialize_float=True):
                graph: Any = method.aot_compile(((self._object, *args), {}))
        except Exception as error:  # raised by the compiler, what it calls, or a user's module
            if memory_fault(error) is not None:
                raise
            fault = QuintetError(
                f"runtime.compile=on: PyTorch can't compile {self._function.__qualname__} "
                f"({first_line(error)}); mend the compiler, or "
                "begin another run with --runtime.compile off"
            )
            raise traced(fault, error) from error
        graph.disable_guard_check()
        return cast(Callable[..., R], graph)


def _layout(arg: Any) -> Hashable:
    """Dtype, shape and stride of every tensor in an argument."""
    if isinstance(arg, Tensor):
        return arg.dtype, arg.shape, arg.stride()
    if isinstance(arg, dict):
        return tuple([(name, _layout(each)) for name, each in arg.items()])
    if isinstance(arg, tuple):
        return tuple([_layout(each) for each in arg])
    if is_dataclass(arg):
        return tuple([_layout(each) for each in vars(arg).values()])
    assert isinstance(arg, Hashable)
    return arg  # a constant of the graph: numbers that differ from call to call come in tensors
