"""PyTorch's settings of a whole process."""

import torch


def configure_torch(threads: int, device: str) -> None:
    """Has a process compute on so many cores, and on a GPU the same from run to run.

    TF32 is left to what asks for it: cuDNN's convolutions would take it unasked.
    """
    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
