"""ACER: an actor-critic that learns from every unroll once when it is fresh and then from replay.

Wang et al., arXiv 1611.01224, in the form of OpenAI baselines; Retrace from Munos et al., arXiv
1606.02647.  Read `ACERLearner.loss` first, then `estimates.py`: `summed` for actions that can be
summed over (Discrete), `sampled` for all others.  A replayed batch is learned from like a fresh
one; they differ only in `rho`, the ratio of the policy to the policy that acted.  `Trained` makes
the optimizer step and moves the average policy.

The policy's gradient g is made at the statistics f of its distribution (probabilities; the mean of
a Gaussian).  There the trust region changes it to z, which is then propagated to the weights: the
loss has the term ``-z . f``, whose gradient at f is -z.

Departures from the paper, each with the switch that turns it off, if there is one:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Learning from replay begins late, after 10,000 steps of every stream
    (``replay_start_steps_per_stream=0``).
 3. The rate falls to 0 (``lr_schedule=constant``), and the entropy bonus is ten times the paper's
    (``entropy_coef=0.001``).
 4. Observations and rewards may be normalised by running statistics
    (``normalize_observations=false``, ``normalize_pictures=false`` and ``reward_normalizer=none``,
    the defaults, are the paper's).  The first batch is added to these statistics before it is
    learned from.
 5. The standard deviation of continuous actions may be learned (``learn_std=false``, the default,
    is the paper's).
 6. In spaces other than one Discrete, action values come from a stochastic dueling network, also
    for MultiDiscrete, MultiBinary and Tuples, which the paper does not mention.
 7. Continuous actions are learned from fresh unrolls too; the paper learns them from replay alone,
    in unrolls of 50 (``unroll_steps=50``).
 8. The critic's errors count half, as in baselines (``value_coef=1`` is the paper's).
 9. The gradient is clipped (``max_grad_norm=none``); the paper does not mention it.
10. All streams make one step together, on the mean over their rows; the paper's threads make steps
    of their own, on sums.
11. The critic reads the actions that were executed, clipped or squashed to their bounds, of which
    the paper has none.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.acer import metrics
from quintet.algorithms.acer.config import ACERConfig, Knobs
from quintet.algorithms.acer.estimates import Estimates, Rows, sampled, summed
from quintet.algorithms.acer.metrics import Outputs, Region
from quintet.algorithms.acer.network import PolicyAndCritic
from quintet.algorithms.parts.acting import SamplingActor, make_normalizer, masked
from quintet.algorithms.parts.noise import with_noise
from quintet.algorithms.parts.normalizers import ONLY_LEARNING, Normalizers
from quintet.algorithms.parts.optimizer import Optimizer
from quintet.algorithms.parts.options import refuse_aux_losses
from quintet.algorithms.parts.policy_probe import PolicyProbe
from quintet.algorithms.parts.schedule import find_schedule
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.trained import AVERAGE, Parameters, Trained, knobs_of
from quintet.algorithms.parts.unrolls import Unrolls, unrolls_of
from quintet.models.config import ModelConfig
from quintet.models.encoders import Cnn
from quintet.ops import policy_statistics, reduce, schedules
from quintet.ops.discrete import Categorical
from quintet.ops.distributions import leaf_families
from quintet.ops.gaussian import DiagGaussian
from quintet.ops.trust_region import project
from quintet.protocols import Actor, DataPlan, ReplayPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces, State

_CRITIC_HEAD = "critic_head."
_SPREAD = ("network/policy_head.std_param", f"{AVERAGE}policy_head.std_param")


@final
class ACERLearner:
    """Makes one optimizer step from every batch of unrolls, fresh or replayed."""

    def __init__(self, config: ACERConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.generator = torch.Generator().manual_seed(setup.seeds[1])
        network = PolicyAndCritic(spaces, model, generator, setup.compute.precision)
        refuse_aux_losses("acer", model, network.encoder.loss_names)
        self.network, self.family = network.to(setup.device), network.family
        self.sums = isinstance(self.family, Categorical)
        leaves = leaf_families(self.family)
        # Traces have the ratio to the power 1 / dimensions (section 5.2).
        self.dimensions = sum(x.size for x in leaves if isinstance(x, DiagGaussian)) or 1
        self.normalizers = Normalizers(config, model, spaces, setup.device)
        recurrent_critic = not network.shared and network.critic_trunk.core is not None
        critic = "network/critic_head." if recurrent_critic else "network/critic_"
        inside = config.rmsprop_epsilon_inside_sqrt
        self.trained: Trained[Unrolls, Knobs] = Trained(
            self.network,
            self.loss,
            partial(metrics.statistics, normalizers=self.normalizers, dimensions=self.dimensions),
            Knobs,
            setup,
            Optimizer("rmsprop_tf" if inside else "rmsprop"),
            modules=self.normalizers.modules,
            only_learning=(critic, *ONLY_LEARNING),
            averages=config.trust_region,
            check_numerics=config.check_numerics,
        )
        self.weights = self.trained.weights
        self.version = 0
        self.schedule = find_schedule(config.lr_schedule)
        self.learning_rate = config.learning_rate
        self.fresh_updates, self.replayed_updates = 0, 0  # counted from the last report
        policy = partial(network, critic=False)
        normalize, interval = self.normalizers.observations, self.trained.interval
        self.probe = PolicyProbe(self.family, policy, normalize, interval)

    # The loss

    def loss(
        self, parameters: Parameters, unrolls: Unrolls, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of unrolls.  The policy's gradient g is equation 9 of arXiv 1611.01224
        (continuous actions: section 5.2) plus that of an entropy bonus; z is equation 12.  The
        critic learns Retrace's targets, equation 5.

        ``total = -z . f + value_coef * (q + value)``, each the mean over the valid rows; the term
        `value` exists where actions are sampled.
        """
        config, family, valid = self.config, self.family, unrolls.valid
        obs = self.normalizers.observations(unrolls.obs)
        # Pictures are scaled once, since both policies read them.
        encoder = self.network.encoder
        seen = encoder.scaled(obs) if isinstance(encoder, Cnn) else obs
        inputs = (seen, unrolls.state, unrolls.is_first)
        params, features, _ = functional_call(self.network, parameters, inputs)
        rows = self._rows(masked(family, params, unrolls.obs), unrolls, knobs)
        estimates = self._estimates(parameters, features, rows, unrolls, knobs)
        pi, std = rows.pi[:-1].detach(), config.learn_std
        g = estimates.g
        if config.entropy_coef > 0:
            slope = policy_statistics.entropy_gradient(family, pi, learn_std=std)
            g = g + knobs.entropy_coef * slope
        z, region = g, None
        if config.trust_region:
            average = self._average(inputs, unrolls)
            k = policy_statistics.kl_gradient(family, average, pi, learn_std=std)
            z, factor = project(g, k, knobs.trust_region_delta)
            region = Region(g, z, k, factor, average)
        # A harmless action may be one that is masked, whose score is beyond all bounds.
        z = torch.where(valid.unsqueeze(-1), z, 0.0)

        def mean(x: Tensor) -> Tensor:
            return reduce.sum_valid(x, valid) / unrolls.count

        policy_loss = -mean((z * estimates.f).sum(-1))
        critic = {name: knobs.value_coef * mean(x) for name, x in estimates.errors.items()}
        total = policy_loss + critic["q"] + critic.get("value", 0.0)
        return total, Outputs(critic, rows, estimates, z, region, obs)

    def _rows(self, params: Tensor, unrolls: Unrolls, knobs: Knobs) -> Rows:
        """The rows of which estimates are made.  Invalid ones get a harmless action, reward, ratio
        and distribution, since a NaN behind a mask would still make its gradient NaN.
        """
        family, valid = self.family, unrolls.valid
        pi = params.view(len(valid) + 1, valid.shape[1], -1)
        mu = torch.where(valid.unsqueeze(-1), unrolls.record["params_mu"], 0.0)
        done = valid.view(*valid.shape, *[1] * (unrolls.action.ndim - 2))
        action = torch.where(done, unrolls.action, 0)
        log_rho = family.log_prob(pi[:-1].detach(), action) - family.log_prob(mu, action)
        return Rows(
            family=family,
            pi=pi,
            mu=mu,
            action=action,
            log_rho=torch.where(valid, log_rho, 0.0),
            reward=torch.where(valid, unrolls.reward, 0.0),
            discount_t=knobs.gamma * (~unrolls.terminal).to(pi.dtype),
            not_cut_t=unrolls.not_cut_t,
            learn_std=self.config.learn_std,
        )

    def _estimates(
        self, parameters: Parameters, features: Tensor, rows: Rows, unrolls: Unrolls, knobs: Knobs
    ) -> Estimates:
        """Computes the critic's values, of all actions or of some, and the estimates from them."""
        head = {
            name.removeprefix(_CRITIC_HEAD): x
            for name, x in parameters.items()
            if name.startswith(_CRITIC_HEAD)
        }
        critic = self.network.critic_head
        if self.sums:
            values = functional_call(critic, head, (features,))
            return summed(rows, values.view(rows.pi.shape), knobs)
        noise = unrolls.record["noise"]
        pi = rows.pi[:-1].detach().unsqueeze(2).expand(*noise.shape[:3], -1)
        drawn = rows.family.sample(pi, noise)
        actions = torch.cat((rows.action.unsqueeze(2), drawn), 2)
        v, advantages = functional_call(critic, head, (features, actions.flatten(0, 1)))
        v, advantages = v.view(rows.pi.shape[:2]), advantages.view(actions.shape[:3])
        return sampled(rows, drawn[:, :, 0], v, advantages, knobs, self.dimensions)

    @torch.no_grad()
    def _average(self, inputs: tuple[Obs, State, Tensor], unrolls: Unrolls) -> Tensor:
        """Parameters of the average policy ``[T, B, P]``."""
        obs, state, is_first = inputs
        used = unrolls.valid.numel()  # the row behind them has no action
        obs = {name: x[:used] for name, x in obs.items()}
        inputs = (obs, state, is_first[:used])
        averaged, only_policy = self.trained.averaged(), {"critic": False}
        params, _, _ = functional_call(self.network, averaged, inputs, only_policy)
        return masked(self.family, params, obs).view(*unrolls.valid.shape, -1)

    # Updates

    @property
    def plan(self) -> DataPlan:
        config, streams, steps = self.config, self.setup.num_streams, self.config.unroll_steps
        replay = ReplayPlan(
            "sequences",
            capacity_steps=config.replay_capacity_steps_per_stream * streams,
            steps=steps,
            columns=streams,
            draws="poisson",
            rate=config.replay_ratio,
            start_steps=config.replay_start_steps_per_stream * streams,
            column_source=config.replay_sampling,
        )
        kept = replay if config.replay_ratio > 0 else None
        discount = self.normalizers.return_discount
        return DataPlan(steps, streams, discount, state_every=steps, replay=kept)

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: ACERConfig) -> None:
        self.config = options

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Loads weights; a standard deviation that is not learned keeps the options' value."""
        if not self.config.learn_std:
            own = self.weights()
            spread = [name for name in _SPREAD if name in own]
            weights = {**weights, **{name: own[name].clone() for name in spread}}
        self.normalizers.loads(self.trained)(weights)

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Makes one optimizer step on the batch; a fresh batch also updates the normalisers."""
        config = self.config
        done = 1.0 - schedules.linear(env_steps, self.setup.total_env_steps)
        self.learning_rate = config.learning_rate * self.schedule(done)
        options = self.trained.step_options(self.learning_rate, config)
        knobs, polyak = knobs_of(Knobs, config), config.tau
        learns = self.normalizers.learn and not batch.replayed
        whole = self.ranks.whole(batch) if learns else batch
        if learns:
            self.normalizers.merge_first(whole, self.version)
        self.trained.step(self._unrolls(batch), knobs, options, polyak=polyak)
        if learns:
            self.normalizers.merge(whole)
        if batch.replayed:
            self.replayed_updates += 1
        else:
            self.fresh_updates += 1
            if self.probe.at_work:
                self.probe.after(self.ranks.whole(batch), self.version, self.trained.current)
        self.version += 1
        self.trained.fold_when_due()

    def _unrolls(self, batch: Rollout) -> Unrolls:
        """This learner's share of the batch, in the form that the loss reads.

        Its record also has the ``age`` of rows in updates ``[T, B]``, NaN in a fresh batch, and the
        ``noise`` of sampled actions ``[T, B, n + 1, ...]``, where values come from samples.
        """
        normalizers = self.normalizers
        if batch.replayed:
            age = (self.version - batch.version).float()
        else:
            age = torch.full_like(batch.reward, torch.nan)
            normalizers.add_rewards(self.trained.interval, batch, self.ranks)
        batch = replace(batch, record={**batch.record, "age": age})
        if not self.sums:
            samples = self.config.dueling_samples + 1
            batch = with_noise(batch, self.family, samples, self.generator)
        ends = self.config.truncation_as_termination
        return unrolls_of(batch, self.ranks, normalizers, truncation_as_termination=ends)

    # Reports and state

    def metrics(self) -> dict[str, float]:
        self.probe.begin()
        self.trained.fold()
        values = self.trained.interval.read()
        values = metrics.finished(values, self.fresh_updates, self.replayed_updates)
        self.fresh_updates, self.replayed_updates = 0, 0
        values["optim/learning_rate"] = self.learning_rate
        return values | self.normalizers.metrics()

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        self.probe.forget()
        self.trained.fold()
        tensors = {**self.trained.save(), "generator": self.generator.get_state()}
        scalars = {"updates": self.updates, "version": self.version}
        return LearnerState(tensors, scalars | {"learning_rate": self.learning_rate})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.probe.forget()
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        self.version = scalars["version"] if counters else self.version + 1
        self.learning_rate = scalars["learning_rate"]
        if counters:
            self.generator.set_state(state.tensors["generator"])
            self.fresh_updates, self.replayed_updates = 0, 0


def make_actor(
    config: ACERConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> Actor:
    """The actor that collects ACER's batches.  It records the parameters of its distribution, from
    which the probability of every action follows.
    """
    network = PolicyAndCritic(spaces, model, None, compute.precision, only_acts=True)
    network.freeze_precision()
    return SamplingActor(network, make_normalizer(config, model, spaces), ("params_mu",), compute)
