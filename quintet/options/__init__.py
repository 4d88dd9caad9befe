"""Options: their declaration, layers and resolution into a configuration."""

from importlib import import_module
from typing import Any
from warnings import warn

_DECLARED = (
    *("CAP", "FACTOR", "NEAR_1", "USUAL", "Needs", "Options", "Tune", "option", "require_tunable"),
)


def __getattr__(name: str) -> Any:
    """Names of `quintet.options.declaration`, which were here until 0.3."""
    if name not in _DECLARED:
        raise AttributeError(f"module 'quintet.options' has no attribute {name!r}")
    said = f"quintet.options.declaration has {name}; quintet.options has it until 0.4"
    warn(said, DeprecationWarning, stacklevel=2)
    return getattr(import_module("quintet.options.declaration"), name)
