"""How learners that pass several times over a batch split it."""

import math
from itertools import pairwise

import torch
from torch import Tensor


def even_minibatches(
    index: Tensor, size: int, drop_last: bool, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """One pass over the rows at `index` ``[N]`` in fresh random order, in minibatches of one shape.

    The rows are split in ceil(N / size) parts that differ by at most one row; what a part lacks is
    filled with repeats of its last row at weight 0, so that none is tiny and all have `size` rows.
    With `drop_last` the parts are whole and what fills none is left out, if there is a whole one.

    Returns:
        All rows, part after part ``[parts * size]``, and the weights ``[size]`` of each part, which
        sum to 1.
    """
    count = index.numel()
    order = index[torch.randperm(count, generator=generator).to(index.device)]
    whole = drop_last and count >= size
    parts = count // size if whole else math.ceil(count / size)
    starts = [k * size if whole else k * count // parts for k in range(parts + 1)]
    spans = [(start, end - start) for start, end in pairwise(starts)]
    place = torch.arange(size, device=index.device)
    rows = torch.cat([order[start + place.clamp_max(n - 1)] for start, n in spans])
    weights = {n: (place < n).float() / n for _, n in spans}
    return rows, [weights[n] for _, n in spans]
