"""Options of a population, and of self-play."""

import math
from typing import Annotated, Literal, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintet.bounds import LARGEST, MOST_COUNT, MOST_STEPS, MOST_TASKS, Bounded
from quintet.errors import IdleOptions
from quintet.population.scores import OF_EPISODES

_OF_EPISODES = {"window_env_steps", "min_episodes"}
"""Options with an effect where the objective is one of episodes."""

_OF_ALL = {"size", "pbt", "assignment", "objective", "initial"} | _OF_EPISODES
"""Options with an effect where ``pbt`` is false; ``tuned`` has one beside ``initial``."""

_OF_MUTATIONS = {"reset_rate", "perturb_min", "perturb_max"}
"""Options without an effect where ``mutation_rate`` is 0."""


@final
class PopulationConfig(BaseModel):
    """Several policies in one run, and how their hyperparameters tune themselves.

    The budget of the run is that of all policies together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    size: int = Field(1, ge=1, le=MOST_TASKS, description="policies that are trained in one run")
    pbt: bool = Field(
        True,
        description="bad policies become copies of good ones, with other hyperparameters; false: "
        "all are trained side by side",
    )
    assignment: Literal["auto", "agent"] = Field(
        "auto",
        description="which policy plays; auto: groups of streams have one each, or, where groups "
        "can't be shared out evenly and in environments of several agents, each episode draws its "
        "policy; agent: agent a of every game has policy a, modulo their number",
    )
    objective: str = Field(
        "episode/return_mean",
        description="metric of a policy by which policies are ranked, the higher the better",
    )
    window_env_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="newest env_steps of each policy over whose episodes an objective of episodes "
        "is the mean, more where min_episodes need more; none: a period",
    )
    min_episodes: int = Field(
        20,
        ge=1,
        le=MOST_COUNT,
        description="fewest episodes of a policy in that span; one with fewer is not ranked: it is "
        "neither copied nor replaced",
    )
    start_env_steps: int | None = Field(
        None,
        ge=0,
        le=MOST_STEPS,
        description="env_steps of a policy before it is considered for the first time; none: a "
        "tenth of its share of the budget",
    )
    period_env_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="env_steps of a policy from one consideration to the next; none: a twentieth "
        "of its share of the budget",
    )
    tuned: tuple[str, ...] = Field(
        (),
        description="options of the learner that are tuned, and values of env.reward_shaping as "
        "reward_shaping.NAME; none given: as the learner says",
    )
    initial: dict[str, Annotated[tuple[Bounded, ...], Field(max_length=MOST_TASKS)]] = Field(
        default_factory=dict,
        description="first values of tuned options, one for each policy; without them policy 0 has "
        "the learner's, and each other one a mutation of these (pbt=false: the learner's too)",
    )
    replace_frac: float = Field(
        0.3, gt=0, le=1, description="share of policies, rounded up, that count as best or worst"
    )
    mutation_rate: float = Field(0.15, ge=0, le=1, description="chance that a value changes")
    reset_rate: float = Field(
        0.05,
        ge=0,
        le=1,
        description="chance that a value that changes takes the learner's option again",
    )
    perturb_min: float = Field(1.05, ge=1, le=LARGEST, description="least factor of a change")
    perturb_max: float = Field(1.5, ge=1, le=LARGEST, description="greatest factor of a change")
    gap_absolute: float = Field(
        1e-6, ge=0, le=LARGEST, description="least lead in the objective of a policy that is copied"
    )
    gap_relative: float = Field(
        0.1,
        ge=0,
        le=LARGEST,
        description="least lead as a share of the greater absolute objective of the two",
    )
    gap_mode: Literal["relative_to_larger", "original"] = Field(
        "relative_to_larger",
        description="original: a difference of either sign, as a share of the copied policy's "
        "objective",
    )

    @property
    def several(self) -> bool:
        return self.size > 1

    def start(self, budget: int) -> int:
        """env_steps of a policy before it is considered; budget: of all policies."""
        given = self.start_env_steps
        return budget // self.size // 10 if given is None else given

    def period(self, budget: int) -> int:
        """env_steps of a policy from one consideration to the next."""
        given = self.period_env_steps
        return max(1, budget // self.size // 20) if given is None else given

    def window(self, budget: int) -> int:
        """env_steps of a policy over whose episodes it is ranked."""
        return self.period(budget) if self.window_env_steps is None else self.window_env_steps

    @model_validator(mode="after")
    def _options_go_together(self) -> "PopulationConfig":
        if self.perturb_min > self.perturb_max:
            raise ValueError(
                f"perturb_min must be at most perturb_max, got {self.perturb_min:g} and "
                f"{self.perturb_max:g}; correct them"
            )
        if self.assignment == "agent" and self.pbt and self.several:
            raise ValueError(
                "assignment=agent requires pbt=false, as policies of different agents can't be "
                "ranked; add population.pbt=false"
            )
        if self.several and self.pbt and math.ceil(self.replace_frac * self.size) == self.size:
            raise ValueError(
                f"replace_frac={self.replace_frac:g} must leave a policy that is not one of the "
                f"best, rounded up it is all {self.size}: none would change; lower it"
            )
        if len(set(self.tuned)) < len(self.tuned):
            raise ValueError(f"tuned must name no option twice, got {', '.join(self.tuned)}")
        for name, values in self.initial.items():
            if len(values) != self.size:
                raise ValueError(
                    f"population.initial requires {self.size} values of {name}, one for each "
                    f"policy, got {len(values)}; correct them"
                )
        needs = dict.fromkeys(type(self).model_fields, "size > 1")
        if self.several:
            free = _OF_ALL | ({"tuned"} if self.initial else set())
            needs = {name: "pbt=true" for name in needs if name not in free and not self.pbt}
            if self.mutation_rate == 0 and self.pbt:
                needs |= dict.fromkeys(_OF_MUTATIONS, "mutation_rate > 0")
            if not self.objective.startswith(OF_EPISODES):
                needs |= dict.fromkeys(_OF_EPISODES, "an objective of episodes")
        idle = {
            name: f"population.{name}={getattr(self, name)} has no effect without {need}"
            for name, need in needs.items()
            if name != "size"
            and getattr(self, name)
            != type(self).model_fields[name].get_default(call_default_factory=True)
        }
        if idle:
            raise IdleOptions(idle)
        return self


@final
class SelfPlayConfig(BaseModel):
    """Past weights of the policy as opponents, in environments of several agents."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    past_frac: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of games in which past weights play all agents but one, whose steps "
        "alone are learned from and count; 0: the newest weights play all",
    )
    versions: int = Field(
        10, ge=1, le=MOST_COUNT, description="past weights that are kept, the newest ones"
    )
    interval_env_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="env_steps from one that is kept to the next; none: a twentieth of the budget",
    )

    @property
    def on(self) -> bool:
        return self.past_frac > 0

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> "SelfPlayConfig":
        idle = {
            name: f"self_play.{name}={getattr(self, name)} has no effect without "
            "self_play.past_frac > 0"
            for name, field in type(self).model_fields.items()
            if name != "past_frac" and getattr(self, name) != field.default
        }
        if idle and not self.on:
            raise IdleOptions(idle)
        return self
