"""DDPG: a deterministic policy that ascends a critic, both learned from replay.

Lillicrap et al., arXiv 1509.02971, in the form of OpenAI baselines; parameter noise from Plappert
et al., arXiv 1706.01905, PopArt from van Hasselt et al., arXiv 1602.07714.  Read
`DDPGLearner.loss` first, then `DDPGLearner.update`.  A batch from replay holds windows of `n_step`
rows; fresh batches only update statistics.  `Trained` makes the optimizer step; `actor.py` has the
exploration.

Departures from the paper, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Actors explore by noise on their weights (``exploration=ou_0.2`` is the paper's).
 3. The targets follow ten times as fast (``tau=0.001`` is the paper's).
 4. Layers are 64 and 64 with LayerNorm (``model.policy_hidden=(400, 300)``,
    ``model.layer_norm=false`` are the paper's).
 5. Observations are normalised by running statistics (``normalize_observations=false``); the paper
    has batch normalisation.
 6. Targets may be n-step returns (``n_step=1``, the default, is the paper's), in units of their
    standard deviation (``normalize_returns=false``, the default), and large errors may be linear in
    the loss (``critic_huber_delta=none``, the default).
 7. Learning rates may fall to 0 (``lr_schedule=constant``, the default, is the paper's).
 8. Updates come in blocks, half an update for a step (``updates_per_env_step=1`` and
    ``unroll_steps=1`` are the paper's).
 9. The critic's last layer has no L2.
10. First weights of hidden layers are orthogonal (``model.init=uniform`` is the paper's).
11. Policy and critic step together, at the same weights; the paper's policy follows the updated
    critic.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.ddpg import metrics
from quintet.algorithms.ddpg.actor import PARAM_SCALE
from quintet.algorithms.ddpg.config import DDPGConfig, Knobs
from quintet.algorithms.ddpg.exploration import adapted, perturbation
from quintet.algorithms.ddpg.metrics import Outputs
from quintet.algorithms.ddpg.network import Networks, perturbable
from quintet.algorithms.ddpg.popart import PRIOR_COUNT, TargetStatistics, rescale_
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts import diagnostics
from quintet.algorithms.parts.acting import Warmup, make_normalizer, require_statistics
from quintet.algorithms.parts.options import refuse_aux_losses
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.algorithms.parts.windows import windows_of
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.models.flat import strip_prefix, views_of
from quintet.ops import schedules, value_losses
from quintet.protocols import DataPlan, ReplayPlan
from quintet.spaces import leaf_spec, observation_leaves
from quintet.system.transfer import Use, to_device
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces, TensorSpec

_ACTOR, _CRITIC = "actor.", "critic."

SATURATED = 0.99
"""Fraction of half the action range beyond which the tanh of the policy's output has almost no
gradient; the tanh itself never reaches 1.
"""


@final
class DDPGLearner:
    """Makes one optimizer step of both networks from every batch that is drawn from replay."""

    def __init__(self, config: DDPGConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.generator = torch.Generator().manual_seed(setup.seeds[1])
        network = Networks(
            spaces, model, config.action_layer, config.output_init, generator,
            setup.compute.precision,
        )  # fmt: skip
        refuse_aux_losses("ddpg", model, network.actor.encoder.loss_names)
        self.network = network.to(setup.device)
        self.normalizer = make_normalizer(config, model, spaces).to(setup.device)
        self.targets = TargetStatistics(config.popart_step_size).to(setup.device)
        self.trained: Trained[Transitions, Knobs] = Trained(
            self.network,
            self.loss,
            metrics.statistics,
            Knobs,
            setup,
            modules={"normalizer": self.normalizer, "targets": self.targets},
            only_learning=("network/critic.", "targets/"),
            segments=("actor", "critic"),
            averages=True,
            check_numerics=config.check_numerics,
        )
        self.penalised = self.network.penalised()
        self.param_scale = torch.tensor(config.noise.param, device=setup.device)
        self.warmup = Warmup(config.replay_start_steps * (config.warmup_policy == "uniform"))
        # A parameter's name in its network, and in `Trained`.
        names = [*self.trained.parameters]
        self.names = [
            {name.removeprefix(part): name for name in names if name.startswith(part)}
            for part in (_ACTOR, _CRITIC)
        ]
        self.moved = perturbable(self.network.actor)
        self._target = setup.compute.prepared(self._targets_of)
        # The first update sets this batch; zeros of the same form let several learners exchange it.
        leaves, rows = observation_leaves(spaces.observation), config.batch_size
        specs = {f"obs/{name}": leaf_spec(leaf) for name, leaf in leaves.items()}
        specs["action"] = TensorSpec((network.actor.box.size,), torch.float32)
        self.reference = {
            name: torch.zeros(rows, *spec.shape, dtype=spec.dtype, device=setup.device)
            for name, spec in specs.items()
        }
        self.has_reference = False
        self.collected = torch.zeros(5, dtype=torch.float64, device=setup.device)
        # Absolute, of all that was collected.
        self.largest_reward = torch.zeros((), device=setup.device)
        self.rates, self.decay = (config.actor_lr, config.critic_lr), find_decay(config.lr_schedule)
        self.version = 0

    # The loss

    def loss(
        self, parameters: Parameters, own: Transitions, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of a batch: the critic's, equation 4 of arXiv 1509.02971 with the targets of
        equation 5, and the policy's, whose gradient is equation 6.

        ``total = value_coef * mean(0.5 * (Q(s, a) - target)^2) - mean(Q(s, pi(s)))
        + 0.5 * critic_l2_coef * sum(w^2)``; the second term is differentiated by the policy alone.
        """
        config, network, windows = self.config, self.network, own.windows
        actor, critic = self._split(parameters)
        obs = windows.first
        mean, std = own.spread.unbind()
        target = own.target
        if target is None:
            scalars = torch.as_tensor(knobs.gamma), torch.as_tensor(knobs.reward_scale)
            target = self._targets_of(own, torch.stack(scalars))

        q = functional_call(network.critic, critic, (obs, windows.action))
        if config.critic_huber_delta is None:
            error = value_losses.squared(q, (target - mean) / std)
        else:
            error = value_losses.huber(q, (target - mean) / std, knobs.critic_huber_delta)
        action = functional_call(network.actor, actor, (obs,))
        fixed = {name: x.detach() for name, x in critic.items()}
        q_of_policy = functional_call(network.critic, fixed, (obs, action)) * std + mean

        # Each of several learners divides by the rows of the whole batch.
        critic_loss = knobs.value_coef * error.sum() / windows.rows
        actor_loss = -q_of_policy.sum() / windows.rows
        l2_loss = zero = torch.zeros_like(critic_loss)
        if config.critic_l2_coef > 0:
            squares = torch.stack([parameters[name].square().sum() for name in self.penalised])
            l2_loss = 0.5 * knobs.critic_l2_coef * squares.sum() / self.ranks.size
        total = critic_loss + actor_loss + l2_loss

        losses = {"loss/critic": critic_loss, "loss/actor": actor_loss}
        losses |= {} if l2_loss is zero else {"loss/l2": l2_loss}
        return total, Outputs(losses, q, target, action)

    @torch.no_grad()
    def _targets_of(self, own: Transitions, numbers: Tensor) -> Tensor:
        """Targets ``[B]`` of row 0, in scaled reward units: the n-step return, which bootstraps
        from the target networks' value of the target policy's action.

        numbers: gamma and the factor of rewards ``[2]``.
        """
        gamma, scale = numbers.unbind()
        mean, std = own.spread.unbind()
        obs = own.windows.following
        actor, critic = self._split(self.trained.averaged())
        action = functional_call(self.network.actor, actor, (obs,))
        v = functional_call(self.network.critic, critic, (obs, action)) * std + mean
        target = own.windows.returns(v, gamma, scale)
        low, high = self.config.return_range
        return target.clamp(low, high) if (low, high) != (-math.inf, math.inf) else target

    def _split(self, parameters: Parameters) -> list[Parameters]:
        """The parameters of the policy and of the critic, by the names within each network."""
        return [{own: parameters[name] for own, name in part.items()} for part in self.names]

    # Updates

    @property
    def plan(self) -> DataPlan:
        config = self.config
        fixed = config.updates_per_cycle
        replay = ReplayPlan(
            "windows",
            capacity_steps=config.replay_capacity_steps,
            steps=config.n_step,
            columns=config.batch_size,
            draws="owed" if fixed is None else "fixed",
            rate=config.updates_per_env_step if fixed is None else fixed,
            start_steps=config.start_steps,
        )
        return DataPlan(config.unroll_steps, self.setup.num_streams, replay=replay)

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: DDPGConfig) -> None:
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Trains on a replayed batch; from a fresh batch only takes statistics."""
        self.version += 1
        if not batch.replayed:
            self._take_statistics(self.ranks.whole(batch))
            return
        config, trained = self.config, self.trained
        if not self.has_reference:
            whole = self.ranks.whole(batch)
            for name, x in self.reference.items():
                of_rows = whole.action if name == "action" else whole.obs[name.removeprefix("obs/")]
                x.copy_(of_rows[0])
            self.has_reference = True
        ends = config.truncation_as_termination
        windows = windows_of(batch, self.ranks, self.normalizer, truncation_as_termination=ends)
        own = Transitions(windows, None, self.targets.numbers())
        if config.noise.param and self.updates % config.adapt_interval_updates == 0:
            self._adapt(windows.first)
        if config.normalize_returns:
            target = self._known_targets(own)
            own = replace(own, target=target, spread=self.targets.numbers())
        factor = self.decay(schedules.linear(env_steps, self.setup.total_env_steps))
        self.rates = config.actor_lr * factor, config.critic_lr * factor
        actor, critic = (trained.step_options(rate, config) for rate in self.rates)
        trained.step(own, knobs_of(Knobs, config), actor, critic, polyak=config.tau)
        trained.fold_when_due()

    # Fresh batches

    def _take_statistics(self, batch: Rollout) -> None:
        """Adds up statistics of the actions that were executed, and of the observations."""
        self.warmup.count(batch)
        use = Use.of(batch.on_cpu("valid"), batch.valid.device)
        if use.places.numel():
            action = use.take(batch.action)
            obs = {name: use.take(x[:-1]) for name, x in batch.obs.items()}
            with torch.no_grad():
                mean, std = self.targets.numbers().unbind()
                value = self.network.critic(self.normalizer(obs), action) * std + mean
            a = action.double()
            count = torch.full_like(self.collected[0], len(a))
            bound = (a.abs() > SATURATED).double()
            sums = (value.double(), a, a.square(), bound)
            self.collected += torch.stack((count, *(x.sum() for x in sums)))
            largest = use.take(batch.reward).abs().max()
            torch.maximum(self.largest_reward, largest, out=self.largest_reward)
        if self.normalizer.names and self.config.update_normalizers:
            obs = {name: x[:-1] for name, x in batch.obs.items()}
            self.normalizer.merge(obs, batch.on_cpu("valid"))

    # Replayed batches

    def _known_targets(self, own: Transitions) -> Tensor:
        """Targets ``[B]`` by the old statistics, which then take in the targets of all ranks."""
        config = self.config
        numbers = to_device(torch.tensor([config.gamma, config.reward_scale]), self.setup.device)
        target = self._target(own, numbers)
        if config.update_normalizers:
            self.targets.merge(self.ranks.gather(target).flatten())
        if config.popart:
            self._keep_values(own.spread)
        return target

    def _keep_values(self, before: Tensor) -> None:
        """Rescales both critics so that their values stay as they were with the spread `before`."""
        after = self.targets.numbers()
        for parameters in (self.trained.parameters, self.trained.averaged()):
            head = {name: parameters[f"{_CRITIC}head.{name}"] for name in ("weight", "bias")}
            rescale_({name: x.detach() for name, x in head.items()}, before, after)

    @torch.no_grad()
    def _adapt(self, obs: Obs) -> None:
        """Adapts the size of parameter noise so that it moves actions by the desired distance."""
        distance = self._distance(obs, int(torch.randint(2**53, (), generator=self.generator)))
        config = self.config
        self.param_scale.copy_(
            adapted(self.param_scale, distance, config.noise.param, config.param_noise_factor)
        )
        self.trained.interval.add(Statistics({"exploration/param_noise_distance": distance}))

    def _distance(self, obs: Obs, seed: int) -> Tensor:
        """The distance by which a perturbation moves actions: root mean square, over all ranks."""
        actor, _ = self._split(self.trained.parameters)
        moved = self._perturbed(actor, seed)
        ours, perturbed = (functional_call(self.network.actor, x, (obs,)) for x in (actor, moved))
        squares = (ours - perturbed).square().mean() / self.ranks.size
        return self.ranks.sum(squares).sqrt()

    def _perturbed(self, actor: Parameters, seed: int) -> Parameters:
        """The weights with noise; those that are never perturbed stay as they are."""
        count = sum(x.numel() for x in actor.values())
        z = views_of(
            to_device(perturbation(count, seed), self.setup.device),
            {name: x.shape for name, x in actor.items()},
        )
        return {
            name: x + self.param_scale * (z[name] * self.moved[name]) for name, x in actor.items()
        }

    # Reports

    def metrics(self) -> dict[str, float]:
        """Metrics since the last report, of updates, executed actions and the reference batch."""
        self.trained.fold()  # the steps that still wait
        config = self.config
        # No return is larger than that of the largest reward in every step.
        largest = abs(config.reward_scale) * self.largest_reward.item()
        bound = largest / (1.0 - config.gamma) if config.gamma < 1 else math.inf
        values = metrics.finished(self.trained.interval.read(), bound) | self._of_collected()
        values["optim/actor_learning_rate"], values["optim/critic_learning_rate"] = self.rates
        if config.noise.param:
            values["exploration/param_noise_std"] = self.param_scale.item()
        if config.normalize_returns:
            mean, std = self.targets.numbers().tolist()
            values |= {"normalizer/target_mean": mean, "normalizer/target_std": std}
        return values | diagnostics.observation_metrics(self.normalizer) | self._of_reference()

    def _of_collected(self) -> dict[str, float]:
        """Metrics of all actions that were executed since the last report."""
        rows, value, *sums = self.collected.tolist()
        self.collected.zero_()
        if not rows or not math.isfinite(value):
            return {}
        mean, square, bound = (x / (rows * self.reference["action"].shape[1]) for x in sums)
        return {
            "q/collected_mean": value / rows,
            "exploration/action_mean": mean,
            "exploration/action_std": math.sqrt(max(square - mean**2, 0.0)),
            "exploration/action_saturation_frac": bound,
        }

    @torch.no_grad()
    def _of_reference(self) -> dict[str, float]:
        """Statistics of the networks' outputs on a fixed reference batch."""
        if not self.has_reference:
            return {}
        obs = self.normalizer(strip_prefix(self.reference, "obs"))
        action = self.reference["action"]
        mean, std = self.targets.numbers().unbind()
        actor, _ = self._split(self.trained.parameters)
        ours = functional_call(self.network.actor, actor, (obs,))
        outputs = {
            "q": self.network.critic(obs, action) * std + mean,
            "actor_q": self.network.critic(obs, ours) * std + mean,
            "action": ours,
        }
        if self.config.noise.param:
            moved = self._perturbed(actor, 0)
            outputs["perturbed_action"] = functional_call(self.network.actor, moved, (obs,))
        values: dict[str, Tensor] = {}
        for name, x in outputs.items():
            values[f"reference/{name}_mean"] = x.mean()
            values[f"reference/{name}_std"] = x.std(correction=0)
        return dict(zip(values, torch.stack([*values.values()]).tolist(), strict=True))

    def histograms(self) -> dict[str, Tensor]:
        return {}

    # Weights and state

    def _for_actors(self) -> dict[str, Tensor]:
        return {PARAM_SCALE: self.param_scale, **self.warmup.published()}

    def publication(self) -> Publication:
        tensors = self.trained.published({PARAM_SCALE: self.param_scale})
        return Publication(self.version, tensors | self.warmup.published())

    def weights(self) -> dict[str, Tensor]:
        return self.trained.weights() | self._for_actors()

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        self.trained.load_weights(weights)
        require_statistics(self.normalizer, self.config.update_normalizers)
        known = float(self.targets.count) > PRIOR_COUNT
        if self.config.normalize_returns and not (self.config.update_normalizers or known):
            raise ConfigError(
                "update_normalizers=false must have statistics of returns, but init_from has none: "
                "name a run that has them, or leave update_normalizers or normalize_returns out"
            )
        if not self.config.normalize_returns:  # the donor's critic may be in units of a spread
            before = self.targets.numbers()
            self.targets.reset()
            self._keep_values(before)
        # A donor without parameter noise has a scale of 0, which no factor would change.
        if self.config.noise.param and weights[PARAM_SCALE] > 0:
            self.param_scale.copy_(weights[PARAM_SCALE])

    def save(self) -> LearnerState:
        self.trained.fold()
        tensors = self.trained.save() | {PARAM_SCALE: self.param_scale}
        tensors["generator"] = self.generator.get_state()
        tensors["largest_reward"] = self.largest_reward
        tensors |= {f"reference/{name}": x for name, x in self.reference.items()}
        scalars = {
            "has_reference": self.has_reference,
            "updates": self.updates,
            "version": self.version,
            "actor_learning_rate": self.rates[0],
            "critic_learning_rate": self.rates[1],
            "collected_env_steps": self.warmup.collected,
        }
        return LearnerState(tensors, scalars)

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        tensors = state.tensors
        self.trained.load(tensors, scalars["updates"] if counters else self.updates)
        self.param_scale.copy_(tensors[PARAM_SCALE])
        self.version = scalars["version"] if counters else self.version + 1
        self.rates = scalars["actor_learning_rate"], scalars["critic_learning_rate"]
        if counters:
            self.warmup.collected = scalars["collected_env_steps"]
            self.generator.set_state(tensors["generator"])
            self.largest_reward.copy_(tensors["largest_reward"])
            self.has_reference = scalars["has_reference"]
            for name, x in self.reference.items():
                x.copy_(tensors[f"reference/{name}"])
