"""Cases in which each option that changes what an act or an update computes has each of its values;
as a program (``traced|compiled ALGO[:CASE] ...``) a comparison of these with what is eager.

They follow from the declarations of the options: those that are on or off, one of several, none or
a number, and 0 or 1 where these are bounds.  Other numbers are inputs or constants of a graph and
leave its operations as they are.  `VALUES` has the values of options of other kinds, and an option
with neither fails by name; `BESIDE` has what an option needs to have an effect.
"""

import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from annotated_types import Ge, Le
from compiled_helpers import HYBRID, SEEN_CONTROL, compare_acts, compare_updates
from conformance_helpers import (
    CHOICE,
    CHUNK,
    CONTINUOUS,
    LEARNERS,
    MASKED,
    NUMBERS,
    STREAMS,
    Case,
    Task,
    literals,
)
from gymnasium import spaces as gym
from pydantic import BaseModel

from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, network_facts
from quintet.options.declaration import Facts, idle, kinds

SMALL = gym.Box(0, 255, (2, 12, 12), np.uint8)
TREE = gym.Dict(
    {
        "seen": SMALL,
        "far": gym.Box(-5.0, 5.0, (2,), np.float64),
        "flags": gym.MultiBinary(3),
        "kind": gym.Discrete(4),
        "ids": gym.Box(0, 9, (2,), np.int16),
    }
)
PARTLY_BOUNDED = gym.Box(np.float32([-1, -np.inf]), np.float32([2, np.inf]))
OWN = f"{Path(__file__).stem}:Flat"
ALGOS = [
    name
    for name, entry in LEARNERS.items()
    if entry.planned_updates(entry.config(), STREAMS, 10**9)
]
"""Learners that compile updates."""

SPACES: dict[str, tuple[Task, Mapping[str, Any]]] = {
    "choices": (CHOICE, {}),
    "masked": (MASKED, {}),
    "masked, numbers too": (HYBRID, {}),
    "masked, gru": (MASKED, {"core": "gru"}),
    "squashed numbers, choices": (HYBRID, {"action_bounds": "squash"}),
    "flags": (Task(NUMBERS, gym.MultiBinary(3)), {}),
    "numbers partly bounded": (Task(NUMBERS, PARTLY_BOUNDED), {}),
    "a tree": (Task(TREE, CHOICE.action), {}),
    "a tree, actions of numbers": (Task(TREE, CONTINUOUS.action), {}),
    "doubles": (Task(gym.Box(-1.0, 1.0, (3,), np.float64), CONTINUOUS.action), {}),
}
"""Task and options of the network, for every learner that takes them."""

VALUES: dict[str, tuple[Any, ...]] = {
    "lr_schedule": ("constant", "linear"),
    "ppo lr_schedule": ("constant", "linear", "kl_adaptive"),
    "appo lr_schedule": ("constant", "linear", "kl_adaptive"),
    "ratio_clamp": (None,),
    "aux_loss_weights": ({"error": 0.3},),
    "n_step": (3,),
    "bptt_steps": (CHUNK,),
    "num_epochs": (1,),
    "minibatches_per_iteration": (1,),
    "updates_per_cycle": (2,),
    "dueling_samples": (1, 2),
    "policy_delay": (2,),
    "exploration": ("none", "normal_0.1", "ou_0.2", "adaptive-param_0.2"),
    "action_layer": (1,),
    "model.encoder": ("mlp", "nature_cnn", "impala_cnn", "small_cnn", OWN),
    "model.encoder_kwargs": ({"layout": "chw"},),
    "model.policy_hidden": ((), (8, 6)),
    "model.value_hidden": ((6, 7),),
    "model.critic_leaves": (("kind",),),
    "model.core_layers": (2,),
}
"""Values of options of other kinds, of all learners or of one."""

SIZES = {
    "unroll_steps", "batch_unrolls", "minibatch_steps", "batch_size", "replay_capacity_steps",
    "replay_start_steps", "replay_capacity_steps_per_stream", "replay_start_steps_per_stream",
    "adapt_interval_updates", "model.core_size",
}  # fmt: skip
"""Whole numbers that only say how many rows or units there are, or when something is done."""

NOT_COMPILED = {"check_numerics": "looks at every number, which its own test says"}
"""Options that a graph refuses, and why."""

