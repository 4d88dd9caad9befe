"""Users' own encoders: imported, built, and checked before training begins.

The contract of such a class:

- ``Class(leaves, **encoder_kwargs)`` makes a new ``torch.nn.Module`` at every call; so may a
  function.  `leaves` are the spaces of the observation by path, in their order, without the action
  mask; a plain space is the one leaf ``"obs"``; discrete values count from 0.
- Its attribute ``feature_size`` is a positive int, F.
- ``forward(obs)`` takes the leaves ``[N, ...]`` in the dtypes of the spaces (floats normalised,
  if the learner normalises; pictures of uint8 as they are) and returns float32 ``[N, F]``, every
  row from its own observation alone.
- All parameters are float32, trainable, and take part in `forward`.  Frozen tensors are buffers,
  which `forward` must not change: actors and learner hold copies, so running statistics (BatchNorm)
  would drift apart; LayerNorm and GroupNorm keep none.  It has no other state.
- Kernels, which L2 terms penalise, are the parameters of two or more dimensions except those of
  normalising layers, whatever their names.
- `forward` draws no random numbers (dropout): the learner would compute other outputs than the
  actor, greedy acting would not be greedy, and no run would give the same bytes twice.

Instead of the features alone ``forward`` may return ``(features, losses)``, with `losses` a dict of
auxiliary losses by name, float32, each a scalar or one number per row ``[N]``, which depend on
parameters.  A learner that supports them reduces losses per row like its own terms, over valid
rows, and adds scalars unreduced; others refuse the module.  Acting ignores them: `forward` may omit
them while ``torch.is_grad_enabled()`` is false.

A module draws its own weights from PyTorch's default generator, which is seeded from the run's seed
while the module is made.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NoReturn, final
from weakref import WeakSet

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.config import Init, ModelConfig
from quintet.models.encoders import Encoded, encoded_parts, layers
from quintet.models.leaves import Leaves
from quintet.models.precision import Precision
from quintet.models.weights import draw_layers
from quintet.spaces import Space, leaf_dtype
from quintet.system.importing import code_of, named
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced
from quintet.types import Obs

TRIAL_ROWS = 2


Maker = Callable[..., nn.Module]
"""A class of modules, or a function that makes one from leaves and ``model.encoder_kwargs``."""

_made: WeakSet[nn.Module] = WeakSet()
"""All modules with parameters that users' classes or functions have made."""


def encoder_name(maker: Maker) -> str:
    """Value of ``model.encoder`` for a class or function that was passed in Python; raises
    ConfigError if it makes no modules, or its name belongs to another object.
    """
    if _makes_none(maker):
        raise ConfigError(
            f"model must be a class of torch.nn.Module, or a function that makes one, got "
            f"{maker!r}; give it itself, and its arguments in model.encoder_kwargs"
        )
    return named("model", maker)


def _makes_none(maker: object) -> bool:
    other_class = isinstance(maker, type) and not issubclass(maker, nn.Module)
    return other_class or isinstance(maker, nn.Module) or not callable(maker)


def find_encoder(name: str) -> Maker:
    """The class or function that was given, or that an import string names; raises ConfigError if
    there is no such module, or nothing in it that makes modules.
    """
    found = code_of("model.encoder", name, "model= of quintet.train, encoder= of quintet.load")
    if _makes_none(found):
        raise ConfigError(
            f"model.encoder={name} must name a class of torch.nn.Module or a function that makes "
            f"one, got {found!r}; correct the name, or inherit from torch.nn.Module"
        )
    maker: Maker = found
    return maker


@final
class CustomEncoder(nn.Module):
    """Holds the user's module, passes it exactly the leaves for which it was built, and has the
    hidden layers after it.
    """

    def __init__(
        self,
        config: ModelConfig,
        hidden: tuple[int, ...],
        leaves: Leaves,
        generator: torch.Generator | None,
    ):
        """hidden: widths of the hidden layers.
        generator: seeds PyTorch's default generator, which the caller restores; None: it is not
        seeded.

        Raises:
            ConfigError: the class can't be found or made, or breaks the contract.
        """
        super().__init__()
        name, kwargs = config.encoder, config.encoder_kwargs
        maker = find_encoder(name)
        if generator is not None:
            seed = int(torch.randint(2**63 - 1, (), generator=generator))
            torch.default_generator.manual_seed(seed)
        self.names = tuple(leaves)
        try:
            made = maker(leaves, **kwargs)
        except STOPS:
            raise
        except BaseException as error:
            fault = ConfigError(
                f"model.encoder={name} must be made of (leaves, **model.encoder_kwargs) with the "
                f"leaves {list(leaves)} and encoder_kwargs {dict(kwargs)}; it {raised(error)}; "
                "correct the class or model.encoder_kwargs"
            )
            raise traced(fault, error) from error
        self.module = _require_new(made, name)
        size, self.loss_names = _check(self.module, name, leaves)
        self.layers = layers((size, *hidden), config.activation or "relu", config.layer_norm)
        self.feature_size = hidden[-1] if hidden else size

    def forward(self, obs: Obs) -> Encoded:
        encoded: Encoded = self.module({name: obs[name] for name in self.names})
        features, losses = encoded_parts(encoded)
        features = self.layers(features)
        return (features, losses) if losses else features

    def draw_weights(self, init: Init, generator: torch.Generator) -> None:
        """Draws the hidden layers; the module has drawn its own weights."""
        draw_layers(self.layers, init, generator)

    def cast_weights(self, precision: Precision) -> None:
        """Does nothing: the module may need float32 weights."""


