"""IMPALA: actors with slightly old weights, and one learner that corrects for this by V-trace.

Espeholt et al., arXiv 1802.01561.  Read `ImpalaLearner.loss` first, then `ImpalaLearner.update`.
A batch is `batch_unrolls` columns of any streams and of any age; the age of weights appears here
only in ``rho``, the ratio of the new policy to the policy that acted.  `Trained` makes the
optimizer step; `quintet.ops` has the arithmetic of V-trace and of the terms.

Departures from the paper, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Traces may decay, as in the paper's remark 2 (``vtrace_lambda=1``, the default, is the paper's).
 3. Losses are divided by the number of unrolls in the batch (``reduction=sum``).
 4. RMSProp is PyTorch's, with epsilon outside of the root (``rmsprop_epsilon_inside_sqrt``).
 5. Observations and rewards may be normalised by running statistics
    (``normalize_observations=false``, ``normalize_pictures=false`` and ``reward_normalizer=none``,
    the defaults, are the paper's).  The first batch is added to these statistics before it is
    learned from.
"""

from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.impala import metrics
from quintet.algorithms.impala.config import ImpalaConfig, Knobs, aux_weights
from quintet.algorithms.impala.metrics import AUX, LOSSES, Outputs
from quintet.algorithms.parts.acting import make_family, make_sampler, masked, past_actor
from quintet.algorithms.parts.normalizers import ONLY_LEARNING, Normalizers
from quintet.algorithms.parts.off_policy_statistics import Terms
from quintet.algorithms.parts.optimizer import Optimizer
from quintet.algorithms.parts.policy_probe import PolicyProbe
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.algorithms.parts.unrolls import Unrolls, unrolls_of
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.ops import policy_losses, reduce, schedules, value_losses
from quintet.ops.vtrace import vtrace
from quintet.protocols import Actor, DataPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces


