"""SAC: a stochastic policy that maximises values and its own entropy, learned from replay.

Haarnoja et al., arXiv 1812.05905 ("the paper").  Read `SACLearner.loss` first, then
`SACLearner.update`.  A batch from replay holds windows of `n_step` rows; fresh batches only update
statistics.  Actions are recorded before the tanh, after which they are in [-1, 1].

Departures from the paper, each with the switch that turns it off, if there is one:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Policy, critics and temperature make one step together, at the same weights; in the paper they
    step one after the other.
 3. Updates come in blocks of `unroll_steps` (``unroll_steps=1``).
 4. Actions are uniform at first (``replay_start_steps=0``, or ``init_from``), and the noise of
    actions may be correlated in time (``noise_correlation=0``, the default).
 5. Targets may be n-step returns without the entropy of the actions in between (``n_step=1``, the
    default), and updates of the policy may be rarer (``policy_delay=1``, the default).
 6. Observations may be normalised (``normalize_observations=false``, the default), and rates may
    fall (``lr_schedule=constant``, the default).
 7. First weights are orthogonal, those of the policy's last layer near 0 (``model.init``); the
    logarithm of a state-dependent standard deviation is clamped to [-20, 2].
"""

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.parts import acting, diagnostics
from quintet.algorithms.parts.acting import SamplingActor, Warmup, make_normalizer
from quintet.algorithms.parts.noise import with_noise
from quintet.algorithms.parts.off_policy_statistics import with_critic_fit
from quintet.algorithms.parts.options import refuse_aux_losses
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.trained import Parameters, StepOptions, Trained, knobs_of
from quintet.algorithms.parts.windows import windows_of
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.ops import schedules, value_losses
from quintet.protocols import DataPlan, ReplayPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces
from quintet_sac import metrics
from quintet_sac.config import Knobs, SACConfig
from quintet_sac.metrics import Outputs, Samples
from quintet_sac.network import Networks


