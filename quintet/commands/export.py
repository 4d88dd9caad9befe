"""``quintet export``: takes a policy out of quintet, with a proof."""

from dataclasses import dataclass
from typing import Annotated, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.export.interface import Format
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import say
from quintet.system.trust import TRUST_HELP


@final
@dataclass(frozen=True)
class Export:
    """Writes the whole policy, from the environment's observations to its actions, to a folder that
    needs no quintet, and proves on recorded steps that it acts as the policy does.
    """

    run: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """run folder, checkpoint, or saved policy"""
    out: Annotated[str | None, arg(metavar="DIR")] = None
    """new folder for the export"""
    format: Format = "onnx"
    """onnx, torch (by torch.export), or numpy (MLPs, LSTMs and GRUs only)"""
    checkpoint: str = "latest"
    """best, latest, or a checkpoint's name or path"""
    steps: int = 10_000
    """env_steps that are recorded and compared"""
    samples: bool = False
    """compare on samples of the observation space, without the environment"""
    env: str | None = None
    """environment to play in, if not the one of training"""
    tolerance: float = 1e-5
    """largest difference of outputs, relative for numbers above 1; at most 1e-3"""
    encoder: Annotated[str | None, arg(name="model.encoder")] = None
    """import string of the policy's encoder, if it is your own"""
    trust: Annotated[bool, arg(help=TRUST_HELP)] = False

    def execute(self) -> None:
        """Exports, and prints what was made."""
        if self.run is None or self.out is None:
            raise ConfigError(
                "quintet export must get a run and a folder: quintet export RUN --out DIR"
            )
        from quintet.checkpoints.checkpoint import none_at

        run = run_path(self.run)
        if not run.exists():
            raise none_at(run)
        from quintet.policies.policy import load

        policy = load(run, self.checkpoint, trust=self.trust, encoder=self.encoder)
        made = policy.export(
            self.out,
            self.format,
            steps=self.steps,
            observations="space" if self.samples else "environment",
            env=self.env,
            tolerance=self.tolerance,
        )
        say(f"{shown(given_path(self.out))}: {made.summary()}")
