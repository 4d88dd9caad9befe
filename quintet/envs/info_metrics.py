"""The environment's own numbers: keys of ``info``, joined over each episode (``env.metrics``).

A term is ``KEY:REDUCTION``; KEY alone is ``KEY:last``, the value of the step that ends the episode.
KEY is the name of an entry of info, or a path into dicts within it, ``achievements/wood`` or
``achievements.wood``.  Numbers that are not finite, and None, do not count; an episode without a
number at the key has none.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

import numpy as np

from quintet.envs.success import number_of
from quintet.envs.vector import Array, StepRow
from quintet.errors import ConfigError

_REDUCTIONS = ("sum", "mean", "last", "min", "max")
_ABSENT = object()
_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: a + b,
    "last": lambda _, b: b,
    "min": min,
    "max": max,
}


class Term(NamedTuple):
    """A key of info, and how its numbers are joined over an episode."""

    name: str
    how: str


def read_terms(text: str) -> tuple[Term, ...]:
    """The terms of ``env.metrics``; raises ValueError if they can't be read."""
    terms = []
    for part in text.split(","):
        name, colon, how = (x.strip() for x in part.rpartition(":"))
        term = Term(name, how) if colon else Term(how, "last")
        if not term.name or term.how not in _REDUCTIONS:
            raise ValueError(
                f"must be auto, none, or terms KEY:REDUCTION, got {part.strip()!r}: write them as "
                f"'cost:sum, speed:mean', with one of {', '.join(_REDUCTIONS)} in each"
            )
        terms.append(term)
    alike = [term.name for term in terms]
    for name in alike:
        if sum(_plain(name) == _plain(other) for other in alike) > 1:
            raise ValueError(f"must name each key once, got {name!r} twice: leave one out")
    return tuple(terms)


def as_text(terms: Sequence[Term]) -> str:
    """The terms as a value of ``env.metrics``."""
    return ", ".join(f"{term.name}:{term.how}" for term in terms) or "none"


def expanded(
    terms: Sequence[Term], ending: Collection[str], seen: Collection[str]
) -> tuple[Term, ...]:
    """The terms with one for each key that fits a pattern; raises ConfigError where none does.

    ending, seen: keys of numbers in info at the ends of episodes, and in any step.
    """
    found = {_plain(term.name): term for term in terms if "*" not in term.name}
    for term in terms:
        if "*" not in term.name:
            continue
        names = ending if term.how == "last" else seen
        fits = [name for name in names if fnmatchcase(_plain(name), _plain(term.name))]
        if not fits:
            raise ConfigError(
                f"env.metrics {term.name!r} must match the key of a number in info, but the keys "
                f"in an episode of random actions were {', '.join(names) or 'none'}: correct it, "
                "or give whole keys without *"
            )
        for name in fits:
            found.setdefault(_plain(name), Term(name, term.how))
    return tuple(found.values())


def _plain(name: str) -> str:
    return name.replace(".", "/")


def _at(info: Any, name: str) -> Any:
    """The value at a key or path; `_ABSENT` without one."""
    if name in info:
        return info[name]
    for place, letter in enumerate(name):
        if letter in "./":
            below = info.get(name[:place])
            if isinstance(below, Mapping):
                found = _at(below, name[place + 1 :])
                if found is not _ABSENT:
                    return found
    return _ABSENT


