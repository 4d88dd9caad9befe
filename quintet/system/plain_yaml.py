"""YAML by the rules of version 1.2, in which words are what they look like.

PyYAML follows version 1.1, in which ``off``, ``no``, ``on`` and ``yes`` are truth values, ``12:30``
is the number 750, ``010`` is 8, ``2001-01-01`` a date, and ``1e-3`` a text.
"""

import re
from typing import Any, final

import yaml

_BOOL, _INT, _FLOAT, _DATE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp")
)
_BOOLS = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTS = re.compile(r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)")
_FLOATS = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


@final
class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's)
        first: [each for each in found if each[0] not in (_BOOL, _INT, _FLOAT, _DATE)]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@final
class _Dumper(yaml.SafeDumper):
    """Quotes every text that one of the two versions takes for something else."""


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node)).replace("_", "")
    bases = {"0x": 16, "0b": 2}
    return int(digits, bases.get(digits.lstrip("+-")[:2], 10))


for tag, form, first in (
    (_BOOL, _BOOLS, "tTfF"),
    (_INT, _INTS, "-+0123456789"),
    (_FLOAT, _FLOATS, "-+.0123456789"),
):
    whole = re.compile(f"^(?:{form.pattern})$")
    _Loader.add_implicit_resolver(tag, whole, list(first))
    _Dumper.add_implicit_resolver(tag, whole, list(first))
_Loader.add_constructor(_INT, _int)


def load(text: str | bytes) -> Any:
    """The value of a document of plain values; raises what PyYAML raises."""
    return yaml.load(text, _Loader)


def dump(value: Any, **how: Any) -> str:
    """The document of a value; `load` and PyYAML's `safe_load` both read it."""
    return str(yaml.dump(value, Dumper=_Dumper, **how))
