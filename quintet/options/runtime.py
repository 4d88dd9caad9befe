"""Options of processes, threads, devices and precision."""

from typing import TYPE_CHECKING, Literal, final

from quintet.options.bounds import (
    Count,
    CountFrom0,
    LongWait,
    Seconds,
    Steps,
    StepsFrom0,
    Streams,
    Tasks,
    Threads,
)
from quintet.options.declaration import Needs, Options, option

if TYPE_CHECKING:
    from quintet.algorithms.parts.setup import Compute
    from quintet.runtime.torch_settings import GpuMath


_SERVES = "runtime.inference=server and runtime.kind=async"


def _may_be_cuda(device: str) -> bool:
    return device == "auto" or device.startswith("cuda")


_GPU = Needs("a CUDA GPU (runtime.device is {o.device})", lambda o, _: _may_be_cuda(o.device))


@final
class RuntimeConfig(Options):
    """Options of processes, threads, devices and precision."""

    kind: Literal["serial", "lockstep", "async"] = option("serial", also="async_rl serial_mode")
    """order of sampling and learning; serial: one process samples and learns in turn; lockstep:
    workers sample the next batch during the update; async: workers run freely
    (never identical results twice)
    """
    lag: Literal[0, 1] = option(1, needs="runtime.kind=lockstep")
    """lockstep: age in versions of the weights that sample a batch; 0: the results of serial,
    without overlap
    """
    num_workers: Tasks | None = option(
        None,
        needs="runtime.kind=lockstep or runtime.kind=async",
        also="num_actors num_rollout_workers num_env_runners n_workers",
        auto=True,
        on_resume="free",
    )
    """number of worker processes, at most one per group of streams; none: the number of cores, on a
    cluster times cluster.nodes_max (else nodes_min); changes results only through the default of
    env.streams_per_group
    """
    inference: Literal["auto", "local", "server", "device"] = option(
        "auto",
        needs=(
            Needs("runtime.kind=lockstep or runtime.kind=async", value="server"),
            Needs(
                "runtime.kind=serial and a CUDA GPU (runtime.device=cuda)",
                lambda o, _: o.kind == "serial" and _may_be_cuda(o.device),
                value="device",
            ),
        ),
        auto=True,
    )
    """place where actions are computed; local: on the CPU, in the process that steps environments;
    server: in one process for all workers, on runtime.device (for a GPU); device: on the GPU, in
    serial; auto: device in serial with pictures and grids on a CUDA GPU, else local; evaluations
    during the run act there too, in fp32
    """
    inference_batch_min: Streams = option(1, needs=_SERVES)
    """server of async: least number of streams in an act"""
    inference_batch_max: Streams = option(512, needs=_SERVES)
    """server of async: largest number of streams in an act"""
    inference_timeout_ms: Seconds = option(
        100.0, needs=(_SERVES, "runtime.inference_batch_min > 1")
    )
    """server of async: longest wait for streams, in milliseconds"""
    max_policy_lag: StepsFrom0 | None = option(None, needs="runtime.kind=async")
    """async: age in versions above which rows are not learned from; none: the learner's default"""
    slots: Count | None = option(None, needs="runtime.kind=async", auto=True)
    """async: unrolls for which each group has memory; none: 2, or a batch and one more"""
    prefetch_batches: Count = option(2, needs="runtime.kind=async")
    """async: number of batches assembled in advance"""
    publish_interval_iterations: Steps = option(1, also="publish_interval_updates")
    """iterations (fresh batches) after which actors get new weights"""
    worker_timeout_s: LongWait = option(60.0, on_resume="free")
    """longest step of the environments, in seconds, before a worker counts as hung (a minute more
    while it makes them or compiles; time without a core does not count); serial: the hanging line
    is printed
    """
    max_restarts: CountFrom0 = option(
        3, needs="runtime.kind=async or cluster.address", on_resume="free"
    )
    """async: number of workers and nodes that may be lost before the run ends with an error; on a
    cluster, lockstep: number of times that the run goes back to its last exact checkpoint
    """
    num_learners: Tasks = option(
        1,
        needs=(
            "population.size=1",
            Needs("an algorithm whose learners can share batches", lambda _, f: f.shared),
        ),
        also="num_gpu_learners",
        on_resume="rounds",
    )
    """number of processes that share every batch and make one update together, equal to one
    learner's but for rounding; each has its own GPU, from cuda:0 on, or `threads` of the CPU
    """
    learner_timeout_s: LongWait = option(300.0, needs="runtime.num_learners > 1", on_resume="free")
    """largest delay of an update behind another learner's, in seconds, before it counts as hung"""
    device: str = option(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?|xpu(:\d+)?|mps)$",
        also="cuda use_cuda gpu use_gpu num_gpus num_gpus_per_learner",
        auto=True,
        on_resume="rounds",
    )
    """device of the learner: cpu, cuda, cuda:1, or xpu (Intel's GPUs, not tried); auto: a
    CUDA GPU for pictures and grids if there is one, else the CPU; cuda divides the policies of a
    population among all GPUs
    """
    replay_device: Literal["auto", "cpu", "learner"] = option(
        "auto",
        needs=(
            Needs(
                "an algorithm with replay",
                lambda _, f: any(name.startswith("replay_") for name in vars(f.learner)),
            ),
            "runtime.num_learners=1",
        ),
        on_resume="free",
    )
    """place where replay draws read pictures and other large observations; cpu: the replay's files;
    learner: a copy on the learner's CUDA GPU; auto: learner, if it fits in half of the GPU's free
    memory
    """
    threads: Threads | None = option(None, auto=True, on_resume="rounds")
    """number of PyTorch's CPU threads; none: 1 for small networks, all cores (at most 8) for
    pictures, grids and layers of 256 x 256, half of them with workers, divided among several
    learners; results depend on it, but a resume may change it
    """
    actor_threads: Threads | None = option(None, auto=True, on_resume="rounds")
    """number of PyTorch's CPU threads for computing actions; none: 1 in workers, else as
    runtime.threads, but without its rule for wide layers; results depend on it
    """
    precision: Literal["auto", "fp32", "bf16"] = option("auto", auto=True)
    """number format of the learner's encoders; auto: bf16 for pictures and grids if the device is
    faster with it (AMX, AMD's AVX512-BF16, GPUs with bfloat16), else fp32; weights, heads and
    losses are always fp32; results depend on it
    """
    actor_precision: Literal["auto", "fp32", "bf16"] = option("auto", auto=True)
    """number format of encoders where actions are computed; auto: as runtime.precision, but fp32 if
    the learner is on a GPU and actors are on a CPU that is not faster with bf16; results depend on
    it
    """
    deterministic: Literal["auto", "on", "off"] = option(
        "auto", needs=_GPU, also="torch_deterministic"
    )
    """use only GPU algorithms that give identical results twice, though some are slower; auto: on,
    but off for async runs, which never repeat; results depend on it
    """
    tf32: Literal["auto", "on", "off"] = option("auto", needs=_GPU, also="allow_tf32")
    """TF32 for products of float32 matrices and for convolutions on a GPU: faster, with 10 bits of
    each factor; auto: off; for runtime.kind=async PyTorch's setting (by default: for convolutions);
    results depend on it
    """
    compile: Literal["auto", "on", "off", "graph"] = option(
        "auto",
        needs=Needs(
            "a CUDA GPU (runtime.device=cuda)", lambda o, _: _may_be_cuda(o.device), value="graph"
        ),
        also="torch_compile",
        auto=True,
    )
    """one graph per act and per whole update (gradient, clipping, optimizer); on: compiled, which
    takes minutes for recurrent networks; graph: one launch on a CUDA GPU, with the results of off;
    auto: `graph` on a CUDA GPU, unless the encoder is your own; `on` on the CPU, if a feed-forward
    network has at least 30,000 planned optimizer steps of a policy (3,000 on pictures) and there is
    a C++ compiler; film_grid can only be off; results depend on it
    """

    @property
    def compute(self) -> "Compute":
        """Precision and graphs of the learner, and the device to which it publishes; for resolved
        configurations.
        """
        from quintet.algorithms.parts.setup import Compute

        assert self.precision != "auto"
        graph = self.compile == "graph" and self.device.startswith("cuda")
        act_on = self.actor_compute.act_on
        return Compute(self.precision, self.compile == "on", act_on=act_on, graph=graph)

    @property
    def actor_compute(self) -> "Compute":
        """Precision and graphs of actors, and their device where no server acts; for resolved
        configurations.
        """
        from quintet.algorithms.parts.setup import Compute

        assert self.actor_precision != "auto"
        # A run that began on a GPU may be resumed without one.
        on_gpu = self.inference == "device" and self.device.startswith("cuda")
        return Compute(
            self.actor_precision,
            self.compile == "on",
            act_on=self.device if on_gpu else "cpu",
            graph=self.compile == "graph" and on_gpu,
        )

    @property
    def gpu_math(self) -> "GpuMath":
        """Settings of a GPU's arithmetic, if there is one."""
        from quintet.runtime.torch_settings import GpuMath

        tf32 = None if self.tf32 == "auto" and not self.exact else self.tf32 == "on"
        always = self.deterministic == "auto" and self.exact
        return GpuMath(always or self.deterministic == "on", tf32)

    @property
    def exact(self) -> bool:
        """Whether a run gives the same bytes twice."""
        return self.kind != "async"
