"""Units of a saved policy's network that no longer respond to observations."""

from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import Tensor, nn

from quintet.findings.engine import Found
from quintet.findings.record import Finding
from quintet.models.normalize import ObservationNormalizer
from quintet.policies.policy import Policy, load
from quintet.system.user_code import no_exit

_ROWS = 512
_SATURATED = 0.99  # size of tanh's output
_MOSTLY = 0.95  # share of the rows
_LEAST, _MANY = 0.5, 0.9  # shares of dead units


def dead_units(folder: Path) -> Found:
    """A finding about the newest policy of a run; none where it can't be loaded, or fails on
    invented observations, as an encoder of the user's own may."""
    try:
        with no_exit():
            found = units(load(folder))
    except Exception:
        return
    if found is not None and found.dead >= _LEAST * found.hidden:
        yield Finding(
            f"{found.dead} of {found.hidden} hidden units are off or at a bound for nearly all "
            "observations, so they hardly learn any more",
            {"units": float(found.hidden), "dead": float(found.dead)},
            "a lower learning rate, observations of a smaller scale, or --model.layer-norm true",
            weight=0.65 if found.dead > _MANY * found.hidden else 0.45,
            name="dead-units",
        )


@final
class Units(NamedTuple):
    """Number of hidden units, and of those that are off or at a bound in nearly all rows."""

    hidden: int
    dead: int


@torch.no_grad()
def units(policy: Policy) -> Units | None:
    """The units of the layers with tanh and ReLU; None: there are none, or it is not known what
    observations look like: they must be one Box of floats that is normalised."""
    obs = _observations(policy)
    modules = [x for x in vars(policy.actor).values() if isinstance(x, nn.Module)]
    layers = [y for x in modules for y in x.modules() if isinstance(y, nn.Tanh | nn.ReLU)]
    if obs is None or not layers:
        return None
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda *x: outputs.append(x[-1])) for layer in layers]
    try:
        policy.act(obs)
    finally:
        for hook in hooks:
            hook.remove()
    flat = [x.reshape(len(obs), -1) for x in outputs if x.shape[:1] == (len(obs),)]
    dead = [((x == 0.0) | (x.abs() > _SATURATED)).float().mean(0) > _MOSTLY for x in flat]
    count = sum(len(x) for x in dead)
    return Units(count, int(sum(x.sum().item() for x in dead))) if count else None


def _observations(policy: Policy) -> NDArray[Any] | None:
    """Observations ``[N, ...]`` like those of training."""
    space = policy.spaces.observation
    if not isinstance(space, gym.Box) or space.dtype is None or space.dtype.kind != "f":
        return None
    random = np.random.default_rng(0)
    shape = (_ROWS, *space.shape)
    for module in vars(policy.actor).values():
        if isinstance(module, ObservationNormalizer) and module.names and not module.empty:
            moments = module.leaf_moments(module.names[0])
            mean, std = moments.mean.numpy(), np.sqrt(moments.variance.numpy())
            return np.asarray(mean + std * random.standard_normal(shape), space.dtype)
    return None  # bounds are often far wider than what is seen
