"""Acting: the actor of learners that sample from their policy, action masks, uniform warm-up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.parts.setup import PLAIN, Compute, Recorded, Setup
from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, encoded_leaves, picture_leaves
from quintet.models.cuda_graphs import GraphedMethod
from quintet.models.flat import ModuleTensors, flatten_in_place, views_of
from quintet.models.heads import action_family
from quintet.models.leaves import normalized_leaves, white_of
from quintet.models.normalize import ObservationNormalizer
from quintet.ops.distributions import Family
from quintet.spaces import float64_leaves
from quintet.types import (
    ACTION_MASK,
    ActOutput,
    Obs,
    Publication,
    Rollout,
    Spaces,
    State,
    TensorSpec,
)


def make_family(model: ModelConfig, spaces: Spaces) -> Family:
    """The distribution of a policy for this action space."""
    return action_family(spaces.action, model.action_bounds)


class Normalizes(Protocol):
    """The options of a learner that normalises observations."""

    @property
    def normalize_observations(self) -> bool: ...

    @property
    def normalize_pictures(self) -> bool: ...

    @property
    def observation_clip(self) -> float: ...

    @property
    def normalizer_variance_epsilon(self) -> float: ...


def require_statistics(normalizer: ObservationNormalizer, updates: bool) -> None:
    """Raises ConfigError if a warm start gave no statistics of observations, and none come."""
    if normalizer.names and not updates and normalizer.empty:
        raise ConfigError(
            "update_normalizers=false must have statistics of observations, but init_from has "
            "none: name a run that has them, or leave update_normalizers out"
        )


def make_normalizer(
    config: Normalizes, model: ModelConfig, spaces: Spaces
) -> ObservationNormalizer:
    """The normaliser of observations, the same for actors and their learner."""
    space = spaces.observation
    leaves = normalized_leaves(space) if config.normalize_observations else {}
    pictures = picture_leaves(model, spaces) if config.normalize_pictures else {}
    every = encoded_leaves(spaces)
    return ObservationNormalizer(
        leaves,
        config.observation_clip,
        config.normalizer_variance_epsilon,
        pictures,
        float64_leaves(space),
        {name: white_of(every[name]) for name in pictures},
    )


def masked(family: Family, params: Tensor, obs: Obs) -> Tensor:
    """Distribution parameters under the observation's action mask, if it has one.

    Acting and the loss must apply the mask in the same way, or the first ratio is not 1.
    """
    return family.apply_mask(params, obs[ACTION_MASK]) if ACTION_MASK in obs else params


WARMING_UP = "warming_up"
"""Name in a publication: whether actions are uniform."""


def as_trained(publication: Publication) -> Publication:
    """The publication of a policy that acts by its weights, also where it was still warming up."""
    if WARMING_UP not in publication.tensors:
        return publication
    over = torch.zeros_like(publication.tensors[WARMING_UP])
    return replace(publication, tensors={**publication.tensors, WARMING_UP: over})


@final
class Warmup:
    """Uniform actions until a policy has collected `steps` env_steps.

    collected: env_steps of this policy (of a population: of this one alone).
    """

    def __init__(self, steps: int):
        self.steps, self.collected = steps, 0

    def count(self, batch: Rollout) -> None:
        """Counts the valid rows of a fresh batch; each of several learners has all of them."""
        self.collected += int(batch.on_cpu("valid").sum())

    def published(self) -> dict[str, Tensor]:
        """The part of a publication that tells actors whether actions are uniform."""
        return {WARMING_UP: torch.tensor(self.collected < self.steps)}


class PolicyNetwork(Protocol):
    """A module that computes the parameters of `family`; see `ActorCritic`."""

    family: Family

    @property
    def state_specs(self) -> dict[str, TensorSpec]: ...

    def initial_state(self, num_streams: int) -> State: ...

    def forward(self, obs: Obs, state: State, is_first: Tensor) -> tuple[Tensor, Tensor, State]:
        """Policy parameters, second output (the value, if recorded), next state."""
        ...

    def policy(self, obs: Obs, state: State, is_first: Tensor) -> tuple[Tensor, State]:
        """Parameters and state alone."""
        ...


_NOISE = "noise"
"""Name in an actor's private state: the last noise."""


