"""A training run that is watched: its speed, then its kernels, then the places where it waits.

For `gpu_cases.py`; only what `quintet.train` offers to everybody is used.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, final

import torch
import yaml
from torch.profiler import ProfilerActivity, profile, supported_activities

import quintet

SYNC = "called a synchronizing CUDA operation"
"""Part of PyTorch's warning about a synchronisation, in its debug mode for them."""

OWN = f"{Path(quintet.__file__).parent}/"

PHASES = {
    "metrics": "report",
    "report": "report",
    "publish": "publication",
    "publication": "publication",
    "rollout_to_device": "batch",
    "update": "update",
    "act": "act",
}
"""Names of quintet's functions, and the phase of a run that a wait in them belongs to."""

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy")

PLAIN = {
    "eval.episodes": 0,
    "report.progress": False,
    "report.interval_s": 0.5,
    "total_env_steps": 10**8,
    "checkpoint.interval_s": 3600,
}
"""Options of every run: nothing but training, and reports often enough for short regions."""


@final
@dataclass
class Waits:
    """Synchronisations of the host with the GPU, by phase and by line of quintet."""

    phases: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts within the block, in all threads."""
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=f".*{SYNC}")
            before = torch.cuda.get_sync_debug_mode()
            warnings.showwarning = self._show
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def _show(self, message: Warning | str, *_: object, **__: object) -> None:
        if SYNC in str(message):
            self.add(sys._getframe(1))

    def add(self, frame: FrameType | None) -> None:
        """Counts a wait in this frame, which may be one of PyTorch's that quintet's call."""
        where, phase = "?", "other"
        while frame is not None and phase == "other":
            code = frame.f_code
            if code.co_filename.startswith(OWN) and code.co_name != "tell":  # of its own warnings
                if where == "?":
                    where = f"{code.co_filename.removeprefix(OWN)}:{frame.f_lineno}"
                phase = PHASES.get(code.co_name.strip("_"), "other")
            frame = frame.f_back
        self.phases[phase] += 1
        self.lines[f"{phase}: {where}"] += 1


@final
@dataclass
class Passed:
    """What a region of a run took and did: seconds, counters, and seconds by phase."""

    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: float, before: Mapping[str, float], now: dict[str, float]) -> None:
        """Adds what passed between two reports."""
        self.seconds += seconds
        for name in ("env_steps", "updates", "iterations"):
            self.counts[name] += int(now[name] - before.get(name, 0))
        for name, share in now.items():
            if name.startswith("time/"):
                phase = name.removeprefix("time/").removesuffix("_frac")
                self.phases[phase] += share * seconds  # type: ignore[assignment]
        self.last = now

    def speed(self) -> dict[str, Any]:
        updates = max(self.counts["updates"], 1)
        return {
            "env_steps_per_s": round(self.counts["env_steps"] / self.seconds, 1),
            "updates_per_s": round(self.counts["updates"] / self.seconds, 2),
            "learning_us_per_update": round(self.phases["learning"] / updates * 1e6, 1),
            "shares": {
                phase: round(seconds / self.seconds, 3)
                for phase, seconds in self.phases.most_common()
                if seconds / self.seconds >= 0.0005
            },
            "seconds": round(self.seconds, 2),
            "updates": self.counts["updates"],
            "iterations": self.counts["iterations"],
            "return_mean": self.last.get("episode/return_mean"),
        }


@final
class Watch:
    """A function for `on_report` that goes through the regions of a run and then stops it.

    regions: names and seconds; "warmup" has no result, "speed" the speed, "kernels" what PyTorch's
        profiler saw, "waits" the synchronisations.  The last two need a CUDA GPU and are left out
        without one.
    """

    def __init__(self, regions: Mapping[str, float], device: str) -> None:
        seen = {"warmup", "speed"}
        if torch.device(device).type == "cuda":
            profiled = ProfilerActivity.CUDA in supported_activities()
            seen |= {"waits", "kernels"} if profiled else {"waits"}
        self._left = [(name, s) for name, s in regions.items() if name in seen]
        self.result: dict[str, Any] = {}
        self._now = Passed()
        self._before: dict[str, float] = {}
        self._at = time.perf_counter()
        self._ends = ExitStack()
        self._waits, self._profile = Waits(), None  # type: tuple[Waits, Any]

    def __call__(self, report: dict[str, float]) -> bool:
        """Receives a report; returns True after the last region."""
        now = time.perf_counter()
        learns = report.get("updates", 0) > 0
        if learns or self._left[0][0] != "warmup":  # a replay may have to fill before
            self._now.add(now - self._at, self._before, report)
        self._before = report
        name, seconds = self._left[0]
        if self._now.seconds >= seconds and (learns or name != "warmup"):
            self._end(name)
            self._left.pop(0)
            if not self._left:
                return True
            self._now = Passed()
            self._begin(self._left[0][0])
        self._at = time.perf_counter()
        return False

    def _begin(self, name: str) -> None:
        if name == "kernels":
            torch.cuda.synchronize()
            self._profile = self._ends.enter_context(profile(activities=[ProfilerActivity.CUDA]))
        if name == "waits":
            self._ends.enter_context(self._waits.counted())

    def _end(self, name: str) -> None:
        if name == "kernels":
            torch.cuda.synchronize()
        self._ends.close()
        if name == "speed":
            self.result |= self._now.speed()
        if name == "kernels":
            self.result["kernels"] = kernels(self._profile.key_averages(), self._now)
        if name == "waits":
            self.result["waits"] = waits(self._waits, self._now)


def kernels(events: Any, passed: Passed) -> dict[str, Any]:
    """What the profiler saw in a region, per update (optimizer step)."""
    updates = max(passed.counts["updates"], 1)
    on_gpu = [each for each in events if each.device_type == torch.autograd.DeviceType.CUDA]
    gpu_us = sum(each.self_device_time_total for each in on_gpu)
    called = Counter[str]()
    for each in events:
        for kind, names in (("launches", LAUNCHES), ("copies", COPIES)):
            if each.key.startswith(names):
                called[kind] += each.count
        if each.key.startswith("cudaGraphLaunch"):
            called["graphs"] += each.count
    return {
        "updates": passed.counts["updates"],
        **{f"{kind}_per_update": round(count / updates, 2) for kind, count in called.items()},
        "kernels_per_update": round(sum(each.count for each in on_gpu) / updates, 1),
        "gpu_us_per_update": round(gpu_us / updates, 1),
        "gpu_busy_share": round(gpu_us / 1e6 / passed.seconds, 3),
    }


def waits(seen: Waits, passed: Passed) -> dict[str, Any]:
    """Waits in a region, per iteration (fresh batch and all updates that follow it)."""
    iterations, updates = max(passed.counts["iterations"], 1), max(passed.counts["updates"], 1)
    per_update = sum(seen.phases[phase] for phase in ("batch", "update")) / updates
    return {
        "iterations": passed.counts["iterations"],
        "per_iteration": {
            phase: round(count / iterations, 2) for phase, count in seen.phases.most_common()
        },
        "per_update": round(per_update, 3),
        "lines_per_iteration": {
            line: round(count / iterations, 2) for line, count in seen.lines.most_common(12)
        },
    }


def watched(
    algo: str, env: str, options: Mapping[str, Any], regions: Mapping[str, float], device: str
) -> dict[str, Any]:
    """Trains until all regions have passed; returns their results."""
    watch = Watch(regions, device)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with TemporaryDirectory() as folder:
        config = {**PLAIN, "runtime.device": device, **options}
        total = config.pop("total_env_steps")
        begin = time.perf_counter()
        run = Path(folder) / "run"
        quintet.train(algo, env, total, 1, run, config=config, on_report=watch)
        result = watch.result | {"whole_s": round(time.perf_counter() - begin, 1)}
        result["options"] = options_of(run)
    if on_gpu:
        result["gpu_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return result


def options_of(run: Path) -> dict[str, Any]:
    """The options of a run that say where and how it computed."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    runtime = "device kind inference compile precision actor_precision tf32 threads num_workers"
    names = [f"runtime.{name}" for name in runtime.split()]
    return {name: config.get(name) for name in (*names, "env.num_streams", "env.streams_per_group")}


def trained(
    algo: str, env: str, env_steps: int, options: Mapping[str, Any], device: str
) -> tuple[dict[str, torch.Tensor], int]:
    """All tensors of the last checkpoint of a short run (weights, statistics, optimizer memory),
    and its number of updates.
    """
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        config = {**PLAIN, "runtime.device": device, **options}
        del config["total_env_steps"]
        run = Path(folder) / "run"
        result = quintet.train(algo, env, env_steps, 1, run, config=config)
        last = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))
        tensors = {
            f"{file.stem}/{name}": tensor
            for file in sorted(last.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }
        return tensors, int(result.metrics["updates"])
