"""The running statistics with which a learner normalises observations and rewards."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from quintet.algorithms.parts import diagnostics
from quintet.algorithms.parts.acting import Normalizes, make_normalizer, require_statistics
from quintet.algorithms.parts.statistics import Interval, Statistics
from quintet.algorithms.parts.trained import Trained
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.models.normalize import RewardNormalizer
from quintet.ops import reduce
from quintet.protocols import Ranks
from quintet.types import Rollout, Spaces


class NormalizesRewards(Normalizes, Protocol):
    """The options of a learner that normalises observations and rewards."""

    @property
    def reward_normalizer(self) -> str: ...

    @property
    def reward_norm_clip(self) -> float | None: ...

    @property
    def update_normalizers(self) -> bool: ...

    @property
    def gamma(self) -> float: ...


ONLY_LEARNING = ("reward_moments/",)
"""Prefixes of the names of tensors that acting does not need."""


@final
class Normalizers:
    """Both normalisers of a learner, with the statistics of all batches merged so far.

    The first batch is merged before it is learned from (`merge_first`): without statistics, rewards
    would be learned from in any scale, and the network would be fitted to unnormalised
    observations, which never occur again.  Every later batch is merged afterwards (`merge`), so
    that the learner sees observations as the actors saw them.

    learn: whether batches are merged; statistics stay as they are where `update_normalizers` is
        false.
    return_discount: discount of the running return by whose standard deviation rewards are divided;
        None if not needed.
    """

    def __init__(
        self, config: NormalizesRewards, model: ModelConfig, spaces: Spaces, device: torch.device
    ):
        self.observations = make_normalizer(config, model, spaces).to(device)
        self.rewards = RewardNormalizer(
            config.reward_normalizer, config.reward_norm_clip, config.normalizer_variance_epsilon
        ).to(device)
        used = bool(self.observations.names) or self.rewards.kind != "none"
        self.learn, self.updates = used and config.update_normalizers, config.update_normalizers
        self._known = False  # whether there are statistics; asked of the device until there are
        self._merged: tuple[bool, bool] = (False, False)  # observations, rewards of this batch
        self._known_from = 0  # version of the first weights that act with them
        for module in self.modules.values():
            module.register_load_state_dict_post_hook(lambda *_: self._ask_again())  # type: ignore[no-untyped-call]
        by_return = self.learn and self.rewards.kind == "return_std"
        # The discount stays where gamma changes later, because it is a matter of scale.
        self.return_discount = config.gamma if by_return else None

    def _ask_again(self) -> None:
        """Called when a state is loaded, which may have no statistics."""
        self._known, self._merged, self._known_from = False, (False, False), 0

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of the learner's state, by name."""
        return {"normalizer": self.observations, "reward_moments": self.rewards.moments}

    def loads(self, trained: Trained[Any, Any]) -> Callable[[Mapping[str, Tensor]], None]:
        """A function that loads the weights of a warm start.  It raises ConfigError if rewards are
        to be divided by fixed statistics and the weights contain none.
        """

        def load(weights: Mapping[str, Tensor]) -> None:
            trained.load_weights(weights)
            if self.rewards.kind == "none":
                # Unused, these would go on to a run that takes them for statistics of its values.
                for x in self.rewards.moments.buffers():
                    x.zero_()
            require_statistics(self.observations, self.updates)
            if self.rewards.kind != "none" and not self.learn and self.rewards.moments.count == 0:
                raise ConfigError(
                    "update_normalizers=false must have statistics of rewards, but init_from "
                    "has none (a saved policy has none, nor has a run with "
                    "reward_normalizer=none): name a run folder or a checkpoint that has "
                    "them, leave update_normalizers out, or add reward_normalizer=none"
                )

        return load

    def acted_without_statistics(self, batch: Rollout) -> bool:
        """Whether rows of the batch were acted on before observations had statistics, but are now
        normalised by them: the recorded outputs are then of differently scaled observations.
        """
        if self._merged[0] or not self._known_from:
            return self._merged[0]
        # Further batches may have been collected meanwhile.
        old = batch.on_cpu("version") < self._known_from
        return bool((batch.on_cpu("valid") & old).any())

    def merge_first(self, batch: Rollout, version: int) -> None:
        """Adds the valid rows of a batch that is about to be learned from to the statistics that
        are still empty, unless they are fixed.

        version: of the newest weights that have acted.
        """
        if self.learn and not self._known:
            self._merged = (self.observations.empty, self.rewards.empty)
            self._merge(batch, *self._merged)
            seen = bool(batch.on_cpu("valid").any())
            self._known = not any(self._merged) or seen
            if self._merged[0] and seen and self.observations.names:
                self._known_from = version + 1

    def merge(self, batch: Rollout) -> None:
        """Adds the valid rows of a batch that was learned from, unless `merge_first` did."""
        if self.learn:
            self._merge(batch, *(not each for each in self._merged))
            self._merged = (False, False)

    def _merge(self, batch: Rollout, observations: bool, rewards: bool) -> None:
        if observations:
            obs = {name: x[:-1] for name, x in batch.obs.items()}
            self.observations.merge(obs, batch.on_cpu("valid"))
        if rewards:
            self.rewards.merge(batch)

    def add_rewards(self, interval: Interval, batch: Rollout, ranks: Ranks) -> None:
        """Adds `of_rewards` of all ranks' batch to an interval, if rewards are normalised."""
        if self.rewards.kind != "none":
            whole = ranks.whole(batch)
            interval.add(Statistics(self.of_rewards(whole, self.rewards(whole.reward))))

    def of_rewards(self, batch: Rollout, normalized: Tensor) -> dict[str, Tensor]:
        """Means over the valid rows of a batch, of rewards as they are and normalised."""
        values = [batch.reward, normalized]
        if self.rewards.clip is not None:
            values.append((normalized.abs() >= self.rewards.clip).float())
        raw, scaled, *outside = reduce.means_valid(values, batch.valid)
        means = {"reward/mean": raw, "reward/normalized_mean": scaled}
        if outside:
            share = outside[0] * (self.rewards.moments.count > 0)
            means["normalizer/reward_clip_frac"] = share
        return means

    def metrics(self) -> dict[str, float]:
        """The divisor of rewards, and the ranges of the observations' statistics."""
        values = diagnostics.observation_metrics(self.observations)
        if self.rewards.kind != "none":
            values["normalizer/reward_std"] = self.rewards.moments.variance.sqrt().item()
        return values
