"""LSTM and GRU cores against PyTorch's own, their gradients, resets inside sequences."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.models.cores import Core, CoreKind, draw_weights, gru_steps, lstm_steps
from quintet.system.compiler import too_old

KINDS: tuple[CoreKind, ...] = ("lstm", "gru")
SIZE_IN, SIZE = 5, 7


def make(kind: CoreKind, layers: int = 1, seed: int = 0) -> Core:
    core = Core(kind, SIZE_IN, SIZE, layers)
    g = torch.Generator().manual_seed(seed)
    draw_weights(core, g)
    with torch.no_grad():  # biases that are no special case
        for parameter in core.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=g))
    return core


def draw(core: Core, steps: int, streams: int, seed: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn((steps, streams, SIZE_IN), generator=g)
    return x, {name: torch.randn((streams, SIZE), generator=g) for name in core.state_names}


def no_resets(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:2], dtype=torch.bool)


def some_resets(x: Tensor, seed: int = 2) -> Tensor:
    is_first = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)) < 0.25
    assert is_first[1:].any()
    assert not is_first.all()
    return is_first


def oracle(core: Core, kind: CoreKind) -> nn.LSTM | nn.GRU:
    """PyTorch's own with the same weights; its gates lie in another order, with two biases."""
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](SIZE_IN, SIZE, len(core.cells))
    for layer, cell in enumerate(core.cells):
        extra = torch.zeros_like(cell.bias)
        if kind == "gru":
            extra[2 * SIZE :] = cell.candidate_bias.detach()
        values = {"weight_ih": cell.input_weight, "weight_hh": cell.hidden_weight}
        values |= {"bias_ih": cell.bias, "bias_hh": extra}
        for name, value in values.items():
            theirs.get_parameter(f"{name}_l{layer}").data = in_their_order(value.detach(), kind)
    return theirs


def in_their_order(x: Tensor, kind: CoreKind) -> Tensor:
    """Rows of o, i, f, g as those of i, f, g, o; a GRU's stay."""
    parts = x.split(SIZE)
    return torch.cat([parts[k] for k in ([1, 2, 3, 0] if kind == "lstm" else [0, 1, 2])])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_against_pytorch(kind: CoreKind, layers: int):
    core = make(kind, layers)
    x, state = draw(core, 9, 4)
    theirs = oracle(core, kind)
    stacked = [
        torch.stack([state[f"{part}{k}"] for k in range(layers)])
        for part in ("h", "c")[: len(core.parts)]
    ]
    with torch.no_grad():
        expected, last = theirs(x, tuple(stacked) if kind == "lstm" else stacked[0])
    y, after = core(x, state, no_resets(x))
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    for part, value in zip("hc", last if kind == "lstm" else (last,), strict=False):
        for k in range(layers):
            torch.testing.assert_close(after[f"{part}{k}"], value[k], rtol=1e-6, atol=1e-6)
    assert set(after) == set(state) == set(core.state_names)


def loss(core: Core, parameters: dict[str, Tensor], data: tuple) -> Tensor:
    """Reads outputs and the last state, each with a weight of its own."""
    y, after = functional_call(core, parameters, data)
    parts = [y, *(after[name] for name in sorted(after))]
    return sum((x * (x.detach() + k)).sum() for k, x in enumerate(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_pytorch(kind: CoreKind):
    core = make(kind, 2)
    x, state = draw(core, 6, 3)
    y, _ = core(x.requires_grad_(), state, no_resets(x))
    theirs, again = oracle(core, kind), x.detach().requires_grad_()
    stacked = [torch.stack([state[f"{p}0"], state[f"{p}1"]]) for p in core.parts]
    expected, _ = theirs(again, tuple(stacked) if kind == "lstm" else stacked[0])
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-6, atol=2e-6)  # of six steps' parts
    for layer, cell in enumerate(core.cells):
        pairs = {"weight_ih": cell.input_weight, "weight_hh": cell.hidden_weight}
        for name, parameter in (pairs | {"bias_ih": cell.bias}).items():
            found = theirs.get_parameter(f"{name}_l{layer}").grad
            ours = in_their_order(parameter.grad, kind)
            torch.testing.assert_close(ours, found, rtol=1e-6, atol=4e-6)  # of size 11


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_hand_against_finite_differences(kind: CoreKind):
    core = make(kind, 2).double()
    x, state = draw(core, 4, 2)
    is_first = torch.tensor([[False, True], [False, False], [True, False], [False, False]])
    names = list(core.state_names)
    parameters = dict(core.named_parameters())

    def run(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, values, strict=False))
        weights = dict(zip(parameters, values[len(names) :], strict=True))
        y, after = functional_call(core, weights, (x, given, is_first))
        return (y, *after.values())

    inputs = [x.double(), *(state[name].double() for name in names), *parameters.values()]
    leaves = [t.detach().requires_grad_() for t in inputs]
    # What the rounding of float64 leaves over a step of 1e-6.
    assert torch.autograd.gradcheck(run, leaves, atol=2e-9, rtol=0.0)


