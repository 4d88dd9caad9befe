"""Whether ``reset(seed)`` alone brings the same episodes again, as an exact resume needs: there
new environments follow used ones.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import cycle, islice
from time import perf_counter

from quintet.envs.hosted import tensors_of
from quintet.envs.make import make_group_env
from quintet.envs.observation_dtype import untouched
from quintet.envs.own_state import own_state
from quintet.envs.owners import made_for
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import Array, VectorEnv, allocate_row
from quintet.errors import ConfigError, EnvironmentFault
from quintet.types import ACTION_MASK, Obs
from quintet.uniform import chosen_rows, random_rows, uniform_chooser

Hashes = dict[str, int]
"""Hashes of the parts of a row, by name."""

_ROWS, _SEED = 64, 0
"""Rows that are compared, and the seed of the actions."""

_USED = 400  # rows between them, in which counters and statistics change
_MOST_S = 0.1  # for each part, at least one row


def difference(a: Hashes, b: Hashes, number: int) -> str:
    """The first part in which two rows differ, or ""."""
    where = "the reset" if number == 0 else f"step {number}"
    return next((f"{name} at {where}" for name in a if a[name] != b[name]), "")


KEEPS = "it keeps something over resets, or draws from a generator without the seed"
WAYS_ON = (
    "for exact resumes give it state_dict() and load_state_dict(state), or use "
    "--env.fresh-at-checkpoints true, with which it forgets at exact checkpoints"
)


def difference_again(
    used: VectorEnv, hashes: Sequence[Hashes], seed: int, make: Callable[[], VectorEnv]
) -> str:
    """The first difference between a second restart of used environments and new ones, or "".

    hashes: of the rows of `used` when it was new, by random actions of `seed`.
    make: makes environments like `used`, which take its state where it offers one.
    """
    steps, own = len(hashes) - 1, own_state(used)
    if own is not None and own.offered:
        with closing(make()) as new:
            theirs = own_state(new)
            assert theirs is not None
            theirs.load(own.save())
            hashes = [each.hashes() for each in random_rows(new, steps, seed)]
    return first_difference(used, hashes, seed)


def first_difference(env: VectorEnv, hashes: Sequence[Hashes], seed: int) -> str:
    """The first difference between the rows of a restart and of random actions, and rows before."""
    for row, before in zip(random_rows(env, len(hashes) - 1, seed), hashes, strict=False):
        if found := difference(before, row.hashes(), row.number):
            return found
    return ""


class _OnlyOne(Exception):
    """No second environment can be made."""


def unrepeatable(env: ResolvedEnv, made: VectorEnv | None = None) -> str:
    """A reason why a resume of a run with these environments can't be exact, or "".  Raises
    ConfigError if they offer a state that can't be saved.

    made: one of them that nobody else steps; None: one is made.
    """
    if not env.can_be_made_again and not env.of_tensors:
        return f"{env.config.id} is the only one, so a resume begins with another"
    if not env.backend.in_python:
        return ""

    def make() -> VectorEnv:
        try:
            with made_for("the check whether its episodes repeat"):
                return make_group_env(env, env.streams_of(1))
        except ConfigError as error:
            raise _OnlyOne(error) from error

    try:
        with untouched():
            one = make() if made is None else made
            try:
                tensors = tensors_of(one)
                if tensors is not None:
                    return "" if tensors.restarts else f"{env.config.id} can't be restarted"
                found, own = _difference(one, make), own_state(one)
                offered = own is not None and own.offered
            finally:
                if made is None:
                    one.close()
    except _OnlyOne as error:
        if env.config.fresh_at_checkpoints:
            return ""
        return f"no second environment can be made to compare them ({error})"
    except (EnvironmentFault, OSError):  # which the run meets again, and says where
        return ""
    if not found:
        return ""
    why = f"{KEEPS}; {WAYS_ON}"
    if env.config.fresh_at_checkpoints:
        why = "something outlives an environment, or draws from a generator without the seed"
    elif offered:
        why = (
            "its state_dict() lacks something that it keeps over resets; complete it, or use "
            "--env.fresh-at-checkpoints true"
        )
    return f"the same seed brings another episode in {env.config.id} ({found}): {why}"


def _difference(used: VectorEnv, make: Callable[[], VectorEnv]) -> str:
    actions: list[Array] = []
    choose = uniform_chooser(used, _SEED)

    def chosen(leaves: Obs) -> Array:
        actions.append(choose(leaves).copy())
        return actions[-1]

    seeds = [_SEED + i for i in range(used.num_streams)]
    begin, hashes = perf_counter(), list[Hashes]()
    for each in chosen_rows(used, _ROWS, seeds, chosen):
        hashes.append(each.hashes())
        if each.number and perf_counter() - begin > _MOST_S:
            break
    row = allocate_row(used.spaces.observation, used.num_streams)
    begin = perf_counter()
    # Actions that a mask allows depend on the observation.
    masked = ACTION_MASK in row.obs
    for action in () if masked else islice(cycle(actions), _USED):
        used.send(action)
        used.recv(row)
        if perf_counter() - begin > _MOST_S:
            break
    return difference_again(used, hashes, _SEED, make)
