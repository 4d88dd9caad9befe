"""Options of a population, and of self-play."""

import math
from typing import Annotated, Literal, final

from pydantic import Field, model_validator

from quintet.observe.metrics import signed
from quintet.options.bounds import (
    MOST_TASKS,
    Bounded,
    Count,
    Factor,
    Fraction,
    NotNegative,
    Share,
    Steps,
    StepsFrom0,
    Tasks,
)
from quintet.options.declaration import Needs, Options, option
from quintet.population.scores import OF_EPISODES

_SEVERAL = "population.size > 1"
_PBT = (_SEVERAL, "population.pbt")
_MUTATES = (*_PBT, "population.mutation_rate > 0")
_OF_EPISODES = Needs("an objective of episodes", lambda o, _: o.of_episodes)


@final
class PopulationConfig(Options):
    """Several policies in one run, and how their hyperparameters tune themselves.

    The run's budget is for all policies together.
    """

    size: Tasks = option(1, also="num_policies with_pbt")
    """number of policies that are trained in one run"""
    pbt: bool = option(True, needs=_SEVERAL)
    """replace bad policies by copies of good ones, with other hyperparameters"""
    assignment: Literal["auto", "agent"] = option("auto", needs=_SEVERAL)
    """rule by which policies play; auto: each group of streams has one policy, or each episode
    draws its policy if groups can't be divided evenly and in games of several agents; agent: agent
    a of every game has policy a, modulo their number
    """
    objective: str = option("episode/return_mean", needs=_SEVERAL)
    """metric by which policies are ranked, the higher the better; -NAME: the lower the better"""
    window_env_steps: Steps | None = option(None, needs=(_SEVERAL, _OF_EPISODES))
    """number of newest env_steps of each policy over which an objective of episodes is averaged,
    more if min_episodes needs more; none: period_env_steps
    """
    min_episodes: Count = option(20, needs=(_SEVERAL, _OF_EPISODES))
    """least number of episodes in the span of the objective; a policy with fewer is not ranked, so
    it is neither copied nor replaced
    """
    start_env_steps: StepsFrom0 | None = option(None, needs=_PBT)
    """env_steps of a policy before its first consideration; none: a tenth of its budget"""
    period_env_steps: Steps | None = option(None, needs=_PBT)
    """env_steps of a policy between two considerations; none: a twentieth of its budget"""
    tuned: tuple[str, ...] = option((), needs=(_SEVERAL, "population.pbt or population.initial"))
    """options of the learner that are tuned, and values of env.reward_shaping as
    reward_shaping.NAME; none: the learner's default
    """
    initial: dict[str, Annotated[tuple[Bounded, ...], Field(max_length=MOST_TASKS)]] = Field(
        default_factory=dict
    )
    """first values of tuned options, one per policy; without them policy 0 has the learner's
    options, and each other policy a mutation of them (pbt=false: the same options)
    """
    replace_frac: Share = option(0.3, needs=_PBT)
    """fraction of policies, rounded up, that count as best or worst"""
    mutation_rate: Fraction = option(0.15, needs=_PBT)
    """probability that a value changes"""
    reset_rate: Fraction = option(0.05, needs=_MUTATES)
    """probability that a changed value returns to the learner's option"""
    perturb_min: Factor = option(1.05, needs=_MUTATES, at_most="perturb_max")
    """smallest factor of a change"""
    perturb_max: Factor = option(1.5, needs=_MUTATES)
    """largest factor of a change"""
    gap_absolute: NotNegative = option(1e-6, needs=_PBT)
    """smallest lead of a policy that is copied, in units of the objective"""
    gap_relative: NotNegative = option(0.1, needs=_PBT)
    """smallest lead of a policy that is copied, as a fraction of the larger objective's size"""
    gap_mode: Literal["relative_to_larger", "original"] = option("relative_to_larger", needs=_PBT)
    """meaning of gap_relative; original: a difference of either sign, as a fraction of the copied
    policy's objective
    """

    @property
    def of_episodes(self) -> bool:
        """Whether the objective is a mean over episodes of training."""
        return signed(self.objective)[0].startswith(OF_EPISODES)

    @property
    def several(self) -> bool:
        return self.size > 1

    def start(self, budget: int) -> int:
        """env_steps of a policy before its first consideration; budget: of all policies."""
        given = self.start_env_steps
        return budget // self.size // 10 if given is None else given

    def period(self, budget: int) -> int:
        """env_steps of a policy between two considerations."""
        given = self.period_env_steps
        return max(1, budget // self.size // 20) if given is None else given

    def window(self, budget: int) -> int:
        """env_steps of a policy over whose episodes it is ranked."""
        return self.period(budget) if self.window_env_steps is None else self.window_env_steps

    @model_validator(mode="after")
    def _options_go_together(self) -> "PopulationConfig":
        if self.assignment == "agent" and self.pbt and self.several:
            raise ValueError(
                "population.assignment=agent can't have population.pbt: policies of different "
                "agents can't be ranked; add population.pbt=false"
            )
        if self.several and self.pbt and math.ceil(self.replace_frac * self.size) == self.size:
            raise ValueError(
                f"replace_frac={self.replace_frac:g} makes all {self.size} policies (rounded up) "
                "count as best, so none would change: lower it"
            )
        if len(set(self.tuned)) < len(self.tuned):
            raise ValueError(f"tuned must name no option twice, got {', '.join(self.tuned)}")
        for name, values in self.initial.items():
            if len(values) != self.size:
                raise ValueError(
                    f"population.initial must have {self.size} values of {name}, one for each "
                    f"policy, got {len(values)}: correct them"
                )
        return self


@final
class SelfPlayConfig(Options):
    """Past weights of the policy as opponents, in environments of several agents."""

    past_frac: Fraction = option(
        0.0,
        needs=(
            "population.size=1",
            Needs(
                "an environment of several agents ({f.env.config.id} has one)",
                lambda _, f: f.env.num_agents > 1,
            ),
        ),
    )
    """fraction of games in which past weights play all agents but one; only that one's steps are
    learned from and counted; 0: the newest weights play all agents
    """
    versions: Count = option(10, needs="self_play.past_frac > 0")
    """number of past weights that are kept, the newest ones"""
    interval_env_steps: Steps | None = option(None, needs="self_play.past_frac > 0")
    """env_steps between two past weights that are kept; none: a twentieth of the budget"""

    @property
    def on(self) -> bool:
        return self.past_frac > 0
