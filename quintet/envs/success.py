"""Rules of ``env.success``, by which episodes count as won.

There are two rules, both about the step that ends an episode:

- ``"reward>0.5"``: the last reward, as the environment gave it, is strictly greater;
- ``"info:KEY"``: ``info[KEY]`` is true. KEY must be in info at every ending.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from quintet.errors import ConfigError
from quintet.system.signals import STOPS

_REWARD, _INFO = "reward>", "info:"
_Flags = NDArray[np.bool_]


class SuccessRule(NamedTuple):
    """The last raw reward must be greater than `above`, or the ending's info true at `key`."""

    above: float | None
    key: str | None


def read_rule(text: str) -> SuccessRule:
    """Parses a rule; raises ValueError if `text` is not a rule."""
    if text.startswith(_INFO) and text != _INFO:
        return SuccessRule(None, text.removeprefix(_INFO))
    try:
        above = float(text.removeprefix(_REWARD))
    except ValueError:
        above = math.nan
    if not text.startswith(_REWARD) or not math.isfinite(above):
        raise ValueError(
            "must be 'reward>NUMBER' (the last reward of an episode is greater) or 'info:KEY' "
            "(info[KEY] is true at its end); quote it in a shell because of the >"
        )
    return SuccessRule(above, None)


def key_of(rule: str | None) -> str | None:
    """The rule's key of info; None without one."""
    return None if rule is None else read_rule(rule).key


def single_success(info: Mapping[str, Any], key: str, who: str) -> bool:
    """The success in the info of the environment `who` at an ending; raises ConfigError if the key
    is missing, or its value is not a truth value.
    """
    if key not in info:
        _refuse_key(key, info, who)
    return _truth(info[key], key, who)


def write_success(out: _Flags, ended: _Flags, infos: Mapping[str, Any], key: str, who: str) -> None:
    """Writes the successes in a vector environment's infos to `out` ``[B]`` where `ended` ``[B]``;
    raises ConfigError as `single_success` does.

    infos: arrays ``[B]`` by key, perhaps with a mask of the streams that have it at ``"_" + key``.
    """
    values, present = infos.get(key), infos.get(f"_{key}")
    for stream in np.flatnonzero(ended).tolist():
        if values is None or (present is not None and not present[stream]):
            masks = {f"_{name}" for name in infos}
            _refuse_key(key, [name for name in infos if name not in masks], who)
        # A value that is no array per stream is refused as a whole.
        many = isinstance(values, np.ndarray | list | tuple) and len(values) == len(ended)
        out[stream] = _truth(values[stream] if many else values, key, who)


def number_of(value: Any) -> float | None:
    """A number or truth value in info, also in an array of one; NaN for None; None: no number."""
    if type(value) is float:
        return value
    if value is None:
        return math.nan
    try:
        array = np.asarray(value)
        return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
    except STOPS:
        raise
    except BaseException:  # the environment's own object raised it
        return None


def _truth(value: Any, key: str, who: str) -> bool:
    number = number_of(value)
    if number is None or math.isnan(number):
        raise ConfigError(
            f"env.success 'info:{key}' must have one number or truth value in info[{key!r}] at "
            f"each ending, got {value!r:.80} from {who}; name another key, or leave env.success out"
        )
    return bool(number)


def _refuse_key(key: str, known: Iterable[str], who: str) -> NoReturn:
    names = sorted(str(name) for name in known)
    raise ConfigError(
        f"env.success 'info:{key}' must have info[{key!r}] at every ending, got info of {who} with "
        f"{names or 'nothing'}; name what is there, give 'reward>NUMBER', or leave env.success out"
    )
