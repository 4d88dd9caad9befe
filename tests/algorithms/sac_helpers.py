"""The learner of the package in plugins/sac."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "sac"))

from quintet_sac import ENTRY as SAC

from quintet.observe.metrics import declare

declare(SAC.own_metrics, "learner 'sac'")  # as the registry does with a learner that it finds

__all__ = ["SAC"]
