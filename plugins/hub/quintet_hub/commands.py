"""``quintet push`` and ``quintet pull``."""

from dataclasses import dataclass
from typing import Annotated, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import say
from quintet_hub import fetched, service


@final
@dataclass(frozen=True)
class Push:
    """Uploads the policy of a finished run, its card and its reports to the Hugging Face Hub, all
    at once or not at all.
    """

    run: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """finished run, or saved policy"""
    repo: Annotated[Positional[str | None], arg(metavar="REPO")] = None
    """repository on the hub, NAME/MODEL; it is made if there is none"""
    export: Annotated[str | None, arg(metavar="DIR")] = None
    """folder of an export of the policy, to upload with its certificate"""
    private: bool = False
    """make a new repository private"""

    def execute(self) -> None:
        """Uploads, and prints the names and sizes of the files."""
        if self.run is None or self.repo is None:
            raise ConfigError(
                "quintet push must get a run and a repository: quintet push RUN NAME/MODEL"
            )
        repo, revision = service.parsed(self.repo)
        if revision is not None:
            raise ConfigError(f"REPO must be NAME/MODEL, got {self.repo}: leave @{revision} out")
        if "/" not in repo:
            raise ConfigError(f"REPO must be NAME/MODEL, got {self.repo}: put its owner in front")
        from quintet_hub.pushed import parts_of  # imports PyTorch

        export = None if self.export is None else given_path(self.export)
        parts = parts_of(run_path(self.run), repo, export)
        for name, data in parts.items():
            say(f"{len(data):>12,} bytes  {name}")
        where = service.upload(repo, parts, private=self.private)
        say(f"{sum(map(len, parts.values())):>12,} bytes  in {where}")


@final
@dataclass(frozen=True)
class Pull:
    """Downloads a policy from the Hugging Face Hub to a new folder, and runs nothing of it."""

    repo: Annotated[Positional[str | None], arg(metavar="REPO")] = None
    """repository on the hub: NAME/MODEL, or NAME/MODEL@REVISION"""
    folder: Annotated[Positional[str | None], arg(metavar="DIR")] = None
    """new folder; None: MODEL, in the working folder"""
    trust: bool = False
    """take a policy that names code; to run that, quintet eval and others need --trust too"""

    def execute(self) -> None:
        """Downloads, and prints the folder."""
        if self.repo is None:
            raise ConfigError("quintet pull must get a repository: quintet pull NAME/MODEL [DIR]")
        repo, revision = service.parsed(self.repo)
        place = given_path(self.folder or repo.rpartition("/")[2])
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise ConfigError(f"DIR must be new or empty, got {shown(place)}: give another one")
        fetched.download(service.look_up(repo, revision), place, trust=self.trust)
        say(shown(place))
