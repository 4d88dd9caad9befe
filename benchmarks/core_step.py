"""Forward and backward of a recurrent layer: ours, ours by autograd alone, and torch.nn's.

    python benchmarks/core_step.py

One thread, T = 32 steps, B = 8 sequences, 64 inputs, 128 units, float32.  The variants take turns;
printed is the best of seven rounds, in milliseconds.  torch.nn's layers can't be reset inside a
sequence, so theirs is less work.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from quintet.models import cores

T, B, F, H = 32, 8, 64, 128
ROUNDS, CALLS = 7, 20


def ours(kind: cores.CoreKind) -> Callable[[], None]:
    core = cores.Core(kind, F, H, 1)
    cores.draw_weights(core, torch.Generator().manual_seed(0))
    x, is_first = torch.randn(T, B, F), torch.rand(T, B) < 0.05
    state = {name: torch.zeros(B, H) for name in core.state_names}
    parameters = list(core.parameters())
    return lambda: torch.autograd.grad(core(x, state, is_first)[0].sum(), parameters) and None


def by_autograd(kind: cores.CoreKind) -> Callable[[], None]:
    run = ours(kind)

    def plain() -> None:
        by_hand, cores._by_hand = cores._by_hand, lambda: False
        try:
            run()
        finally:
            cores._by_hand = by_hand

    return plain


def torchs(layer: nn.LSTM | nn.GRU) -> Callable[[], None]:
    x, parameters = torch.randn(T, B, F), list(layer.parameters())
    return lambda: torch.autograd.grad(layer(x)[0].sum(), parameters) and None


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    variants = {
        "lstm": ours("lstm"),
        "lstm by autograd": by_autograd("lstm"),
        "torch.nn.LSTM": torchs(nn.LSTM(F, H)),
        "gru": ours("gru"),
        "gru by autograd": by_autograd("gru"),
        "torch.nn.GRU": torchs(nn.GRU(F, H)),
    }
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, run in variants.items():
            run()
            begin = time.perf_counter()
            for _ in range(CALLS):
                run()
            best[name] = min(best[name], (time.perf_counter() - begin) / CALLS)
    for name, seconds in best.items():
        print(f"{name:20} {1e3 * seconds:6.2f} ms")


if __name__ == "__main__":
    main()
