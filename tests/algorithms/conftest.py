"""One thread, and the shape annotations of quintet.ops made real before any test imports it."""

import torch
from shape_checks_helpers import install

install()
torch.set_num_threads(1)
