"""The backend ``pettingzoo``: games with PettingZoo's APIs."""

import re
from typing import TYPE_CHECKING, cast

from quintet.envs.backends import Backend, Group
from quintet.envs.resolved import ResolvedEnv

if TYPE_CHECKING:
    from quintet.envs.pettingzoo import ParallelVectorEnv

PARALLEL = "parallel_env"
"""The name by which PettingZoo's modules make environments of the parallel API."""


def _num_agents(env: ResolvedEnv) -> int:
    from quintet.envs.pettingzoo_games import num_agents

    return num_agents(env)


def _claims(maker: str) -> bool:
    """Whether a maker named ``module:name`` makes games: all of PettingZoo, and parallel_env."""
    module, _, name = maker.rpartition(":")
    return module.partition(".")[0] == "pettingzoo" or name.strip("<>") == PARALLEL


def _hint(env_id: str) -> str:
    if not re.fullmatch(r"(pettingzoo\.[\w.]+\.)?[a-z_]+_v\d+", env_id):
        return ""
    dotted = "." in env_id
    return (
        "games of PettingZoo are given by their module, as "
        f"{env_id if dotted else 'pettingzoo.classic.rps_v2'}:{PARALLEL}, and games in "
        f"turn as {env_id if dotted else 'pettingzoo.classic.tictactoe_v3'}:env"
    )


def _make(env: ResolvedEnv, group: Group) -> "ParallelVectorEnv":
    from quintet.envs.pettingzoo import ParallelVectorEnv

    return ParallelVectorEnv(env, group)


BACKEND = Backend(
    title="PettingZoo",
    limits_steps=True,
    make=_make,
    claims=_claims,
    needs="an import string of what makes an environment of several agents, like "
    f"pettingzoo.butterfly.pistonball_v6:{PARALLEL}, or of a game in turn, like "
    "pettingzoo.classic.tictactoe_v3:env",
    hint=_hint,
    in_python=True,
    num_agents=_num_agents,
    gives_mask=lambda games: cast("ParallelVectorEnv", games).gives_mask(),
)