BESIDE: dict[str, Mapping[str, Any]] = {
    "ppo bptt_steps": {"model.core": "gru"},
    "ddpg model.encoder": {"model.policy_hidden": (8, 8)},
    "ddpg model.encoder_kwargs": {"model.policy_hidden": (8, 8)},
    "ddpg model.policy_hidden": {"model.value_hidden": (6, 7)},
    "sac model.policy_hidden": {"model.value_hidden": (6, 7)},
    "c_bar=None": {"rho_bar": None},
    "rmsprop_momentum": {"optimizer": "rmsprop"},
    "popart": {"normalize_returns": True},
    "popart_step_size": {"normalize_returns": True},
    "gae_lambda": {"use_vtrace": False},
    "exploration_loss": {"task": CHOICE},
    "shared_l2_coef": {"model.shared_torso": True},
    "kl_tolerance": {"kl_coef_init": 0.5},
    "kl_cutoff_factor": {"kl_cutoff_coef": 0.5},
    "temperature": {"learn_temperature": False},
    "warmup_policy": {"replay_start_steps": 20},
    "reward_norm_clip": {"reward_normalizer": "return_std"},
    "normalize_pictures": {"task": SEEN_CONTROL},
    "aux_loss_weights": {"model.encoder": OWN, "model.encoder_kwargs": {"losses": True}},
    "update_normalizers": {"normalize_observations": True},
    "learn_std": {"entropy_coef": 0.01},
    "entropy_schedule": {"entropy_coef": 0.01},
    "model.encoder=nature_cnn": {"task": SEEN_CONTROL},
    "model.encoder=impala_cnn": {"task": Task(SMALL, CONTINUOUS.action)},
    "model.encoder=small_cnn": {"task": Task(SMALL, CONTINUOUS.action)},
    "model.encoder_kwargs": {"model.encoder": "small_cnn", "task": Task(SMALL, CONTINUOUS.action)},
    "model.critic_leaves": {"task": Task(TREE, CONTINUOUS.action)},
    "model.core_layers": {"model.core": "gru"},
    "model.core_skip": {"model.core": "gru"},
    "model.action_std": {"learn_std": True},
    "model.action_bounds": {"entropy_coef": 0.01, "learn_std": True},
}
"""What an option, or one of its values, needs to have an effect, where the learner has it."""


class Flat(torch.nn.Module):
    """An encoder of a user's: all leaves as numbers, then a layer; perhaps with a loss per row."""

    def __init__(self, leaves: Mapping[str, Any], losses: bool = False):
        super().__init__()
        size = sum(math.prod(leaf.shape or ()) for leaf in leaves.values())
        self.losses, self.feature_size = losses, 5
        self.linear = torch.nn.Linear(size, 5)

    def forward(self, obs: dict[str, torch.Tensor]) -> Any:
        rows = len(next(iter(obs.values())))
        flat = torch.cat([x.reshape(rows, -1).float() for x in obs.values()], 1)
        features = self.linear(flat).tanh()
        return (features, {"error": features.square().sum(-1)}) if self.losses else features


class Missing(Exception):
    """An option without a row."""


def values_of(algo: str, config: type[BaseModel], field: str, name: str) -> tuple[Any, ...]:
    """The values of an option that change a graph, besides its default; raises Missing if neither
    its declaration nor `VALUES` tells them.
    """
    info, default = config.model_fields[field], getattr(config(), field)
    if (given := VALUES.get(f"{algo} {name}", VALUES.get(name))) is not None:
        return tuple(x for x in given if x != default)
    if name in SIZES or name in NOT_COMPILED:
        return ()
    if isinstance(default, bool):
        return (not default,)
    if words := literals(info.annotation):
        return tuple(x for x in words if x != default)
    if float not in kinds(info) and NoneType not in kinds(info):
        raise Missing(name)
    found: list[Any] = [0.5] if default in (None, 0.0) else []
    if NoneType in kinds(info):
        return (*found, *([] if default is None else [None]))
    if Ge(0) in info.metadata:  # a term that is left out
        found += [x for x in (0.0,) if x != default]
    if Le(1) in info.metadata:
        found += [x for x in (1.0,) if x != default]
    return tuple(found)


Given = Mapping[str, Any]
"""Options by name, those of the network with ``model.``, and ``task``."""


def case_of(algo: str, given: Given) -> Case:
    known = LEARNERS[algo].config.model_fields
    network = {k.removeprefix("model."): x for k, x in given.items() if k.startswith("model.")}
    options = {k: x for k, x in given.items() if k in known}
    core = network.pop("core", "none")
    return Case(algo, given.get("task"), options, core, network)


