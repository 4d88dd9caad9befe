"""Environments whose tensors stay on the GPU: the host waits once per unroll, and the weights are
the CPU's."""

from collections.abc import Callable
from typing import Any

import pytest
from gpu_runs_helpers import run

SMALL: dict[str, Any] = {
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "num_epochs": 1,
    "env.num_streams": 8,
    "model.policy_hidden": (8,),
}
LSTM = {"model.core": "lstm", "model.core_size": 8, "bptt_steps": 16}
RETURNS = {"reward_normalizer": "return_std"}
IMPALA = {"batch_unrolls": 4, "unroll_steps": 16, "env.num_streams": 8, "model.policy_hidden": (8,)}


@pytest.mark.parametrize(
    ("algo", "env", "options"),
    [
        pytest.param("ppo", "torch/CartPole-v1", SMALL, id="ppo"),
        pytest.param("ppo", "torch/Grid-v0", SMALL | LSTM | {"env.kwargs": {"masked": True}},
                     id="masked, lstm"),
        pytest.param("ppo", "torch/Pendulum-v1", SMALL | RETURNS | {"env.reward_clip": "abs_one"},
                     id="returns, clipped"),
        pytest.param("impala", "torch/Pendulum-v1", IMPALA, id="half of the streams"),
        pytest.param("appo", "torch/CartPole-v1", SMALL | {"minibatches_per_iteration": 1},
                     id="appo"),
    ],
)  # fmt: skip
def test_the_host_waits_once_per_unroll(algo: str, env: str, options: dict[str, Any]) -> None:
    unrolls = 6
    mine = run(algo, env, 16 * 8 * unrolls, options)
    counts = mine.phases["collection"].counts
    said = "\n".join(counts.lines())
    assert unrolls <= counts.kinds["d2h"] <= unrolls + 1, said
    # Bounds of the actions are sent once; the last unroll asks how many more rows it needs.
    assert counts.waits <= counts.kinds["d2h"] + 4, said
    assert mine.phases["publication to actors"].waits == 0
    assert mine.phases["batch"].counts.launches == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quintet.run.sampling.staying", lambda *_: None)
        through_host = run(algo, env, 16 * 8 * unrolls, options)
    assert "collection" not in through_host.phases
    assert mine.differs_by(through_host) == 0
    theirs = run(algo, env, 16 * 8 * unrolls, options, "cpu")
    assert mine.differs_by(theirs) < 1e-6


def test_an_unroll_is_one_graph_with_the_bytes_of_eager_steps() -> None:
    from quintet.runtime import device_rows

    record = device_rows.recorded
    graphs: list[Callable[[], None]] = []

    def recorded(*given: Any) -> Callable[[], None]:
        graphs.append(record(*given))
        return graphs[-1]

    launches, found = [], []
    device_rows.recorded = recorded
    try:
        for compile_ in ("off", "graph"):
            options = SMALL | LSTM | RETURNS
            options |= {"runtime.compile": compile_, "checkpoint.max_cut_frac": 1.0}
            options["checkpoint.interval_iterations"] = 3
            ran = run("ppo", "torch/CartPole-v1", 16 * 8 * 7, options)
            collection = ran.phases["collection"]
            launches.append(collection.counts.launches / collection.calls)
            found.append(ran)
    finally:
        device_rows.recorded = record
    assert len(graphs) == 1
    assert found[0].differs_by(found[1]) == 0
    # The first unroll and the last, shorter one are steps.
    assert launches[1] < launches[0] / 2


def test_a_step_that_waits_is_refused_in_a_graph() -> None:
    from quintet.envs.torch_toys import CartPole
    from quintet.errors import QuintetError

    def waits(num_envs: int) -> CartPole:
        env = CartPole(num_envs, "cuda")
        step = env.step

        def waiting(action: Any) -> Any:
            action.sum().item()
            return step(action)

        env.step = waiting  # type: ignore[method-assign]
        return env

    options = SMALL | {"runtime.compile": "graph"}
    with pytest.raises(QuintetError, match="must only launch kernels in its steps"):
        run("ppo", waits, 16 * 8 * 4, options)
