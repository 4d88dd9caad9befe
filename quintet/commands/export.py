"""``quintet export``: takes a policy out of quintet, with a proof."""

from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.export.interface import Format
from quintet.system.files import given_path, shown
from quintet.system.printing import say
from quintet.system.trust import TRUST_HELP

if TYPE_CHECKING:
    from quintet.export.make import Observations


def main(arguments: list[str]) -> int:
    description = (
        "Writes the whole policy, from the environment's observations to its actions, to a folder "
        "that needs no quintet, and proves on recorded steps that it acts as the policy does."
    )
    tyro.cli(_export, prog="quintet export", description=description, args=arguments)
    return 0


def _export(
    run: Annotated[
        Positional[str | None], arg(help="run folder, checkpoint, or saved policy", metavar="RUN")
    ] = None,
    out: Annotated[str | None, arg(help="new folder for the export", metavar="DIR")] = None,
    format: Annotated[
        Format, arg(help="onnx, torch (by torch.export), or numpy (MLPs, LSTMs and GRUs only)")
    ] = "onnx",
    checkpoint: Annotated[str, arg(help="best, latest, or a checkpoint's name or path")] = "latest",
    steps: Annotated[int, arg(help="env_steps that are recorded and compared")] = 10_000,
    samples: Annotated[
        bool, arg(help="compare on samples of the observation space, without the environment")
    ] = False,
    env: Annotated[
        str | None, arg(help="environment to play in, if not the one of training")
    ] = None,
    tolerance: Annotated[
        float, arg(help="largest difference of outputs, relative for numbers above 1; at most 1e-3")
    ] = 1e-5,
    encoder: Annotated[
        str | None,
        arg(name="model.encoder", help="import string of the policy's encoder, if it is your own"),
    ] = None,
    trust: Annotated[bool, arg(help=TRUST_HELP)] = False,
) -> None:
    if run is None or out is None:
        raise ConfigError(
            "quintet export must get a run and a folder: quintet export RUN --out DIR"
        )
    from quintet.checkpoint import none_at

    if not given_path(run).exists():
        raise none_at(given_path(run))
    from quintet.policy import load

    policy = load(run, checkpoint, trust=trust, encoder=encoder)
    seen: "Observations" = "space" if samples else "environment"
    made = policy.export(out, format, steps=steps, observations=seen, env=env, tolerance=tolerance)
    say(f"{shown(given_path(out))}: {made.summary()}")
