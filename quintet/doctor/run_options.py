"""Findings about options that are far from those of the preset."""

import math
from collections.abc import Sequence
from typing import Any

from quintet.algorithms.parts.suspects import HARMLESS, HARMLESS_WAYS, SYMPTOMS, WORDS
from quintet.bounds import LARGEST
from quintet.doctor.curves import RunSeen
from quintet.doctor.finding import Finding
from quintet.observe.run_summary import text
from quintet.options import about
from quintet.system.files import is_number

_FAR = 0.65  # decades
_PARTS = ("model.", "env.reward_clip", "env.frame_stack")
_OF_RUN = {
    "algo", "seed", "preset", "resume", "init_from", "init_from_keys", "run_dir",
    "total_env_steps",
}  # fmt: skip


def options(seen: RunSeen, symptoms: Sequence[Finding]) -> list[Finding]:
    """A finding for every given option that is far from the preset."""
    if seen.well:  # nothing is wrong with what differs
        return []
    names = {each.name for each in symptoms if each.weight >= 0.2 * seen.doubt}
    found = []
    for name in sorted(seen.given):
        if name in _OF_RUN or ("." in name and not name.startswith(_PARTS)):
            continue
        if name not in seen.usual or name.startswith(HARMLESS):
            continue
        value, usual = seen.run.options.get(name), seen.usual[name]
        if value == usual:
            continue
        each = _far(seen, name, value, usual, names) or _other(seen, name, value, usual)
        if each is not None:
            found.append(each)
    return found


def decades(name: str, value: Any, usual: Any, near_1: bool) -> float | None:
    """Signed distance of two numbers in powers of ten; None: it is not defined."""
    if isinstance(value, list | tuple) and isinstance(usual, list | tuple) and usual:
        value, usual = _size(value), _size(usual)
    x, y = number(value), number(usual)
    if x is None or y is None:
        return None
    if near_1:
        x, y = 1.0 - y, 1.0 - x
        return math.log10(max(x, 1e-4) / max(y, 1e-4)) if min(x, y) >= 0 else None
    if x == y:
        return 0.0
    if y == 0 and name.endswith("_coef"):
        return max(0.0, math.log10(x / 0.01)) if x > 0 else None
    return math.log10(x) - math.log10(y) if x > 0 and y > 0 else None


def number(value: Any) -> float | None:
    """An option's value as a finite number; None: it is not a finite number."""
    return float(value) if is_number(value) and abs(value) <= LARGEST else None


def _size(layers: Sequence[Any]) -> float:
    sizes = [number(x) or 1.0 for x in layers]
    return math.exp(sum(math.log(max(x, 1.0)) for x in sizes))


def _far(seen: RunSeen, name: str, value: Any, usual: Any, symptoms: set[str]) -> Finding | None:
    from quintet.config.layers import options as fields

    info = fields(seen.run.learner).get(name)
    tune = None if info is None else about(info).tune
    distance = decades(name, value, usual, tune is not None and tune.by == "distance_to_1")
    if distance is None or abs(distance) < _FAR:
        return None
    way = "above" if distance > 0 else "below"
    roles = [role for role, names in seen.roles.items() if name in names]
    shown = set[str]()
    for role in roles:
        shown |= SYMPTOMS.get((role, way), frozenset()) & symptoms
    weight = 0.55 + 0.1 * min(abs(distance), 2.5) + 0.1 * bool(shown)
    harmless = any((role, way) in HARMLESS_WAYS for role in roles)
    if harmless:
        weight = 0.2
    where = _where(seen, name)
    said = f"{name}={_text(value)} is far {way} what is usual here ({where} has {_text(usual)})"
    if shown:
        said += f", which fits with {', '.join(sorted(shown))}"
    return Finding(
        "option-far",
        min(0.97, weight) * seen.doubt,
        said,
        {"its distance in powers of ten": distance},
        f"begin with {name}={_text(usual)}",
        change(seen, {name: usual}),
        name,
        frozenset(shown),
    )


def _where(seen: RunSeen, name: str) -> str:
    """The layer that an option's usual value is from."""
    return "the preset" if name in seen.tuned else "the default"


def _other(seen: RunSeen, name: str, value: Any, usual: Any) -> Finding | None:
    weight = WORDS.get(name, 0.3)
    distance = decades(name, value, usual, False)
    if distance is not None:  # the value is not far
        weight = min(0.3, 0.4 * abs(distance))
    tiny = isinstance(value, list) and all(isinstance(x, int) and x <= 8 for x in value)
    if name.endswith("_hidden") and value and tiny:
        weight = 0.65
    return Finding(
        "option-other",
        weight * seen.doubt,
        f"{name}={_text(value)}, while {_where(seen, name)} has {_text(usual)}",
        {k: x for k, v in (("given", value), ("usual", usual)) if (x := number(v)) is not None},
        f"begin with {name}={_text(usual)}",
        change(seen, {name: usual}),
        name,
    )


def change(seen: RunSeen, values: dict[str, Any]) -> str:
    """The command that trains again with other values of options."""
    words = " ".join(f"--{name.replace('_', '-')} {_text(x)}" for name, x in values.items())
    return f"{seen.train} {words}".rstrip()


def scaled(seen: RunSeen, role: str, factor: float) -> str:
    """The command that trains again with the options of a role multiplied; "" without any."""
    values = {}
    for name in seen.roles.get(role, ()):
        given = seen.run.options.get(name)
        if (x := number(given)) is not None and x > 0:
            whole = isinstance(given, int)
            values[name] = max(1, round(x * factor)) if whole else float(f"{x * factor:.2g}")
    return change(seen, values) if values else ""


def _text(value: Any) -> str:
    """A value as on the command line; it may come from another person's file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and not value:
        return "none"
    if isinstance(value, list | tuple):
        return text(" ".join(_text(x) for x in value[:20]))
    return f"{value:g}" if isinstance(value, float) else text(value)
