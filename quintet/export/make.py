"""Makes an export of a policy: program, description, example, recorded steps and certificate."""

import os
import platform
import shutil
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, get_args

from quintet.checkpoints.spaces_as_json import to_json
from quintet.errors import ConfigError, ExportError
from quintet.export import compare, programs, recording
from quintet.export.certificate import CERTIFICATE, DESCRIPTION, Entry, as_bytes, sealed
from quintet.export.interface import FORMAT_VERSION, PROGRAMS, Format, Interface, Played
from quintet.export.players import player_of
from quintet.export.steps import STEPS, Observations, Steps
from quintet.export.verification import Verified, verify
from quintet.export.whole import WholePolicy
from quintet.policies.policy import Policy
from quintet.runtime.torch_settings import OwnTorch
from quintet.system import files, memory, provenance

LEAST_STEPS, MOST_STEPS = 100, 10**6

NUMPY_CODE = "numpy_policy.py"
"""The file that plays a program of the format numpy."""

SEED = 10_000
"""Seed of the environments, of the noise and of samples."""

_SHORT = (
    "nothing was written; if only outputs differ, and a little, as after many convolutions, give "
    f"--tolerance (at most {compare.MOST_TOLERANCE:g}), else report it with the run"
)
"""Advice for a program that falls short."""


def export(
    policy: Policy,
    folder: str | Path,
    format: Format = "onnx",
    steps: int = 10_000,
    observations: Observations = "environment",
    env: Any = None,
    tolerance: float = compare.TOLERANCE,
) -> Verified:
    """Writes the policy's export to a new or empty folder, after it has answered as the policy.

    Args:
        format: onnx; torch (`torch.export`); numpy (an .npz and a file that plays it).
        steps: env_steps that are recorded and compared, 100 or more.
        observations: environment: the policy plays; space: samples of the observation space.
        env: an environment other than training's, as for `evaluate`.
        tolerance: largest difference of outputs that are floats, relative to numbers above 1; at
            most 1e-3.  Networks with large activations, such as deep convolutions, round more.

    Raises:
        ConfigError: an argument is wrong, or the environment does not fit.
        ExportError: the policy can't be exported, its export answers otherwise, or the folder
            holds something; nothing is written then.
    """
    _check(format, steps, observations, env, tolerance)
    place = files.given_path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ExportError(
            f"DIR must be new or empty, got {place}, which is neither: give another folder, "
            "or remove it"
        )
    programs.require(format)
    with OwnTorch():
        whole = WholePolicy(policy)
        memory.require(_bytes(whole, steps), f"{steps:,} recorded steps", "record fewer steps")
        content = _program(whole, format)
    if observations == "space":
        seen = recording.of_space(policy, steps, SEED)
    else:
        seen = recording.in_environment(policy, env, steps, SEED)
    with OwnTorch():
        recorded = recording.answered(policy, whole, seen, SEED)
    interface = describe(policy, whole, format, content)
    player = player_of(content[PROGRAMS[format]], interface)
    compared = compare.compare(player, recorded, interface, tolerance)
    compared.require(f"the {format} program", _SHORT, tolerance)
    content |= _rest(interface, recorded)
    certificate = {
        "format_version": FORMAT_VERSION,
        "rows": recorded.rows,
        "streams": recorded.streams,
        "episodes": int(seen.is_first.sum()),
        "observations": seen.whence,
        "seed": SEED,
        "compared": compared.model_dump(mode="json"),
        "tolerance": tolerance,
        "tie": compare.TIE,
        "versions": {**interface.versions, "machine": platform.machine()},
        "files": {name: Entry.of(data).model_dump() for name, data in content.items()},
    }
    content[CERTIFICATE] = sealed(certificate)
    return _written(place, content)


