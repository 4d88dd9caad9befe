"""Predictions by a small network, where the predictor of `predict` fails.

Rules of boards, sorted lists or walls are no smooth functions, but observations can show all
of them: before an observation is said to lack something, a stronger predictor must fail too.
"""

import numpy as np
import torch
from torch import Tensor, nn

from quintet.doctor.predict import Floats, Groups

_WIDTH, _STEPS, _BATCH, _RATE = 128, 800, 256, 3e-3
_LOOK, _PATIENCE = 50, 3  # steps between looks at rows that end it; looks without progress
_SPARE = 6  # one row in so many is for these looks


def by_network(x: Floats, y: Floats, group: Groups, queries: Floats) -> Floats:
    """Predictions for `queries` of a network that was fitted to the other rows."""
    mean, std = x.mean(0), np.maximum(x.std(0), 1e-9)
    middle, spread = y.mean(0), np.maximum(y.std(0), 1e-12)
    z, target, inputs = (
        torch.as_tensor(each, dtype=torch.float32)
        for each in (((x - mean) / std).clip(-6, 6), (y - middle) / spread,
                     ((queries - mean) / std).clip(-6, 6))
    )  # fmt: skip
    spare = torch.as_tensor(group % _SPARE == 0)
    if not spare.any() or spare.all():
        spare = torch.arange(len(z)) % _SPARE == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other at every step on a busy machine
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            best = _trained(z[~spare], target[~spare], (z[spare], target[spare]), inputs)
    finally:
        torch.set_num_threads(threads)
    return np.asarray(best.numpy().astype(np.float64) * spread + middle)


def _trained(x: Tensor, y: Tensor, spare: tuple[Tensor, Tensor], queries: Tensor) -> Tensor:
    """Predictions of the network at the step at which it predicts the spare rows best."""
    net = nn.Sequential(
        nn.Linear(x.shape[1], _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(),
        nn.Linear(_WIDTH, y.shape[1]),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=1e-3, fused=True)
    least, best, waited = float(spare[1].square().mean()), torch.zeros(len(queries), y.shape[1]), 0
    for step in range(1, _STEPS + 1):
        rows = torch.randint(len(x), (_BATCH,))
        optimizer.param_groups[0]["lr"] = _RATE * (1.0 - step / (_STEPS + 1))
        loss = (net(x[rows]) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % _LOOK == 0:
            with torch.no_grad():
                missed = float((net(spare[0]) - spare[1]).square().mean())
                waited += 1
                if missed < least:
                    least, best, waited = missed, net(queries), 0
            if waited == _PATIENCE:
                break
    return best
