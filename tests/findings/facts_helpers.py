"""Settings that the tests of the dashboard start from."""

from dataclasses import replace

from quintet.findings.speed import RunFacts
from quintet.protocols import UpdateAdvice

FACTS = RunFacts(
    env="CartPole-v1",
    backend="gymnasium",
    in_python=True,
    faster="the same id in C++ (--env.backend envpool)",
    num_streams=8,
    num_groups=2,
    auto_num_groups=2,
    env_threads=1,
    auto_env_threads=1,
    large_network=False,
    device="cpu",
    threads=1,
    cores=16,
    gpu=False,
    compiles=False,
    may_compile=True,
    compiler=True,
    batch_steps=2048,
    update=UpdateAdvice(
        "10 passes in minibatches of 64",
        ("fewer passes than 10 (--num-epochs)", "larger minibatches (--minibatch-steps 128)"),
    ),
    eval_episodes=10,
    sinks=True,
)
ABSENT = "EnvPool, if it has this id in C++ (see quintet envs)"
"""What is faster where EnvPool is not installed."""

POOL = {"backend": "envpool", "in_python": False}
PICTURES = replace(FACTS, env="Pong-v5", large_network=True, may_compile=False, **POOL)
