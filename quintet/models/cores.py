"""Recurrent cores: LSTM and GRU over sequences, reset inside them where an episode begins.

`lstm_steps` and `gru_steps` are plain tensor operations, which compile to one graph.  For eager
training `LstmSteps` and `GruSteps` have a gradient written by hand: the gradient of the recurrent
weights is one matrix product over all steps, where autograd would add one product per step, and
everything independent of later steps is computed for all steps at once.
"""

from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from quintet.types import State

CoreKind = Literal["lstm", "gru"]


def lstm_steps(
    x: Tensor, keep: Tensor, h: Tensor, c: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The steps of an LSTM (Gers et al. 2000, without peepholes)::

        h, c    = keep_t * h, keep_t * c
        o, i, f = sigmoid(x_t + U h)                output, input and forget gate
        g       = tanh(x_t + U h)                   candidate
        c       = f * c + i * g
        h       = o * tanh(c)                       what the layer gives

    x: ``[T, B, 4H]``, the input's products and the bias, gates in the order o, i, f, g.
    keep: ``[T, B, 1]``, 0 where the state is reset, else 1.
    h, c: ``[B, H]``, before the first step.
    weight: U, ``[4H, H]``.

    Returns:
        y ``[T, B, H]``, the last c ``[B, H]``; of all steps o, i and f ``[T, B, 3H]``, g and c
        ``[T, B, H]``.
    """
    size = h.shape[-1]
    ys, gates, candidates, cells = [], [], [], []
    u = weight.t()
    for x_t, keep_t in zip(x.unbind(), keep.unbind(), strict=True):
        h, c = h * keep_t, c * keep_t
        pre, pre_g = torch.split(torch.addmm(x_t, h, u), [3 * size, size], -1)
        oif, g = pre.sigmoid(), pre_g.tanh()
        o, i, f = oif.chunk(3, -1)
        c = torch.addcmul(i * g, f, c)
        h = o * c.tanh()
        ys.append(h)
        gates.append(oif)
        candidates.append(g)
        cells.append(c)
    return torch.stack(ys), c, torch.stack(gates), torch.stack(candidates), torch.stack(cells)


def gru_steps(
    x: Tensor, keep: Tensor, h: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The steps of a GRU (Cho et al. 2014, in the form of cuDNN: the reset gate acts behind the
    product)::

        h    = keep_t * h
        r, z = sigmoid(x_t + U h)                   reset and update gate
        q    = U h + b
        n    = tanh(x_t + r * q)                    candidate
        h    = (1 - z) * n + z * h                  what the layer gives

    x: ``[T, B, 3H]``, the input's products and the biases, gates in the order r, z, n.
    keep: ``[T, B, 1]``, 0 where the state is reset, else 1.
    h: ``[B, H]``, before the first step.
    weight, bias: U ``[3H, H]`` and b ``[H]``.

    Returns:
        y ``[T, B, H]``; of all steps r and z ``[T, B, 2H]``, q and n ``[T, B, H]``.
    """
    size = h.shape[-1]
    ys, gates, inners, candidates = [], [], [], []
    u = weight.t()
    for x_t, keep_t in zip(x.unbind(), keep.unbind(), strict=True):
        h = h * keep_t
        pre, inner = torch.split(h @ u, [2 * size, size], -1)
        x_gates, x_n = torch.split(x_t, [2 * size, size], -1)
        rz, q = (x_gates + pre).sigmoid(), inner + bias
        r, z = rz.chunk(2, -1)
        n = torch.addcmul(x_n, r, q).tanh()
        h = torch.addcmul(n, z, h - n)
        ys.append(h)
        gates.append(rz)
        inners.append(q)
        candidates.append(n)
    return torch.stack(ys), torch.stack(gates), torch.stack(inners), torch.stack(candidates)


def _shifted(first: Tensor, later: Tensor, keep: Tensor) -> Tensor:
    """The values before each step: `first`, then all but the last of `later`, after the resets."""
    return torch.cat((first.unsqueeze(0), later[:-1])) * keep


def _weight_gradient(d: Tensor, h_before: Tensor) -> Tensor:
    """Gradient of U from the gradients of its products ``[T, B, G]``, by one matrix product."""
    return d.flatten(0, 1).t() @ h_before.flatten(0, 1)


class LstmSteps(torch.autograd.Function):
    """`lstm_steps` with a gradient written by hand."""

    @staticmethod
    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        return lstm_steps(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, keep, h, c, weight = inputs
        y, _, gates, candidates, cells = output
        ctx.mark_non_differentiable(gates, candidates, cells)
        ctx.save_for_backward(keep, h, c, weight, y, gates, candidates, cells)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor, d_c: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        keep, h, c, weight, y, gates, g, cells = ctx.saved_tensors
        o, i, f = gates.chunk(3, -1)
        tanh_c = cells.tanh()
        # Factors from d_h and d_c of a step to the gates' inputs and to the cell before.
        to_o = tanh_c * o * (1 - o)
        to_ifg = torch.stack(
            (g * i * (1 - i), _shifted(c, cells, keep) * f * (1 - f), i * (1 - g * g)), -2
        )
        to_c, c_to_before = o * (1 - tanh_c * tanh_c), f * keep
        d_h, steps = torch.zeros_like(h), []
        with torch.autocast(weight.device.type, enabled=False):
            for t in reversed(range(len(keep))):
                d_h = d_y[t] + d_h
                d_c = torch.addcmul(d_c, d_h, to_c[t])
                d_ifg = (d_c.unsqueeze(-2) * to_ifg[t]).flatten(-2)
                steps.append(torch.cat((d_h * to_o[t], d_ifg), -1))
                d_h = (steps[-1] @ weight) * keep[t]
                d_c = d_c * c_to_before[t]
            d_x = torch.stack(steps[::-1])
            return d_x, None, d_h, d_c, _weight_gradient(d_x, _shifted(h, y, keep))


class GruSteps(torch.autograd.Function):
    """`gru_steps` with a gradient written by hand."""

    @staticmethod
    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        return gru_steps(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, keep, h, weight, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(keep, h, weight, *output)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        keep, h, weight, y, gates, q, n = ctx.saved_tensors
        r, z = gates.chunk(2, -1)
        h_before = _shifted(h, y, keep)
        # Factors from d_h of a step to the inputs of the gates and the candidate, and to q.
        to_n = (1 - z) * (1 - n * n)
        to_rzq = torch.stack((to_n * q * r * (1 - r), (h_before - n) * z * (1 - z), to_n * r), -2)
        d_h, all_d_h, steps = torch.zeros_like(h), [], []
        with torch.autocast(weight.device.type, enabled=False):
            for t in reversed(range(len(keep))):
                d_h = d_y[t] + d_h
                all_d_h.append(d_h)
                steps.append((d_h.unsqueeze(-2) * to_rzq[t]).flatten(-2))
                d_h = torch.addmm(d_h * z[t], steps[-1], weight) * keep[t]
            d_rzq = torch.stack(steps[::-1])
            d_rz, d_q = torch.split(d_rzq, [2 * h.shape[-1], h.shape[-1]], -1)
            d_x = torch.cat((d_rz, torch.stack(all_d_h[::-1]) * to_n), -1)
            return d_x, None, d_h, _weight_gradient(d_rzq, h_before), d_q.sum((0, 1))


def _by_hand() -> bool:
    """Whether gradients may be needed outside of a compiled graph."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


@final
class LstmCell(nn.Module):
    """One layer, see `lstm_steps`.  An LSTM's cell; its bias is the sum of cuDNN's two."""

    parts = ("h", "c")

    def __init__(self, size_in: int, size: int):
        super().__init__()
        self.input_weight = nn.Parameter(torch.empty(4 * size, size_in))
        self.hidden_weight = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.empty(4 * size))

    def forward(
        self, x: Tensor, keep: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs ``[T, B, H]``, last h and c, from inputs ``[T, B, F]`` and the h and c before."""
        h, c = state
        x = functional.linear(x, self.input_weight, self.bias).to(h.dtype)
        run = LstmSteps.apply if _by_hand() else lstm_steps
        with torch.autocast(x.device.type, enabled=False):
            y, c, *_ = run(x, keep, h, c, self.hidden_weight)
        return y, (y[-1], c)


@final
class GruCell(nn.Module):
    """One layer, see `gru_steps`."""

    parts = ("h",)

    def __init__(self, size_in: int, size: int):
        super().__init__()
        self.input_weight = nn.Parameter(torch.empty(3 * size, size_in))
        self.hidden_weight = nn.Parameter(torch.empty(3 * size, size))
        self.bias = nn.Parameter(torch.empty(3 * size))
        self.candidate_bias = nn.Parameter(torch.empty(size))

    def forward(
        self, x: Tensor, keep: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs ``[T, B, H]`` and the last h, from inputs ``[T, B, F]`` and the h before."""
        (h,) = state
        x = functional.linear(x, self.input_weight, self.bias).to(h.dtype)
        run = GruSteps.apply if _by_hand() else gru_steps
        with torch.autocast(x.device.type, enabled=False):
            y, *_ = run(x, keep, h, self.hidden_weight, self.candidate_bias)
        return y, (y[-1],)


CELLS: dict[CoreKind, type[LstmCell] | type[GruCell]] = {"lstm": LstmCell, "gru": GruCell}


@final
class Core(nn.Module):
    """Layers of one kind of cell, each reading the outputs of the one below.

    The products of the inputs are one matrix product for all steps; only the recurrent products are
    computed step by step.  So a sequence of T steps equals T single steps up to the rounding of
    that product. The state and the steps are float32, under autocast too.  The state's leaves are
    h0, h1, ... and, for LSTMs, c0, c1, ...
    """

    def __init__(self, kind: CoreKind, size_in: int, size: int, layers: int, skip: bool = False):
        """skip: whether the inputs are concatenated before the outputs."""
        super().__init__()
        self.cells = nn.ModuleList(
            CELLS[kind](size if layer else size_in, size) for layer in range(layers)
        )
        self.parts, self.size, self.skip = CELLS[kind].parts, size, skip
        self.feature_size = size + (size_in if skip else 0)
        self.state_names = tuple(f"{part}{i}" for i in range(layers) for part in self.parts)

    def forward(self, x: Tensor, state: State, is_first: Tensor) -> tuple[Tensor, State]:
        """Outputs ``[T, B, feature_size]`` and the state after the last step, leaves ``[B, H]``.

        x: ``[T, B, F]``; T = 1 is acting.
        state: before step 0.
        is_first: ``[T, B]``; the state is zeroed before a step where it is true.
        """
        keep = (~is_first).unsqueeze(-1).to(state["h0"].dtype)
        y = x
        after: State = {}
        for layer, cell in enumerate(self.cells):
            names = [f"{part}{layer}" for part in self.parts]
            y, values = cell(y, keep, tuple(state[name] for name in names))
            after |= dict(zip(names, values, strict=True))
        return torch.cat((x, y), -1) if self.skip else y, after


@torch.no_grad()
def draw_weights(core: Core, generator: torch.Generator) -> None:
    """Draws every gate's two matrices orthogonal (gain 1) from `generator`, by order of names.
    Biases are 0, except 1 for an LSTM's forget gate, so that a new core remembers (Jozefowicz et
    al. 2015).
    """
    for _, parameter in sorted(core.named_parameters()):
        if parameter.ndim == 1:  # a bias
            parameter.zero_()
        else:
            for gate in torch.split(parameter, core.size):
                nn.init.orthogonal_(gate, generator=generator)
    for cell in core.cells:
        if isinstance(cell, LstmCell):
            cell.bias[2 * core.size : 3 * core.size] = 1.0
