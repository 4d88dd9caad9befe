"""State that environments keep over resets, where they offer it by ``state_dict()`` and
``load_state_dict(state)``: counters, curricula, statistics, generators of their own.

Each wrapper may have both methods, too; Gymnasium's wrappers that normalise need none.  A state
consists of dicts, lists, tuples, numbers, strings, None and NumPy arrays; dicts have only strings
as keys.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np

from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import innermost
from quintet.errors import ConfigError, EnvironmentFault
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced

_ARRAY = "__array__"
_KINDS = "biufc"  # arrays of bools, integers, floats, complex numbers

_LEARN = ("update_running_mean", "training")
"""Attributes, of Gymnasium's wrappers and of others, that are False where statistics stay."""

_FROZEN = "__frozen__"
"""Key of the state of an environment or a wrapper whose statistics stay."""

_MOMENTS = ("obs_rms", "return_rms")
_SUMS = ("discounted_reward", "accumulated_reward")
"""Attributes of Gymnasium's wrappers that normalise."""

States = Mapping[int, Sequence[bytes]]
"""States of environments by group; b"" for one that offers none."""


class Keeper(Protocol):
    """The environments of a group, as far as they keep state of their own; an attribute `own` of
    a `VectorEnv`, also of an installed backend.
    """

    @property
    def offered(self) -> bool:
        """Whether an environment offers its state."""
        ...

    def save(self) -> list[bytes]:
        """The state of each environment; b"" for one that offers none."""
        ...

    def load(self, states: Sequence[bytes]) -> None: ...


@final
class OwnState:
    """The state of environments that this process steps."""

    def __init__(self, objects: Callable[[], Sequence[Any]], env_id: str):
        """objects: returns the environments, with their wrappers."""
        self._objects, self._id = objects, env_id

    @property
    def layers(self) -> list[list[Any]]:
        """Each environment's wrappers, from the outermost one, and the environment itself."""
        return [list(_layers(each)) for each in self._objects()]

    @property
    def offered(self) -> bool:
        return any(_offers(layer) for layers in self.layers for layer in layers)

    def save(self) -> list[bytes]:
        return [self._save(layers) for layers in self.layers]

    def load(self, states: Sequence[bytes]) -> None:
        """Gives the environments their state; raises EnvironmentFault if they refuse it."""
        for layers, state in zip(self.layers, states, strict=False):
            offering = [layer for layer in layers if _offers(layer)]
            parts = decoded(state) if state else []
            if len(parts) != len(offering):  # an older one lacks Gymnasium's statistics
                offering = [layer for layer in layers if _has_methods(layer)]
            for layer, part in zip(offering, parts, strict=False):
                frozen = _is_frozen(part)
                for name in _LEARN if frozen else ():
                    if getattr(layer, name, None) is True:
                        self._call(layer, "__setattr__", name, False)
                own = part[_FROZEN] if frozen else part
                self._call(_with_methods(layer), "load_state_dict", own)

    def _save(self, layers: Sequence[Any]) -> bytes:
        """The states of all layers that offer one; marked where statistics are frozen."""
        parts: list[Any] = []
        for layer in filter(_offers, layers):
            own = self._call(_with_methods(layer), "state_dict")
            frozen = any(getattr(layer, name, None) is False for name in _LEARN)
            parts.append({_FROZEN: own} if frozen else own)
        try:
            return encoded(parts) if parts else b""
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._id}: state_dict() must return dicts, lists, numbers, strings and NumPy "
                f"arrays, got something else ({error}): correct it"
            ) from error

    def _call(self, layer: Any, method: str, *given: Any) -> Any:
        try:
            return getattr(layer, method)(*given)
        except STOPS:
            raise
        except BaseException as error:
            text = f"{self._id}: the environment {raised(error, method)}; mend the environment"
            raise traced(EnvironmentFault(text), error) from error


def statistics(env: Any) -> tuple[str, ...]:
    """Names of Gymnasium's wrappers of `env`, also as base classes of a user's, that normalise by
    statistics of their own.
    """
    return tuple(sorted({name for layer in _layers(env) for name in _normalises(layer)}))


def _normalises(layer: Any) -> set[str]:
    kinds = {x.__name__ for x in type(layer).__mro__ if x.__module__.startswith("gymnasium.w")}
    return kinds & {"NormalizeObservation", "NormalizeReward"}


