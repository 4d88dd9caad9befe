"""Whether ``reset(seed)`` alone brings the same episodes again, as an exact resume needs: there
new environments follow used ones.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

from quintet.envs.make import make_group_env
from quintet.envs.own_state import own_state
from quintet.envs.owners import made_for
from quintet.envs.random_play import random_rows, short_rows
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.settled import untouched
from quintet.envs.tensors_as_arrays import tensors_of
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError, EnvironmentFault
from quintet.system import forks

Hashes = dict[str, int]
"""Hashes of the parts of a row, by name."""

_ROWS, _SEED = 64, 0
"""Rows that are compared, and the seed of the actions."""

_USED, _OTHER_SEED = 400, 50
"""Rows between them, in which counters and statistics change, and their seed."""


def difference(a: Hashes, b: Hashes, number: int) -> str:
    """The first part in which two rows differ, or ""."""
    where = "the reset" if number == 0 else f"step {number}"
    return next((f"{name} at {where}" for name in a if a[name] != b[name]), "")


KEEPS = "it keeps something over resets, or draws from a generator without the seed"
WAYS_ON = (
    "for exact resumes, and for evaluations that begin with what it keeps, give it state_dict() "
    "and load_state_dict(state); or use --env.fresh-at-checkpoints true, with which it forgets at "
    "exact checkpoints"
)


def difference_again(
    used: VectorEnv,
    hashes: Sequence[Hashes],
    seed: int,
    make: Callable[[], VectorEnv],
    *,
    fresh: bool = False,
) -> str:
    """The first difference between a second restart of used environments and new ones, or "".

    hashes: of the rows of `used` when it was new, by random actions of `seed`.
    make: makes environments like `used`, which take its state where it offers one.
    fresh: whether a restart makes environments anew, which forget their state.
    """
    steps, own = len(hashes) - 1, own_state(used)
    if own is not None and own.offered and not fresh:
        with closing(make()) as new:
            new_state = own_state(new)
            assert new_state is not None
            new_state.load(own.save())
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


def unrepeatable(
    env: ResolvedEnv, made: VectorEnv | None = None, say: Callable[[str], None] = lambda _: None
) -> str:
    """A reason why a resume of a run with these environments can't be exact, or "".  Raises
    ConfigError if they offer a state that can't be saved.

    made: one of them that nobody else steps; None: one is made.
    say: called with a sentence where steps are so slow that fewer were compared.
    """
    if not env.can_be_made_again and not env.of_tensors:
        return f"{env.config.id} can't be made again, so a resume begins with another environment"
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
                fresh = env.config.fresh_at_checkpoints
                (found, steps), own = _difference(one, make, fresh), own_state(one)
                offered = own is not None and own.offered
            finally:
                if made is None:
                    one.close()
    except _OnlyOne as error:
        if env.config.fresh_at_checkpoints:
            return ""
        return f"no second environment can be made to compare them ({error})"
    except (EnvironmentFault, OSError):  # the run meets it again, and says where
        forks.require_files(env.config.id)
        return ""
    forks.require_files(env.config.id)
    if not found:
        if steps < _ROWS + _USED:
            say(
                f"resumes seem exact after a check of {steps} steps, not {_ROWS + _USED}, since a "
                f"step of {env.config.id} is slow; quintet check-env checks more"
            )
        return ""
    why = f"{KEEPS}; {WAYS_ON}"
    if env.config.fresh_at_checkpoints:
        why = "it leaves something in its class or module, or draws from a generator without seed"
    elif offered:
        why = (
            "its state_dict() lacks something that the environment keeps over resets; add it, or "
            "use --env.fresh-at-checkpoints true"
        )
    return f"{env.config.id} has another episode with the same seed ({found}): {why}"


def _difference(used: VectorEnv, make: Callable[[], VectorEnv], fresh: bool) -> tuple[str, int]:
    """The first difference, or "", and the number of steps before the second restart."""
    hashes = [each.hashes() for each in short_rows(used, _ROWS, _SEED)]
    steps = len(hashes) - 1 + sum(each.number > 0 for each in short_rows(used, _USED, _OTHER_SEED))
    return difference_again(used, hashes, _SEED, make, fresh=fresh), steps