def _spoiled(case: Case, given: Given) -> str:
    """Why a case is none: the learner can't, or an option has no effect; "" if it is one."""
    entry, spaces = case.algorithm, case.spaces
    if not entry.acts_in(spaces.action):
        return "acts"
    facts = Facts(**network_facts(case.model, spaces), learner=case.config)
    for name, need in entry.needs.items():
        field = name.removeprefix("model.")
        default = ModelConfig.model_fields[field].get_default()
        if getattr(case.model, field) != default and not need.met(case.model, facts):
            return "needs"
    wanted = ModelConfig(**({"core": case.core} | dict(case.network)))
    for field, (rest, _) in idle(wanted, facts).items():
        if f"model.{field}" in given and given[f"model.{field}"] != rest:
            return f"model.{field} has no effect"
    if not case.goes_together:
        return f"{dict(given)} do not go together"
    try:
        case.actor()
    except ConfigError:  # of spaces that it can't act in
        return "acts"
    return ""


@cache
def rows(algo: str) -> dict[str, Given]:
    """Every option of a learner and of its network with each of its values, and `SPACES`; raises
    Missing for an option without any, and for a value that has no effect.
    """
    return {"defaults": {}, **dict(_of_options(algo)), **dict(_of_spaces(algo))}


def _of_options(algo: str) -> Iterator[tuple[str, Given]]:
    entry = LEARNERS[algo]
    known = entry.config.model_fields
    for prefix, config in (("", entry.config), ("model.", ModelConfig)):
        for field in config.model_fields:
            name = prefix + field
            for value in values_of(algo, config, field, name):
                given = {name: value}
                for key in (name, f"{name}={value}", f"{algo} {name}"):
                    given = dict(BESIDE.get(key, {})) | given
                known = entry.config.model_fields
                given = {
                    k: x for k, x in given.items() if k in known or k[:6] in ("task", "model.")
                }
                why = _spoiled(case_of(algo, given), given)
                if why not in ("", "acts", "needs"):
                    raise Missing(f"{algo}: {name}={value}: {why}")
                if not why:
                    yield f"{name}={value}", given


def _of_spaces(algo: str) -> Iterator[tuple[str, Given]]:
    for name, (task, network) in SPACES.items():
        given = {"task": task} | {f"model.{key}": value for key, value in network.items()}
        if not _spoiled(case_of(algo, given), given):
            yield name, given


@cache
def packed(algo: str) -> dict[str, Given]:
    """Fewer cases with the same values, each with as many as go together."""
    left, found = dict(rows(algo)), dict[str, Given]()
    while left:
        names, taken = list[str](), dict[str, Any]()
        for name, given in left.items():
            both = taken | given
            agree = all(taken.get(k, x) == x for k, x in given.items())
            if (not names or agree) and _goes(algo, both):
                names.append(name)
                taken = both
        for name in names:
            del left[name]
        found[", ".join(names)] = taken
    return found


def _goes(algo: str, given: Given) -> bool:
    try:
        return not _spoiled(case_of(algo, given), given)
    except (ConfigError, ValueError):
        return False


def traced_only() -> None:
    """Graphs are traced whole, as for a compiler, but not compiled, which takes longest."""
    from quintet.models import compiled

    def traced(self: Any, _: Any) -> Callable[..., Any]:
        method: Any = torch.compile(self._function, fullgraph=True, dynamic=False, backend="eager")

        def call(*args: Any) -> Any:
            with torch._dynamo.config.patch(specialize_float=True):
                return method(*args)

        return call

    compiled.Graph._compiled = traced  # type: ignore[method-assign]


def compare(algo: str, given: Given) -> str:
    """What differs, or can't be compiled; "" if nothing."""
    if "adam_epsilon" in LEARNERS[algo].config.model_fields:
        # Adam's first steps divide gradients by their size, so that rounding decides about the
        # steps of weights whose gradients are nearly zero.
        given = {"adam_epsilon": 1e-3, **given}
    case = case_of(algo, given)
    try:
        compare_updates(case)
        compare_acts(case)
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        torch._dynamo.reset()
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    how, *wanted = sys.argv[1:]
    if how == "traced":
        traced_only()
    faults = []
    for each in wanted:
        algo, _, name = each.partition(":")
        cases = rows(algo) if how == "traced" else packed(algo)
        for one in [name] if name else cases:
            if fault := compare(algo, cases[one]):
                faults.append(f"{algo} with {one}: {fault}")
    print("\n\n".join(faults) or "same")
