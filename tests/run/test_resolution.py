"""What the spaces of an environment rule out is refused before PyTorch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from quintet.config.load import Layer
from quintet.config.saved import load_config
from quintet.errors import ConfigError
from quintet.run.resolution import check_spaces

IN_PYTHON = "quintet.envs.toy:ChooseAndAim"


def refused(algo: str, folder: Path, **options: object) -> str:
    """The refusal by `quintet train`, in a process that must not have imported PyTorch."""
    words = [w for name, x in options.items() for w in (f"--{name.replace('__', '.')}", str(x))]
    arguments = ["train", algo, "--run-dir", str(folder), *words]
    program = (
        "import sys; from quintet.cli import main; "
        f"print(main({arguments!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "2 False", done.stdout + done.stderr
    assert not folder.exists()
    return done.stderr


@pytest.mark.parametrize("env", [IN_PYTHON, "Pendulum-v1"])
def test_an_encoder_that_reads_pictures(env: str, tmp_path: Path) -> None:
    if ":" not in env:
        pytest.importorskip("envpool")
    said = refused("ppo", tmp_path / "run", env=env, model__encoder="nature_cnn")
    assert "nature_cnn requires a uint8 picture" in said


def test_actions_that_the_learner_does_not_take(tmp_path: Path) -> None:
    assert "DDPG" in refused("ddpg", tmp_path / "run", env="quintet.envs.toy:EndlessPay").upper()


def test_an_environment_made_for_its_kind_is_not_made_again(tmp_path: Path) -> None:
    made = []

    def maker() -> object:
        from quintet.envs.toy import EndlessPay

        made.append(EndlessPay())
        return made[-1]

    given = {"env.id": "mine", "run_dir": str(tmp_path / "run"), "model.encoder": "nature_cnn"}
    loaded = load_config("ppo", [], Layer("call", given), maker)
    with pytest.raises(ConfigError, match="nature_cnn requires"):
        check_spaces(loaded)
    assert len(made) == 1


def test_spaces_that_are_not_known_are_left_to_the_run(tmp_path: Path) -> None:
    given = {
        "env.id": IN_PYTHON,
        "run_dir": str(tmp_path / "run"),
        "model.encoder": "nature_cnn",
        "preset": "none",
    }
    loaded = load_config("ppo", [], Layer("call", given))
    assert loaded.spaces is None
    check_spaces(loaded)
