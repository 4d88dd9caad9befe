"""Whole runs of IMPALA by the public names: options, and what is refused."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from test_impala_aux import Own

import quintet
from quintet.envs.toy import Target
from quintet.errors import ConfigError
from quintet.options.command import parse
from quintet.options.resolve import compose

SMALL: dict[str, Any] = {
    "preset": "none",
    "runtime.kind": "serial",
    "env.num_streams": 6,
    "env.backend": "gymnasium",
    "unroll_steps": 16,
    "batch_unrolls": 4,
    "eval.episodes": 0,
    "report.progress": False,
}


def test_an_encoder_with_losses_trains_and_acts(tmp_path: Path):
    config = SMALL | {"aux_loss_weights": {"scalar": 0.1}}
    result = quintet.train("impala", "CartPole-v1", 640, 1, tmp_path / "run", config, model=Own)
    assert result.metrics["loss/aux/per_row"] > 0
    assert quintet.evaluate(result.policy, episodes=1).mean > 0
    for algo, env in (("ppo", "CartPole-v1"), ("acer", "CartPole-v1"), ("ddpg", "Pendulum-v1")):
        said = f"{algo} must have an encoder without auxiliary losses"
        run = {"env": env, "run_dir": tmp_path / "other", "config": {"preset": "none"}}
        with pytest.raises(ConfigError, match=said):
            quintet.train(algo, total_steps=400_000, model=Own, **run)
    assert not (tmp_path / "other").exists()


def asked(line: str) -> Any:
    """The configuration that a command line asks for."""
    layer = parse("train", shlex.split(line)).options
    return compose("impala", [layer], Target).config


def test_options_on_the_command_line():
    config = asked(
        "impala --env CartPole-v1 --vtrace-lambda 0.9 --rho-bar none --c-bar none "
        "--model.encoder test_impala_aux:Own --aux-loss-weights '{\"a\": 0.5}'"
    )
    learner = config.learner.model_dump()
    assert learner["vtrace_lambda"] == 0.9
    assert learner["rho_bar"] is learner["c_bar"] is None
    assert learner["aux_loss_weights"] == {"a": 0.5}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--c-bar 2", ["c_bar must be at most rho_bar=1.0, got 2.0; lower it, or raise rho_bar"]),
        ("--lambda 0.9", ["unknown option 'lambda'", "here it is 'vtrace_lambda'"]),
        (
            "--total-steps 100 --unroll-step 3",
            [
                "at least one batch of batch_unrolls x unroll_steps = 1920, got 100",
                "'unroll_steps'",
            ],
        ),
    ],
)
def test_faults_are_told(options: str, said: list[str]):
    with pytest.raises(ConfigError) as error:
        asked(f"impala --env CartPole-v1 {options}")
    assert all(words in str(error.value) for words in said)
