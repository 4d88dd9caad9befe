"""What runs where: processes, threads, devices, precision."""

from typing import TYPE_CHECKING, Literal, final

from pydantic import BaseModel, ConfigDict

from quintet.bounds import (
    MOST_COUNT,
    MOST_SECONDS,
    MOST_STEPS,
    Count,
    Steps,
    Streams,
    Tasks,
    Threads,
)
from quintet.options import option

if TYPE_CHECKING:
    from quintet.algorithms.parts.setup import Compute


_SERVES = "runtime.inference=server and runtime.kind=async"


@final
class RuntimeConfig(BaseModel):
    """What runs where."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["serial", "lockstep", "async"] = option(
        "serial",
        doc="serial: one process samples and learns in turn; lockstep: worker processes "
        "sample the next batch while the learner updates on this one; async: workers run freely, "
        "the learner takes what is ready. The first two give the same bytes twice",
        also="async_rl serial_mode",
    )
    lag: Literal[0, 1] = option(
        1,
        doc="lockstep: how many versions old the weights are that sampled a batch; 0 gives "
        "what serial gives, and no overlap",
        needs="runtime.kind=lockstep",
    )
    num_workers: Tasks | None = option(
        None,
        doc="sampler processes, at most one for each group of streams; none: as many as "
        "there are cores. Not part of the result's bytes once env.streams_per_group is given",
        needs="runtime.kind=lockstep or runtime.kind=async",
        also="num_actors num_rollout_workers num_env_runners n_workers",
    )
    inference: Literal["local", "server"] = option(
        "local",
        doc="local: every worker computes its actions; server: one process does for all "
        "of them, on runtime.device, which is worth it with a GPU",
        needs="runtime.kind=lockstep or runtime.kind=async",
    )
    inference_batch_min: Streams = option(
        1, doc="server of async: streams that it waits for before it acts", needs=_SERVES
    )
    inference_batch_max: Streams = option(
        512, doc="server of async: most streams that it acts on at once", needs=_SERVES
    )
    inference_timeout_ms: float = option(
        100.0,
        gt=0,
        le=MOST_SECONDS,
        doc="server of async: longest wait for them, in milliseconds",
        needs=(_SERVES, "runtime.inference_batch_min > 1"),
    )
    max_policy_lag: int | None = option(
        None,
        ge=0,
        le=MOST_STEPS,
        doc="async: rows of weights that are more versions old are not learned from; none: "
        "as the learner says",
        needs="runtime.kind=async",
    )
    slots: Count | None = option(
        None,
        doc="async: unrolls that each group has memory for; none: 2, or what it takes for "
        "a batch and one unroll more",
        needs="runtime.kind=async",
    )
    prefetch_batches: Count = option(
        2,
        doc="async: batches that may wait, assembled, for the learner",
        needs="runtime.kind=async",
    )
    publish_interval_updates: Steps = option(
        1, doc="batches learned from between two publications of weights to actors"
    )
    worker_timeout_s: float = option(
        60.0,
        ge=1,
        le=MOST_SECONDS,
        doc="seconds that one step of the environments may take; after that a worker "
        "counts as hung (a minute later where it makes them or compiles its first act; time in "
        "which it had no core does not count), and serial "
        "says where it hangs",
    )
    max_restarts: int = option(
        3,
        ge=0,
        le=MOST_COUNT,
        doc="async: workers that are replaced before the run ends with an error",
        needs="runtime.kind=async",
    )
    num_learners: Tasks = option(
        1,
        doc="processes that share every batch and make one update together, what one "
        "learner makes of the whole batch but for rounding; each on a GPU of its own, from cuda:0 "
        "on, or with `threads` of the CPU",
        also="num_gpu_learners",
    )
    learner_timeout_s: float = option(
        300.0,
        ge=1,
        le=MOST_SECONDS,
        doc="several learners: seconds that one may take longer for an update than "
        "another before it counts as hung",
        needs="runtime.num_learners > 1",
    )
    device: str = option(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        doc="where the learner computes: auto, cpu, cuda, cuda:1; auto takes a GPU for "
        "picture and grid networks when there is one, and the CPU for small ones, which are "
        "faster there; with cuda the policies of a population are shared out over all GPUs",
        also="cuda use_cuda gpu use_gpu num_gpus",
    )
    threads: Threads | None = option(
        None,
        doc="threads of PyTorch's CPU kernels; none: all cores (8 at most) for picture "
        "and grid networks and for layers of 256 times 256, half of them beside workers, 1 for "
        "small ones; of several learners each has its part of them. Part of the result's bytes: a "
        "resume may change it, and goes on with other rounding",
    )
    actor_threads: Threads | None = option(
        None,
        doc="of them where actions are computed; none: 1, for picture and grid networks "
        "as many as a single learner would have where one process does all, and for a server. "
        "Part of the result's bytes",
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        doc="what the learner's encoders compute in; auto: bf16 for picture and grid "
        "networks where the device is faster with it (processors with AMX, AMD's with "
        "AVX512-BF16, GPUs that multiply bfloat16), else fp32. "
        "Weights, heads and losses are fp32 always. Part of the result's bytes",
    )
    actor_precision: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        doc="what encoders compute in where actions are computed; auto: as `precision`, "
        "but fp32 where the learner is on a GPU and actions are computed on a CPU that is not "
        "faster with bf16. Part of the result's bytes",
    )
    compile: Literal["auto", "on", "off"] = option(
        "auto",
        doc="an act, and the whole update (gradient, clipping, optimizer), as one compiled "
        "graph each (of several learners: the gradient, and the step); auto: for feed-forward "
        "networks on the CPU, at 30,000 planned optimizer steps or more of a policy (3,000 on "
        "pictures), where there is a C++ compiler; on: also for recurrent ones, which takes "
        "minutes; never film_grid. Part of the result's bytes",
        also="torch_compile",
    )

    @property
    def compute(self) -> "Compute":
        """How the learner computes; for resolved configurations."""
        from quintet.algorithms.parts.setup import Compute

        assert self.precision != "auto"
        return Compute(self.precision, self.compile == "on")

    @property
    def actor_compute(self) -> "Compute":
        """How actors compute, on the CPU; for resolved configurations."""
        from quintet.algorithms.parts.setup import Compute

        assert self.actor_precision != "auto"
        return Compute(self.actor_precision, self.compile == "on")

    @property
    def exact(self) -> bool:
        """Whether a run gives the same bytes twice."""
        return self.kind != "async"