def _column(infos: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The values of all streams at a key or path, and the mask of the streams that have it; both
    may be None.
    """
    if name in infos:
        return infos[name], infos.get(f"_{name}")
    for place, letter in enumerate(name):
        if letter in "./":
            below = infos.get(name[:place])
            if isinstance(below, Mapping):
                values, given = _column(below, name[place + 1 :])
                if values is not None:
                    return values, given
    return None, None


@final
class InfoMetrics:
    """Joins the numbers of B streams in the process that steps them.

    Its memory is ``[B]`` for each term; with `zeros` of tensors it computes on their device, and
    never waits for it.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        count: int,
        who: str,
        zeros: Callable[[int], Any] = np.zeros,
    ) -> None:
        """count: number of streams; who: name of the environment, for messages."""
        self.terms, self._who, self._count_streams = tuple(terms), who, count
        self._joined = [zeros(count) for _ in terms]
        self._counts = [zeros(count) for _ in terms]
        self._running = any(term.how != "last" for term in terms)

    def clear(self) -> None:
        """Forgets the running episodes."""
        for x in (*self._joined, *self._counts):
            x[...] = 0

    def add(self, stream: int, info: Any, out: StepRow, *, ended: bool, new: bool = True) -> None:
        """See `InfoReader`; raises ConfigError where a value is no number."""
        if not ended and not self._running:
            return
        for term, joined, counts in zip(self.terms, self._joined, self._counts, strict=True):
            if not (ended if term.how == "last" else new):
                continue
            value = _at(info, term.name) if isinstance(info, Mapping) else _ABSENT
            if value is _ABSENT:
                continue
            if (x := number_of(value)) is None:
                self._refuse(term, value)
            elif np.isfinite(x):
                count = counts[stream]
                joined[stream] = _JOINED[term.how](joined[stream], x) if count else x
                counts[stream] = count + 1
        if ended:
            self._write(np.array([stream]), out)

    def step(self, infos: Any, valid: Array, ended: Array, out: StepRow, final: Any = None) -> None:
        """See `InfoReader`."""
        last = infos if final is None else final
        if self._running:
            self._take(infos, valid & ~ended, out, ended=False)
        if ended.any():
            self._take(last, ended, out, ended=True)

    def _take(self, infos: Any, rows: Array, out: StepRow, *, ended: bool) -> None:
        if not isinstance(infos, Mapping):
            for stream in np.flatnonzero(rows).tolist():
                info = None if infos is None else infos[stream]
                self.add(stream, info, out, ended=ended)
            return
        for place, term in enumerate(self.terms):
            if not ended and term.how == "last":
                continue
            values, given = _column(infos, term.name)
            if values is None:
                continue
            there = rows if given is None else rows & np.asarray(given, np.bool_)
            self._join(place, self._floats(term, values, there), there)
        if ended:
            self._write(np.flatnonzero(rows), out)

    def _floats(self, term: Term, values: Any, there: Array) -> Array:
        array = np.asarray(values)
        if array.dtype.kind in "biuf" and array.size == len(there):
            return array.reshape(-1).astype(np.float64)
        if array.shape[:1] != there.shape:
            if array.shape:
                self._refuse(term, values)
            array = np.full(len(there), values)  # one value for all
        found = np.full(len(there), np.nan)
        for stream in np.flatnonzero(there):
            if (x := number_of(array[stream])) is None:
                self._refuse(term, array[stream])
            found[stream] = x
        return found

    def _join(self, place: int, x: Array, there: Array) -> None:
        """Joins the numbers ``[B]`` of the streams that are `there`."""
        joined, counts, how = self._joined[place], self._counts[place], self.terms[place].how
        there = there & np.isfinite(x)
        counts += there
        if how in ("sum", "mean"):
            np.add(joined, x, out=joined, where=there)
            return
        if how != "last":
            there = there & ((counts == 1) | (x < joined if how == "min" else x > joined))
        np.copyto(joined, x, where=there)

    def tensors(self, infos: Mapping[str, Any], valid: Any, ended: Any) -> Any:
        """Takes a step's tensors ``[B]`` by key, and returns the metrics ``[B, M]`` of float32 of
        all streams, which count where the episode `ended`.
        """
        import torch

        rows = []
        for place, term in enumerate(self.terms):
            joined, counts = self._joined[place], self._counts[place]
            values, _ = _column(infos, term.name)
            if values is None:
                pass
            elif getattr(values, "shape", ())[:1] != (self._count_streams,):
                self._refuse(term, values)
            else:
                x = torch.as_tensor(values, device=joined.device).reshape(len(joined)).double()
                there = valid & x.isfinite()
                # A graph may hold the step, so memory stays and the host decides nothing.
                both = {
                    "last": x,
                    "min": torch.minimum(joined, x),
                    "max": torch.maximum(joined, x),
                }.get(term.how, joined + x)
                both = torch.where(counts > 0, both, x)
                joined.copy_(torch.where(there, both, joined))
                counts += there
            mean = counts.clamp_min(1) if term.how == "mean" else 1
            rows.append(torch.where(counts > 0, joined / mean, torch.nan))
            counts.mul_(~ended)
            joined.mul_(~ended)
        return torch.stack(rows, 1).float()

    def _write(self, streams: Array, out: StepRow) -> None:
        """Writes the rows of streams whose episodes have ended, and forgets these."""
        for place, term in enumerate(self.terms):
            counts, joined = self._counts[place][streams], self._joined[place][streams]
            if term.how == "mean":
                joined = joined / np.maximum(counts, 1)
            if out.metrics is not None:
                out.metrics[streams, place] = np.where(counts > 0, joined, np.nan)
            self._counts[place][streams] = self._joined[place][streams] = 0

    def _refuse(self, term: Term, value: Any) -> None:
        raise ConfigError(
            f"env.metrics {term.name}:{term.how} must have one number in info at {term.name!r}, "
            f"got {value!r:.80} from {self._who}; name another key, or leave it out"
        )
