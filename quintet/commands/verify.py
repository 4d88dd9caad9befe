"""``quintet verify``: repeats the proof of an export; needs no PyTorch, except for its format."""

import json
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.export.apart import MOST_GIB, MOST_S, verify_apart
from quintet.jobs.job import Limits
from quintet.system.files import given_path, shown
from quintet.system.printing import say

_LARGEST = 10**6


def main(arguments: list[str]) -> int:
    description = (
        "Checks that an export is whole and unchanged, plays its recorded steps, and compares the "
        "answers with those of the policy."
    )
    tyro.cli(_verify, prog="quintet verify", description=description, args=arguments)
    return 0


def _verify(
    folder: Annotated[
        Positional[str | None], arg(name="dir", help="folder of an export", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, arg(name="json", help="print one JSON object")] = False,
    trust: Annotated[
        bool, arg(help="load a PyTorch program, which can run code, even if it is not yours")
    ] = False,
    most_s: Annotated[float, arg(help="most seconds that it may take")] = MOST_S,
    most_gib: Annotated[float, arg(help="most memory that it may take, in GiB (Linux)")] = MOST_GIB,
) -> None:
    if folder is None:
        raise ConfigError("quintet verify must get a folder, got none: quintet verify DIR")
    for name, most in (("most-s", most_s), ("most-gib", most_gib)):
        if not 0.0 < most < _LARGEST:
            raise ConfigError(f"--{name} must be in 0 .. {_LARGEST:,}, got {most:g}")
    limits = Limits(most_s, most_gib * 2**30)
    found = verify_apart(given_path(folder), limits, trust=trust)
    if as_json:
        say(json.dumps(found.as_json))
    else:
        say(f"{shown(given_path(folder))}: {found.said}")
