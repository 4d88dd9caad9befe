"""Proximal policy optimisation with a clipped ratio and/or an adaptive KL penalty.

Schulman et al., arXiv 1707.06347; advantages of Schulman et al., arXiv 1506.02438, in the form of
TF-Agents' PPO agent.  Read `PPOLearner.loss` first, then `PPOLearner.update`. `Trained` makes the
optimizer step; `quintet.ops` has the arithmetic of estimators and terms.

Departures from the papers, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Observations are normalised by running statistics (``normalize_observations``, and of pictures
    ``normalize_pictures``).
 3. Rewards are divided by the running return's standard deviation (``reward_normalizer=none``).
 4. Advantages are normalised over the batch (``normalize_advantage=none``).
 5. The gradient's global norm is clipped (``max_grad_norm=none``).
 6. The learning rate falls linearly to 0 (``lr_schedule=constant``).
 7. The dead band of the adaptive KL penalty is 0.3, in the paper 0.5 (``kl_tolerance``).
 8. Minibatches are even: the valid rows (recurrent: the chunks that have any) are split into parts
    that differ by at most one, so that none is tiny (``drop_last``: whole minibatches only).
 9. The first batch is added to empty statistics before it is learned from, later ones afterwards.
    The policy acted in it on unnormalised observations, so its first ratios are not 1
    (``normalize_observations=false``, ``reward_normalizer=none``).
10. The noise of successive actions may be correlated (``noise_correlation=0``, the default): each
    action alone has the policy's density, by which ratios are computed.  Hollenstein et al., arXiv
    2312.11091, draw coloured noise; here it is a first-order autoregression.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.parts import acting, minibatches
from quintet.algorithms.parts.minibatches import Chunks, Minibatch, Rows
from quintet.algorithms.parts.normalizers import ONLY_LEARNING, Normalizers
from quintet.algorithms.parts.policy_probe import KL, PolicyProbe
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.algorithms.ppo import metrics
from quintet.algorithms.ppo.config import Knobs, PPOConfig, require_learnable
from quintet.algorithms.ppo.metrics import Estimates, Outputs
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.models.cuda_graphs import GraphedMethod
from quintet.ops import policy_losses, reduce, returns, schedules, value_losses
from quintet.protocols import DataPlan
from quintet.system.transfer import Use
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces

_SCHEDULED = ("learning_rate", "beta")
"""Attributes of `Schedule` in a saved state."""

_TOLD = "told/"
"""Prefix of the last iteration's metrics there."""


class Ends(NamedTuple):
    """The rows in which episodes and traces end ``[T, B]``, see `Rollout`."""

    terminated: Tensor
    truncated: Tensor
    trace_cut: Tensor | None


