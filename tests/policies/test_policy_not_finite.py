"""Weights and statistics that are not finite are refused wherever they are read."""

import re
import shutil

import numpy as np
import pytest
import torch
from small_run_helpers import SMALL, TOY

import quintet
from quintet.checkpoints import checkpoint
from quintet.checkpoints.checkpoint import require_finite
from quintet.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finite") / "run"
    return quintet.train("ppo", TOY, 128, run_dir=folder, config=SMALL)


def spoil(place, key, name, value):
    """Writes a number into a tensor of a checkpoint or policy, whose hashes are right again."""
    found = checkpoint.read(place)
    found.tensors[key][name].view(-1)[0] = value
    checkpoint.write(place.parent, place.name, found.tensors, found.meta, signed=True)


def spoilt(run, tmp_path, key, name, value):
    """A copy of the run whose newest checkpoint and final policy hold the number."""
    folder = tmp_path / "spoilt"
    shutil.copytree(run.run_dir, folder)
    newest = max((folder / "checkpoints").iterdir())
    for place in (newest, *([folder / "policy"] if key == "policy" else [])):
        spoil(place, key, name, value)
    return folder


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("policy", "network/policy_head.linear.weight"),
        ("policy", "normalizer/moments.0.mean"),
        ("learner", "reward_moments/m2"),
    ],
)
def test_weights_that_are_not_finite_are_refused(run, tmp_path, key, name, value):
    folder = spoilt(run, tmp_path, key, name, value)
    what = "NaN" if value != value else "infinite values"
    says = rf"must be finite, got 1 {what} in [\d,]+ of {re.escape(name)} of "
    if key == "policy":  # else it is nothing that acts
        for place in (folder, folder / "policy", max((folder / "checkpoints").iterdir())):
            with pytest.raises(CheckpointError, match=says):
                quintet.load(place)
    with pytest.raises(CheckpointError, match=says):
        quintet.train("ppo", TOY, 512, run_dir=folder, config=SMALL)
    donor = {**SMALL, "init_from": str(folder)}
    with pytest.raises(ConfigError, match=f"init_from.*{says}"):
        quintet.train("ppo", TOY, 256, run_dir=tmp_path / "new", config=donor)
    assert not (tmp_path / "new").exists()


def test_an_encoder_of_the_users_may_hold_infinities_and_no_nan(tmp_path):
    weights = {"network/encoder.module.mask": torch.tensor([0.0, -np.inf])}
    require_finite(tmp_path, weights, "mine:Encoder")
    with pytest.raises(CheckpointError, match=r"got 1 infinite values in 2 of .*mask of"):
        require_finite(tmp_path, weights, "mlp")
    weights["network/encoder.module.mask"][0] = np.nan
    with pytest.raises(CheckpointError, match="got 1 NaN in"):
        require_finite(tmp_path, weights, "mine:Encoder")
