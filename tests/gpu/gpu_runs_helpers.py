"""Runs on the stand-in for a GPU, and where they wait: as a module for tests, and by hand

    python tests/gpu/gpu_runs_helpers.py ppo CartPole-v1 steps=1536 unroll_steps=64

which says what each part of a run asked the device for, with lines, and whether the weights are the
CPU's.  `device=cpu`, `steps=N`, `top=N` (lines shown); every other NAME=VALUE is an option.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import standin_helpers

PLAIN: dict[str, Any] = {
    "runtime.compile": "off",
    "runtime.precision": "fp32",
    "runtime.kind": "serial",
    "runtime.threads": 1,
    "eval.episodes": 0,
    "report.progress": False,
    "report.interval_s": 3600.0,
}
"""Options of a run in one process whose weights can be compared between devices."""


@dataclass
class Phase:
    """What all calls of one part of a run asked of the device."""

    calls: int = 0
    counts: standin_helpers.Counts = field(default_factory=standin_helpers.Counts)

    @property
    def waits(self) -> float:
        """For each call."""
        return self.counts.waits / self.calls

    def told(self, name: str, top: int = 12) -> str:
        kinds = self.counts.kinds
        copies = {
            k: round(n / self.calls, 1) for k, n in kinds.items() if k not in ("kernel", "d2d")
        }
        head = (
            f"{name}: {self.calls} calls; of each {self.waits:.2f} waits, "
            f"{self.counts.launches / self.calls:.0f} launches, {copies}"
        )
        found = self.counts.lines((*standin_helpers.WAITS, "h2d_async", "d2h_async", "cpu_scalar"))
        return "\n    ".join([head, *found[:top]])


@dataclass
class Ran:
    """A finished run: its publication, its result, and what each part asked of the device.

    calls: all parts in the order of their calls, each with its waits.
    """

    tensors: dict[str, Any]
    result: Any
    phases: dict[str, Phase]
    calls: list[tuple[str, int]]

    @property
    def iteration(self) -> int:
        """The waits from one fresh update to the next one, of most iterations."""
        found, now = [], 0
        for name, waits in self.calls:
            if name == "update":
                found.append(now)
                now = 0
            now += waits
        return Counter(found[1:]).most_common(1)[0][0]

    def differs_by(self, other: "Ran") -> float:
        """The largest difference between two tensors of the publications; 0: the same bytes."""
        import torch

        assert self.tensors.keys() == other.tensors.keys()
        worst = 0.0
        for name, mine in self.tensors.items():
            if not torch.equal(mine, other.tensors[name]):
                worst = max(
                    worst, (mine.double() - other.tensors[name].double()).abs().max().item()
                )
        return worst


@contextmanager
def phases(calls: list[tuple[str, int]]) -> Iterator[dict[str, Phase]]:
    """Counts by parts of the runs in the block: batch (to the device), update, update (replayed),
    publication (of the learner, and to the actors), act, collection (of tensors that stay on
    the device), and run: all of it.
    """
    from quintet.run import learners
    from quintet.runtime import device_rows, loop, sampler

    found: dict[str, Phase] = {}

    def counted(call: Callable[..., Any], name: Callable[..., str] | str) -> Callable[..., Any]:
        def counting(*args: Any, **given: Any) -> Any:
            part = name if isinstance(name, str) else name(*args)
            phase = found.setdefault(part, Phase())
            phase.calls += 1
            with standin_helpers.counting() as counts:
                try:
                    return call(*args, **given)
                finally:
                    phase.counts.add(counts)
                    calls.append((part, counts.waits))

        return counting

    def updated(batch: Any, *_: object) -> str:
        return "update (replayed)" if batch.replayed else "update"

    make, move = learners.make_learner, loop.rollout_to_device
    publish, act = sampler.SerialSampling.publish, sampler.GroupSampler.act
    collect = device_rows.DeviceRows.collect

    def make_learner(*args: Any, **given: Any) -> Any:
        learner: Any = make(*args, **given)
        learner.update = counted(learner.update, updated)
        learner.publication = counted(learner.publication, "publication")
        return learner

    try:
        learners.make_learner = make_learner
        loop.rollout_to_device = counted(move, "batch")
        sampler.SerialSampling.publish = counted(publish, "publication to actors")  # type: ignore[method-assign]
        sampler.GroupSampler.act = counted(act, "act")  # type: ignore[method-assign]
        device_rows.DeviceRows.collect = counted(collect, "collection")  # type: ignore[method-assign]
        with standin_helpers.counting() as whole:
            yield found
        found["run"] = Phase(1, whole)
    finally:
        learners.make_learner, loop.rollout_to_device = make, move
        sampler.SerialSampling.publish = publish  # type: ignore[method-assign]
        sampler.GroupSampler.act = act  # type: ignore[method-assign]
        device_rows.DeviceRows.collect = collect  # type: ignore[method-assign]


def run(
    algo: str, env: Any, steps: int, options: Mapping[str, Any] | None = None, device: str = "cuda",
    **given: Any,
) -> Ran:  # fmt: skip
    """One run, whose folder is gone afterwards."""
    import quintet

    calls: list[tuple[str, int]] = []
    with TemporaryDirectory() as folder, phases(calls) as found:
        config = PLAIN | {"runtime.device": device} | dict(options or {})
        result = quintet.train(
            algo,
            env,
            total_steps=steps,
            seed=1,
            run_dir=Path(folder) / "run",
            config=config,
            **given,
        )
        tensors = {name: x.clone() for name, x in result.policy.publication.tensors.items()}
    return Ran(tensors, result, found, calls)


def main(words: list[str]) -> int:
    import yaml

    algo, env, *rest = words
    options = {name: yaml.safe_load(value) for name, value in (word.split("=", 1) for word in rest)}
    steps, top = options.pop("steps", 2000), options.pop("top", 12)
    device = options.pop("device", "cuda")
    ran = run(algo, env, steps, options, device)
    for name, phase in ran.phases.items():
        print(phase.told(name, 0 if name == "run" else top))
    print("races:", dict(standin_helpers.races) or "none")
    if device != "cpu":
        only_there = {"runtime.compile": "graph", "runtime.inference": "device"}
        options = {k: x for k, x in options.items() if only_there.get(k) != x}
        print("differs from the CPU by", ran.differs_by(run(algo, env, steps, options, "cpu")))
    return 0


if __name__ == "__main__":
    if "STANDIN_GPUS" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], standin_helpers.environment())
    sys.exit(main(sys.argv[1:]))
