"""Calls of the hub's service; what it refuses is one sentence."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quintet.errors import QuintetError

OURS = re.compile(
    r"README\.md|(manifest|meta|run)\.json|(policy|environments)\.safetensors|config\.yaml"
    r"|metrics\.jsonl"
    r"|replay\.mp4|export/[A-Za-z0-9][\w.-]*",
    re.ASCII,
)
"""Names of the files that `quintet push` uploads; no others are downloaded."""

_REPO = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_SAID = 300  # characters of what the hub says


class Found(NamedTuple):
    """A commit of a repository; sizes: bytes of its files by name."""

    repo: str
    commit: str
    sizes: Mapping[str, int]


def parsed(what: str) -> tuple[str, str | None]:
    """Repository and revision in ``NAME/MODEL@REVISION``."""
    repo, at, revision = what.partition("@")
    if not _REPO.fullmatch(repo) or ".." in repo or (at and not revision):
        raise QuintetError(f"REPO must be NAME/MODEL or NAME/MODEL@REVISION, got {what!r}")
    return repo, revision or None


def is_commit(revision: str | None) -> bool:
    """Whether a revision names a commit, which never changes."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def look_up(repo: str, revision: str | None) -> Found:
    """The newest commit of a revision; None: of the main branch."""
    from huggingface_hub import HfApi  # takes a second

    with _told(repo, revision):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    if not is_commit(info.sha):
        raise QuintetError(f"the hub must name a commit of {repo}, got {info.sha!r:.60}")
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    return Found(repo, str(info.sha), sizes)


def get(found: Found, name: str, folder: Path) -> None:
    """Downloads one file into a folder."""
    from huggingface_hub import hf_hub_download

    with _told(found.repo, found.commit):
        hf_hub_download(found.repo, name, revision=found.commit, local_dir=folder)


def upload(repo: str, parts: Mapping[str, bytes], *, private: bool = False) -> str:
    """Replaces quintet's files in a repository by one commit; returns its address.

    private: whether a repository that is made is private.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with _told(repo, None):
        repo = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        held = api.model_info(repo).siblings or ()
        gone = {x.rfilename for x in held if OURS.fullmatch(x.rfilename)} - parts.keys()
        added = [CommitOperationAdd(name, data) for name, data in parts.items()]
        for each in added:  # one by one: threads that upload would delay Ctrl-C until they end
            api.preupload_lfs_files(repo, [each])
        removed = [CommitOperationDelete(name) for name in sorted(gone)]
        made = api.create_commit(repo, [*added, *removed], commit_message="Policy of quintet")
    return str(made.commit_url)


@contextmanager
def _told(repo: str, revision: str | None) -> Iterator[None]:
    """Turns errors of the hub, and of the libraries below it, into a QuintetError."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    login = "`hf auth login`, or the variable HF_TOKEN, gives a token"
    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise QuintetError(f"{repo} must have the revision {revision!r}, it has none") from error
    except errors.LocalTokenNotFoundError as error:
        raise QuintetError(f"the hub must have a token of yours for {repo}: {login}") from error
    except errors.RepositoryNotFoundError as error:
        raise QuintetError(
            f"REPO must be a model on the hub that you may read, got {repo}: correct its name, or "
            f"log in, if it is private or has terms to accept ({login})"
        ) from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise QuintetError(
                f"your token must have the right to {repo}, the hub refuses it ({_said(error)}): "
                f"{login}"
            ) from error
        if isinstance(error, OSError) and error.errno is not None:  # a fault of this machine's disk
            raise
        raise QuintetError(
            f"the hub at {constants.ENDPOINT} must answer for {repo}, got {_said(error)}: see to "
            "the network, or try again later"
        ) from error


def _said(error: Exception) -> str:
    text = getattr(error, "server_message", None) or f"{type(error).__name__}: {error}"
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:_MOST_SAID]
