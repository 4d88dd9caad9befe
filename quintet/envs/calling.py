"""Calls the makers of environments in Python."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from quintet.envs import atari, foreign
from quintet.errors import ConfigError
from quintet.system import forks
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced
from quintet.system.user_state import lacking


def call_maker(maker: Callable[..., Any], env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """Environment that `maker` makes; its errors become a ConfigError that says what to do."""
    try:
        with forks.kept_out(env_id):
            return maker(**kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"{env_id} needs a package that is not installed: {error}; run: {_install_line(env_id)}"
        ) from error
    except STOPS:
        raise
    except BaseException as error:
        # What gymnasium.make says of a registered environment of another interface.
        what_to_do = "correct env.kwargs or the environment"
        if isinstance(error, TypeError) and "gymnasium.Env" in str(error):
            what_to_do = foreign.DERIVE
        elif isinstance(error, gymnasium.error.UnregisteredEnv):
            what_to_do = "register the id in the function that makes it, or import there what does"
        if lacking:
            what_to_do += (
                f"; this process lacks what the one that began it has set up: {'; '.join(lacking)}"
            )
        fault = ConfigError(
            f"{env_id} must be made with env.kwargs {dict(kwargs)}; it "
            f"{raised(error)}; {what_to_do}"
        )
        raise traced(fault, error) from error


def _install_line(env_id: str) -> str:
    """The command that installs the missing package of a Gymnasium id."""
    if atari.rom_of(env_id) is not None:
        return atari.INSTALL_LINE
    spec = gymnasium.registry.get(env_id.partition(":")[2] or env_id)
    entry = str(spec.entry_point) if spec is not None else ""
    for extra in ("mujoco", "box2d"):
        if extra in entry:
            return f'pip install "quintet[{extra}]"'
    for extra in ("classic_control", "toy_text"):
        if extra in entry:
            return f'pip install "gymnasium[{extra.replace("_", "-")}]"'
    return "the installation that the environment's own documentation names"
