"""Tasks: the state of a run's curriculum, and values that callbacks set, as environments get them.

Both travel as one text to every process that steps environments.  There each group's `Tasks` gives
the options of every reset; values are set in the environments themselves.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import optree
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor

from quintet.envs.curriculum import RESET_SEED, Kind, final_said, make_curriculum
from quintet.envs.own_state import decoded, encoded, own_state
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import innermost, tasks_of
from quintet.errors import ConfigError, EnvironmentFault
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced


@final
class Tasks:
    """Gives the resets of a group that this process steps their options.

    options: of the last resets, by stream.
    """

    def __init__(self, curriculum: Kind, first_stream: int, agents: int, final: bool):
        """agents: of a game, whose streams share its resets; final: whether every episode is of the
        curriculum's end.
        """
        self.curriculum, self._first, self._agents = curriculum, first_stream, agents
        self._final = final
        self._episodes: dict[int, tuple[int, int]] = {}  # seed of the restart, number since then
        self.options: dict[int, Mapping[str, Any]] = {}

    def draw(self, stream: int, seed: int | None) -> dict[str, Any]:
        """The arguments of the next reset of a stream; seed: of a restart, else None."""
        first, count = self._episodes.get(stream, (0, 0))
        first, count = (first, count + 1) if seed is None else (seed, 0)
        self._episodes[stream] = first, count
        keys = (self._first + stream, count)
        rng = np.random.default_rng(np.random.SeedSequence(first, spawn_key=keys))
        drawn = dict(self.curriculum.options(keys[0], rng, final=self._final))
        self.options |= {stream + agent: dict(drawn) for agent in range(self._agents)}
        return {"seed": drawn.pop(RESET_SEED, seed), "options": drawn}


def give_tasks(env: ResolvedEnv, made: Any, first_stream: int) -> None:
    """Gives the environments of a group the curriculum of their options; raises ConfigError if
    they take none.
    """
    record = env.config.curriculum
    assert record is not None
    if not hasattr(made, "tasks"):
        raise ConfigError(
            f"env.curriculum must have environments whose resets take options, got {env.config.id} "
            f"of {env.backend.title}, which resets its streams itself: use another env.backend, or "
            "leave env.curriculum out"
        )
    trains = env.numbers.first == 0
    if trains or ":" not in record["kind"]:  # evaluations call no code of the user's
        agents = len(made.description.agents) or 1
        made.tasks = Tasks(make_curriculum(record), first_stream, agents, not trains)
    if not trains:
        made.description = replace(made.description, curriculum=final_said(record))


def task_text(state: Any, values: Mapping[str, tuple[int, Any]]) -> bytes:
    """The text that tells environments their task.

    state: of the curriculum; values: by name, its number and the value.
    """
    return encoded({"state": state, "values": {name: list(x) for name, x in values.items()}})


def set_task(env: VectorEnv, text: bytes) -> None:
    """Tells environments what `task_text` made.  Raises ConfigError if no environment of the group
    has a name that is set, EnvironmentFault if one refuses its value.
    """
    base: Any = innermost(env)
    if hasattr(base, "set_task"):  # other processes may step them
        base.set_task(text)
        return
    task = decoded(text)
    # Numbers of the last values that were set, by name.
    before: dict[str, int] = vars(base).setdefault("values_set", {})
    if isinstance(tasks := tasks_of(env), Tasks):
        tasks.curriculum.load(task["state"])
    for name, (number, value) in task["values"].items():
        if before.get(name) != number:
            before[name] = number
            _set_values(env, name, value)


def _set_values(env: VectorEnv, name: str, value: Any) -> None:
    own = own_state(env)
    try:
        found = own is not None and [_set_in(layers, name, value) for layers in own.layers]
    except STOPS:
        raise
    except BaseException as error:
        text = f"{env.description.id} {raised(error)} when set_env set {name!r}; mend it"
        raise traced(EnvironmentFault(text), error) from error
    if not found or not any(found):
        raise ConfigError(
            f"set_env must name an attribute of the environments, got {name!r}, which "
            f"{env.description.id} lacks: add it, or a method set_task"
        )


def _set_in(layers: Sequence[Any], name: str, value: Any) -> bool:
    """Sets a value in the first wrapper that has it; False if none has."""
    for layer in layers:
        if isinstance(layer, AsyncVectorEnv | SyncVectorEnv):
            for each in (name, "set_task"):
                if all(layer.call("has_wrapper_attr", each)):
                    (layer.call if each == "set_task" else layer.set_attr)(each, value)
                    return True
    own = [x for x in layers if name in vars(x) or hasattr(type(x), name)]
    own = [x for x in own if not callable(getattr(x, name))]
    able = [x for x in layers if callable(getattr(type(x), "set_task", None))]
    if able and (name == "task" or not own):
        method, given = able[0].set_task, [name, value]
        try:
            inspect.signature(method).bind(*given)
        except TypeError:  # the method takes the value alone
            given.pop(0)
        method(*given)
    elif own:
        setattr(own[0], name, value)
    return bool(able or own)


def packed(state: Any, whose: str) -> Any:
    """A curriculum's state, or a value, that can be stored, with tensors as NumPy arrays; raises
    ConfigError if it can't be.
    """
    try:
        found = optree.tree_map(
            lambda x: x.numpy(force=True) if isinstance(x, Tensor) else x, state
        )
        encoded(found)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{whose} must be dicts, lists, numbers, texts, NumPy arrays and tensors, got others "
            f"({error}): correct it"
        ) from error
    return found
