"""DDPG's runs that go on with what others have left, and what they report of their actions."""

from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import newest

import quintet
from quintet.checkpoints import checkpoint
from quintet.observe.report_files import read_metrics

SMALL: dict[str, Any] = {
    "env.num_streams": 4,
    "unroll_steps": 8,
    "batch_size": 16,
    "updates_per_env_step": 0.5,
    "replay_capacity_steps": 1_000,
    "preset": "none",
    "model.policy_hidden": (8, 8),
    "eval.episodes": 0,
    "report.progress": False,
    "report.sinks": ["jsonl"],
    "report.interval_s": 0.0,
    "runtime.compile": "off",
    "runtime.threads": 1,
}


def train(folder: Path, total: int, **config: Any) -> Any:
    given = {name.replace("__", "."): x for name, x in config.items()}
    return quintet.train("ddpg", "Pendulum-v1", total, 3, folder, SMALL | given)


@pytest.mark.slow
def test_several_learners_go_on_with_a_run(tmp_path: Path) -> None:
    """Also one that has its reference batch, which new learners have not."""
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    options: dict[str, Any] = {
        "runtime__num_learners": 2, "checkpoint__max_cut_frac": 1.0,
        "checkpoint__interval_iterations": 3,
    }  # fmt: skip
    train(whole, 400, **options)
    quintet.train(
        "ddpg", "Pendulum-v1", 400, 3, halved,
        SMALL | {name.replace("__", "."): x for name, x in options.items()},
        on_report=lambda report: report["updates"] > 90,
    )  # fmt: skip
    assert train(halved, 400, resume="exact", **options).status == "finished"
    hashes = []
    for folder in (whole, halved):
        found = newest(folder)
        hashes.append(checkpoint.tensor_hashes(found))
    assert hashes[0] == hashes[1]


def test_a_policy_of_a_run_that_still_warms_up_acts_by_its_network(tmp_path: Path) -> None:
    options = SMALL | {"replay_start_steps": 500, "warmup_policy": "uniform"}
    options["exploration"] = "none"
    stop = {"on_report": lambda report: report["updates"] == 0}
    run = quintet.train("ddpg", "Pendulum-v1", 600, 3, tmp_path / "run", options, **stop)
    assert run.status == "stopped"
    policy = quintet.load(tmp_path / "run")
    assert policy.publication.tensors["warming_up"].item() is False
    obs = [[1.0, 0.0, 0.0]] * 64
    sampled, greedy = (policy.act(obs, deterministic=x)[0] for x in (False, True))
    assert sampled.tolist() == greedy.tolist()


@pytest.mark.parametrize(
    ("theirs", "ours", "scale"),
    [
        ("normal_0.1", "adaptive-param_0.2", 0.2),
        ("adaptive-param_0.3", "adaptive-param_0.2", 0.3),
        pytest.param("adaptive-param_0.3", "normal_0.1", None, marks=pytest.mark.slow),
    ],
)
def test_a_warm_start_keeps_its_own_kind_of_noise(
    tmp_path: Path, theirs: str, ours: str, scale: float | None
) -> None:
    still: dict[str, Any] = {} if "param" not in theirs else {"adapt_interval_updates": 10**6}
    train(tmp_path / "donor", 200, exploration=theirs, **still)
    still = {} if "param" not in ours else {"adapt_interval_updates": 10**6}
    run = tmp_path / "run"
    train(run, 200, exploration=ours, init_from=str(tmp_path / "donor"), **still)
    found = read_metrics(run)[-1].get("exploration/param_noise_std")
    # The first update adapts it once, by a hundredth.
    assert found == (None if scale is None else pytest.approx(scale, rel=0.025))


def test_targets_begin_with_a_saved_policy(tmp_path: Path) -> None:
    train(tmp_path / "donor", 200)
    run = tmp_path / "run"
    quintet.train(
        "ddpg", "Pendulum-v1", 200, 4, run,
        SMALL | {
            "init_from": str(tmp_path / "donor" / "policy"), "replay_start_steps": 199, "tau": 1e-6,
            "actor_lr": 1e-9,
        },
    )  # fmt: skip
    found = newest(run)
    tensors = {name: x for part in found.tensors.values() for name, x in part.items()}
    name = "actor.head.weight"
    assert tensors[f"average/{name}"].allclose(tensors[f"network/{name}"], atol=1e-6)
    said = "only its actor, so these start fresh: average/critic, network/critic, targets"
    assert said in (run / "log.txt").read_text()


def test_the_spread_of_actions_is_over_the_whole_report(tmp_path: Path) -> None:
    """A batch of one action has none."""
    train(
        tmp_path / "run", 300, env__num_streams=1, unroll_steps=1, exploration="normal_0.3",
        updates_per_env_step=0.01, report__interval_s=1e6,
    )  # fmt: skip
    last = read_metrics(tmp_path / "run")[-1]
    assert 0.25 < last["exploration/action_std"] < 0.35
