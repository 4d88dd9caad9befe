"""Plays the recorded steps with the policy; needs numpy alone."""

import json
from pathlib import Path

import numpy as np
from numpy_policy import Program

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "policy.json").read_text())  # the meaning of every input and output


def load():
    """The program: a function from all inputs to all outputs, by name."""
    return Program(HERE / "policy.npz")
