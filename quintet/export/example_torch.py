"""Plays the recorded steps with the policy; needs numpy and torch alone."""

import json
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "policy.json").read_text())  # the meaning of every input and output


def load():
    """The program: a function from all inputs to all outputs, by name."""
    module = torch.export.load(HERE / "policy.pt2").module()
    names = [port["name"] for port in ABOUT["outputs"]]

    def program(inputs):
        count, given = len(next(iter(inputs.values()))), []
        for port in ABOUT["inputs"]:
            x = inputs.get(port["name"], np.zeros([count, *port["shape"]], port["dtype"]))
            given.append(torch.from_numpy(np.ascontiguousarray(x)))
        with torch.no_grad():
            return {name: x.numpy() for name, x in zip(names, module(tuple(given)), strict=True)}

    return program
