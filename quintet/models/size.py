"""The memory that a network takes, before it is made."""

import torch

from quintet.models.build import check_observation, make_trunks
from quintet.models.config import ModelConfig
from quintet.models.heads import action_family
from quintet.types import Spaces


def weights_bytes(config: ModelConfig, spaces: Spaces) -> int:
    """Bytes of the weights of a policy and its value function, of a resolved configuration; a
    learner's own networks may have more.  Those of a user's encoder are not known before it is
    made, and count as 0.

    Raises:
        ConfigError: the network can't read these observations, or act in this space.
    """
    if config.custom:
        return 0
    family = action_family(spaces.action, config.action_bounds)
    check_observation(spaces, family)
    with torch.device("meta"):
        trunks = make_trunks(spaces, config, None, "fp32")
    weights = {
        id(weight): weight.nbytes
        for trunk in trunks
        for module in trunk.modules()
        for weight in module.parameters(recurse=False)
    }
    head = 4 * family.param_size * trunks[0].feature_size
    return sum(weights.values()) + head
