"""Options of a run's environments."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from quintet.envs.backends import BACKENDS
from quintet.envs.success import read_rule
from quintet.options.bounds import Bounded, EpisodeSteps, Layers, Streams, Tasks, Threads
from quintet.options.declaration import Kwargs, Needs, Options, option

if TYPE_CHECKING:
    from quintet.envs.info_metrics import Term

    BackendName = str
else:
    BackendName = Literal["auto", *BACKENDS.names()]

RewardClip = Literal["none", "abs_one", "soft_asymmetric"]


def _is_a_rule(value: str) -> str:
    read_rule(value)
    return value


def _are_metrics(value: str) -> str:
    if value in ("auto", "none"):  # most runs need no more
        return value
    from quintet.envs.info_metrics import as_text, read_terms

    return as_text(read_terms(value))


def _curriculum(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    from quintet.envs.curriculum import read_record  # few runs have one

    return read_record(value)


LIMIT = "max_episode_steps"
"""Argument of makers that limit the steps of an episode."""

Success = Annotated[str, AfterValidator(_is_a_rule)]
Metrics = Annotated[str, AfterValidator(_are_metrics)]


class EnvConfig(Options):
    """The environment, the number of its copies, and changes to its observations and rewards."""

    id: str = option(also="env_id env_name gym_id task")
    """environment: an id (CartPole-v1), or the import string of a maker of one Gymnasium
    environment, or of a vector environment if it has a parameter num_envs (pkg.module:make_env)
    """
    backend: BackendName = option("auto", auto=True)
    """implementation of the environment; auto: EnvPool if it is installed and knows the id, then
    ALE's vector environment for Atari games, else Gymnasium; PettingZoo for its makers and makers
    named parallel_env; the backend changes the task
    """
    kwargs: Kwargs = option(
        default_factory=dict,
        also="env_kwargs env_config env_frameskip frame_skip render_mode",
    )
    """keyword arguments of the environment's maker; for Atari games on every backend: stack_num,
    frame_skip, noop_max, episodic_life, full_action_space, repeat_action_probability,
    use_fire_reset, max_episode_steps
    """
    max_episode_steps: EpisodeSteps | None = option(
        None, also="time_limit max_steps_per_episode horizon episode_length"
    )
    """steps after which an episode is truncated, for every environment that can be limited from
    outside (in games of several agents, steps of the game); none: the environment's own limit
    """
    num_streams: Streams = option(
        8,
        also="n_envs num_envs nenvs num_env num_environments "
        "num_envs_per_worker num_envs_per_env_runner",
    )
    """number of environments that step at the same time"""
    streams_per_group: Streams | None = option(None, also="worker_num_splits", auto=True)
    """number of environments that step and act together, a divisor of num_streams; none: half of
    them for simulators in C++ (pixels from 4 cores on), so that one half steps while the other
    acts, else all of them; with workers, one group per worker
    """
    frame_stack: Layers = option(1, also="n_stack num_stack env_framestack framestack")
    """number of newest observations stacked on a new leading axis; 1: no new axis; Atari games
    stack 4 by themselves (kwargs.stack_num)
    """
    reward_clip: RewardClip = option("none", also="clip_rewards reward_clipping")
    """clip of a reward r for learning; none: r; abs_one: clamp(r, -1, 1); soft_asymmetric: 5 tanh(r
    / 5), times 0.3 where r < 0; reported returns stay raw
    """
    reward_shaping: dict[str, Bounded] = option(default_factory=dict)
    """weights that replace those of a Gymnasium environment's attribute reward_shaping (a dict of
    weights of its rewards); a population may tune them (population.tuned reward_shaping.NAME)
    """
    success: Success | None = None
    """rule by which an episode is won; reward>NUMBER: its last raw reward is greater; info:KEY:
    info[KEY] is true at its end; none: no success rate is reported
    """
    metrics: Metrics = option("auto", auto=True, on_resume="free")
    """numbers in info that are reported as env/KEY, given as KEY:REDUCTION, ...; KEY: a name, a
    path (a/b) or a pattern (a/*); REDUCTION over an episode: sum, mean, last, min or max; auto: up
    to 32 numbers in info at the end of the first episode, the last value of each; none: no number
    """
    curriculum: Annotated[dict[str, Any] | None, BeforeValidator(_curriculum)] = None
    """options of the environment's resets, which change while the agent learns: a kind (stages,
    schedule, levels, or the import string of your own) and what it takes (docs/curriculum.md)
    """
    observe_last: bool = False
    """add the leaves last_action (as the environment received it) and last_reward (raw, clamped to
    -1 .. 1) to the observation; at the start of an episode they are 0, but a discrete action is
    then an additional value, the largest
    """
    mask_from_info: Literal["auto"] | bool = option("auto", auto=True)
    """source of action masks if the observation has no leaf action_mask; true: info['action_mask']
    at every reset and step; auto: the first that exists of another leaf named action_mask or
    action_masks, the environment's method action_masks(), and info; false: nowhere
    """
    observation_dtype: Literal["auto", "float32", "float64"] = option(
        "auto",
        needs=Needs("observations of float64", lambda _, f: f.float64, rest="float32"),
        auto=True,
    )
    """dtype in which leaves of float64 are stored; float64: normalize_observations subtracts their
    mean before they become float32 for networks; auto: float64 if the first steps of a Python
    environment show that float32 would lose differences (seconds since 1970), else float32
    """
    num_threads: Threads | None = option(
        None,
        needs=Needs(
            "env.backend={f.env.pools}, which step in threads ({f.env.config.id} has "
            "{f.env.config.backend})",
            lambda _, f: f.env.backend.cost is not None,
        ),
        on_resume="free",
    )
    """number of threads of each EnvPool or ALE pool (one per group); none: 1 for cheap
    environments, else the cores divided by the pools, at most one per stream
    """
    num_processes: Tasks | None = option(
        None,
        needs=(
            Needs(
                "runtime.kind=serial or evaluations (in other kinds, workers step environments)",
                lambda _, f: f.stepped,
            ),
            Needs(
                "environments that are written in Python and can be made one by one "
                "({f.stepped[0].config.id} is of another kind)",
                lambda _, f: any(env.can_be_spread for env in f.stepped),
            ),
        ),
        also="vec_env vec_env_cls",
        on_resume="free",
    )
    """number of processes that step Python environments in the serial runtime and in evaluations;
    1: the run's own process; none: one per core if steps compute, one per stream (at most 64) if
    they wait, unless the first rows are slower with them; results do not depend on it
    """

    fresh_at_checkpoints: bool = option(
        False,
        needs=(
            Needs(
                "runtime.kind serial or lockstep, as async runs have no exact checkpoints",
                lambda _, f: f.runtime.exact,
            ),
            Needs(
                "environments that are written in Python and can be made again "
                "({f.env.config.id} is of another kind)",
                lambda _, f: f.env.backend.in_python and f.env.can_be_made_again,
            ),
        ),
    )
    """make all environments anew at every exact checkpoint, so that they forget what they keep over
    resets; false: they live as long as the run, and are only reset with new seeds there
    """

    @model_validator(mode="after")
    def _groups_divide_streams(self) -> Self:
        if self.streams_per_group and self.num_streams % self.streams_per_group:
            raise ValueError(
                f"streams_per_group must divide num_streams; got streams_per_group="
                f"{self.streams_per_group} and num_streams={self.num_streams}; choose a divisor, "
                f"or leave streams_per_group out"
            )
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        other, limit = self.kwargs.get(LIMIT), self.max_episode_steps
        if limit is not None and other not in (None, limit):
            raise ValueError(
                f"max_episode_steps must be given once; got {limit}, and {other} in kwargs; leave "
                "one of them out"
            )
        return self

    @model_validator(mode="after")
    def _metric_is_there(self) -> Self:
        """Refuses stages by success without a rule of success."""
        curriculum = self.curriculum or {}
        metric = str(curriculum.get("metric", "success")).removeprefix("-")
        if curriculum.get("kind") == "stages" and metric == "success" and self.success is None:
            raise ValueError(
                "curriculum must have a metric that episodes report, got success without a rule "
                "for it: give env.success, or the metric return, length or env/NAME"
            )
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """`kwargs` and `max_episode_steps`, for what takes the limit under this name."""
        limit = self.max_episode_steps
        return dict(self.kwargs) if limit is None else {**self.kwargs, LIMIT: limit}

    @property
    def terms(self) -> "tuple[Term, ...]":
        """The terms of `metrics`; empty while it is not settled."""
        if self.metrics in ("auto", "none"):
            return ()
        from quintet.envs.info_metrics import read_terms

        return read_terms(self.metrics)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the numbers of its own that each episode has, once `metrics` is settled."""
        return tuple(term.name for term in self.terms)

    @property
    def num_groups(self) -> int:
        """Number of groups; only in resolved configurations."""
        assert self.streams_per_group is not None
        return self.num_streams // self.streams_per_group