def _require_new(made: Any, name: str) -> nn.Module:
    """The module that a class or function made; refuses one that it made before."""
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"model.encoder={name} must make a torch.nn.Module, but it gave "
            f"{type(made).__name__}; correct the function"
        )
    parts = [each for each in made.modules() if any(True for _ in each.parameters(recurse=False))]
    if any(each in _made for each in parts):
        raise ConfigError(
            f"model.encoder={name} must make a new module at every call, as actors and learner "
            "have their own weights, but it gave the same module twice: make the module "
            "inside the function"
        )
    _made.update(parts)
    return made


def _samples(space: Space) -> Tensor:
    """Always the same samples ``[TRIAL_ROWS, ...]`` of a leaf; not zeros, which may mean an empty
    sequence."""
    own = deepcopy(space)  # a space has a generator of its own
    own.seed(0)
    rows = np.stack([own.sample() for _ in range(TRIAL_ROWS)])
    made = torch.from_numpy(rows.astype(leaf_dtype(space)))
    return made.float() if made.dtype == torch.float64 else made  # the normaliser gives float32


def _ones(space: Space, samples: Tensor) -> Tensor:
    """Like `_samples`, with the allowed number nearest to 1."""
    if not isinstance(space, Box):
        return samples
    one = np.clip(np.ones(space.shape), space.low, space.high)
    return torch.from_numpy(one).to(samples.dtype).expand_as(samples).clone()


def _trial(module: nn.Module, name: str, leaves: Leaves) -> Any:
    """Output of the module for samples of the spaces, or where it raises an error for small
    numbers, since observed values may cover far less than the bounds.
    """
    drawn = {path: _samples(space) for path, space in leaves.items()}
    small = {path: _ones(space, drawn[path]) for path, space in leaves.items()}
    errors = []
    for obs in (drawn, small):
        try:
            with torch.enable_grad():
                return encoded_parts(module(obs))
        except STOPS:
            raise
        except BaseException as error:
            errors.append(error)
    given = {path: f"{x.dtype} {tuple(x.shape)}" for path, x in drawn.items()}
    fault = ConfigError(
        f"model.encoder={name} must encode samples of the observation space, with the leaves "
        f"{given}; it {raised(errors[0])}; correct the class, or the bounds of the space"
    )
    raise traced(fault, errors[0]) from errors[0]


def _check(module: nn.Module, name: str, leaves: Leaves) -> tuple[int, tuple[str, ...]]:
    """Tries the module on samples of the spaces; returns its `feature_size` and the sorted names of
    its losses.  Raises ConfigError if it breaks the contract.
    """

    def refuse(rule: str, given: str) -> NoReturn:
        raise ConfigError(f"model.encoder={name} must {rule}, got {given}; correct the class")

    size: Any = getattr(module, "feature_size", None)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        refuse("have an attribute feature_size, a positive int", repr(size))
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}
    random_before = torch.default_generator.get_state()
    features, losses = _trial(module, name, leaves)
    if not isinstance(features, Tensor) or features.shape != (TRIAL_ROWS, size):
        what = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        refuse(f"give features of shape [N, feature_size], ({TRIAL_ROWS}, {size}) here", str(what))
    if features.dtype != torch.float32:
        refuse("give features of torch.float32", str(features.dtype))
    _check_losses(losses, refuse)
    if not torch.equal(torch.default_generator.get_state(), random_before):
        refuse("draw no random numbers in forward", "some (Dropout draws them)")
    for path, buffer in module.named_buffers():
        if path in before and not torch.equal(before[path], buffer):
            refuse(
                "leave its buffers as they are in forward",
                f"a changed {path!r} (BatchNorm does that; LayerNorm and GroupNorm do not)",
            )
    kept = {path for path, _ in module.named_parameters(remove_duplicate=False)}
    kept |= {path for path, _ in module.named_buffers(remove_duplicate=False)}
    if others := [path for path in module.state_dict() if path not in kept]:
        refuse("have a state of parameters and buffers alone", f"{others} too")
    parameters = dict(module.named_parameters())
    for path, parameter in parameters.items():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            state = "trainable" if parameter.requires_grad else "frozen"
            refuse(
                "have trainable parameters of torch.float32, and buffers for what is frozen",
                f"{path!r}, {state} and of {parameter.dtype}",
            )
    unused = list(parameters)
    used = [x.sum() for x in (features, *losses.values()) if x.requires_grad]
    if parameters and used:
        total = torch.stack(used).sum()
        gradients = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
        unused = [path for path, g in zip(parameters, gradients, strict=True) if g is None]
    if unused:
        refuse("use every parameter in forward", f"unused {unused}")
    return size, tuple(sorted(losses))


def _check_losses(losses: Mapping[Any, Any], refuse: Callable[[str, str], NoReturn]) -> None:
    """Checks the auxiliary losses of the test call."""
    for name, loss in losses.items():
        if not isinstance(name, str) or not name:
            refuse("give auxiliary losses by name", f"one called {name!r}")
        if not isinstance(loss, Tensor) or loss.shape not in ((), (TRIAL_ROWS,)):
            what = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            refuse(f"give auxiliary losses () or [N], ({TRIAL_ROWS},) here", f"{what} for {name!r}")
        if loss.dtype != torch.float32 or not loss.requires_grad:
            state = "depends on parameters" if loss.requires_grad else "depends on no parameter"
            refuse(
                "give auxiliary losses of torch.float32 that depend on parameters",
                f"{name!r} of {loss.dtype}, which {state}",
            )
