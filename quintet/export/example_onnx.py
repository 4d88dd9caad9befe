"""Plays the recorded steps with the policy; needs numpy and onnxruntime alone."""

import json
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "policy.json").read_text())  # the meaning of every input and output


def load():
    """The program: a function from all inputs to all outputs, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(HERE / "policy.onnx", options)
    names = [port["name"] for port in ABOUT["outputs"]]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


class Policy:
    """Plays `count` environments side by side and keeps the state of each."""

    def __init__(self, count=1):
        ports = {port["name"]: port for port in ABOUT["inputs"]}
        self.program, self.types = load(), {name: port["dtype"] for name, port in ports.items()}
        shapes = {name: [count, *ports[name]["shape"]] for name in ABOUT["state"]}
        self.state = {name: np.zeros(x, self.types[name]) for name, x in shapes.items()}

    def act(self, inputs):
        """All outputs; `inputs` are the observation's leaves, is_first if there is a state, and
        perhaps noise, without which the action is greedy."""
        given = {name: np.asarray(x, self.types[name]) for name, x in inputs.items()}
        outputs = self.program({**given, **self.state})
        self.state = {name: outputs[after] for name, after in ABOUT["state"].items()}
        return outputs


steps = {name: x for name, x in np.load(HERE / "steps.npz").items() if name != "in/noise"}
seen = {name[3:]: x for name, x in steps.items() if name.startswith("in/")}
acted = {name[7:]: x for name, x in steps.items() if name.startswith("greedy/action")}
rows, count = next(iter(seen.values())).shape[:2]
policy, equal = Policy(count), 0
for row in range(rows):
    outputs = policy.act({name: x[row] for name, x in seen.items()})
    equal += all(np.allclose(outputs[name], x[row], 1e-5, 1e-5) for name, x in acted.items())
last = {name: outputs[name].tolist() for name in acted}
print(f"{equal} of {rows} rows of {count} actions are as recorded; the last: {last}")
