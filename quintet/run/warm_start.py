"""Warm starts: a new run takes weights and normaliser statistics, by name, from a trained one."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor

from quintet.algorithms import registry
from quintet.algorithms.parts.trained import AVERAGE
from quintet.checkpoints.checkpoint import require_finite
from quintet.checkpoints.spaces_as_json import other_spaces
from quintet.errors import CheckpointError, ConfigError
from quintet.models.config import ModelConfig
from quintet.options.declaration import about
from quintet.policies.folders import find_policy
from quintet.protocols import Learner
from quintet.system.importing import same_code
from quintet.system.places import run_path
from quintet.types import Publication

_NOT_COMPARED = ("init", "action_std_init")
"""Options of the network that only affect how its weights are drawn."""


def find_donor(path: Path) -> tuple[dict[str, Any], Publication, dict[str, Tensor]]:
    """The policy that `init_from` names; raises ConfigError if there is no readable one."""
    try:
        return find_policy(run_path(path))
    except CheckpointError as error:
        raise ConfigError(
            f"init_from must be a trained policy, got none: {error}; give another run, or a "
            "checkpoint or policy folder that is whole"
        ) from error


def donated(
    path: Path, keys: Sequence[str], learner: Learner, description: Mapping[str, Any]
) -> tuple[dict[str, Tensor], str]:
    """The weights with which a learner begins, and a note about their source.

    path: a run folder (its newest checkpoint), a checkpoint or a saved policy.
    keys: patterns (``*``, ``?``) of the names to take; none: all, which must fit exactly, as must
        spaces and network.
    learner: keeps its own weights for other names.
    description: description of the run's policy, see `policy.describe`.

    Raises ConfigError if there is no policy, or it does not fit; the message lists every misfit.
    """
    donor, found, rest = find_donor(path)
    own, acting = learner.weights(), learner.publication().tensors
    rest_of_weights = {n: x for n, x in rest.items() if n in own}
    try:
        require_finite(path, rest_of_weights, donor["model"]["encoder"])
    except CheckpointError as error:
        raise ConfigError(f"init_from: {error}") from error
    tensors = {**found.tensors, **rest_of_weights}
    known, faults = sorted(tensors), []
    if keys:
        idle = [key for key in keys if not any(fnmatchcase(name, key) for name in tensors)]
        faults += [f"init_from_keys {key!r} matches no tensor of init_from" for key in idle]
        tensors = {n: x for n, x in tensors.items() if any(fnmatchcase(n, key) for key in keys)}
    else:
        faults += _other_policy(description, donor)
    # An average that the donor lacks begins with the policy that it follows.
    averages = {name: f"network/{name[len(AVERAGE) :]}" for name in own if name.startswith(AVERAGE)}
    tensors = {name: tensors[x] for name, x in averages.items() if x in tensors} | tensors
    # A saved policy lacks the tensors that only learning needs.
    required = [] if keys else [*own] if rest else [*acting]
    fresh = _of_something_else(description["algo"], donor["learner"], description["learner"])
    if left_out := {name for name in tensors if fresh and name.startswith(tuple(fresh))}:
        tensors = {name: x for name, x in tensors.items() if name not in left_out}
        required = [name for name in required if name not in left_out]
    faults += _other_tensors(own, tensors, required)
    if faults:
        names = "" if not keys else "; its tensors are " + ", ".join(known)
        raise ConfigError(
            f"init_from={path} must be a policy of the same form, got another:\n"
            + "\n".join(f"  - {fault}" for fault in faults)
            + "\ngive another one, the options that it was trained with, or init_from_keys that "
            + f"take a part of it{names}"
        )
    note = f"begins with {len(tensors)} tensors of {run_path(path)} (version {found.version})"
    lacking = sorted({_module(name) for name in set(own) - set(tensors) - left_out})
    if lacking and not keys:
        note += f"; a saved policy holds only its actor, so these start fresh: {', '.join(lacking)}"
    if left_out:
        note += "".join(f"; {prefix}* start fresh: {why}" for prefix, why in fresh.items())
    return own | tensors, note


def _of_something_else(
    algo: str, donor: Mapping[str, Any], mine: Mapping[str, Any]
) -> dict[str, str]:
    """Prefixes of tensors that are of something else in the donor, by an option, and why."""
    found = {}
    for name, info in registry.find(algo).config.model_fields.items():
        pair = donor.get(name), mine.get(name)
        if (prefix := about(info).tensors) and pair[0] != pair[1] and "none" not in pair:
            found[prefix] = f"{name} is {pair[1]} here and {pair[0]} in init_from"
    return found


def _module(name: str) -> str:
    """Name of the module that holds a tensor: network/critic, reward_moments."""
    module, dot, _ = name.partition(".")
    return module if dot else name.split("/")[0]


def _other_policy(mine: Mapping[str, Any], donor: Mapping[str, Any]) -> list[str]:
    """Differences in algorithm, spaces and network, one line each."""
    pairs = {"algo": (mine["algo"], donor["algo"])}
    # An option that a donor's version of quintet lacks counts as its default.
    default = ModelConfig().model_dump(mode="json")
    ours, other = (default | each["model"] for each in (mine, donor))
    for name in sorted({*ours, *other} - set(_NOT_COMPARED)):
        pairs[f"model.{name}"] = (ours.get(name), other.get(name))
    differ = {name: pair for name, pair in pairs.items() if not same_code(*pair)}
    # Gymnasium takes spaces whose leaves have another order for equal.
    differ |= other_spaces(mine, donor)
    return [f"{name}: the run has {a}, init_from {b}" for name, (a, b) in differ.items()]


def _other_tensors(
    mine: Mapping[str, Tensor], donor: Mapping[str, Tensor], required: Iterable[str]
) -> list[str]:
    """Tensors that are missing on one side or differ in shape, one line each."""
    faults = []
    for name in sorted({*donor, *required}):
        a, b = (f"shape {tuple(x[name].shape)}" if name in x else "none" for x in (mine, donor))
        if a != b:
            faults.append(f"{name}: the run has {a}, init_from {b}")
    return faults
