"""One thread, and the shape annotations of quintet.ops made real before any test imports it."""

import torch
from jaxtyping import install_import_hook

install_import_hook("quintet.ops", "beartype.beartype")
torch.set_num_threads(1)