@final
class ImpalaLearner:
    """Makes one optimizer step from every batch of unrolls."""

    def __init__(self, config: ImpalaConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        self.aux_weights = aux_weights(config, model, network.encoder.loss_names)
        self.aux_weight = torch.tensor([*self.aux_weights.values()], device=setup.device)
        self.normalizers = Normalizers(config, model, spaces, setup.device)
        kind = "rmsprop_tf" if config.rmsprop_epsilon_inside_sqrt else config.optimizer
        self.trained: Trained[Unrolls, Knobs] = Trained(
            self.network,
            self.loss,
            partial(metrics.statistics, normalizers=self.normalizers),
            Knobs,
            setup,
            Optimizer(kind, config.optimizer == "rmsprop" and config.rmsprop_momentum > 0),
            modules=self.normalizers.modules,
            only_learning=ONLY_LEARNING,
            check_numerics=config.check_numerics,
        )
        self.weights, self.warm_start = self.trained.weights, self.normalizers.loads(self.trained)
        self.version = 0
        past = partial(past_actor, config, model, spaces, setup)
        normalize, interval = self.normalizers.observations, self.trained.interval
        self.probe = PolicyProbe(self.family, self.network, normalize, interval, make_past=past)
        self.learning_rate, self.decay = config.learning_rate, find_decay(config.lr_schedule)

    # The loss

    def loss(
        self, parameters: Parameters, unrolls: Unrolls, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of a batch of unrolls: section 4.2 of arXiv 1802.01561, with the targets of its
        equation 1.

        ``total = policy + value_coef * value - entropy_coef * H + sum of weight * aux``, each
        reduced over the valid rows; a scalar auxiliary loss is added unreduced.  A coefficient of 0
        leaves its term out.
        """
        config, family, valid = self.config, self.family, unrolls.valid
        obs = self.normalizers.observations(unrolls.obs)
        params, v, logp_pi, aux = self._forward(parameters, unrolls, obs)
        # Invalid rows get a harmless ratio and reward: a NaN behind a mask makes its gradient NaN.
        log_rho = torch.where(valid, logp_pi.detach() - unrolls.record["logp_mu"], 0.0)
        rho, reward = log_rho.exp(), torch.where(valid, unrolls.reward, 0.0)
        discount_t = knobs.gamma * (~unrolls.terminal).to(reward.dtype)
        target, advantage = vtrace(
            v[:-1].detach(), v[1:].detach(), reward, discount_t, unrolls.not_cut_t, rho,
            rho_bar=knobs.rho_bar, c_bar=knobs.c_bar, pg_rho_bar=knobs.pg_rho_bar,
            lambda_=knobs.vtrace_lambda,
        )  # fmt: skip
        # An entropy that is only reported stays out of the gradient.
        entropy = family.entropy(params if config.entropy_coef > 0 else params.detach())
        policy = policy_losses.log_prob(logp_pi, advantage)
        error = value_losses.squared(v[:-1], target)

        reduced = partial(self._reduced, unrolls)
        policy_loss = reduced(policy)
        zero = torch.zeros_like(policy_loss)
        value_loss = knobs.value_coef * reduced(error) if config.value_coef > 0 else zero
        entropy_loss = -knobs.entropy_coef * reduced(entropy) if config.entropy_coef > 0 else zero
        aux_losses = {
            f"{AUX}{name}": knob * reduced(aux[name]) if weight > 0 else zero
            for (name, weight), knob in zip(self.aux_weights.items(), self.aux_weight, strict=True)
        }
        total = policy_loss + value_loss + entropy_loss + sum(aux_losses.values())

        losses = dict(zip(LOSSES, (policy_loss, value_loss, entropy_loss), strict=True))
        losses |= {**aux_losses, "loss/total": total}
        terms = Terms(entropy, log_rho, rho, v[:-1], target, advantage, reward)
        return total, Outputs(losses, terms, logp_pi, obs)

    def _forward(
        self, parameters: Parameters, unrolls: Unrolls, obs: Obs
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Distribution parameters of rows 0 to T - 1, values of rows 0 to T, log-probabilities of
        the actions, and auxiliary losses (scalars, or by row); `obs` are normalised.

        Invalid rows get a harmless action, since a masked NaN still has a NaN gradient.
        """
        family, valid = self.family, unrolls.valid
        steps, streams = valid.shape
        rows = steps * streams
        aux: dict[str, Tensor] = {}
        params, value, _ = functional_call(
            self.network, parameters, (obs, unrolls.state, unrolls.is_first, aux)
        )
        params = masked(family, params, unrolls.obs)[:rows].view(steps, streams, -1)
        v = value.view(steps + 1, streams)
        done = valid.view(steps, streams, *[1] * (unrolls.action.ndim - 2))
        logp_pi = family.log_prob(params, torch.where(done, unrolls.action, 0))
        aux = {name: x[:rows].view(steps, streams) if x.ndim else x for name, x in aux.items()}
        return params, v, logp_pi, aux

    def _reduced(self, unrolls: Unrolls, x: Tensor) -> Tensor:
        """A term ``[T, B]`` reduced over the valid rows; for a scalar, this learner's share.

        Each of several learners reduces its own columns, with the divisor of the whole batch.
        """
        if x.ndim == 0:
            return x * (unrolls.valid.shape[1] / unrolls.columns)
        divisor = {"sum_time_mean_batch": unrolls.columns, "sum": 1}.get(self.config.reduction)
        return reduce.sum_valid(x, unrolls.valid) / (divisor or unrolls.count)

    # Updates

    @property
    def plan(self) -> DataPlan:
        steps = self.config.unroll_steps
        discount = self.normalizers.return_discount
        return DataPlan(steps, self.config.batch_unrolls, discount, state_every=steps)

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: ImpalaConfig) -> None:
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """One optimizer step on the batch, then an update of the normalisers."""
        config = self.config
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        self.learning_rate = config.learning_rate * self.decay(left)
        entropy_coef = config.entropy_coef * (left if config.entropy_schedule == "linear" else 1)
        options = self.trained.step_options(self.learning_rate, config)
        whole = self.ranks.whole(batch) if self.normalizers.learn else batch
        self.normalizers.merge_first(whole, self.version)
        self.trained.step(self._unrolls(batch), self.knobs(entropy_coef), options)
        self.trained.end_update()
        self.normalizers.merge(whole)
        self.version += 1
        if self.probe.at_work:
            self.probe.after(self.ranks.whole(batch), self.version, self.trained.current)

    def knobs(self, entropy_coef: float) -> Knobs:
        """The loss's knobs; the weight of the entropy follows a schedule."""
        return knobs_of(Knobs, self.config, entropy_coef=entropy_coef)

    def _unrolls(self, batch: Rollout) -> Unrolls:
        """This learner's share of the batch, in the form that the loss reads."""
        normalizers = self.normalizers
        normalizers.add_rewards(self.trained.interval, batch, self.ranks)
        ends = self.config.truncation_as_termination
        return unrolls_of(batch, self.ranks, normalizers, truncation_as_termination=ends)

    # Reports and state

    def metrics(self) -> dict[str, float]:
        self.probe.begin()
        self.trained.fold()
        values = metrics.finished(self.trained.interval.read())
        values["optim/learning_rate"] = self.learning_rate
        return values | self.normalizers.metrics()

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        self.probe.forget()
        scalars = {"updates": self.updates, "version": self.version}
        return LearnerState(self.trained.save(), scalars | {"learning_rate": self.learning_rate})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.probe.forget()
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        self.version = scalars["version"] if counters else self.version + 1
        self.learning_rate = scalars["learning_rate"]


def make_actor(
    config: ImpalaConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> Actor:
    """The actor that collects IMPALA's batches.  It records only log-probabilities, since the
    learner recomputes values.
    """
    return make_sampler(config, model, spaces, ("logp_mu",), compute)
