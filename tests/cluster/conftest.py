"""One cluster for the tests of this folder, since a start takes seconds."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes of one core."""
    from clusters import cluster_of

    with cluster_of(2) as cluster:
        yield cluster.address
