"""Options of a run that is over in a moment, and its task; the base of most tests' runs."""

from typing import Any

TOY = "quintet.envs.toy:Contextual"
SMALL: dict[str, Any] = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.progress": False,
    "eval.episodes": 0,
}