def begin_with(env: VectorEnv, state: bytes, say: Callable[[str], None]) -> bool:
    """Gives new environments one's state, with which wrappers that have a switch for it no longer
    learn; returns whether they took it, which those with other wrappers do not.

    say: called with a sentence if they refuse it.
    """
    found, parts = own_state(env), decoded(state) if state else []
    if found is None or not isinstance(parts, list):
        return False
    if any(len(parts) != sum(map(_offers, layers)) for layers in found.layers):
        return False
    frozen = encoded([part if _is_frozen(part) else {_FROZEN: part} for part in parts])
    try:
        found.load([frozen] * len(found.layers))
    except EnvironmentFault as fault:
        say(f"an evaluation begins without training's state, which was refused: {fault}")
        return False
    return True


def own_state(env: VectorEnv) -> OwnState | None:
    """Access to the environments below the wrappers of `env`; None where they are not Python
    objects of this process, as pools and environments of tensors.
    """
    found = own_of(env)
    return found if isinstance(found, OwnState) else None


def keeper(env: VectorEnv) -> Keeper | None:
    """Access to the state that the environments of `env` offer; None where they offer none."""
    found = own_of(env)
    return found if found is not None and found.offered else None


def own_of(env: VectorEnv) -> Keeper | None:
    """The attribute `own` of the environments below the wrappers of `env`."""
    found: Keeper | None = getattr(innermost(env), "own", None)
    return found


def _layers(env: Any) -> Iterator[Any]:
    yield env
    while getattr(env, "unwrapped", env) is not env and hasattr(env, "env"):
        env = env.env
        yield env


def _offers(layer: Any) -> bool:
    return _has_methods(layer) or bool(_normalises(layer))


@final
class _Statistics:
    """The state of one of Gymnasium's wrappers that normalise."""

    def __init__(self, layer: Any) -> None:
        self.attributes = vars(layer)

    def state_dict(self) -> dict[str, Any]:
        # A NumPy number becomes an array, which keeps the width in which its sums are computed.
        moments = {
            name: {k: x if k == "count" else np.asarray(x) for k, x in vars(moment).items()}
            for name, moment in self.attributes.items()
            if name in _MOMENTS
        }
        return moments | {name: self.attributes[name] for name in _SUMS if name in self.attributes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sums of another number of streams begin anew."""
        for name in _MOMENTS:
            if name in self.attributes:
                moments = {key: state[name][key] for key in ("mean", "var", "count")}
                vars(self.attributes[name]).update(moments)
        for name in _SUMS:
            if name in self.attributes and np.shape(self.attributes[name]) == np.shape(state[name]):
                self.attributes[name] = state[name]


def _with_methods(layer: Any) -> Any:
    return layer if _has_methods(layer) else _Statistics(layer)


def _is_frozen(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {_FROZEN}


def _has_methods(layer: Any) -> bool:
    kind = type(layer)
    return callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )


def encoded(state: Any) -> bytes:
    """A state as JSON, arrays in base64; raises TypeError or ValueError for anything else."""
    return json.dumps(_plain(state), separators=(",", ":")).encode()


def decoded(text: bytes) -> Any:
    """The state that `encoded` wrote; raises ValueError if it is damaged."""
    try:
        return json.loads(text, object_hook=_array)
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise ValueError(f"an environment's state: {type(error).__name__}") from error


def _plain(x: Any) -> Any:
    """A state as JSON holds it; raises TypeError for what it can't hold."""
    if isinstance(x, np.generic):
        x = x.item() if x.dtype.kind in "biuf" else np.asarray(x)
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {x.dtype}")
        content = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
        return {_ARRAY: [x.dtype.str, list(x.shape), content]}
    if isinstance(x, dict):
        if not all(isinstance(key, str) for key in x):
            raise TypeError("a dict with non-string keys")
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise TypeError(f"{type(x).__name__}")


def _array(entry: dict[str, Any]) -> Any:
    if entry.keys() != {_ARRAY}:
        return entry
    name, shape, content = entry[_ARRAY]
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    return np.frombuffer(base64.b64decode(content), dtype).reshape(shape).copy()