@final
class SamplingActor:
    """Samples actions, and records for each what its learner requests.

    Actions are uniform while a publication says so (`Warmup`); records describe the policy even
    then, so a learner that corrects by ratios must not warm up.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        normalizer: ObservationNormalizer | None,
        records: tuple[Recorded, ...],
        compute: Compute = PLAIN,
        correlation: float = 0.0,
    ):
        """network: an nn.Module; normalizer: None leaves observations unchanged.
        correlation: correlation of a step's noise with the step before in the same episode; the
            distribution of each single step does not change.  It must be 0 unless the noise is
            normal; it is 0 for policies that are asked for records, as in exports.
        """
        assert isinstance(network, nn.Module)
        self.correlation = 0.0 if compute.records is not None else correlation
        self.warming_up = False
        self.network, self.family = network.to(compute.act_on), network.family
        normalizer = ObservationNormalizer({}, 1.0, 1.0) if normalizer is None else normalizer
        self.normalizer = normalizer.to(compute.act_on)
        self.records: tuple[Recorded, ...] = records
        if compute.records is not None:
            valued = isinstance(network, ActorCritic)
            self.records = tuple(x for x in compute.records if valued or x != "value")
        self._remembers = bool(network.state_specs)
        parameters = dict(sorted(self.network.named_parameters()))
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.theta: Tensor | None = None
        if compute.compile and compute.precision == "fp32":  # weights in bf16 have two types
            self.theta = flatten_in_place([*parameters.values()])
        self.tensors = ModuleTensors({"network": self.network, "normalizer": self.normalizer})
        self.sample = compute.prepared(self._sample)

    @property
    def record_specs(self) -> dict[str, TensorSpec]:
        shapes = {"params_mu": (self.family.param_size,)}
        return {name: TensorSpec(shapes.get(name, ()), torch.float32) for name in self.records}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec(self.family.action_shape, self.family.action_dtype)

    def load(self, publication: Publication) -> None:
        self.tensors.load(publication.tensors)
        self.warming_up = bool(publication.tensors.get(WARMING_UP, False))

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        return self.network.state_specs

    def initial_state(self, num_streams: int) -> State:
        state = self.network.initial_state(num_streams) if self._remembers else {}
        if self.correlation:
            parameter = next(self.network.parameters())
            shape = num_streams, self.family.noise_size
            state = {**state, _NOISE: torch.zeros(shape, device=parameter.device)}
        return state

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return self.family.draw_noise((steps, num_streams), generator)

    def _follows(self, noise: Tensor, last: Tensor, is_first: Tensor) -> Tensor:
        """Noise that is correlated with the last one, except where an episode begins."""
        rest = (1.0 - self.correlation**2) ** 0.5
        return torch.where(is_first.unsqueeze(-1), noise, self.correlation * last + rest * noise)

    @torch.inference_mode()
    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        private: dict[str, Tensor] = {}
        if self.correlation:
            private = {_NOISE: state[_NOISE]}
            state = {name: x for name, x in state.items() if name != _NOISE}
            if noise is not None:
                noise = private[_NOISE] = self._follows(noise, private[_NOISE], is_first)
        if noise is not None and not self.warming_up:
            action, env_action, record, after = self.sample(obs, state, is_first, noise)
        else:
            params, value, after = self._forward(obs, state, is_first)
            action = self.family.mode(params)
            if noise is not None:
                action = self.family.uniform(params, noise)
            action, env_action, record = self._chosen(action, params, value)
        return ActOutput(action, env_action, record, {**after, **private})

    @property
    def one_graph(self) -> bool:
        captured = isinstance(self.sample, GraphedMethod) and not self.correlation
        return captured and not self.warming_up

    def from_host(
        self, block: Tensor, obs: Obs, state: State, is_first: Tensor, noise: Tensor
    ) -> Callable[..., ActOutput]:
        """`act` as one graph with its copies, see `HostActor`."""
        assert isinstance(self.sample, GraphedMethod)
        device = next(self.network.parameters()).device
        call = self.sample.from_host(device, block, obs, state, is_first, noise)
        return lambda *alone: ActOutput(*call(*alone))

    def _sample(
        self, obs: Obs, state: State, is_first: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], State]:
        params, value, state = self._forward(obs, state, is_first)
        return *self._chosen(self.family.sample(params, noise), params, value), state

    def _forward(
        self, obs: Obs, state: State, is_first: Tensor
    ) -> tuple[Tensor, Tensor | None, State]:
        """The value is None where nothing uses it; a graph omits its computation by itself."""
        inputs = (self.normalizer(obs), state, is_first)
        value: Tensor | None = None
        if self.theta is not None:  # a graph checks and converts inputs one by one: weights are one
            weights = views_of(self.theta, self.shapes)
            params, value, state = functional_call(self.network, weights, inputs)
        elif "value" in self.records:
            params, value, state = self.network(*inputs)
        else:
            params, state = self.network.policy(*inputs)
        return masked(self.family, params, obs), value, state

    def _chosen(
        self, action: Tensor, params: Tensor, value: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The action, as the environment takes it too, and the records of the policy there."""
        record: dict[str, Tensor] = {}
        if "logp_mu" in self.records:
            record["logp_mu"] = self.family.log_prob(params, action)
        if "params_mu" in self.records:
            record["params_mu"] = params
        if "value" in self.records:
            assert value is not None
            record["value"] = value
        if "entropy" in self.records:
            record["entropy"] = self.family.entropy(params)
        return action, self.family.to_env(action), record


def make_network(model: ModelConfig, spaces: Spaces, compute: Compute) -> ActorCritic:
    """The network of an actor, whose weights come with the first publication."""
    network = ActorCritic(spaces, make_family(model, spaces), model, None, compute.precision)
    network.freeze_precision()
    return network


def make_sampler(
    config: Normalizes,
    model: ModelConfig,
    spaces: Spaces,
    records: tuple[Recorded, ...],
    compute: Compute,
    correlation: float = 0.0,
) -> SamplingActor:
    """An actor with a network of one policy and one value."""
    network, normalizer = (
        make_network(model, spaces, compute),
        make_normalizer(config, model, spaces),
    )
    return SamplingActor(network, normalizer, records, compute, correlation)


def past_actor(
    config: Normalizes, model: ModelConfig, spaces: Spaces, setup: Setup
) -> SamplingActor:
    """An actor in the learner's process that holds earlier weights."""
    compute = Compute(setup.compute.precision, act_on=str(setup.device))
    return make_sampler(config, model, spaces, ("value",), compute)