def _check(format: str, steps: int, observations: str, env: Any, tolerance: float) -> None:
    """Raises ConfigError for arguments out of range."""
    if format not in PROGRAMS:
        raise ConfigError(f"format must be one of {', '.join(PROGRAMS)}, got {format!r}")
    if observations not in get_args(Observations):
        raise ConfigError(f"observations must be environment or space, got {observations!r}")
    if observations == "space" and env is not None:
        raise ConfigError(f"env has no effect with observations=space, got {env!r}: leave it out")
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    if not whole or not LEAST_STEPS <= steps <= MOST_STEPS:
        raise ConfigError(f"steps must be in {LEAST_STEPS} .. {MOST_STEPS:,}, got {steps!r}")
    if not isinstance(tolerance, float) or not 0.0 <= tolerance <= compare.MOST_TOLERANCE:
        raise ConfigError(
            f"tolerance must be in 0 .. {compare.MOST_TOLERANCE:g}, got {tolerance!r}"
        )


def _bytes(whole: WholePolicy, steps: int) -> int:
    """Bytes of memory that are needed to record and compare: about three copies of everything."""
    return 3 * steps * sum(port.row_bytes for port in (*whole.inputs, *whole.outputs))


def _program(whole: WholePolicy, format: Format) -> dict[str, bytes]:
    """The program's files by name."""
    program = programs.traced(whole)
    if format == "torch":
        return {PROGRAMS[format]: programs.torch_program(program)}
    model = programs.onnx_program(program, whole)
    if format == "onnx":
        return {PROGRAMS[format]: model}
    code = _resource(NUMPY_CODE)
    return {PROGRAMS[format]: programs.numpy_program(model), NUMPY_CODE: code}


def describe(
    policy: Policy, whole: WholePolicy, format: Format, content: dict[str, bytes]
) -> Interface:
    """The content of ``policy.json``; content: the program's files by name."""
    own, acting = policy.spaces.own or policy.spaces, policy.acting_spaces
    env = policy.env
    return Interface(
        format_version=FORMAT_VERSION,
        format=format,
        algo=policy.description["algo"],
        env=Played(
            id=str(env.id),
            backend=env.backend,
            frame_stack=env.frame_stack,
            observe_last=env.observe_last,
        ),
        observation_space=to_json((acting.own or acting).observation),
        action_space=to_json(own.action),
        inputs=whole.inputs,
        outputs=whole.outputs,
        state=whole.state,
        choices=whole.choices,
        versions=_versions(format),
        sha256={name: Entry.of(data).sha256 for name, data in content.items()},
    )  # fmt: skip


def _versions(format: Format) -> dict[str, str]:
    packages = ("torch", *programs.PACKAGES[format], "numpy")
    found = {name: provenance.version_of(name) for name in packages}
    return {"quintet": provenance.own_version(), **found, "python": platform.python_version()}


def _rest(interface: Interface, recorded: Steps) -> dict[str, bytes]:
    """The files beside the program."""
    return {
        DESCRIPTION: as_bytes(interface.model_dump(mode="json")),
        "example.py": _example(interface.format),
        STEPS: recorded.packed(interface),
    }


def _example(format: Format) -> bytes:
    """The content of ``example.py``: how this format is loaded, and how any is played."""
    own, whole = (_resource(f"example_{name}.py") for name in (format, "onnx"))
    _, player, rest = whole.partition(b"\n\nclass Policy:")
    return own.partition(player)[0] + player + rest


def _resource(name: str) -> bytes:
    """A file that stands beside this module."""
    return resources("quintet.export").joinpath(name).read_bytes()


def _written(place: Path, content: dict[str, bytes]) -> Verified:
    """Writes all files beside the folder, verifies them, and puts them in its place at once."""
    temporary = place.with_name(f"{files.TEMPORARY}{place.name}-{os.getpid()}")
    try:
        files.make_folder(place.parent)
        temporary.mkdir()
        for name, data in content.items():
            files.write_whole(temporary / name, data)
        found = verify(temporary, trust=True)  # this process has just made it
        os.rename(temporary, place)
        files.sync_folder(place.parent)
        return found
    except OSError as fault:
        raise ExportError(
            f"can't write the export to {place}: {files.reason(fault)}; {files.advice(fault)}, or "
            "give another folder"
        ) from fault
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
