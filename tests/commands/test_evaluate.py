"""``quintet eval`` of games."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from quick_helpers import begin
from small_run_helpers import SMALL

import quintet
from quintet.commands.cli import main
from quintet.envs.config import EnvConfig
from quintet.envs.eval_env import of_another
from quintet.errors import ConfigError, UntrustedError
from quintet.observe.report_files import read_metrics
from quintet.policies.episodes import Games
from quintet.system.trust import Call, Origin

COINS = "quintet.envs.games:parallel_env"


def test_games_are_counted_from_the_policy_s_side() -> None:
    games = Games(np.array([2.0, 3.0, 1.0, 0.0]), np.ones(4))
    assert (games.won, games.drawn, games.lost) == (2, 1, 1)


def test_against_plays_games_with_another_run_or_with_random_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    policies = [
        quintet.train("ppo", COINS, 64, seed=seed, run_dir=run, config=SMALL).policy
        for seed, run in enumerate(runs)
    ]
    for word, other in (("random", "random"), (str(runs[1]), policies[1])):
        games = quintet.evaluate(policies[0], episodes=12, against=other).games
        assert games is not None
        assert games.own.tolist() != games.theirs.tolist()
        command = ["eval", str(runs[0]), "--against", word, "--episodes", "12"]
        capsys.readouterr()
        assert main([*command, "--json"]) == 0
        counts = {"won": games.won, "drawn": games.drawn, "lost": games.lost}
        assert json.loads(capsys.readouterr().out)["games"] == {
            **counts,
            "own": games.own.tolist(),
            "theirs": games.theirs.tolist(),
        }
        assert main(command) == 0
        said = ", ".join(f"{count} {how}" for how, count in counts.items())
        means = f"{games.own.mean():.2f} against {games.theirs.mean():.2f}"
        assert f"games: {said}; mean return {means}" in capsys.readouterr().out
    assert main(["eval", str(runs[0]), "--against", str(tmp_path / "none")]) == 1


class Three:
    """Three agents, of whom the first alone is paid, for one step."""

    possible_agents = ("first", "second", "third")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions: dict[str, int]) -> Any:
        paid = {agent: float(agent == "first") for agent in actions}
        over, no = dict.fromkeys(actions, True), dict.fromkeys(actions, False)
        self.agents = []
        return dict.fromkeys(actions, 0), paid, over, no, {}

    def close(self) -> None:
        pass


class Two(Three):
    possible_agents = ("first", "second")


@pytest.mark.parametrize("kind", [Two, Three])
def test_seats_are_shared_evenly(kind: type, tmp_path: Path) -> None:
    options = SMALL | {"env.backend": "pettingzoo", "env.num_streams": 6, "eval.episodes": 0}
    policy = quintet.train("ppo", kind, 96, run_dir=tmp_path / "run", config=options).policy
    for episodes in (2, 3, 10, 25, 26, 99, 100):
        games = quintet.evaluate(policy, kind, episodes=episodes, against="random").games
        assert games is not None
        assert len(games.own) == episodes
        assert games.won == -(-episodes // 2)  # the games in which it was the first
        assert games.lost == episodes // 2
        # At every moment, too, as far as games have the same length.
        assert (games.own > games.theirs)[: episodes // 2 * 2].mean() == 0.5


SCRIPT = """
import quintet
from quintet.envs.toy import Contextual

class Mine(Contextual):
    pass

