"""``quintet verify``: repeats the proof of an export; needs no PyTorch, except for its format."""

import json
from dataclasses import dataclass
from typing import Annotated, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.export.apart import MOST_GIB, MOST_S, verify_apart
from quintet.jobs.job import Limits
from quintet.system.files import given_path, shown
from quintet.system.printing import say

_LARGEST = 10**6


@final
@dataclass(frozen=True)
class Verify:
    """Checks that an export is whole and unchanged, plays its recorded steps, and compares the
    answers with those of the policy.
    """

    folder: Annotated[Positional[str | None], arg(name="dir", metavar="DIR")] = None
    """folder of an export"""
    as_json: Annotated[bool, arg(name="json")] = False
    """print one JSON object"""
    trust: bool = False
    """load a PyTorch program, which can run code, even if it is not yours"""
    most_s: float = MOST_S
    """most seconds that it may take"""
    most_gib: float = MOST_GIB
    """most memory that it may take, in GiB (Linux)"""

    def execute(self) -> None:
        """Verifies, and prints what was found."""
        if self.folder is None:
            raise ConfigError("quintet verify needs a folder: quintet verify DIR")
        for name, most in (("most-s", self.most_s), ("most-gib", self.most_gib)):
            if not 0.0 < most < _LARGEST:
                raise ConfigError(f"--{name} must be in 0 .. {_LARGEST:,}, got {most:g}")
        place, limits = given_path(self.folder), Limits(self.most_s, self.most_gib * 2**30)
        found = verify_apart(place, limits, trust=self.trust)
        say(json.dumps(found.as_json) if self.as_json else f"{shown(place)}: {found.said}")
