"""Builds networks of encoders, recurrent cores and heads: the pieces, and `ActorCritic`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.config import Init, ModelConfig, critic_leaves, encoded_leaves, picture_options
from quintet.models.encoders import Cnn, Encoder, Mlp, encoded_parts
from quintet.models.flat import strip_prefix
from quintet.models.heads import PolicyHead, action_family
from quintet.models.precision import Precision, autocast
from quintet.models.weights import Role, draw_layers, kernels
from quintet.ops.distributions import Family
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, Obs, Spaces, State, TensorSpec

if TYPE_CHECKING:
    from quintet.models.cores import Core


def check_observation(spaces: Spaces, family: Family) -> None:
    """Raises ConfigError for observations that no encoder can read (empty ones, or with an empty
    leaf), and for masks that do not fit the actions.
    """
    leaves = observation_leaves(spaces.observation)
    mask = leaves.pop(ACTION_MASK, None)
    empty = [name for name, leaf in leaves.items() if 0 in (leaf.shape or ())]
    if not leaves or empty:
        raise ConfigError(
            "every leaf of an observation must have at least one number, got "
            f"{spaces.observation}: leave out what is empty, or give a constant"
        )
    if mask is not None and family.mask_size == 0:
        raise ConfigError(
            f"an observation with {ACTION_MASK!r} must have discrete actions, got "
            f"{spaces.action}: leave the mask out"
        )
    if mask is not None and mask.shape != (family.mask_size,):
        raise ConfigError(
            f"{ACTION_MASK!r} must have shape ({family.mask_size},), one number per action, "
            f"got {mask.shape}: mend the environment's observation space"
        )


def make_encoder(
    spaces: Spaces,
    config: ModelConfig,
    hidden: tuple[int, ...] | None,
    generator: torch.Generator | None,
    without: frozenset[str] = frozenset(),
) -> Encoder:
    """The encoder of a resolved configuration.

    hidden: widths of the hidden layers; None: none, after a user's module.
    generator: seeds the weights of a user's module; other weights are undefined until drawn.
    without: paths of leaves that it does not read, such as `critic_leaves` in a policy's encoder.

    Raises:
        ConfigError: the encoder can't read these observations.
    """
    leaves = {path: x for path, x in encoded_leaves(spaces).items() if path not in without}
    if config.custom:
        from quintet.models.custom import CustomEncoder

        return CustomEncoder(config, hidden or (), leaves, generator)
    assert hidden is not None
    if config.encoder == "film_grid":
        from quintet.models.film_grid import FilmGrid

        return FilmGrid(leaves, hidden, config)
    if config.encoder == "small_cnn":
        from quintet.models.small_cnn import SmallCnn

        return SmallCnn(leaves, hidden, picture_options(config).layout, config.layer_norm)
    if config.encoder == "mlp":
        assert config.activation is not None
        return Mlp(leaves, hidden, config.activation, config.layer_norm)
    return Cnn(config.encoder, leaves, hidden, config.layer_norm)


@final
class Trunk:
    """Computes a head's features from observations, by an encoder and perhaps a recurrent core.

    It is not a module: the network that uses it registers `encoder` and `core` as its own modules,
    under names of its choice.

    A recurrent trunk reads sequences: rows ``[T * B, ...]`` in time-major order, the state before
    the first step ``[B, ...]``, and `is_first` ``[T * B]``, where the state is reset; T follows
    from the sizes, and is 1 in acting.  A feed-forward trunk reads any N rows; its state is {}.
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        core: "Core | None",
        precision: Precision,
        leaves: frozenset[str] = frozenset(),
    ):
        """name: the state's leaves are ``name/h0``, ...; precision: precision of the encoder.
        leaves: leaves that it alone reads; they may be missing where its output is not used.
        """
        self.name, self.encoder, self.core, self.precision = name, encoder, core, precision
        self.leaves = leaves
        self.feature_size = encoder.feature_size if core is None else core.feature_size

    def modules(self) -> Iterator[nn.Module]:
        """All modules in the encoder and the core."""
        yield from self.encoder.modules()
        if self.core is not None:
            yield from self.core.modules()

    def can_read(self, obs: Obs) -> bool:
        """Whether all that it reads is there."""
        return self.leaves <= obs.keys()

    def kept(self, state: State | None) -> State:
        """The trunk's part of a state, for steps that it does not make."""
        return {name: (state or {})[name] for name in self.state_specs}

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        """The leaves of the recurrent state, without ``[B]``; none for a feed-forward trunk."""
        if self.core is None:
            return {}
        spec = TensorSpec((self.core.size,), torch.float32)
        return {f"{self.name}/{leaf}": spec for leaf in self.core.state_names}

    def __call__(
        self,
        obs: Obs,
        state: State | None = None,
        is_first: Tensor | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """Features ``[N, feature_size]``, float32, and the state after the last step.

        Feed-forward trunks need no `state` and `is_first`.

        losses: the encoder's auxiliary losses are added to this.
        """
        features = self._encode(obs, losses)
        if self.core is None:
            return features, {}
        if state is None or is_first is None:
            raise AssertionError("a recurrent network requires state and is_first")
        before = strip_prefix(state, self.name)
        if torch.compiler.is_exporting():  # exports act: one step of any number of streams
            y, after = self.core(features.unsqueeze(0), before, is_first.unsqueeze(0))
        else:
            streams = before["h0"].shape[0]
            steps = features.view(-1, streams, features.shape[-1])
            y, after = self.core(steps, before, is_first.view(-1, streams))
        return y.flatten(0, 1), {f"{self.name}/{leaf}": x for leaf, x in after.items()}

    def _encode(self, obs: Obs, losses: dict[str, Tensor] | None) -> Tensor:
        """Features in float32, computed in the trunk's precision."""
        with autocast(self.precision, next(iter(obs.values())).device):
            features, found = encoded_parts(self.encoder(obs))
        if losses is not None:
            for name, loss in found.items():
                losses[name] = loss.float() + losses[name] if name in losses else loss.float()
        return features.float()


def make_trunks(
    spaces: Spaces, config: ModelConfig, generator: torch.Generator | None, precision: Precision
) -> tuple[Trunk, Trunk]:
    """The policy's trunk and the value function's: one object with `shared_torso`, else two, of
    which only the value function's reads `critic_leaves`.

    generator: see `make_encoder`.
    """

    critics = critic_leaves(config, spaces)

    def trunk(name: str, hidden: tuple[int, ...] | None) -> Trunk:
        hidden_from = critics if name == "policy" else frozenset()
        encoder = make_encoder(spaces, config, hidden, generator, hidden_from)
        core: "Core | None" = None
        if config.core != "none":
            from quintet.models import cores

            sizes = encoder.feature_size, config.core_size, config.core_layers
            core = cores.Core(config.core, *sizes, config.core_skip)
        return Trunk(name, encoder, core, precision, critics - hidden_from)

    if config.shared_torso:
        return (trunk("core", config.policy_hidden),) * 2
    return trunk("policy", config.policy_hidden), trunk("value", config.value_hidden)


def weights_bytes(config: ModelConfig, spaces: Spaces) -> int:
    """Bytes of the weights of a policy and its value function, of a resolved configuration; a
    learner's own networks may have more.  Those of a user's encoder are not known before it is
    made, and count as 0.

    Raises:
        ConfigError: the network can't read these observations, or act in this space.
    """
    if config.custom:
        return 0
    family = action_family(spaces.action, config.action_bounds)
    check_observation(spaces, family)
    with torch.device("meta"):
        trunks = make_trunks(spaces, config, None, "fp32")
    weights = {
        id(weight): weight.nbytes
        for trunk in trunks
        for module in trunk.modules()
        for weight in module.parameters(recurse=False)
    }
    head = 4 * family.param_size * trunks[0].feature_size
    return sum(weights.values()) + head


def zeros_of(specs: Mapping[str, TensorSpec], num_streams: int, device: torch.device) -> State:
    """Zeros ``[B, ...]`` for every leaf of a recurrent state."""
    return {
        name: torch.zeros((num_streams, *spec.shape), dtype=spec.dtype, device=device)
        for name, spec in specs.items()
    }


class Branch(NamedTuple):
    """A head of a network and its trunk; several heads may read the same trunk."""

    trunk: Trunk
    head: nn.Module
    role: Role


def draw_weights(branches: Sequence[Branch], init: Init, generator: torch.Generator) -> None:
    """Draws the weights of a network from `generator`: each branch's trunk, then its head.

    Cores are drawn last, so that they change no other weights; they do not depend on `init`, see
    `cores.draw_weights`.
    """
    trunks: list[Trunk] = []
    for trunk, head, role in branches:
        if trunk not in trunks:
            trunk.encoder.draw_weights(init, generator)
            trunks.append(trunk)
        draw_layers(head, init, generator, role)
    for trunk in trunks:
        if trunk.core is not None:
            from quintet.models import cores

            cores.draw_weights(trunk.core, generator)


@final
class ActorCritic(nn.Module):
    """Policy parameters and value from normalised observations; encoders compute in `precision`.

    With `shared_torso` both heads read one trunk, else each has its own.
    """

    def __init__(
        self,
        spaces: Spaces,
        family: Family,
        config: ModelConfig,
        generator: torch.Generator | None,
        precision: Precision = "fp32",
    ):
        """generator: draws the weights; None leaves them undefined, to be loaded."""
        super().__init__()
        check_observation(spaces, family)
        self.family = family
        # torch's layers draw their first weights from the process's generator, which is the user's.
        with torch.random.fork_rng(devices=[]):
            self.trunk, self.value_trunk = make_trunks(spaces, config, generator, precision)
            self.encoder, self.core = self.trunk.encoder, self.trunk.core
            size = self.trunk.feature_size
            self.policy_head = PolicyHead(family, size, config.action_std, config.action_std_init)
            if not self.shared:
                self.value_encoder = self.value_trunk.encoder
                self.value_core = self.value_trunk.core
            self.value_head = nn.Linear(self.value_trunk.feature_size, 1)
        if generator is not None:
            policy = Branch(self.trunk, self.policy_head, "policy")
            value = Branch(self.value_trunk, self.value_head, "value")
            draw_weights((policy, value), config.init, generator)

    @property
    def shared(self) -> bool:
        """Whether both heads read the same trunk."""
        return self.trunk is self.value_trunk

    def forward(
        self,
        obs: Obs,
        state: State | None = None,
        is_first: Tensor | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Distribution parameters ``[N, P]``, values ``[N]``, both float32, and the state after the
        last step, from leaves ``[N, ...]``; see `Trunk`.

        losses: receives the auxiliary losses of a user's encoder by name, scalars or ``[N]``; where
            policy and value have an encoder each, their sums.
        """
        features, after = self.trunk(obs, state, is_first, losses)
        value_features = features
        if not self.shared:
            value_features, value_after = self.value_trunk(obs, state, is_first, losses)
            after |= value_after
        return self.policy_head(features), self.value_head(value_features).squeeze(-1), after

    def policy(
        self, obs: Obs, state: State | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Distribution parameters ``[N, P]`` and the state after the last step.  The value is
        computed only if a recurrent value function needs its state, and `obs` has all leaves that
        it reads; else its state is passed on unchanged.
        """
        recurrent = not self.shared and self.value_trunk.core is not None
        if recurrent and self.value_trunk.can_read(obs):
            params, _, after = self(obs, state, is_first)
            return params, after
        features, after = self.trunk(obs, state, is_first)
        if recurrent:
            after |= self.value_trunk.kept(state)
        return self.policy_head(features), after

    def value(self, obs: Obs, state: State | None = None, is_first: Tensor | None = None) -> Tensor:
        """Values ``[N]``, without the policy."""
        value: Tensor = self.value_head(self.value_trunk(obs, state, is_first)[0]).squeeze(-1)
        return value

    def freeze_precision(self) -> None:
        """Converts the weights of quintet's own encoders for a network that only acts."""
        for trunk in (self.trunk, self.value_trunk):
            trunk.encoder.cast_weights(trunk.precision)

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        """The leaves of the recurrent state, without ``[B]``: ``core/...`` with a shared torso,
        else ``policy/...`` and ``value/...``; none for a feed-forward network.
        """
        return self.trunk.state_specs | self.value_trunk.state_specs

    def initial_state(self, num_streams: int) -> State:
        """Zeros ``[B, ...]`` for every leaf of the state, on the network's device."""
        return zeros_of(self.state_specs, num_streams, self.value_head.weight.device)

    def kernel_groups(self) -> dict[str, list[str]]:
        """Names of kernels by the part that uses them: policy, value, shared; each is in one
        group."""
        trunk = kernels(self, self.trunk.modules())
        policy, value = (
            kernels(self, head.modules()) for head in (self.policy_head, self.value_head)
        )
        if self.shared:
            return {"policy": policy, "value": value, "shared": trunk}
        value_trunk = kernels(self, self.value_trunk.modules())
        return {
            "policy": sorted(trunk + policy),
            "value": sorted(value_trunk + value),
            "shared": [],
        }
