"""The learner of the package in examples/quintet-a2c."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "quintet-a2c"))

from quintet_a2c import ENTRY as A2C
from quintet_a2c import A2CConfig
from quintet_a2c.learner import A2CLearner

__all__ = ["A2C", "A2CConfig", "A2CLearner"]
