"""Whole runs on a GPU: the CPU's weights, in all kinds of runtime, and over changes of device."""

from pathlib import Path
from typing import Any

import gpu_runs_helpers
import pytest
import standin_helpers
import torch

import quintet
from quintet.checkpoints import checkpoint
from quintet.envs import repeating
from quintet.envs.tensors_as_arrays import same_device
from quintet.errors import NonFiniteError
from quintet.options.runtime import RuntimeConfig
from quintet.run import learners

PPO: dict[str, Any] = {
    **gpu_runs_helpers.PLAIN,
    "env.num_streams": 8,
    "env.streams_per_group": 4,
    "unroll_steps": 32,
    "minibatch_steps": 64,
    "num_epochs": 2,
    "model.policy_hidden": (16,),
}
ITERATION = 8 * 32


def trained(folder: Path, device: str, iterations: int = 3, **options: Any) -> Any:
    """A PPO run in the folder, begun or resumed."""
    config = PPO | {"runtime.device": device} | options
    return quintet.train(
        "ppo", "CartPole-v1", iterations * ITERATION, 1, folder, config, overwrite=False
    )


def weights(result: Any) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in result.policy.publication.tensors.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[k]) for k, x in one.items())


def test_a_run_has_the_cpus_weights_and_no_race() -> None:
    options = {name: x for name, x in PPO.items() if name not in gpu_runs_helpers.PLAIN}
    steps = 3 * ITERATION
    there = gpu_runs_helpers.run("ppo", "CartPole-v1", steps, options)
    here = gpu_runs_helpers.run("ppo", "CartPole-v1", steps, options, "cpu")
    assert there.differs_by(here) == 0.0
    assert there.phases["update"].counts.launches > 0
    assert not standin_helpers.races
    assert here.phases["run"].counts.launches == 0


def test_slow_steps_stay_in_this_process(tmp_path: Path) -> None:
    """Any step may be slow on a busy machine; environments of tests count what all of them do."""
    from run_helpers import Trouble

    own = {"unroll_steps": 4, "minibatch_steps": 32, "num_epochs": 1, "runtime.device": "cuda"}
    config = PPO | own | {"env.kwargs": {"kind": "slow", "after": 0}}
    with pytest.MonkeyPatch.context() as patched:  # which would make hundreds of slow steps
        patched.setattr(repeating, "unrepeatable", lambda *_: "")
        quintet.train("ppo", Trouble, 32, 1, tmp_path / "run", config)
    assert "processes step" not in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_runs_go_on_on_another_device(tmp_path: Path) -> None:
    found = []
    for first, then in (("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
        folder = tmp_path / f"{first}-{then}"
        trained(folder, first)
        before = quintet.load(folder).act([0.1, 0.0, -0.1, 0.0], deterministic=True)
        found.append((before, weights(trained(folder, then, 5))))
    assert all(one == found[0][0] for one, _ in found)
    assert all(same(found[0][1], other) for _, other in found[1:])


@pytest.mark.slow
def test_a_warm_start_takes_weights_of_another_device(tmp_path: Path) -> None:
    found = []
    for first, then in (("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu")):
        donor, folder = tmp_path / f"{first}-{then}-donor", tmp_path / f"{first}-{then}"
        trained(donor, first)
        found.append(weights(trained(folder, then, init_from=str(donor))))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_server_on_the_gpu_acts_as_one_on_the_cpu(core: str, tmp_path: Path) -> None:
    options = {
        "runtime.kind": "lockstep",
        "runtime.inference": "server",
        "runtime.num_workers": 1,
        "model.core": core,
        **({"model.core_size": 8, "bptt_steps": 16} if core != "none" else {}),
    }
    found = [weights(trained(tmp_path / on, on, **options)) for on in ("cpu", "cuda")]
    assert same(*found)


@pytest.mark.slow
def test_workers_and_a_server_run_freely(tmp_path: Path) -> None:
    options = {**gpu_runs_helpers.PLAIN, "runtime.kind": "async", "runtime.inference": "server"}
    small = {"env.num_streams": 8, "env.streams_per_group": 4, "model.policy_hidden": (16,)}
    for algo, more in (("impala", {"batch_unrolls": 8}), ("appo", {})):
        config = options | small | more | {"runtime.device": "cuda"}
        result = quintet.train(algo, "CartPole-v1", 4000, 1, tmp_path / algo, config)
        assert result.status == "finished"


@pytest.mark.slow
@pytest.mark.gpus(2)
def test_two_learners_on_two_gpus_are_those_of_the_cpu(tmp_path: Path) -> None:
    options = {"runtime.num_learners": 2, "runtime.learner_timeout_s": 120.0}
    found = [weights(trained(tmp_path / on, on, **options)) for on in ("cpu", "cuda")]
    assert same(*found)


@pytest.mark.slow
@pytest.mark.gpus(2)
def test_cuda_is_the_gpu_that_the_process_has_chosen() -> None:
    runtime = RuntimeConfig(kind="serial", device="cuda")
    with torch.cuda.device(1):
        assert [learners._devices(runtime, policy) for policy in range(2)] == [
            ("cuda:1",),
            ("cuda:0",),
        ]
        assert same_device(torch.device("cuda"), torch.device("cuda:1"))
    assert same_device(torch.device("cuda"), torch.device("cuda:0"))


@pytest.mark.gpus(2)
def test_policies_of_a_population_share_the_gpus(tmp_path: Path) -> None:
    options = {
        "population.size": 2,
        "population.start_env_steps": 2 * ITERATION,
        "population.period_env_steps": 2 * ITERATION,
    }
    found = [weights(trained(tmp_path / on, on, 8, **options)) for on in ("cpu", "cuda")]
    assert same(*found)


@pytest.mark.gpus(2)
def test_policies_on_two_gpus_update_at_the_same_time(tmp_path: Path) -> None:
    """The second update is launched before the host waits for the first one."""
    options = {"population.size": 2, "population.pbt": False, "checkpoint.interval_iterations": 50}
    calls: list[tuple[str, int]] = []
    with gpu_runs_helpers.phases(calls):
        on_gpus = trained(tmp_path / "cuda", "cuda", 8, **options)
    assert same(weights(on_gpus), weights(trained(tmp_path / "cpu", "cpu", 8, **options)))
    learning = [(name, waits) for name, waits in calls if name in ("update", "publication")]
    begins = [k for k, (name, _) in enumerate(learning) if name == "update"]
    pairs = [learning[k + 1] == ("update", 0) for k in begins[::2]]
    assert sum(pairs) >= len(pairs) - 2, learning  # exact checkpoints, and the end, come between
    assert not standin_helpers.races


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_a_nan_is_found_and_blamed_as_on_the_cpu(algo: str, tmp_path: Path) -> None:
    from run_helpers import Trouble

    told, kept = [], []
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        own = {name: x for name, x in PPO.items() if algo == "ppo" or "." in name}
        config = own | {"runtime.device": device, "env.kwargs": {"kind": "huge"}}
        if algo == "ppo":
            config["reward_normalizer"] = "none"
        with pytest.raises(NonFiniteError) as error:
            quintet.train(algo, Trouble, 20_000, 1, folder, config)
        told.append(str(error.value).replace(str(folder), "RUN"))
        kept.append(checkpoint.read(folder / "failed_batch").tensors["batch"])
    assert told[0] == told[1]
    assert kept[0].keys() == kept[1].keys()
    assert kept[0]["reward"].abs().max() > 1e30
    assert all(torch.equal(x, kept[1][name]) for name, x in kept[0].items() if "version" in name)
    assert torch.equal(kept[0]["reward"], kept[1]["reward"])
