"""A run of two learners in a process of its own: `learner_run_helpers.py RUN_DIR`."""

import sys

from troubles_helpers import Drifting

import quintet

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "batch_unrolls": 4,
    "normalize_observations": True,
    "policy_hidden": [8],
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl"],
    "checkpoint.interval_iterations": 10,
    "checkpoint.max_cut_frac": 1.0,
    "runtime.kind": "serial",
}
SMALL["model.policy_hidden"] = SMALL.pop("policy_hidden")


def main(run_dir: str) -> None:
    result = quintet.train(
        "impala",
        Drifting,
        total_steps=10_000_000,
        seed=7,
        run_dir=run_dir,
        config=SMALL | {"runtime.num_learners": 2, "runtime.compile": "off"},
        on_report=lambda _: print("report", flush=True),
    )
    print("status", result.status, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
