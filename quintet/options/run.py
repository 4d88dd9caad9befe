"""The configuration of a run, composed of the configurations of its parts."""

from pathlib import Path
from typing import Any, Literal, final

from pydantic import BaseModel, SerializeAsAny, field_validator

from quintet.checkpoints.checkpoint import CheckpointConfig
from quintet.cluster.config import ClusterConfig
from quintet.envs.config import EnvConfig
from quintet.envs.eval_env import EvalEnvConfig
from quintet.models.config import ModelConfig
from quintet.observe.sinks import ReportConfig
from quintet.options.bounds import CountFrom0, Steps
from quintet.options.declaration import Options, about, option
from quintet.options.runtime import RuntimeConfig
from quintet.population.config import PopulationConfig, SelfPlayConfig


@final
class DoctorConfig(Options):
    """Options of what is said about a run that may not learn."""

    known: tuple[str, ...] = option((), on_resume="free")
    """findings to leave out, since you know of them: NAME (as time-limit), or NAME:OPTION for one
    option (as option-far:gamma)
    """

    @field_validator("known", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("known")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            from quintet.findings.engine import no_finding  # reads every row's name

            if faults := [each for each in map(no_finding, value) if each]:
                raise ValueError(faults[0])
        return value


@final
class EvalConfig(Options):
    """Evaluation during training, in separate environments."""

    episodes: CountFrom0 = option(
        10, also="eval_episodes n_eval_episodes num_eval_episodes evaluation_duration"
    )
    """episodes per evaluation; 0: none"""
    interval: Steps | Literal["auto"] = option(
        "auto", also="eval_freq eval_interval eval_every evaluation_interval"
    )
    """env_steps between evaluations; auto: 5% of the budget, and at most 5% of the time"""
    greedy: bool = True
    """take the likeliest actions; false: sample actions"""
    max_steps: Steps | Literal["auto"] | None = "auto"
    """steps after which an episode is cut and counts with its return so far; auto: 1,000, or the
    greatest power of ten up to ten times the longest training episode, unless the environment has a
    time limit; none: no bound
    """


@final
class RunConfig(Options):
    """All options of a run; in files and commands, the learner's are at the top level."""

    algo: str
    """learner"""
    total_env_steps: Steps = option(
        1_000_000,
        also="total_timesteps num_timesteps n_timesteps timesteps max_timesteps "
        "train_for_env_steps max_iterations num_iterations stop",
        on_resume="free",
    )
    """exact number of agent decisions over all streams"""
    seed: int = option(0, ge=0, lt=2**63)
    """seed of everything random in the run"""
    preset: str = "auto"
    """name of a preset; auto: the preset of the environment, else of its kind (vector_discrete,
    vector_continuous, small_pixels, pixels, atari, grid); none: no preset
    """
    run_dir: Path | None = option(
        None,
        also="tensorboard_log log_dir save_path savedir train_dir experiment exp_name xpid "
        "monitor_dir tb_log_name experiment_name run_name log_folder log_path logdir storage_path",
        on_resume="free",
    )
    """folder of the run; none: runs/ALGO-ENV-sSEED; a folder that holds this run resumes it"""
    resume: Literal["latest", "exact", "never"] = option(
        "latest", also="restart_behavior load_checkpoint_kind", on_resume="free"
    )
    """checkpoint of a resume; latest: the newest; exact: the newest exact one, with the results of
    the uninterrupted run; never: refuse a folder that holds a run
    """
    init_from: Path | None = option(
        None,
        also="load_path load_checkpoint pretrained pretrained_model trained_agent checkpoint_path "
        "checkpoint",
    )
    """run folder, checkpoint or saved policy from which a new run takes its first weights and
    normaliser statistics, but no optimizer, counters or schedules
    """
    init_from_keys: tuple[str, ...] = option((), needs="init_from")
    """patterns of names of the tensors to take from init_from, as network/encoder.*; none: all,
    which must then fit exactly
    """
    learner: SerializeAsAny[BaseModel]
    env: EnvConfig
    runtime: RuntimeConfig = RuntimeConfig()
    model: ModelConfig = ModelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    eval_env: EvalEnvConfig = EvalEnvConfig()
    report: ReportConfig = ReportConfig()
    population: PopulationConfig = PopulationConfig()
    self_play: SelfPlayConfig = SelfPlayConfig()
    cluster: ClusterConfig = ClusterConfig()
    doctor: DoctorConfig = DoctorConfig()

    @field_validator("init_from_keys", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def changed(self, part: str, values: dict[str, Any]) -> "RunConfig":
        """A copy with other values of a part's options."""
        return self.model_copy(update={part: getattr(self, part).model_copy(update=values)})

    def flat(self) -> dict[str, Any]:
        """Every option by its dotted name, the learner's without prefix, as JSON-able values."""
        values: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json").items():
            if name == "learner":
                values |= value
            elif isinstance(value, dict):
                values |= {prefix_of(name) + key: item for key, item in value.items()}
            else:
                values[name] = value
        return values


PARTS: dict[str, type[BaseModel]] = {
    name: kind
    for name, info in RunConfig.model_fields.items()
    if isinstance(kind := info.annotation, type) and issubclass(kind, Options)
}
"""The parts of a run whose options have a prefix."""


def prefix_of(part: str) -> str:
    """The prefix of a part's options: its name, except ``eval.env.`` for ``eval_env``."""
    return "eval.env." if part == "eval_env" else f"{part}."


TOP = tuple(name for name in RunConfig.model_fields if name not in (*PARTS, "learner"))
"""Options of the run itself."""

ALIASES = {
    "total_steps": "total_env_steps",
    "env": "env.id",
    "eval.env": "eval.env.id",
    "population": "population.size",
    "cluster": "cluster.address",
}
"""Short names that users may use."""

_FIELDS = {
    **{name: RunConfig.model_fields[name] for name in TOP},
    **{
        prefix_of(part) + name: info
        for part, kind in PARTS.items()
        for name, info in kind.model_fields.items()
    },
}

AUTOMATIC: dict[str, Any] = {
    name: info.default for name, info in _FIELDS.items() if about(info).auto
}
"""Options that are resolved when a run begins, and their automatic value."""

MAY_CHANGE_ON_RESUME = {name for name, info in _FIELDS.items() if about(info).on_resume != "kept"}
"""Options that a resumed run may change, besides those of eval and report."""

CHANGE_ROUNDING = [name for name, info in _FIELDS.items() if about(info).on_resume == "rounds"]
"""Options among them that change the rounding of a resumed run."""

OF_OLDER_RUNS: dict[str, Any] = {"env.observation_dtype": "float32", "runtime.inference": "local"}
"""Values of newer options in runs that are older than the options, if not the defaults."""

ONLY_OF_OLDER_RUNS = {"checkpoint.restart_env_steps"}
"""Options that saved runs may have and that have no effect."""
