"""Games with PettingZoo's APIs: made, their agents and spaces read, closed."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import gymnasium

from quintet.envs.env_source import call_maker
from quintet.envs.gymnasium import close_all
from quintet.envs.owners import claim, release, require_new
from quintet.envs.resolved import ResolvedEnv
from quintet.errors import ConfigError
from quintet.spaces import Space
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced

_MAKERS = "return an environment of PettingZoo's parallel API (parallel_env) or AEC API (env)"


def num_agents(env: ResolvedEnv) -> int:
    """The number of agents that a game may have, from a game made for it; raises ConfigError."""
    game, owner = make_game(env), lambda: None
    # A maker may return a game that others play: this raises, before anything is closed.
    claim(game, owner, env.config.id)
    try:
        return len(agents_of(game, env.config.id))
    finally:
        release(game, owner)
        close_games([game], env.config.id)


def make_game(env: ResolvedEnv) -> Any:
    return _in_turn(call_maker(env.maker, env.config.id, env.config.kwargs))


def _in_turn(game: Any) -> Any:
    """The game of the AEC API inside PettingZoo's conversion to parallel; other games unchanged."""
    converted = type(game).__name__ == "turn_based_aec_to_parallel_wrapper"
    return game.aec_env if converted and hasattr(game, "aec_env") else game


def agents_of(game: Any, env_id: str) -> list[Any]:
    """The possible agents of a game; raises ConfigError if it is not a PettingZoo environment."""
    kind = type(game)
    name = f"{kind.__module__}.{kind.__qualname__}"
    possible = getattr(game, "possible_agents", ())
    agents = list(possible) if isinstance(possible, Iterable) else []
    if not agents or not callable(getattr(game, "step", None)):
        raise ConfigError(
            f"{env_id} must make an environment of several agents, with possible_agents; got "
            f"{name}; {_MAKERS}, or leave env.backend out"
        )
    if not all(isinstance(agent, Hashable) for agent in agents) or len({*agents}) < len(agents):
        raise ConfigError(
            f"{env_id} must have possible_agents that differ and can be keys of a dict; got "
            f"{agents}; correct them"
        )
    return agents


def equal_spaces(games: Sequence[Any], agents: Sequence[Any], env_id: str) -> tuple[Space, Space]:
    """The spaces that all agents of all games have; raises ConfigError if they differ."""
    require_new(games, env_id)
    found = [_spaces_of(game, agent, env_id) for game in games for agent in agents]
    for agent, its in zip([*agents] * len(games), found, strict=True):
        if its != found[0]:
            raise ConfigError(
                f"{env_id} must give all agents the same spaces; {agents[0]!r} has "
                f"{found[0]}, {agent!r} has {its}; pad them in a wrapper"
            )
    return found[0]


def _spaces_of(game: Any, agent: Any, env_id: str) -> tuple[Space, Space]:
    """An agent's spaces; raises ConfigError if the game does not give them."""
    required = (
        f"{env_id} must give each agent spaces of gymnasium.spaces by observation_space(agent) and "
        "action_space(agent)"
    )
    try:
        found = game.observation_space(agent), game.action_space(agent)
    except STOPS:
        raise
    except BaseException as error:
        fault = f"{required}; for {agent!r} it {raised(error)}; mend the environment"
        raise traced(ConfigError(fault), error) from error
    if not all(isinstance(space, gymnasium.Space) for space in found):
        raise ConfigError(f"{required}; {agent!r} has {found}; mend the environment")
    return found


def close_games(games: Sequence[Any], env_id: str) -> None:
    # An object that is refused may have no such method.
    close_all((game for game in games if callable(getattr(game, "close", None))), env_id)