@final
class SACLearner:
    """Makes one optimizer step from every batch that is drawn from replay."""

    def __init__(self, config: SACConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.generator = torch.Generator().manual_seed(setup.seeds[1])
        first = config.temperature_init if config.learn_temperature else None
        network = Networks(spaces, model, generator, setup.compute.precision, first)
        refuse_aux_losses("sac", model, network.actor.encoder.loss_names)
        self.network, self.family = network.to(setup.device), network.box
        self.normalizer = make_normalizer(config, model, spaces).to(setup.device)
        self.parts = ("actor", "critic", *(["temperature"] if config.learn_temperature else []))
        self.trained: Trained[Samples, Knobs] = Trained(
            self.network,
            self.loss,
            metrics.statistics,
            Knobs,
            setup,
            modules={"normalizer": self.normalizer},
            only_learning=("network/critic.", "network/temperature."),
            segments=self.parts,
            delayed=[part for part in self.parts if part != "critic"],
            averages=True,
            check_numerics=config.check_numerics,
        )
        self.warmup = Warmup(config.replay_start_steps)
        target, most = config.target_entropy, self.family.size * math.log(2.0)
        if target is not None and target >= most:
            raise ConfigError(
                f"target_entropy must be below the {most:.2f} nats of uniform actions in [-1, 1], "
                f"got {target:g}: usual is {-self.family.size}"
            )
        self.target_entropy = -float(self.family.size) if target is None else target
        self.decay = find_decay(config.lr_schedule)
        self.factor, self.version = 1.0, 0

    # The loss

    def loss(
        self, parameters: Parameters, samples: Samples, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of a batch: of the critics, equation 5 of the paper, of the policy, equation 9,
        and of the temperature, equation 18.

        ``total = sum over critics of mean(0.5 * (Q(s, a) - target)^2)
        + mean(alpha * log pi(u|s) - min Q(s, u)) - mean(alpha * (log pi(u|s) + target_entropy))``;
        the second term is differentiated by the policy alone, the third by alpha alone.
        """
        windows, family = samples.windows, self.family
        obs, rows = windows.first, windows.rows
        log_alpha = parameters.get("temperature.log")
        alpha = torch.as_tensor(knobs.temperature) if log_alpha is None else log_alpha.exp()
        target = self._targets_of(parameters, samples, alpha.detach(), knobs)

        q = self._values(parameters, obs, windows.action)
        errors = torch.stack([value_losses.squared(each, target) for each in q])
        total = critic_loss = errors.sum() / rows  # each of several learners gives its share
        losses = {"loss/critic": critic_loss}
        log_prob = action = None
        if samples.learns_policy:
            params = functional_call(self.network.actor, _part(parameters, "actor."), (obs,))
            u, log_prob = family.sample_and_log_prob(params, windows.record["noise"][0, :, 0])
            action = u.tanh()
            fixed = {name: x.detach() for name, x in parameters.items()}
            value = torch.minimum(*self._values(fixed, obs, u))
            policy_loss = (alpha.detach() * log_prob - value).sum() / rows
            total = total + policy_loss
            losses["loss/policy"] = policy_loss
            if log_alpha is not None:
                above = (log_prob.detach() + self.target_entropy).sum() / rows
                losses["loss/temperature"] = -alpha * above
                total = total - alpha * above
        return total, Outputs(losses, q[0], target, log_prob, action, alpha.detach())

    @torch.no_grad()
    def _targets_of(
        self, parameters: Parameters, samples: Samples, alpha: Tensor, knobs: Knobs
    ) -> Tensor:
        """Targets ``[B]`` of row 0: the n-step return, which bootstraps from the lower of the
        target critics' values of the policy's action and from its entropy, equations 2 and 3.
        """
        windows, obs = samples.windows, samples.windows.following
        params = functional_call(self.network.actor, _part(parameters, "actor."), (obs,))
        noise = windows.record["noise"][:, :, 1].flatten(0, 1)
        u, log_prob = self.family.sample_and_log_prob(params, noise)
        v = torch.minimum(*self._values(self.trained.averaged(), obs, u)) - alpha * log_prob
        gamma, scale = torch.as_tensor(knobs.gamma), torch.as_tensor(knobs.reward_scale)
        return windows.returns(v, gamma, scale)

    def _values(self, parameters: Parameters, obs: Obs, u: Tensor) -> list[Tensor]:
        """Both critics' values ``[N]`` of actions before the tanh."""
        action = u.tanh()
        return [
            functional_call(critic, _part(parameters, f"critic.{i}."), (obs, action))
            for i, critic in enumerate(self.network.critic)
        ]

    # Updates

    @property
    def plan(self) -> DataPlan:
        config = self.config
        replay = ReplayPlan(
            "windows",
            capacity_steps=config.replay_capacity_steps,
            steps=config.n_step,
            columns=config.batch_size,
            draws="owed",
            rate=config.updates_per_env_step,
            start_steps=config.start_steps,
        )
        return DataPlan(config.unroll_steps, self.setup.num_streams, replay=replay)

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: SACConfig) -> None:
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Trains on a replayed batch; from a fresh batch only takes statistics."""
        self.version += 1
        config = self.config
        if not batch.replayed:
            batch = self.ranks.whole(batch)
            self.warmup.count(batch)
            if self.normalizer.names and config.update_normalizers:
                self.normalizer.merge({k: x[:-1] for k, x in batch.obs.items()}, batch.valid)
            return
        self.factor = self.decay(schedules.linear(env_steps, self.setup.total_env_steps))
        learns_policy = self.updates % config.policy_delay == 0
        samples = self._samples(batch, learns_policy)
        knobs = knobs_of(Knobs, config)
        self.trained.step(samples, knobs, *self._step_options(learns_policy), polyak=config.tau)
        self.trained.fold_when_due()

    def _samples(self, batch: Rollout, learns_policy: bool) -> Samples:
        """This learner's share of a batch, with noise; all learners draw the same noise."""
        noisy = with_noise(batch, self.family, 2, self.generator)
        ends = self.config.truncation_as_termination
        windows = windows_of(noisy, self.ranks, self.normalizer, truncation_as_termination=ends)
        return Samples(windows, learns_policy)

    def _rate(self, part: str) -> float:
        return float(getattr(self.config, f"{part}_lr")) * self.factor

    def _step_options(self, learns_policy: bool) -> list[StepOptions | None]:
        return [
            self.trained.step_options(self._rate(part), self.config, part)
            if learns_policy or part == "critic"
            else None
            for part in self.parts
        ]

    # Reports

    def metrics(self) -> dict[str, float]:
        self.trained.fold()
        values = with_critic_fit(self.trained.interval.read())
        values |= {f"optim/{part}_learning_rate": self._rate(part) for part in self.parts}
        return values | diagnostics.observation_metrics(self.normalizer)

    def histograms(self) -> dict[str, Tensor]:
        return {}

    # State

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published() | self.warmup.published())

    def weights(self) -> dict[str, Tensor]:
        return self.trained.weights() | self.warmup.published()

    def warm_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the weights of another run, whose policy then also collects the first env_steps."""
        self.trained.load_weights(tensors)
        acting.require_statistics(self.normalizer, self.config.update_normalizers)
        self.warmup.collected = self.warmup.steps

    def save(self) -> LearnerState:
        self.trained.fold()
        tensors = {**self.trained.save(), "generator": self.generator.get_state()}
        counts = {"updates": self.updates, "version": self.version}
        counts["collected_env_steps"] = self.warmup.collected
        return LearnerState(tensors, {**counts, "learning_rate_factor": self.factor})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        self.version = scalars["version"] if counters else self.version + 1
        self.factor = scalars["learning_rate_factor"]
        if counters:
            self.warmup.collected = scalars["collected_env_steps"]
            self.generator.set_state(state.tensors["generator"])


def _part(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The parameters whose names have this prefix, by the rest of their names."""
    return {n.removeprefix(prefix): x for n, x in parameters.items() if n.startswith(prefix)}


def make_actor(
    config: SACConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> SamplingActor:
    """The actor that collects SAC's transitions."""
    network = Networks(spaces, model, None, compute.precision)
    network.actor.encoder.cast_weights(compute.precision)
    normalizer = make_normalizer(config, model, spaces)
    return SamplingActor(network, normalizer, (), compute, config.noise_correlation)
