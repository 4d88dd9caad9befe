"""What an update of ACER costs, in microseconds, on one thread: with and without the trust region,
eager and compiled, of quintet and of the bare limit, on the networks of the workloads.

    python benchmarks/acer_step.py [WORKLOAD ...] [--record FILE]

A batch in memory; an update of quintet is a call of the learner's, statistics included.  Variants
take turns in one process; printed are medians of processor time, and what the trust region takes of
an update, the median over the rounds.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from fixed_work import acer as bare_acer
from fixed_work import workloads
from fixed_work.acer import ACERWork

from quintet.algorithms.acer.learner import ACERLearner
from quintet.envs.public import make_vector_env
from quintet.options.layers import Layer
from quintet.options.machine import has_compiler
from quintet.options.resolve import compose, resolve
from quintet.options.run import RunConfig
from quintet.run.learners import make_learner
from quintet.system.provenance import revision
from quintet.types import Rollout, Spaces

WORKLOADS = ("cartpole-acer", "pong-acer")
CALLS = {"cartpole-acer": 16, "pong-acer": 1}
"""Of a turn."""

Update = Callable[[], object]


def read(name: str) -> ACERWork:
    work = workloads.read(name)
    assert isinstance(work, ACERWork), f"{name} is no workload of ACER"
    return work


def spaces_of(work: ACERWork) -> Spaces:
    env = make_vector_env(work.env_id, 1, backend=work.env_backend)
    spaces = env.spaces
    env.close()
    return spaces


def rollout_of(work: ACERWork, data: bare_acer.Batch) -> Rollout:
    """The same rows as the learner gets them."""
    rows = (work.rollout + 1, work.num_envs)
    never, nobody = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64)
    return Rollout(
        obs={"obs": data.obs.unflatten(0, rows)},
        action=data.action,
        reward=data.reward,
        terminated=data.discount == 0,
        truncated=never[1:],
        valid=~never[1:],
        is_first=never,
        record={"params_mu": data.log_mu},
        version=nobody[1:],
        policy_id=nobody[1:],
        stream_id=torch.arange(work.num_envs),
        group_id=nobody[0],
        episode_id=nobody[0],
        last_action=data.action[0],
        last_reward=data.reward[0],
        state={},
        replayed=True,
    )


def configured(work: ACERWork, spaces: Spaces, compiled: bool) -> RunConfig:
    asked = Layer("benchmark", {"runtime.compile": "on" if compiled else "off"})
    return resolve(compose("acer", [workloads.layer(work), asked]), spaces).config


def learner_of(work: ACERWork, spaces: Spaces, compiled: bool) -> ACERLearner:
    learner: Any = make_learner(configured(work, spaces, compiled), spaces)
    assert isinstance(learner, ACERLearner)
    return learner


def quintets(work: ACERWork, spaces: Spaces, compiled: bool, data: bare_acer.Batch) -> Update:
    learner, batch = learner_of(work, spaces, compiled), rollout_of(work, data)
    return lambda: learner.update(batch, 0)


def bare(work: ACERWork, spaces: Spaces, compiled: bool, data: bare_acer.Batch) -> Update:
    precision = configured(work, spaces, compiled).runtime.compute.precision
    return bare_acer.update(work, work.network(spaces), precision, data, compiled)


def variants(work: ACERWork, spaces: Spaces, compiled: bool) -> dict[str, Update]:
    torch.manual_seed(0)
    data, found = bare_acer.batch(work, spaces), {}
    for region in (True, False):
        which = work.model_copy(update={"trust_region": region})
        for side, make in (("quintet", quintets), ("bare", bare)):
            found[f"{side}{'' if region else ' without trust region'}"] = make(
                which, spaces, compiled, data
            )
    return found


def in_turns(calls: dict[str, Update], number: int, rounds: int) -> dict[str, list[float]]:
    """By variant: microseconds of processor time of each round, in which each takes its turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        print(f"    {name}: first after {time.perf_counter() - begin:.1f} s", flush=True)
        for _ in range(2):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.process_time()
            for _ in range(number):
                call()
            times[name].append((time.process_time() - begin) / number * 1e6)
    return times


def summary(times: dict[str, list[float]]) -> dict[str, float]:
    """Medians by variant, the trust region's share of an update, and how fast the bare update is
    beside ours.
    """
    found = {name: median(each) for name, each in times.items()}
    for side in ("quintet", "bare"):
        both = zip(times[side], times[f"{side} without trust region"], strict=True)
        found[f"share of the trust region, {side}"] = median(1 - b / a for a, b in both)
    both = zip(times["quintet"], times["bare"], strict=True)
    found["bare of quintet"] = median(b / a for a, b in both)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", nargs="*", default=[], help=" or ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name in args.workload or WORKLOADS:
        work = read(name)
        spaces = spaces_of(work)
        for compiled in (False, True) if has_compiler() else (False,):
            label = f"{name}, {'compiled' if compiled else 'eager'}"
            print(label)
            calls = variants(work, spaces, compiled)
            times = in_turns(calls, CALLS.get(name, 1), args.rounds)
            found[label] = summary(times)
            for what, x in found[label].items():
                print(f"    {what:40}", f"{x:9.0f} us" if what in times else f"{x:9.2f}")
    if args.record:
        facts = {
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg(),
            "commit": revision(Path(__file__).parent, 12),
        }
        args.record.write_text(json.dumps({**facts, "us": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
