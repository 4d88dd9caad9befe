"""Reads a learner's presets, from the file that its record names."""

from collections.abc import Mapping
from typing import Any

from quintet.algorithms import registry
from quintet.errors import ConfigError, FileFault
from quintet.system.files import read_yaml

_PARTS = ("environments", "kinds", "named", "race")


def read(algo: str) -> dict[str, Mapping[str, Any]]:
    """The presets of a learner by part: `environments` by a pattern of ids, `kinds` by the kind of
    environment, `named` by name, and the entries of a race by name (see `quintet.race.portfolio`);
    empty parts where the learner has none.

    Raises:
        ConfigError: the file can't be read, or has an invalid form.
    """
    found: dict[str, Mapping[str, Any]] = {part: {} for part in _PARTS}
    file = registry.find(algo).presets
    if file is None:
        return found
    try:
        held = read_yaml(file)
    except FileFault as error:
        raise _broken(algo, f"readable, got {error}") from error
    if not isinstance(held, Mapping) or not held.keys() <= {*_PARTS}:
        raise _broken(algo, f"a mapping of {', '.join(_PARTS)}, got {held!r:.100} in {file}")
    for part, presets in held.items():
        if not isinstance(presets, Mapping) or not all(
            isinstance(preset, Mapping) for preset in presets.values()
        ):
            raise _broken(algo, f"mappings of options, got {presets!r:.100} for {part} in {file}")
    return {**found, **held}


def _broken(algo: str, what: str) -> ConfigError:
    return ConfigError(f"the presets of {algo} must be {what}: mend the file, or use --preset none")