quintet.train("ppo", Mine, 64, run_dir="runs/mine", config={SMALL!r})
"""


def test_a_run_of_a_script_names_the_script_and_an_import_of_it_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("mytrain.py")
    script.write_text(SCRIPT.replace("{SMALL!r}", repr(SMALL)))
    with begin(["mytrain.py"]) as process:
        process.communicate()
        assert process.returncode == 0
    run = Path("runs/mine").rename("runs/kept")
    assert main(["eval", str(run), "--episodes", "2"]) == 2
    said = capsys.readouterr().err
    assert "is defined in mytrain.py: give --env mytrain:Mine (env= in Python); " in said
    assert main(["eval", str(run), "--env", "mytrain:Mine", "--episodes", "2"]) == 2
    assert 'put that call under if __name__ == "__main__":' in capsys.readouterr().err
    assert not Path("runs/mine").exists()
    guarded = script.read_text().replace(
        "quintet.train", "if __name__ == '__main__': quintet.train"
    )
    script.write_text(guarded)
    assert main(["eval", str(run), "--env", "mytrain:Mine", "--episodes", "2"]) == 0


OWN_CODE = """
import sys
import quintet
from quintet.envs.toy import Contextual
from torch import nn

class Mine(Contextual):
    pass

class Net(nn.Module):
    def __init__(self, leaves):
        super().__init__()
        self.linear, self.feature_size = nn.Linear(3, 4), 4

    def forward(self, obs):
        return self.linear(obs["obs"]).tanh()

def half(done):
    return 0.5

if __name__ == "__main__":
    own = {"model": Net, "lr_schedule": half, "config": CONFIG}
    quintet.train("ppo", Mine, int(sys.argv[2]), run_dir=sys.argv[1], **own)
"""


def test_code_of_a_script_is_taken_from_the_module_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = {k: v for k, v in SMALL.items() if k != "model.policy_hidden"}
    config |= {"eval.episodes": 0, "learning_rate": 1e-3}
    Path("ownscript.py").write_text(OWN_CODE.replace("CONFIG", repr(config)))

    def train(total: int) -> None:
        with begin(["ownscript.py", "run", str(total)]) as process:
            said, _ = process.communicate()
            assert process.returncode == 0, said

    train(64)
    assert main(["eval", "run", "--episodes", "2"]) == 2
    said = capsys.readouterr().err
    encoder, env = ["--model.encoder", "ownscript:Net"], ["--env", "ownscript:Mine"]
    assert "__main__:Net and __main__:Mine are defined in ownscript.py: give " in said
    assert f"{' '.join(encoder)} (encoder= in Python)" in said
    assert f"{' '.join(env)} (env= in Python)" in said
    assert main(["eval", "run", "--episodes", "2", *encoder, *env]) == 0
    ownscript = sys.modules["ownscript"]
    assert quintet.load("run", encoder=ownscript.Net).description["model"]["encoder"] in encoder
    with pytest.raises(ConfigError, match=r"trained with, '__main__:Net'; got 'ownscript:half'"):
        quintet.load("run", encoder="ownscript:half")
    # What begins with it, and what goes on with it, in another module and then in the script.
    begun = {**config, "init_from": "run"}
    quintet.train("ppo", ownscript.Mine, 64, run_dir="new", model=ownscript.Net, config=begun)
    command = ["train", "ppo", "--run-dir", "run", "--total-steps", "128"]
    assert main([*command, *env, *encoder]) == 2
    assert "--lr-schedule (lr_schedule= of quintet.train in Python)" in capsys.readouterr().err
    assert main([*command, *env, *encoder, "--lr-schedule", "ownscript:half"]) == 0
    train(192)
    assert read_metrics(Path("run"))[-1]["env_steps"] >= 192


def test_an_environment_of_a_script_keeps_its_arguments_under_its_module_s_name() -> None:
    config = EnvConfig(id="__main__:Maze", kwargs={"size": 5})
    assert of_another(config, {"id": "maze:Maze"}).kwargs == {"size": 5}
    assert of_another(config, {"id": "maze:Other"}).kwargs == {}


def test_the_name_of_a_script_s_code_vouches_for_no_other_module_s() -> None:
    given = Call("env", "maze:Maze", {}), Call("model.encoder", "__main__:Net", {})
    origin = Origin("a folder", "has no signature", given)
    origin.check(Call("env", "__main__:Maze", {}))
    for call in (Call("env", "other:Maze", {}), Call("model.encoder", "other:Net", {})):
        with pytest.raises(UntrustedError):
            origin.check(call)
