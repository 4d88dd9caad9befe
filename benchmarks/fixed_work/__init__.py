"""Fixed work on which the speed of training is measured, and the limit of this machine for it."""

import quintet  # noqa: F401  before PyTorch, whose idle threads it settles