@final
class PPOLearner:
    """Learns from batches of whole unrolls, one column per stream."""

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = acting.make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        require_learnable(config, model, network.encoder.loss_names, setup.ranks.size)
        self.normalizers = Normalizers(config, model, spaces, setup.device)
        self.kernels = self.network.kernel_groups()
        self.trained: Trained[Minibatch, Knobs] = Trained(
            self.network,
            self.loss,
            metrics.statistics,
            Knobs,
            setup,
            modules=self.normalizers.modules,
            only_learning=ONLY_LEARNING,
            check_numerics=config.check_numerics,
        )
        self.weights, self.warm_start = self.trained.weights, self.normalizers.loads(self.trained)
        if config.log_gradients:
            self.trained.keep_gradient()
        captures = setup.compute.graph
        self._estimates = GraphedMethod(self._estimates_of) if captures else self._estimates_of
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        self.chunk_steps = 1 if model.core == "none" else config.bptt_steps
        self.version = 0
        self.advantage: Tensor | None = None  # not normalised
        self.schedule = Schedule(config, setup.total_env_steps)
        self.reports = metrics.Reports(self.trained, self.normalizers)
        normalize, interval = self.normalizers.observations, self.trained.interval
        self.probe = PolicyProbe(self.family, self.network, normalize, interval, (KL,))
        self.histograms = self.reports.histograms

    # The loss

    def loss(
        self, parameters: Parameters, minibatch: Minibatch, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of a minibatch: equation 9 of arXiv 1707.06347, with the clipped objective of
        equation 7 and, if there is one, the KL penalty of equation 8.

        ``total = E[-min(rho * A, clip(rho, 1 - epsilon, 1 + epsilon) * A)] + value_coef * E[error]
        - entropy_coef * E[H] + l2 + beta * E[KL(mu, pi)] + cutoff``, with means by `weight` over
        the minibatch's rows.  A coefficient of 0 leaves its term out.
        """
        config, family, weight = self.config, self.family, minibatch.weight
        rows = minibatch.take()
        params, value, logp_pi, logp_mu = forward = self._forward(parameters, rows, knobs)
        log_rho = logp_pi - logp_mu
        if self.chunk_steps > 1:  # chunks may hold invalid rows, whose ratio may be anything
            log_rho = torch.where(weight > 0, log_rho, 0.0)
        rho = log_rho.exp()
        if config.clip_epsilon is None:
            policy = policy_losses.ratio(rho, rows.advantage)
        else:
            policy = policy_losses.ratio_clip(rho, rows.advantage, knobs.clip_epsilon)
        error = self._value_error(value, rows, knobs)
        # An entropy that is only reported stays out of the gradient.
        entropy = family.entropy(params if config.entropy_coef > 0 else params.detach())
        kl = family.kl(rows.params_mu, params if config.uses_kl else params.detach())

        def mean(x: Tensor) -> Tensor:
            return knobs.share * torch.dot(weight, x)

        mean_kl, policy_loss = mean(kl), mean(policy)
        zero = torch.zeros_like(policy_loss)
        value_loss = knobs.value_coef * mean(error) if config.value_coef > 0 else zero
        entropy_loss = -knobs.entropy_coef * mean(entropy) if config.entropy_coef > 0 else zero
        l2_loss = self._l2(parameters, knobs) if config.l2_coefs else zero
        kl_loss = knobs.kl_coef * mean_kl if config.kl_coef_init > 0 else zero
        cutoff_loss = self._kl_cutoff(mean_kl, knobs) if config.kl_cutoff_coef > 0 else zero
        total = policy_loss + value_loss + entropy_loss + l2_loss + kl_loss + cutoff_loss

        losses = (policy_loss, value_loss, entropy_loss, l2_loss, kl_loss, cutoff_loss, total)
        cutoff_kl = mean_kl if config.kl_cutoff_coef > 0 else None
        terms = policy, error, entropy, kl
        return total, Outputs(losses, cutoff_kl, *forward, log_rho, rho, *terms)

    def _forward(
        self, parameters: Parameters, rows: Rows, knobs: Knobs
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parameters of the distribution, values, and log-probabilities of the actions: current,
        and at the time of the action.
        """
        config, family = self.config, self.family
        params, value, _ = functional_call(
            self.network, parameters, (rows.obs, rows.state, rows.is_first)
        )
        params = acting.masked(family, params, rows.obs)
        logp_pi, logp_mu = family.log_prob(params, rows.action), rows.logp_mu
        if config.log_prob_clip is not None:
            bound = torch.as_tensor(knobs.log_prob_clip, dtype=logp_mu.dtype)
            logp_pi, logp_mu = logp_pi.clamp(-bound, bound), logp_mu.clamp(-bound, bound)
        return params, value, logp_pi, logp_mu

    def _value_error(self, value: Tensor, rows: Rows, knobs: Knobs) -> Tensor:
        """Half the squared error by row; with a value clip, of the clipped value."""
        if self.config.value_clip is None:
            return value_losses.squared(value, rows.target)
        return value_losses.clipped(value, rows.value_mu, rows.target, knobs.value_clip)

    def _kl_cutoff(self, mean_kl: Tensor, knobs: Knobs) -> Tensor:
        """The penalty for a mean KL far above the target."""
        target, factor = knobs.kl_target, knobs.kl_cutoff_factor
        return policy_losses.kl_cutoff(
            mean_kl, target=target, factor=factor, coef=knobs.kl_cutoff_coef
        )

    def _l2(self, parameters: Parameters, knobs: Knobs) -> Tensor:
        """The L2 penalty on kernels, by group; with several learners, this learner's share."""
        coefs = {group: getattr(knobs, f"{group}_l2_coef") for group in self.config.l2_coefs}
        kernels = ((coefs[group], name) for group in coefs for name in self.kernels[group])
        squares = [coef * parameters[name].square().sum() for coef, name in kernels]
        return torch.stack(squares).sum() / self.ranks.size

    # Updates

    @property
    def plan(self) -> DataPlan:
        return DataPlan(
            unroll_steps=self.config.unroll_steps,
            columns_per_batch=self.setup.num_streams,
            return_discount=self.normalizers.return_discount,
            state_every=self.chunk_steps,
            gives_advantage=True,
        )

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: PPOConfig) -> None:
        self.schedule.configure(options)
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """One iteration: targets, epochs of minibatches, the penalty's weight, normalisers."""
        config, trained = self.config, self.trained
        trained.fold()  # rest of an update without a publication
        self.schedule.begin(env_steps)
        batch = self.ranks.whole(batch)
        self.normalizers.merge_first(batch, self.version)
        dropped = config.unfinished_episode == "drop"
        on_cpu = minibatches.ended_rows(batch) if dropped else batch.on_cpu("valid")
        self.reports.distributions, self.advantage = {}, None
        self.version += 1
        if not on_cpu.any():  # unfinished_episode=drop, and no episode ended
            trained.interval.add_numbers({"optim/epochs": 0.0})
            self.normalizers.merge(batch)
            return
        used = Use.of(on_cpu, batch.valid.device)
        use, count = used.mask, used.places.numel()
        chunks = Chunks(use.shape, self.chunk_steps, use.device)
        if "value" in batch.record and self.normalizers.acted_without_statistics(batch):
            v = self._values(batch, chunks)
            batch = replace(batch, record={**batch.record, "value": v})
        rows, estimates = self._rows(batch, use)
        self.advantage = estimates.advantage
        self._distribute("first", rows, chunks, use)
        knobs = self.knobs(1.0 if config.reduction == "mean" else count / use.numel())
        for epoch in range(config.num_epochs):
            if epoch and config.refresh_advantages == "per_epoch":
                rows, _ = self._rows(batch, use)  # reports keep the numbers from before the update
            begin = trained.pending
            for minibatch in self._minibatches(rows, chunks, on_cpu.flatten()):
                options = trained.step_options(self.schedule.learning_rate, config)
                trained.step(minibatch, knobs, options)
            most = config.target_kl
            if most is not None and trained.recent(begin)["policy/approx_kl"] > 1.5 * most:
                break
        trained.interval.add_numbers({"optim/epochs": epoch + 1.0})
        self.reports.iteration(batch, used, rows.obs, estimates, begin)
        if config.uses_kl:
            adapted = self.schedule.adapt(self._mean_kl(rows, chunks, use))
            trained.interval.add_numbers(adapted)
        self._distribute("last", rows, chunks, use)
        if config.log_histograms:
            data = metrics.batch_values(batch, use, estimates, self.family)
            self.reports.distributions |= data
        self.probe.after(batch, self.version, trained.current)
        self.normalizers.merge(batch)

    @torch.no_grad()
    def _values(self, batch: Rollout, chunks: Chunks) -> Tensor:
        """Values ``[T, B]`` of the batch's observations by the present network and statistics."""
        obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        return chunks.values(self.network, batch, self.normalizers.observations(obs), False)[:-1]

    @torch.no_grad()
    def _rows(self, batch: Rollout, use: Tensor) -> tuple[Rows, Estimates]:
        """Normalises, estimates advantages and targets, and flattens ``[T, B]`` to rows."""
        config = self.config
        normalize = self.normalizers.observations
        obs: Obs = normalize({name: x.flatten(0, 1) for name, x in batch.obs.items()})
        recorded = config.refresh_advantages == "once" and config.value_source == "recorded"
        chunks = Chunks(use.shape, self.chunk_steps, use.device)
        v = chunks.values(self.network, batch, obs, recorded)
        ends = Ends(batch.terminated, batch.truncated, batch.trace_cut)
        rates = config.gamma, config.gae_lambda
        estimates, advantage = self._estimates(batch.reward, ends, v, use, *rates)
        return Rows.of(batch, obs, advantage, estimates.target), estimates

    @torch.no_grad()
    def _estimates_of(
        self, reward: Tensor, ends: Ends, v: Tensor, use: Tensor, gamma: float, gae_lambda: float
    ) -> tuple[Estimates, Tensor]:
        """Estimates of a batch, and the advantage that the loss gets, normalised or not.

        v: values ``[T + 1, B]``.
        """
        config, v_tm1, v_t = self.config, v[:-1], v[1:]
        r_t = self.normalizers.rewards(reward)
        ended = ends.terminated | ends.truncated
        terminal = ended if config.truncation_as_termination else ends.terminated
        discount_t = gamma * (~terminal).float()
        cut = ended if ends.trace_cut is None else ended | ends.trace_cut
        not_cut_t = (~cut).float()

        gae = returns.gae(r_t, discount_t, not_cut_t, v_tm1, v_t, lambda_=gae_lambda)
        advantage, target = gae.advantage_tm1, gae.target_tm1
        if "monte_carlo" in (config.advantage_estimator, config.value_target):
            monte_carlo = returns.n_step(r_t, discount_t, not_cut_t, v_t, n=None)
            if config.advantage_estimator == "monte_carlo":
                advantage = monte_carlo - v_tm1
            if config.value_target == "monte_carlo":
                target = monte_carlo
        estimates = Estimates(r_t, advantage, target, v_tm1)
        if config.normalize_advantage == "batch":
            advantage = reduce.normalize_valid(advantage, use)
        return estimates, advantage

    def _minibatches(self, rows: Rows, chunks: Chunks, use: Tensor) -> Iterator[Minibatch]:
        """One pass in a new random order over the rows to `use` ``[T * B]``, on the CPU; each of
        several ranks takes its part of every minibatch.
        """
        config = self.config
        size = config.minibatch_steps or use.numel()
        order = chunks.one_pass(use, size, config.drop_last, self.shuffle)
        advantage = rows.advantage[order.index]
        if config.normalize_advantage == "minibatch":
            advantage = reduce.normalize_rows(advantage, order.weight)
        return order.minibatches(rows, advantage, self.ranks.index, self.ranks.size)

    def knobs(self, share: float = 1.0) -> Knobs:
        """The loss's knobs of an iteration."""
        scheduled = {"clip_epsilon": self.schedule.clip_epsilon, "kl_coef": self.schedule.beta}
        return knobs_of(Knobs, self.config, **scheduled, share=share)

    @torch.no_grad()
    def _mean_kl(self, rows: Rows, chunks: Chunks, use: Tensor) -> float:
        """Mean KL(mu, pi) of the current policy over the rows to use."""
        rows, use = chunks.whole(rows, use)
        params, _, _ = self.network(rows.obs, rows.state, rows.is_first)
        params = acting.masked(self.family, params, rows.obs)
        return self.family.kl(rows.params_mu, params)[use].mean().item()

    # Reports and state

    @torch.no_grad()
    def _distribute(self, when: str, rows: Rows, chunks: Chunks, use: Tensor) -> None:
        """Keeps the values in the loss, for `histograms`."""
        if not self.config.log_histograms:
            return
        order, use = chunks.order, use.flatten()[chunks.order]
        every = torch.arange(chunks.rows.shape[1], device=use.device)
        whole = Minibatch(rows, order, every, use.float(), rows.advantage[order])
        knobs = self.trained.on_device(self.knobs())
        _, outputs = self.trained.loss(self.trained.parameters, whole, knobs)
        clip = self.schedule.clip_epsilon
        values = metrics.loss_values(outputs, whole.take(), use, self.family, clip)
        self.reports.distributions |= {f"{when}/{name}": x for name, x in values.items()}

    def metrics(self) -> dict[str, float]:
        self.probe.begin()
        return self.reports.read() | self.schedule.metrics

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        self.probe.forget()
        tensors = self.trained.save() | {"shuffle": self.shuffle.get_state()}
        scalars = {"updates": self.updates, "version": self.version, **self.schedule.save()}
        return LearnerState(tensors, scalars)

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.probe.forget()
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        self.version = scalars["version"] if counters else self.version + 1
        if counters:
            self.shuffle.set_state(state.tensors["shuffle"])
        self.schedule.load(scalars)


