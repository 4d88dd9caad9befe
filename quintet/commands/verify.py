"""``quintet verify``: repeats the proof of an export; needs no PyTorch, except for its format."""

import json
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.export.verify import verify
from quintet.system.files import given_path, shown


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
) -> None:
    if folder is None:
        raise ConfigError("quintet verify must get a folder, got none: quintet verify DIR")
    found = verify(given_path(folder), trust=trust)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        print(f"{shown(given_path(folder))}: {found.told()}")
