"""Verifies an export by itself: its files are whole, and its program answers as its policy did."""

from pathlib import Path
from typing import Any, final

from quintet.errors import UntrustedError
from quintet.export.certificate import Certificate, Read
from quintet.export.compare import TOLERANCE, Comparison, compare
from quintet.export.interface import PROGRAMS, Interface
from quintet.export.players import player_of
from quintet.export.steps import STEPS, unpacked


@final
class Verified:
    """A verified export.

    compared: the new comparison; version: what played the program.
    """

    def __init__(
        self, certificate: Certificate, interface: Interface, compared: Comparison, version: str
    ):
        self.certificate, self.interface = certificate, interface
        self.compared, self.version = compared, version

    def as_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        made = self.certificate
        return {
            "algo": self.interface.algo,
            "env": self.interface.env.model_dump(mode="json"),
            "format": self.interface.format,
            "steps": made.rows * made.streams,
            "episodes": made.episodes,
            "observations": made.observations,
            "compared": self.compared.model_dump(mode="json"),
            "tolerance": made.tolerance,
            "played_by": self.version,
        }

    def summary(self) -> str:
        """The result in a sentence."""
        made, of = self.certificate, self.interface
        wide = "" if made.tolerance <= TOLERANCE else f" (up to {made.tolerance:g} were allowed)"
        return (
            f"{of.algo} on {of.env.id}, {made.rows * made.streams:,} steps and "
            f"{made.episodes:,} episodes from {made.observations}: {self.compared.summary()}{wide}"
            f"; played by {self.version}"
        )


def verify(folder: Path, *, trust: bool = False) -> Verified:
    """Reads and plays an export, without PyTorch unless its format is torch.

    trust: whether a program in PyTorch's format may be loaded, which can run code; False: only if
        this user made it on this machine.

    Raises:
        ExportError: the export is damaged, was changed, or answers otherwise.
        UntrustedError: its program may not be loaded.
    """
    read = Read(folder)
    made, interface = read.certificate, read.interface
    program = read.file(PROGRAMS[interface.format])
    if interface.format == "torch" and not trust and read.not_own is not None:
        raise UntrustedError(
            f"a program of PyTorch can run code, so it is loaded only if this user made it on this "
            f"machine; {folder} {read.not_own}: give --trust if you know who made it"
        )
    steps = unpacked(read.file(STEPS), interface, made.rows, made.streams)
    player = player_of(program, interface)
    compared = compare(player, steps, interface, made.tolerance)
    compared.require(str(folder), "do not use it; export the policy again", made.tolerance)
    return Verified(made, interface, compared, player.version)
