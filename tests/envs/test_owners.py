"""Environments that exist already: who closes them, and what is refused at the start."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

import quintet
from quintet.errors import ConfigError

SMALL = {
    "unroll_steps": 32,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.progress": False,
    "runtime.compile": "off",
    "checkpoint.interval_iterations": 1,
    "checkpoint.max_cut_frac": 1.0,
}


class Closing(gymnasium.Wrapper):
    """Can't be reset after it is closed."""

    closed = False

    def reset(self, **given: Any) -> Any:
        assert not self.closed, "reset after close()"
        return super().reset(**given)

    def close(self) -> None:
        self.closed = True


def make() -> Closing:
    return Closing(gymnasium.make("CartPole-v1"))


def test_a_sync_vector_env_over_objects_is_stepped_as_it_is_and_not_closed(tmp_path: Path) -> None:
    envs = [make(), make()]
    given = SyncVectorEnv([lambda env=env: env for env in envs])
    with pytest.warns(UserWarning, match="no evaluation while training"):
        result = quintet.train("ppo", given, 256, 0, tmp_path, SMALL)
    assert result.status == "finished"
    assert not any(env.closed for env in envs)
    assert "resumes of this run are not exact" in (tmp_path / "log.txt").read_text()
    with pytest.raises(ConfigError, match=r"eval\.episodes must be 0"):
        quintet.train("ppo", given, 256, 0, tmp_path / "eval", SMALL | {"eval.episodes": 2})


def test_a_sync_vector_env_over_classes_is_made_again_for_evaluations(tmp_path: Path) -> None:
    result = quintet.train("ppo", SyncVectorEnv([make] * 2), 256, 0, tmp_path, SMALL)
    assert result.metrics["eval/return_mean"] > 0
    assert "not exact" not in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("episodes", [0, 2])
def test_a_callable_that_gives_one_object_again_is_refused_at_the_start(
    episodes: int, tmp_path: Path
) -> None:
    env = make()
    own = {"env.num_streams": 1, "eval.episodes": episodes, "run_dir": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=r"one that was closed after an earlier call: create"):
        quintet.train("ppo", lambda: env, 256, config=SMALL | own)
    assert not (tmp_path / "run").exists()
    # What the message names works.
    one = make()
    given = SyncVectorEnv([lambda: one])
    with pytest.warns(UserWarning, match="no evaluation"):
        quintet.train("ppo", given, 256, 0, tmp_path / "one", SMALL)
    assert not one.closed