@pytest.mark.skipif(too_old() is not None, reason=str(too_old()))
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_hand_are_those_of_autograd(kind: CoreKind):
    """With resets, under torch.func, and as the compiler sees the steps."""
    core = make(kind, 1)
    x, state = draw(core, 3, 4)
    data = (x, state, some_resets(x))
    parameters = dict(core.named_parameters())
    leaves = list(parameters.values())
    by_hand = torch.autograd.grad(loss(core, parameters, data), leaves)

    def of(parameters: dict[str, Tensor], *data: object) -> Tensor:
        return loss(core, parameters, data)

    functional = torch.func.grad(of)(parameters, *data)
    traced = torch.compile(torch.func.grad(of), fullgraph=True, backend="aot_eager")
    compiled = traced(parameters, *data)
    for name, expected in zip(parameters, by_hand, strict=True):
        torch.testing.assert_close(functional[name], expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(compiled[name], expected, rtol=1e-6, atol=4e-6)  # of size 18


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_equals_single_steps(kind: CoreKind, layers: int):
    """Learning sees what acting saw."""
    core = make(kind, layers)
    x, state = draw(core, 12, 4)
    is_first = some_resets(x)
    y, after = core(x, state, is_first)
    with torch.inference_mode():
        for t in range(len(x)):
            one, state = core(x[t : t + 1], state, is_first[t : t + 1])
            torch.testing.assert_close(one[0], y[t], rtol=1e-6, atol=1e-6)
    for name in after:
        torch.testing.assert_close(state[name], after[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_inside_is_two_sequences(kind: CoreKind):
    core = make(kind, 2)
    x, state = draw(core, 8, 3)
    is_first = no_resets(x)
    is_first[5] = True
    y, after = core(x, state, is_first)
    zeros = {name: torch.zeros(3, SIZE) for name in core.state_names}
    before, _ = core(x[:5], state, is_first[:5])
    behind, last = core(x[5:], zeros, no_resets(x[5:]))
    torch.testing.assert_close(y, torch.cat((before, behind)))
    torch.testing.assert_close(after, last)
    # No gradient crosses the reset.
    y, _ = core(x.requires_grad_(), state, is_first)
    (gradient,) = torch.autograd.grad(y[5:].sum(), [x])
    assert not gradient[:5].any()
    assert gradient[5:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_at_the_start_forgets_the_state(kind: CoreKind):
    core = make(kind)
    x, state = draw(core, 3, 2)
    is_first = no_resets(x)
    is_first[0, 0] = True
    other = {name: value + 1.0 for name, value in state.items()}
    one, two = core(x, state, is_first)[0], core(x, other, is_first)[0]
    assert torch.equal(one[:, 0], two[:, 0])
    assert not torch.equal(one[:, 1], two[:, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_streams_do_not_mix(kind: CoreKind):
    core = make(kind, 2)
    x, state = draw(core, 6, 5)
    is_first, order = some_resets(x), [3, 0, 4, 2, 1]
    y, after = core(x, state, is_first)
    shuffled = {name: value[order] for name, value in state.items()}
    again, last = core(x[:, order], shuffled, is_first[:, order])
    torch.testing.assert_close(again, y[:, order])
    for name in after:
        torch.testing.assert_close(last[name], after[name][order])


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_steps_stay_float32_under_autocast(kind: CoreKind):
    core = make(kind, 2)
    x, state = draw(core, 6, 4)
    data = (x, state, some_resets(x))
    y, _ = core(*data)
    with torch.autocast("cpu", torch.bfloat16):
        low, after = core(*data)
        gradients = torch.autograd.grad(low.sum(), list(core.parameters()))
    assert low.dtype == torch.float32
    assert {value.dtype for value in after.values()} == {torch.float32}
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
    # Products of size 1 with 8 bits are off by 0.002; the gates pass on a part of it.
    torch.testing.assert_close(low, y, rtol=0.0, atol=6e-3)
    assert not torch.equal(low, y)  # the inputs' products were bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_weights_at_the_start(kind: CoreKind):
    core = Core(kind, SIZE_IN, SIZE, 2)
    draw_weights(core, torch.Generator().manual_seed(0))
    for name, parameter in core.named_parameters():
        if parameter.ndim == 1:
            expected = torch.zeros_like(parameter)
            if kind == "lstm":
                expected[2 * SIZE : 3 * SIZE] = 1.0  # the forget gate
            assert torch.equal(parameter, expected), name
            continue
        for gate in parameter.detach().double().split(SIZE):
            rows, columns = gate.shape
            gram = gate @ gate.T if rows <= columns else gate.T @ gate
            identity = torch.eye(min(rows, columns), dtype=torch.float64)
            torch.testing.assert_close(gram, identity, rtol=0, atol=2e-6)
    again = Core(kind, SIZE_IN, SIZE, 2)
    draw_weights(again, torch.Generator().manual_seed(0))
    assert all(torch.equal(core.state_dict()[k], v) for k, v in again.state_dict().items())


def test_the_forget_gate_is_where_the_bias_of_1_is():
    """Wide open, it keeps the cell whatever comes."""
    x = torch.zeros(3, 1, 4 * SIZE)
    x[..., 2 * SIZE : 3 * SIZE] = 50.0
    c = torch.randn(1, SIZE)
    _, last, *_ = lstm_steps(
        x, torch.ones(3, 1, 1), torch.zeros(1, SIZE), c, torch.zeros(4 * SIZE, SIZE)
    )
    torch.testing.assert_close(last, c)


def test_the_update_gate_keeps_the_state():
    x = torch.zeros(3, 1, 3 * SIZE)
    x[..., SIZE : 2 * SIZE] = 50.0
    h = torch.randn(1, SIZE)
    y, *_ = gru_steps(x, torch.ones(3, 1, 1), h, torch.zeros(3 * SIZE, SIZE), torch.zeros(SIZE))
    torch.testing.assert_close(y[-1], h)
