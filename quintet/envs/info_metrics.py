"""The environment's own numbers: keys of ``info``, joined over each episode (``env.metrics``).

A term is ``KEY:REDUCTION``; KEY alone is ``KEY:last``, the value of the step that ends the episode.
KEY is the name of an entry of info, or a path into dicts within it, ``achievements/wood`` or
``achievements.wood``.  Numbers that are not finite, and None, do not count; an episode without a
number at the key has none.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

import numpy as np

from quintet.envs.other_apis import info_of
from quintet.envs.success import number_of, single_success, write_success
from quintet.envs.vector import Array, InfoReader, StepRow
from quintet.errors import ConfigError

_REDUCTIONS = ("sum", "mean", "last", "min", "max")


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


def _found(info: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The value at a key or path, and its mask, which infos of several streams have; each is None
    where it is missing.
    """
    if name in info:
        return info[name], info.get(f"_{name}")
    for place, letter in enumerate(name):
        if letter in "./" and isinstance(below := info.get(name[:place]), Mapping):
            values, given = _found(below, name[place + 1 :])
            if values is not None:
                return values, given
    return None, None


@final
class InfoMetrics(InfoReader):
    """Joins the numbers of B streams in the process that steps them, and reads ``env.success``.

    Its memory is ``[B]`` for each term; with tensors it computes on their device, and never waits
    for it.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        count: int,
        who: str,
        success: str | None = None,
        library: Any = np,
        **memory: Any,
    ) -> None:
        """count: number of streams; who: name of the environment, for messages; success: key of
        info; library: of the arrays; memory: arguments with which it makes them.
        """
        self.terms, self._who, self._success, self._library = terms, who, success, library
        self._running = any(term.how != "last" for term in terms)

        def zeros(count: int) -> Any:
            return library.zeros((len(terms), count), dtype=library.float64, **memory)

        self._new, self._joined, self._counts = map(zeros, [count] * 3)
        self._rows = {}
        for how in {term.how for term in terms} - {"sum"}:
            rows = self._rows[how] = zeros(1) > 0
            for place, term in enumerate(terms):
                rows[place] = term.how == how
        self._won, self._ended = np.zeros((2, count), np.bool_)
        self.clear()

    def clear(self) -> None:
        self._counts[...], self._new[...], self._ended[...] = 0, np.nan, False

    def add(self, stream: int, info: Any, *, ended: bool, agent: str = "") -> None:
        """See `InfoReader`; raises ConfigError where a value is no number."""
        if ended:
            self._ended[stream] = True
            if self._success is not None:
                told = info_of(info)
                self._won[stream] = single_success(told, self._success, self._who + agent)
        elif not self._running:
            return
        for place, term in enumerate(self.terms if isinstance(info, Mapping) else ()):
            if ended or term.how != "last":
                value, _ = _found(info, term.name)
                if (x := number_of(value)) is None:
                    self._refuse(term, value)
                self._new[place, stream] = x

    def take(self, infos: Any, rows: Array, *, ended: bool) -> None:
        if not isinstance(infos, Mapping):
            super().take(infos, rows, ended=ended)
            return
        if ended:
            self._ended |= rows
            if self._success is not None:
                write_success(self._won, rows, infos, self._success, self._who)
        for place, term in enumerate(self.terms if ended or self._running else ()):
            values, given = _found(infos, term.name)
            if values is not None and (ended or term.how != "last"):
                there = rows if given is None else rows & np.asarray(given, np.bool_)
                np.copyto(self._new[place], self._floats(term, values, there), where=there)

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

    def write(self, out: StepRow) -> None:
        ended = self._ended
        over = bool(ended.any())
        if self.terms and (over or self._running):
            self._join()
        if over:
            if out.metrics is not None:
                out.metrics[ended] = self._until_now(ended)[ended]
            if self._success is not None:
                np.copyto(out.success, self._won, where=ended)
            ended[...] = False

    def tensors(self, infos: Mapping[str, Any], valid: Any, ended: Any) -> Any:
        """Takes a step's tensors ``[B]`` by key, and returns the metrics ``[B, M]`` of float32 of
        all streams, which count where the episode `ended`.
        """
        for place, term in enumerate(self.terms):
            values, _ = _found(infos, term.name)
            if values is None:
                continue
            if getattr(values, "shape", ())[:1] != valid.shape:
                self._refuse(term, values)
            x = self._library.as_tensor(values, device=valid.device).reshape(len(valid)).double()
            self._new[place] = self._library.where(valid, x, np.nan)
        self._join()
        return self._until_now(ended).float()

    def _join(self) -> None:
        """Joins the new numbers with those of the episodes."""
        # A graph may hold a step of tensors, so memory stays and the host decides nothing.
        library, joined, counts, x = self._library, self._joined, self._counts, self._new
        both, there = joined + x, library.isfinite(x)
        for how in self._rows.keys() - {"mean"}:
            own = x if how == "last" else getattr(library, f"{how}imum")(joined, x)
            both = library.where(self._rows[how], own, both)
        both = library.where(counts > 0, both, x)
        joined[...] = library.where(there, both, joined)
        counts += there
        x *= np.nan

    def _until_now(self, ended: Any) -> Any:
        """The metrics ``[B, M]`` of the episodes so far; forgets those that `ended`."""
        library, counts = self._library, self._counts
        found = library.where(counts > 0, self._joined, np.nan)
        if "mean" in self._rows:
            found = library.where(self._rows["mean"], found / counts.clip(1), found)
        counts *= ~ended
        return found.T

    def _refuse(self, term: Term, value: Any) -> None:
        raise ConfigError(
            f"env.metrics {term.name}:{term.how} must have one number in info at {term.name!r}, "
            f"got {value!r:.80} from {self._who}; name another key, or leave it out"
        )
