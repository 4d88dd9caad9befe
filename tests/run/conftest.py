"""What every test of runs begins with."""

import pytest
from run_helpers import Trouble


@pytest.fixture(autouse=True)
def no_trouble_yet():
    Trouble.total = 0
