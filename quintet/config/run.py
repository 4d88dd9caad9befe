"""The configuration of a run: the parts' own configurations side by side."""

from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from quintet.algorithms.setup import Compute
from quintet.checkpoint import CheckpointConfig
from quintet.envs.config import EnvConfig
from quintet.models.config import ModelConfig
from quintet.observe.sinks import ReportConfig


@final
class RuntimeConfig(BaseModel):
    """What runs where."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["serial"] = Field(
        "serial", description="serial: one process samples and learns in turn, the same bytes twice"
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="where the learner computes: auto, cpu, cuda, cuda:1; auto takes a GPU for "
        "picture and grid networks when there is one, and the CPU for small ones, which are "
        "faster there",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="threads of PyTorch's CPU kernels; none: all cores (8 at most) for picture "
        "and grid networks, 1 for small ones. Part of the result's bytes",
    )

    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="what encoders compute in; auto: bf16 for picture and grid networks where the "
        "device multiplies bfloat16 by itself (AMX, AVX512-BF16, GPUs), else fp32. Weights, heads "
        "and losses are fp32 always. Part of the result's bytes",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="an act, and the whole update (gradient, clipping, optimizer), as one compiled "
        "graph each; auto: for feed-forward networks on the CPU, at 30,000 planned optimizer steps "
        "or more (3,000 on pictures), where there is a C++ compiler; on: also for recurrent ones, "
        "which takes minutes; never film_grid. Part of the result's bytes",
    )

    @property
    def compute(self) -> Compute:
        """How learner and actors compute, of a configuration that is resolved."""
        assert self.precision != "auto"
        return Compute(self.precision, self.compile == "on")


@final
class EvalConfig(BaseModel):
    """Evaluation while training, on environments of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    episodes: int = Field(10, ge=0, description="episodes per evaluation; 0: none")
    interval: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="env_steps between evaluations; auto: 5% of the budget, skipped while "
        "evaluation has taken more than 5% of the time",
    )
    greedy: bool = Field(True, description="take the mode of the policy; false: sample")


@final
class RunConfig(BaseModel):
    """All of a run. The learner's options stand at the top level in files and on the command
    line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algo: str = Field(description="learner")
    total_env_steps: int = Field(
        1_000_000, ge=1, description="agent decisions over all streams, exact"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random in the run")
    preset: str = Field(
        "auto",
        description="auto: the preset of this environment, else of its kind (vector_discrete, "
        "vector_continuous, pixels, atari); a name; none",
    )
    run_dir: Path | None = Field(
        None, description="folder of the run; none: runs/ALGO-ENV-sSEED. The same again = resume"
    )
    resume: Literal["latest", "exact", "never"] = Field(
        "latest",
        description="latest: from the newest checkpoint; exact: from the newest scheduled one, "
        "which lies on the uninterrupted run's path; never: refuse a folder that holds a run",
    )
    init_from: Path | None = Field(
        None,
        description="run folder, checkpoint or saved policy whose weights and normaliser "
        "statistics a new run begins with; not its optimizer, counters or schedules. Read once, "
        "when the run begins",
    )
    init_from_keys: tuple[str, ...] = Field(
        (),
        description="take only these of it, by name: network/encoder.*; the others begin anew. "
        "None given: all, which must then fit exactly",
    )
    learner: SerializeAsAny[BaseModel]
    env: EnvConfig
    runtime: RuntimeConfig = RuntimeConfig()
    model: ModelConfig = ModelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    report: ReportConfig = ReportConfig()

    @field_validator("seed", "total_env_steps", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("input should be a whole number")
        return value

    @field_validator("init_from_keys", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def flat(self) -> dict[str, Any]:
        """Every option by its dotted name, as JSON-able values; the learner's have no prefix."""
        values: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json").items():
            if name == "learner":
                values |= value
            elif isinstance(value, dict):
                values |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                values[name] = value
        return values


PARTS: dict[str, type[BaseModel]] = {
    "env": EnvConfig,
    "runtime": RuntimeConfig,
    "model": ModelConfig,
    "checkpoint": CheckpointConfig,
    "eval": EvalConfig,
    "report": ReportConfig,
}
"""The parts of a run whose options carry their name as a prefix."""

TOP = (
    "algo",
    "total_env_steps",
    "seed",
    "preset",
    "run_dir",
    "resume",
    "init_from",
    "init_from_keys",
)
"""Options of the run itself."""

ALIASES = {"total_steps": "total_env_steps", "env": "env.id"}
"""Short names that people may use."""

AUTOMATIC: dict[str, Any] = {
    "env.backend": "auto",
    "env.streams_per_group": None,
    "runtime.device": "auto",
    "runtime.threads": None,
    "runtime.precision": "auto",
    "runtime.compile": "auto",
    "model.encoder": "auto",
    "model.policy_hidden": None,
    "model.value_hidden": None,
    "model.activation": None,
}
"""Options that are resolved when a run begins, and the value that asks for it."""

MAY_CHANGE_ON_RESUME = ("total_env_steps", "resume", "run_dir", "runtime.device")
"""Options that a run may be resumed with at another value, beside those of eval and report."""