def make_actor(
    config: PPOConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> acting.SamplingActor:
    """The actor that collects PPO's batches."""
    records: tuple[acting.Recorded, ...] = ("logp_mu", "params_mu", "value")
    return acting.make_sampler(config, model, spaces, records, compute, config.noise_correlation)


@final
class Schedule:
    """The current learning rate, ratio clip and weight of the KL penalty.

    metrics: these numbers of the last iteration, by the metric's name.
    """

    def __init__(self, config: PPOConfig, total_env_steps: int):
        self.config, self.total_env_steps = config, total_env_steps
        self.learning_rate, self.clip_epsilon = config.learning_rate, config.clip_epsilon
        self.beta, self.decay = config.kl_coef_init, find_decay(config.lr_schedule)
        self.metrics = self._current()

    def _current(self) -> dict[str, float]:
        metrics = {"optim/learning_rate": self.learning_rate, "policy/kl_coef": self.beta}
        if self.clip_epsilon is not None:
            metrics["policy/clip_epsilon"] = self.clip_epsilon
        return metrics

    def configure(self, config: PPOConfig) -> None:
        """Takes new options; a KL-adaptive rate changes by the same factor as its option."""
        if config.lr_schedule == "kl_adaptive":
            factor = config.learning_rate / self.config.learning_rate
            self.learning_rate = schedules.within_bounds(self.learning_rate * factor)
        else:
            self.learning_rate = config.learning_rate
        self.config, self.clip_epsilon = config, config.clip_epsilon

    def begin(self, env_steps: int) -> None:
        """Sets the numbers of an iteration that begins after `env_steps`."""
        config = self.config
        left = schedules.linear(env_steps, self.total_env_steps)
        if config.lr_schedule != "kl_adaptive":
            self.learning_rate = config.learning_rate * self.decay(left)
        if config.clip_epsilon is not None:
            linear = config.clip_schedule == "linear"
            self.clip_epsilon = config.clip_epsilon * (left if linear else 1.0)
        self.metrics = self._current()

    def adapt(self, mean_kl: float) -> dict[str, float]:
        """Adapts the penalty's weight and the rate to the updated policy's KL; returns metrics."""
        config, metrics = self.config, {"policy/kl": mean_kl}
        if config.kl_coef_init > 0:
            before = self.beta
            self.beta = policy_losses.adaptive_kl_coef(
                before, mean_kl, target=config.kl_target, tolerance=config.kl_tolerance
            )
            metrics["policy/kl_coef_factor"] = self.beta / before
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, mean_kl, config.kl_target
            )
        return metrics

    def save(self) -> dict[str, float]:
        metrics = {f"{_TOLD}{name}": x for name, x in self.metrics.items()}
        return {**{name: getattr(self, name) for name in _SCHEDULED}, **metrics}

    def load(self, scalars: Mapping[str, Any]) -> None:
        for name in _SCHEDULED:
            setattr(self, name, scalars[name])
        self.metrics = {name: scalars[f"{_TOLD}{name}"] for name in self.metrics}
