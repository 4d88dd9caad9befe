"""The backend ``pytorch``: quintet's own environments in PyTorch, whose tensors stay on a GPU."""

from functools import partial
from typing import TYPE_CHECKING

from quintet.envs.backends import Backend, Group
from quintet.envs.env_source import call_maker

if TYPE_CHECKING:
    from quintet.envs.resolved import ResolvedEnv
    from quintet.envs.tensors_as_arrays import HostedEnv

_MAKERS = {
    "torch/CartPole-v1": "CartPole",
    "torch/Pendulum-v1": "Pendulum",
    "torch/Grid-v0": "Grid",
}


def _make(env: "ResolvedEnv", group: Group) -> "HostedEnv":
    from quintet.envs import torch_toys
    from quintet.envs.tensors_as_arrays import HostedEnv

    maker = partial(getattr(torch_toys, _MAKERS[env.config.id]), group.num_streams, group.device)
    return HostedEnv(call_maker(maker, env.config.id, env.config.arguments))


BACKEND = Backend(
    title="PyTorch",
    make=_make,
    ids=lambda: _MAKERS,
    knows=_MAKERS.__contains__,
    on_device=True,
    limits_steps=True,
)
