"""For all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory):
    """The key that signs runs is made in a folder of the tests' own, not in the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    folder: Path = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
