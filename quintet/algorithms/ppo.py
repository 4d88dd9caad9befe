"""Proximal policy optimisation with a clipped ratio and/or an adaptive KL penalty.

Schulman et al., arXiv 1707.06347; advantages of Schulman et al., arXiv 1506.02438; the form is that
of TF-Agents' PPO agent.  Read `PPOLearner.update` first, then `PPOLearner._loss`.

Departures from the papers, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Observations are normalised by running statistics (``normalize_observations``).
 3. Rewards are divided by the standard deviation of the running return
    (``reward_normalizer=none``).
 4. Advantages are normalised over the batch (``normalize_advantage=none``).
 5. The gradient's global norm is clipped (``max_grad_norm=none``).
 6. The learning rate falls linearly to 0 (``lr_schedule=constant``).
 7. The dead band of the adaptive KL penalty is 0.3 wide, the paper's 0.5 (``kl_tolerance``).
 8. Minibatches are even: the valid rows are split in ceil(rows / minibatch_steps) parts that differ
    by at most one row, so none is tiny (``drop_last`` gives whole ones and drops the rest).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, final

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.diagnostics import batch_metrics, observation_metrics, policy_metrics
from quintet.algorithms.minibatches import even_minibatches
from quintet.algorithms.setup import Setup
from quintet.errors import ConfigError, NonFiniteError
from quintet.models.build import ActorCritic, ModelConfig
from quintet.models.flat import flatten_in_place, strip_prefix
from quintet.models.heads import action_family
from quintet.models.normalize import (
    ObservationNormalizer,
    RunningMoments,
    normalized_leaves,
    scale_of,
)
from quintet.ops import adam, policy_losses, reduce, returns, schedules, value_losses
from quintet.ops.distributions import Family
from quintet.protocols import DataPlan
from quintet.types import (
    ACTION_MASK,
    ActOutput,
    LearnerState,
    Obs,
    Publication,
    Rollout,
    Spaces,
    State,
    TensorSpec,
)


@final
class PPOConfig(BaseModel):
    """Options of PPO; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Targets and data
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    advantage_estimator: Literal["gae", "monte_carlo"] = Field(
        "gae", description="monte_carlo: bootstrapped discounted return minus value"
    )
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="lambda of GAE and of the lambda-return"
    )
    value_target: Literal["lambda_return", "monte_carlo"] = Field(
        "lambda_return", description="what the value function learns"
    )
    value_source: Literal["recorded", "recomputed"] = Field(
        "recorded",
        description="values of the acting network, or of the current one at the update's start; "
        "equal as long as the runtime has no lag",
    )
    refresh_advantages: Literal["once", "per_epoch"] = Field(
        "once", description="per_epoch: values, advantages and targets anew before each pass"
    )
    normalize_advantage: Literal["batch", "minibatch", "none"] = Field(
        "batch", description="over what advantages are brought to mean 0, variance 1"
    )
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )
    unfinished_episode: Literal["bootstrap", "drop"] = Field(
        "bootstrap", description="what to do with rows after a column's last ending"
    )
    unroll_steps: int = Field(256, ge=1, description="steps of each stream per batch")
    num_epochs: int = Field(10, ge=1, description="passes over a batch")
    minibatch_steps: int | None = Field(
        64, ge=1, description="rows per optimizer step; none: the whole batch"
    )
    drop_last: bool = Field(False, description="drop the rows that fill no whole minibatch")

    # Loss
    clip_epsilon: float | None = Field(0.2, gt=0, description="ratio clip; none: off")
    clip_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: clip_epsilon falls to 0 over the run"
    )
    value_clip: float | None = Field(None, gt=0, description="clip around the recorded value")
    value_coef: float = Field(1.0, ge=0, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    policy_l2_coef: float = Field(0.0, ge=0, description="on the policy's squared kernels")
    value_l2_coef: float = Field(0.0, ge=0, description="on the value function's squared kernels")
    shared_l2_coef: float = Field(0.0, ge=0, description="on the shared layers' squared kernels")
    log_prob_clip: float | None = Field(
        None, gt=0, description="both log-probabilities are kept within +- this"
    )
    kl_beta_init: float = Field(0.0, ge=0, description="adaptive KL penalty's first weight; 0: off")
    kl_target: float = Field(0.01, gt=0, description="mean KL aimed at, in nats")
    kl_tolerance: float = Field(
        0.3, ge=0, lt=1, description="dead band around kl_target, a share of it"
    )
    kl_cutoff_coef: float = Field(
        0.0, ge=0, description="weight of the squared KL above the cutoff"
    )
    kl_cutoff_factor: float = Field(2.0, ge=0, description="cutoff in units of kl_target")
    target_kl: float | None = Field(
        None, gt=0, description="no further epoch once the estimated KL passes 1.5 x this"
    )
    reduction: Literal["mean", "mean_over_all"] = Field(
        "mean", description="mean_over_all divides by every row, invalid ones too (TF-Agents)"
    )

    # Normalisation
    normalize_observations: bool = Field(True, description="running statistics of float leaves")
    observation_clip: float = Field(5.0, gt=0, description="bound of normalised observations")
    reward_normalizer: Literal["return_std", "step_std", "none"] = Field(
        "return_std", description="what rewards are divided by; their mean is never subtracted"
    )
    reward_norm_clip: float | None = Field(
        10.0, description="bound of normalised rewards; none or <= 0: off"
    )
    normalizer_variance_epsilon: float = Field(1e-3, gt=0, description="inside the root")
    update_normalizers: bool = Field(True, description="false: frozen statistics (fine-tuning)")

    # Optimisation
    learning_rate: float = Field(3e-4, gt=0, description="Adam's rate")
    lr_schedule: Literal["constant", "linear", "kl_adaptive"] = Field(
        "linear", description="linear: to 0 at the end of the budget; kl_adaptive: by the mean KL"
    )
    adam_epsilon: float = Field(1e-5, gt=0, description="in Adam's denominator")
    max_grad_norm: float | None = Field(0.5, gt=0, description="bound of the global gradient norm")
    check_numerics: bool = Field(
        False, description="after every minibatch, raise at a NaN or infinite tensor by its name"
    )

    @property
    def uses_kl(self) -> bool:
        """Whether the exact KL enters the loss or a decision."""
        return self.kl_beta_init > 0 or self.kl_cutoff_coef > 0 or self.lr_schedule == "kl_adaptive"

    @property
    def uses_l2(self) -> bool:
        """Whether any kernel is penalised."""
        return self.policy_l2_coef > 0 or self.value_l2_coef > 0 or self.shared_l2_coef > 0

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> "PPOConfig":
        normalizes = self.normalize_observations or self.reward_normalizer != "none"
        gae = self.advantage_estimator == "gae" or self.value_target == "lambda_return"
        needs = {
            "gae_lambda": (gae, "advantage_estimator=gae or value_target=lambda_return"),
            "clip_schedule": (self.clip_epsilon is not None, "clip_epsilon"),
            "kl_target": (self.uses_kl, "kl_beta_init, kl_cutoff_coef or lr_schedule=kl_adaptive"),
            "kl_tolerance": (self.kl_beta_init > 0, "kl_beta_init > 0"),
            "kl_cutoff_factor": (self.kl_cutoff_coef > 0, "kl_cutoff_coef > 0"),
            "observation_clip": (self.normalize_observations, "normalize_observations"),
            "reward_norm_clip": (self.reward_normalizer != "none", "a reward_normalizer"),
            "normalizer_variance_epsilon": (normalizes, "a normaliser"),
            "update_normalizers": (normalizes, "a normaliser"),
            "drop_last": (self.minibatch_steps is not None, "minibatch_steps"),
            "refresh_advantages": (self.num_epochs > 1, "num_epochs > 1"),
            "value_source": (self.refresh_advantages == "once", "refresh_advantages=once"),
            "target_kl": (self.num_epochs > 1, "num_epochs > 1"),
        }
        idle = [
            f"{name}={getattr(self, name)} has no effect without {what}"
            for name, (effective, what) in needs.items()
            if not effective and getattr(self, name) != type(self).model_fields[name].default
        ]
        if idle:
            raise ValueError("; ".join(idle))
        return self


def check(
    config: PPOConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults that no field shows by itself, one sentence each."""
    faults = []
    batch = num_streams * config.unroll_steps
    size = config.minibatch_steps
    if total_env_steps < batch:
        faults.append(
            f"total_env_steps must be at least one rollout of {num_streams} streams x "
            f"{config.unroll_steps} steps = {batch}, got {total_env_steps}; raise it, or lower "
            "unroll_steps or env.num_streams"
        )
    if size is not None and size > batch:
        faults.append(
            f"minibatch_steps must be at most the batch of {num_streams} streams x "
            f"{config.unroll_steps} steps = {batch}, got {size}; lower it or raise unroll_steps"
        )
    elif size is not None and batch % size and not config.drop_last:
        faults.append(
            f"minibatch_steps must divide the batch of {num_streams} streams x "
            f"{config.unroll_steps} steps = {batch}, got {size}; change one of them or set "
            "--drop-last true"
        )
    if model.shared_torso and model.value_hidden is not None:
        faults.append(
            "model.value_hidden has no effect with model.shared_torso; leave one of them out"
        )
    if not model.shared_torso and config.shared_l2_coef > 0:
        faults.append("shared_l2_coef has no effect without model.shared_torso; leave it out")
    return faults


def planned_updates(config: PPOConfig, num_streams: int, total_env_steps: int) -> int:
    """Optimizer steps that are worth compiling: all, without early stops and invalid rows.

    None with `check_numerics`, since a compiled graph can't be looked into.
    """
    if config.check_numerics:
        return 0
    batch = num_streams * config.unroll_steps
    return total_env_steps * config.num_epochs // (config.minibatch_steps or batch)


def make_family(model: ModelConfig, spaces: Spaces) -> Family:
    """The distribution that PPO acts by in this action space."""
    return action_family(spaces.action, model.action_bounds)


def _masked(family: Family, params: Tensor, obs: Obs) -> Tensor:
    """Distribution parameters under the observation's action mask, if it has one.

    Acting, the loss and the KL must agree on it, or the first ratio is not 1.
    """
    return family.apply_mask(params, obs[ACTION_MASK]) if ACTION_MASK in obs else params


def _normalizer(config: PPOConfig, spaces: Spaces) -> ObservationNormalizer:
    leaves = normalized_leaves(spaces.observation) if config.normalize_observations else {}
    return ObservationNormalizer(
        leaves, config.observation_clip, config.normalizer_variance_epsilon
    )


@final
class PPOActor:
    """Samples actions and records their log-probability, the distribution and the value."""

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces):
        self.family = make_family(model, spaces)
        # The weights come with the first publication, so none are drawn here.
        self.network = ActorCritic(spaces, self.family, model, generator=None)
        self.normalizer = _normalizer(config, spaces)

    @property
    def record_specs(self) -> dict[str, TensorSpec]:
        return {
            "logp_mu": TensorSpec((), torch.float32),
            "params_mu": TensorSpec((self.family.param_size,), torch.float32),
            "value": TensorSpec((), torch.float32),
        }

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec(self.family.action_shape, self.family.action_dtype)

    def load(self, publication: Publication) -> None:
        for prefix, module in (("network", self.network), ("normalizer", self.normalizer)):
            module.load_state_dict(strip_prefix(publication.tensors, prefix))
        self.normalizer.refresh()

    def initial_state(self, num_streams: int) -> State:  # noqa: ARG002
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return self.family.draw_noise((steps, num_streams), generator)

    @torch.inference_mode()
    def act(
        self,
        obs: Obs,
        state: State,
        is_first: Tensor,  # noqa: ARG002
        noise: Tensor | None,
    ) -> ActOutput:
        params, value = self.network(self.normalizer(obs))
        params = _masked(self.family, params, obs)
        action = self.family.mode(params) if noise is None else self.family.sample(params, noise)
        record = {
            "logp_mu": self.family.log_prob(params, action),
            "params_mu": params,
            "value": value,
        }
        return ActOutput(action, self.family.to_env(action), record, state)


@dataclass(frozen=True)
class Rows:
    """N rows of a batch, flat, as the loss reads them."""

    obs: Obs
    action: Tensor
    logp_mu: Tensor
    params_mu: Tensor
    value_mu: Tensor
    advantage: Tensor
    target: Tensor

    def take(self, index: Tensor) -> "Rows":
        """The rows at `index`, copied."""
        return self._map(lambda x: x.index_select(0, index))

    def part(self, start: int, size: int) -> "Rows":
        """`size` rows from `start` on, as views."""
        return self._map(lambda x: x.narrow(0, start, size))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Rows":
        others = (getattr(self, field.name) for field in fields(self) if field.name != "obs")
        return Rows({name: function(x) for name, x in self.obs.items()}, *map(function, others))


LOSS_METRICS = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/l2",
    "loss/kl",
    "loss/kl_cutoff",
    "loss/total",
    "loss/total_abs",
    "policy/entropy",
    "policy/kl",
    "policy/kl_cutoff_frac",
    "policy/approx_kl",
    "policy/clip_frac",
    "policy/ratio_mean",
    "policy/ratio_max_error",
    "value/prediction_mean",
)
"""What `PPOLearner._loss` returns beside the loss, in this order; then comes the gradient's
norm.
"""


@final
class PPOLearner:
    """Learns from batches of whole unrolls, one column per stream."""

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.network = ActorCritic(spaces, self.family, model, generator).to(setup.device)
        self.normalizer = _normalizer(config, spaces).to(setup.device)
        self.normalizer.refresh()
        self.reward_moments = RunningMoments(()).to(setup.device)
        self.parameters: dict[str, Tensor] = dict(sorted(self.network.named_parameters()))
        self.kernels = self.network.kernel_groups()
        self.theta = flatten_in_place([p for _, p in sorted(self.network.named_parameters())])
        self.exp_avg = torch.zeros_like(self.theta)
        self.exp_avg_sq = torch.zeros_like(self.theta)
        self.optimizer_step = self._step
        if setup.compile:
            if config.check_numerics:
                raise ConfigError(
                    "check_numerics requires runtime.compile=off, it is on; a compiled graph "
                    "can't be looked into"
                )
            self.optimizer_step = torch.compile(self._compiled_step, fullgraph=True)
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        self.updates = 0
        self.version = 0
        self.beta = config.kl_beta_init
        self.learning_rate = config.learning_rate
        self.clip_epsilon = config.clip_epsilon

    @property
    def plan(self) -> DataPlan:
        by_return = self.config.reward_normalizer == "return_std" and self.config.update_normalizers
        return DataPlan(
            unroll_steps=self.config.unroll_steps,
            columns_per_batch=self.setup.num_streams,
            return_discount=self.config.gamma if by_return else None,
        )

    def publication(self) -> Publication:
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"normalizer/{k}": v for k, v in self.normalizer.state_dict().items()}
        return Publication(self.version, tensors)

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        """One iteration: targets, epochs of minibatches, penalty weight, normalisers, counters."""
        config = self.config
        self._schedule(env_steps)
        use = _kept_rows(batch) if config.unfinished_episode == "drop" else batch.valid
        index = use.flatten().nonzero().squeeze(1)
        if not index.numel():  # unfinished_episode=drop, and no episode ended
            self._merge(batch)
            self.version += 1
            return {"optim/epochs": 0.0} | self._state_metrics()
        rows, metrics = self._rows(batch, use)
        share = 1.0 if config.reduction == "mean" else index.numel() / use.numel()
        stats: list[Tensor] = []
        for epoch in range(config.num_epochs):
            if epoch and config.refresh_advantages == "per_epoch":
                rows, metrics = self._rows(batch, use)
            begin = len(stats)
            for minibatch, weight in self._minibatches(rows, index):
                self.updates += 1
                stats.append(self.optimizer_step(minibatch, weight, self._knobs(share)))
            if config.target_kl is not None:
                approx_kl = torch.stack(stats[begin:])[
                    :, LOSS_METRICS.index("policy/approx_kl")
                ].mean()
                if approx_kl > 1.5 * config.target_kl:
                    break
        metrics["optim/epochs"] = epoch + 1.0
        metrics |= self._summary(torch.stack(stats).cpu(), begin)
        metrics |= {"optim/learning_rate": self.learning_rate, "policy/kl_beta": self.beta}
        if config.uses_kl:
            metrics["policy/kl"] = self._adapt_to_kl(rows, index)
        self._merge(batch)
        self.version += 1
        return metrics | self._state_metrics()

    def _schedule(self, env_steps: int) -> None:
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        if self.config.lr_schedule == "linear":
            self.learning_rate = self.config.learning_rate * left
        if self.config.clip_schedule == "linear":
            assert self.config.clip_epsilon is not None
            self.clip_epsilon = self.config.clip_epsilon * left

    @torch.no_grad()
    def _rows(self, batch: Rollout, use: Tensor) -> tuple[Rows, dict[str, float]]:
        """Normalises, estimates advantages and targets, and flattens ``[T, B]`` to rows."""
        config = self.config
        steps = batch.reward.shape[0]
        obs = self.normalizer({name: x.flatten(0, 1) for name, x in batch.obs.items()})
        rows_obs = {name: x[: batch.reward.numel()] for name, x in obs.items()}
        if config.refresh_advantages == "once" and config.value_source == "recorded":
            last = {name: x[batch.reward.numel() :] for name, x in obs.items()}
            v = torch.cat((batch.record["value"], self.network.value(last).unsqueeze(0)))
        else:
            v = self.network.value(obs).view(steps + 1, -1)
        v_tm1, v_t = v[:-1], v[1:]
        r_t = self._normalize_reward(batch.reward)
        ended = batch.terminated | batch.truncated
        terminal = ended if config.truncation_as_termination else batch.terminated
        discount_t = config.gamma * (~terminal).float()
        not_cut_t = batch.not_cut_t

        gae = returns.gae(r_t, discount_t, not_cut_t, v_tm1, v_t, lambda_=config.gae_lambda)
        advantage, target = gae.advantage_tm1, gae.target_tm1
        if "monte_carlo" in (config.advantage_estimator, config.value_target):
            monte_carlo = returns.n_step(r_t, discount_t, not_cut_t, v_t, n=None)
            if config.advantage_estimator == "monte_carlo":
                advantage = monte_carlo - v_tm1
            if config.value_target == "monte_carlo":
                target = monte_carlo
        raw_advantage = advantage
        if config.normalize_advantage == "batch":
            advantage = reduce.normalize_valid(advantage, use)

        rows = Rows(
            rows_obs,
            action=batch.action.flatten(0, 1),
            logp_mu=batch.record["logp_mu"].flatten(),
            params_mu=batch.record["params_mu"].flatten(0, 1),
            value_mu=batch.record["value"].flatten(),
            advantage=advantage.flatten(),
            target=target.flatten(),
        )
        return rows, batch_metrics(batch, use, r_t, raw_advantage, target, v_tm1)

    def _normalize_reward(self, reward: Tensor) -> Tensor:
        config = self.config
        if config.reward_normalizer == "none" or self.reward_moments.count == 0:
            return reward
        scaled = reward * scale_of(self.reward_moments, config.normalizer_variance_epsilon)
        bound = config.reward_norm_clip
        return scaled if bound is None or bound <= 0 else scaled.clamp(-bound, bound)

    def _minibatches(self, rows: Rows, index: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """One pass over the rows at `index` in fresh random order, see `even_minibatches`."""
        size = self.config.minibatch_steps or rows.advantage.numel()
        padded, weights = even_minibatches(index, size, self.config.drop_last, self.shuffle)
        shuffled = rows.take(padded)
        for part, weight in enumerate(weights):
            yield shuffled.part(part * size, size), weight

    def _knobs(self, share: float) -> Tensor:
        """Numbers of an optimizer step that change from step to step, as one tensor."""
        correction, root_correction = adam.corrections(self.updates)
        return torch.tensor(
            [
                self.learning_rate / correction,
                root_correction,
                self.beta,
                0.0 if self.clip_epsilon is None else self.clip_epsilon,
                share,
            ],
            device=self.theta.device,
        )

    def _step(self, rows: Rows, weight: Tensor, knobs: Tensor) -> Tensor:
        """One optimizer step; returns LOSS_METRICS and the gradient's norm before clipping."""
        loss, stats = self._loss(self.parameters, rows, weight, knobs)
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        return self._descend(gradients, stats, knobs)

    def _compiled_step(self, rows: Rows, weight: Tensor, knobs: Tensor) -> Tensor:
        """`_step` in the form that compiles to one graph."""
        gradients, stats = torch.func.grad(self._loss, has_aux=True)(
            self.parameters, rows, weight, knobs
        )
        return self._descend(gradients.values(), stats, knobs)

    @torch.no_grad()
    def _descend(self, gradients: Iterable[Tensor], stats: Tensor, knobs: Tensor) -> Tensor:
        grad = torch.cat([g.flatten() for g in gradients])
        grad, norm = adam.clip_norm(grad, self.config.max_grad_norm)
        adam.adam_(
            self.theta,
            grad,
            self.exp_avg,
            self.exp_avg_sq,
            step_size=knobs[0],
            root_correction=knobs[1],
            epsilon=self.config.adam_epsilon,
        )
        return torch.cat((stats, norm.unsqueeze(0)))

    def _loss(
        self, parameters: dict[str, Tensor], rows: Rows, weight: Tensor, knobs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch and its LOSS_METRICS.

        ``total = policy + value_coef * value - entropy_coef * H + l2 + beta * kl + cutoff`` with
        means by `weight` over the minibatch's rows; `share` is 1 but for
        ``reduction=mean_over_all``.
        """
        config, family = self.config, self.family
        _, _, beta, clip_epsilon, share = knobs.unbind()

        def mean(x: Tensor) -> Tensor:
            return share * torch.dot(weight, x)

        params, value = functional_call(self.network, parameters, (rows.obs,))
        params = _masked(family, params, rows.obs)
        logp_pi, logp_mu = family.log_prob(params, rows.action), rows.logp_mu
        if config.log_prob_clip is not None:
            bound = config.log_prob_clip
            logp_pi, logp_mu = logp_pi.clamp(-bound, bound), logp_mu.clamp(-bound, bound)
        log_rho = logp_pi - logp_mu
        rho = log_rho.exp()
        advantage = rows.advantage
        if config.normalize_advantage == "minibatch":
            advantage = reduce.normalize_valid(advantage, weight)

        if config.clip_epsilon is None:
            policy_tm1 = policy_losses.ratio(rho, advantage)
        else:
            policy_tm1 = policy_losses.ratio_clip(rho, advantage, clip_epsilon)
        if config.value_clip is None:
            value_tm1 = value_losses.squared(value, rows.target)
        else:
            value_tm1 = value_losses.clipped(value, rows.value_mu, rows.target, config.value_clip)
        # What is only reported stays out of the gradient.
        entropy = mean(family.entropy(params if config.entropy_coef > 0 else params.detach()))
        kl = mean(family.kl(rows.params_mu, params if config.uses_kl else params.detach()))

        zero = torch.zeros_like(entropy)
        policy_loss = mean(policy_tm1)
        value_loss = config.value_coef * mean(value_tm1)
        entropy_loss = -config.entropy_coef * entropy if config.entropy_coef > 0 else zero
        l2_loss = self._l2(parameters) if config.uses_l2 else zero
        kl_loss = beta * kl if config.kl_beta_init > 0 else zero
        cutoff_loss = zero
        if config.kl_cutoff_coef > 0:
            cutoff_loss = policy_losses.kl_cutoff(
                kl,
                target=config.kl_target,
                factor=config.kl_cutoff_factor,
                coef=config.kl_cutoff_coef,
            )
        total = policy_loss + value_loss + entropy_loss + l2_loss + kl_loss + cutoff_loss

        terms = torch.stack((policy_loss, value_loss, entropy_loss, l2_loss, kl_loss, cutoff_loss))
        if config.check_numerics:
            self._check_numerics(logp_pi=logp_pi, rho=rho, value=value, losses=terms)
        error = (rho - 1.0).abs() * (weight > 0)
        clipped = error > (math.inf if config.clip_epsilon is None else clip_epsilon)
        others = (
            total,
            terms.abs().sum(),
            entropy / share,
            kl / share,
            (kl > config.kl_cutoff_factor * config.kl_target).float(),
            torch.dot(weight, policy_losses.approx_kl(log_rho)),
            torch.dot(weight, clipped.float()),
            torch.dot(weight, rho),
            error.max(),
            torch.dot(weight, value),
        )
        return total, torch.cat((terms, torch.stack(others))).detach()

    def _l2(self, parameters: dict[str, Tensor]) -> Tensor:
        """Sums of squared kernels by group, times their coefficients."""
        config = self.config
        coefs = {
            "policy": config.policy_l2_coef,
            "value": config.value_l2_coef,
            "shared": config.shared_l2_coef,
        }
        return torch.stack(
            [
                coef * parameters[name].square().sum()
                for group, coef in coefs.items()
                if coef > 0
                for name in self.kernels[group]
            ]
        ).sum()

    def _check_numerics(self, **tensors: Tensor) -> None:
        for name, x in tensors.items():
            wrong = x[~torch.isfinite(x)]
            if wrong.numel():
                raise NonFiniteError(
                    f"finite numbers are required, {name} holds {wrong[0].item()} at update "
                    f"{self.updates}; lower --learning-rate or look at the rewards"
                )

    def _summary(self, stats: Tensor, last_epoch: int) -> dict[str, float]:
        """Means over the iteration's minibatches; raises at the first one that is not finite."""
        names = (*LOSS_METRICS, "optim/grad_norm")
        finite = torch.isfinite(stats)
        if not finite.all():
            row, column = (~finite).nonzero()[0].tolist()
            update = self.updates - len(stats) + row + 1
            value = stats[row, column].item()
            raise NonFiniteError(
                f"finite losses are required, {names[column]} became {value} at update {update}; "
                "begin anew (another --run-dir) with a lower --learning-rate or "
                "--env.reward-clip abs_one, or find the tensor with --check-numerics true"
            )
        metrics = dict(zip(names, stats.double().mean(0).tolist(), strict=True))
        metrics["policy/ratio_first_max_error"] = stats[
            0, names.index("policy/ratio_max_error")
        ].item()
        metrics["loss/total_last_epoch"] = (
            stats[last_epoch:, names.index("loss/total")].double().mean().item()
        )
        return metrics

    @torch.no_grad()
    def _adapt_to_kl(self, rows: Rows, index: Tensor) -> float:
        """Mean KL of the updated policy; moves the penalty weight and an adaptive learning rate
        by it.
        """
        params, _ = self.network(rows.obs)
        params = _masked(self.family, params, rows.obs)
        mean_kl = self.family.kl(rows.params_mu, params)[index].mean().item()
        config = self.config
        if config.kl_beta_init > 0:
            self.beta = policy_losses.adaptive_kl_beta(
                self.beta, mean_kl, target=config.kl_target, tolerance=config.kl_tolerance
            )
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, mean_kl, config.kl_target
            )
        return mean_kl

    def _merge(self, batch: Rollout) -> None:
        """Folds the batch into the normalisers; they act from the next iteration on."""
        if not self.config.update_normalizers:
            return
        self.normalizer.merge({name: x[:-1] for name, x in batch.obs.items()}, batch.valid)
        self.normalizer.refresh()
        if self.config.reward_normalizer == "return_std":
            self.reward_moments.merge(batch.return_carry[batch.valid])
        elif self.config.reward_normalizer == "step_std":
            self.reward_moments.merge(batch.reward[batch.valid])

    def _state_metrics(self) -> dict[str, float]:
        """How wide the policy and the normalisers are."""
        metrics = observation_metrics(self.normalizer) | policy_metrics(self.network.policy_head)
        if self.config.reward_normalizer != "none":
            metrics["normalizer/reward_std"] = self.reward_moments.variance.sqrt().item()
        return metrics

    def save(self) -> LearnerState:
        tensors = dict(self.publication().tensors)
        tensors |= {f"reward_moments/{k}": v for k, v in self.reward_moments.state_dict().items()}
        tensors |= {"optimizer/exp_avg": self.exp_avg, "optimizer/exp_avg_sq": self.exp_avg_sq}
        tensors["shuffle"] = self.shuffle.get_state()
        scalars: dict[str, int | float | str | bool | None] = {
            "updates": self.updates,
            "version": self.version,
            "beta": self.beta,
            "learning_rate": self.learning_rate,
        }
        return LearnerState(tensors, scalars)

    def load(self, state: LearnerState) -> None:
        self.network.load_state_dict(strip_prefix(state.tensors, "network"))
        self.normalizer.load_state_dict(strip_prefix(state.tensors, "normalizer"))
        self.normalizer.refresh()
        self.reward_moments.load_state_dict(strip_prefix(state.tensors, "reward_moments"))
        self.exp_avg.copy_(state.tensors["optimizer/exp_avg"])
        self.exp_avg_sq.copy_(state.tensors["optimizer/exp_avg_sq"])
        self.shuffle.set_state(state.tensors["shuffle"])
        scalars: Any = state.scalars
        self.updates, self.version = scalars["updates"], scalars["version"]
        self.beta, self.learning_rate = scalars["beta"], scalars["learning_rate"]


def _kept_rows(batch: Rollout) -> Tensor:
    """Valid rows that belong to episodes which end within the unroll, ``[T, B]``."""
    ended = (batch.terminated | batch.truncated).int()
    return batch.valid & (ended.flip(0).cummax(0).values.flip(0) > 0)
