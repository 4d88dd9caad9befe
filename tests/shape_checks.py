"""Shape annotations of quintet.ops made real: every call is checked, calls of one kind once."""

from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any

from beartype import beartype
from jaxtyping import install_import_hook
from torch import Tensor


def kind(x: Any) -> Hashable:
    """All of a value that an annotation in quintet.ops depends on: of a tensor its dtype and shape,
    of a float nothing, of another value the value, as shapes are also told by sizes of `self`.
    """
    if isinstance(x, Tensor):
        return type(x), x.dtype, x.shape
    if isinstance(x, float):
        return float
    if isinstance(x, tuple | list):
        return type(x), *map(kind, x)
    if isinstance(x, Mapping):
        return type(x), *((key, kind(each)) for key, each in x.items())
    return type(x), x


def checked_once(stub: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, which takes most of the time of a small update, for the first call of each kind.

    stub: a function with annotations and no body; jaxtyping calls it with all that the function
        itself is called with, and then again with what it returned beside them.
    """
    checked, passed = beartype(stub), set[Hashable]()
    if stub.__name__ == "__init__":  # whose self has no value yet
        return checked

    @wraps(stub)
    def check(*args: Any, **kwargs: Any) -> None:
        call = kind(args), kind(kwargs)
        if call not in passed:
            checked(*args, **kwargs)
            passed.add(call)

    return check


def install() -> None:
    """To be called before anything imports quintet.ops."""
    install_import_hook("quintet.ops", "shape_checks.checked_once")
