"""Spaces that are known before a run makes its environments; tests/test_refusals.py looks for what
is imported meanwhile.
"""

from pathlib import Path

import pytest
from toys_helpers import EndlessPay

from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import check_spaces
from quintet.options.saved import load_config


def test_an_environment_made_for_its_kind_is_not_made_again(tmp_path: Path) -> None:
    made: list[EndlessPay] = []

    def maker() -> EndlessPay:
        made.append(EndlessPay())
        return made[-1]

    given = {"env.id": "mine", "run_dir": str(tmp_path / "run"), "model.encoder": "nature_cnn"}
    loaded = load_config("ppo", [], Layer("call", given), maker)
    with pytest.raises(ConfigError, match="nature_cnn must have"):
        check_spaces(loaded)
    assert len(made) == 1


def test_spaces_that_are_not_known_are_left_to_the_run(tmp_path: Path) -> None:
    given = {
        "env.id": "toys_helpers:EndlessPay",
        "run_dir": str(tmp_path / "run"),
        "model.encoder": "nature_cnn",
        "preset": "none",
    }
    loaded = load_config("ppo", [], Layer("call", given))
    assert loaded.spaces is None
    check_spaces(loaded)
