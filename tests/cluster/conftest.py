"""One cluster for the tests of this folder, since a start takes seconds."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes of one core."""
    from clusters_helpers import cluster_of

    with cluster_of(2) as cluster:
        yield cluster.address


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """Ray's is taken away: a fork of this process, as of AsyncVectorEnv, would never end by it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert before is signal.SIG_DFL or "ray" not in str(getattr(before, "__module__", ""))
    signal.signal(signal.SIGTERM, before)
