"""quintet: five deep reinforcement-learning learners on one runtime.

result = quintet.train("ppo", env="CartPole-v1", total_steps=100_000)
quintet.evaluate(result.policy).mean
"""

# Imports are few, so that the command begins at once: even `typing` takes its milliseconds.
import os
import sys

# PyTorch's idle threads (OpenMP of GCC) sleep after about 0.1 ms.  By default they spin for
# milliseconds on cores that environments and other processes want.  It counts only before PyTorch
# is loaded; what the user has set stays.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from quintet.api import train
    from quintet.envs.public import make_vector_env
    from quintet.policies.evaluation import evaluate
    from quintet.policies.policy import Policy, load
    from quintet.run.callbacks import Callbacks

__version__ = "0.3.0"

__all__ = ["Callbacks", "Policy", "__version__", "evaluate", "load", "make_vector_env", "train"]

_HOME = {
    "Callbacks": "quintet.run.callbacks",
    "Policy": "quintet.policies.policy",
    "evaluate": "quintet.policies.evaluation",
    "load": "quintet.policies.policy",
    "make_vector_env": "quintet.envs.public",
    "train": "quintet.api",
}


def __dir__() -> list[str]:
    """The public names, also before their first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> "Any":
    """Imports the public names on first use, so that `quintet --help` need not wait for PyTorch."""
    if name not in _HOME:
        raise AttributeError(f"module 'quintet' has no attribute {name!r}")
    from importlib import import_module

    from quintet.system.supported import require_system

    require_system()
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
