"""Shape annotations of quintet.ops made real: every call is checked, calls of one kind once."""

import ast
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

_PACKAGE = "quintet.ops"
_PASSED: dict[tuple[str, ...], dict[Hashable, set[Hashable]]] = {}
"""Of each function the kinds of calls that passed, and of each the kinds of what was returned."""


def kind(x: Any) -> Hashable:
    """All of a value that an annotation in quintet.ops depends on: of a tensor its dtype and shape,
    of a float nothing, of another value the value, as shapes are also told by sizes of `self`,
    which do not change.
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


def checked_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """jaxtyping and beartype, which take most of the time of a small update, for the first call of
    each kind.  A class, which must be a dataclass, has what makes it checked at every call.
    """
    if isinstance(function, type):
        return jaxtyped(function, typechecker=beartype)
    # Functions that a function makes anew at every call are one.
    name = function.__module__, function.__qualname__, repr(function.__annotations__)
    passed = _PASSED.setdefault(name, {})
    checked: list[Callable[..., Any]] = []  # made when it is needed, as it takes milliseconds

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting():  # sizes are symbols, which are equal to nothing
            return function(*args, **kwargs)
        given = kind(args), kind(kwargs)
        if given not in passed:
            checked[:] = checked or [jaxtyped(function, typechecker=beartype)]
            out = checked[0](*args, **kwargs)
            passed[given] = {kind(out)}
            return out
        out = function(*args, **kwargs)
        if kind(out) not in passed[given]:

            @wraps(function)
            def again(*_: Any, **__: Any) -> Any:
                return out

            jaxtyped(again, typechecker=beartype)(*args, **kwargs)
            passed[given].add(kind(out))
        return out

    return call


class _Decorates(ast.NodeTransformer):
    """Decorates functions, those in functions too, and dataclasses, before all other decorators."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name != "__init__":  # whose self has no value yet
            node.decorator_list.append(ast.Name("checked_once_", ast.Load()))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            node.decorator_list.insert(0, ast.Name("checked_once_", ast.Load()))
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.fix_missing_locations(_Decorates().visit(ast.parse(self.get_data(path))))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["checked_once_"] = checked_once
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE and not fullname.startswith(f"{_PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """To be called before anything imports quintet.ops."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
