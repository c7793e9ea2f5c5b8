"""The fused gate-up-SiLU by the interpreter: values worked by hand, each half in its place, edges, strides, extremes.

Every path answers: by descriptors and by pointers, with tiles of 16, 64 and 128 rows.
"""

from __future__ import annotations

import math

import pytest
import torch
from guarded import guard_bands, surrounded

from bench.check import judge, poisoned
from kernels.gate_up_silu import gate_up_silu_reference, gate_up_silu_torch
from kernels.gate_up_silu_triton import FEW, MANY, POINTERS, RAGGED, SOME, Config, gate_up_silu
from kernels.launch import tma_refusal

FORMS = (None, FEW[0], SOME[0], MANY[0], MANY[1], POINTERS[0], RAGGED[16][0])


def ask(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    """The answer of every path that can load these, in poisoned memory between guard bands."""
    refused = tma_refusal(x, "x") or tma_refusal(w, "w")
    able = [form for form in FORMS if form is None or not (refused and form.descriptors)]
    with guard_bands(), poisoned():
        return {str(form): gate_up_silu(x, w, config=form) for form in able}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def test_values_worked_by_hand() -> None:
    """Gates 0, 1, 2, -4 times 3: 0; 3 / (1 + 1/e) = 2.193176; 6 / (1 + e^-2) = 5.284783; -12 / (1 + e^4)."""
    x = torch.tensor([[1.0] + [0.0] * 15]).half()
    w = torch.zeros(8, 16).half()
    w[:, 0] = torch.tensor([0.0, 1.0, 2.0, -4.0, 3.0, 3.0, 3.0, 3.0])
    for who, out in ask(x, w).items():
        assert out.flatten().tolist() == pytest.approx([0.0, 2.193176, 5.284783, -0.215834], rel=5e-4), who


@pytest.mark.parametrize(("N", "K"), [(35, 80), (35, 77), (130, 40), (64, 256)])
def test_each_column_meets_its_own_gate_and_up_row(N: int, K: int) -> None:
    """Gates of 30, whose silu is 30 to float16's last place, times the column's number in each place of K alone."""
    rows = torch.arange(0, K, 11)
    x = torch.eye(K)[rows].half()
    places = torch.arange(K)[None, :] % 5 + torch.arange(N)[:, None] % 13 + 1
    w = torch.cat((torch.full((N, K), 30.0), places.float())).half()
    wanted = 30.0 * places.t()[rows].double()
    for who, out in ask(x, w).items():
        assert torch.equal(out.double(), wanted), who


@pytest.mark.parametrize("M", [1, 16, 17, 64, 65, 129])
def test_rows_past_the_last_are_neither_read_nor_written(M: int) -> None:
    """NaN lies between the rows of both and past their ends; columns and depth end within a tile."""
    x, w = draw(1, M, 72), draw(2, 2 * 37, 72)
    truth, eager = gate_up_silu_reference(x, w), gate_up_silu_torch(x, w)
    for who, out in ask(surrounded(x), surrounded(w)).items():
        assert not judge((out,), (eager,), (truth,)).problem, who


@pytest.mark.parametrize("gate", [-60000.0, -200.0, 200.0, 60000.0])
def test_gates_far_from_zero_saturate(gate: float) -> None:
    """exp(60000) is inf: silu is 0 below and the gate itself above, never NaN."""
    x = torch.tensor([[1.0] + [0.0] * 15]).half()
    w = torch.tensor([[gate] + [0.0] * 15, [0.5] + [0.0] * 15]).half()
    for who, out in ask(x, w).items():
        assert out.item() == float(torch.tensor(max(gate, 0.0) * 0.5).half()), who


def test_sums_beyond_float16_are_kept_in_registers() -> None:
    """A gate of 16 x 8192 = 131,072 passes float16's largest, 65,504, and the up half is 2^-10: 128; unfused, inf."""
    x = torch.ones(1, 16).half()
    w = torch.cat((torch.full((1, 16), 8192.0), torch.full((1, 16), 2.0**-14))).half()
    assert math.isinf(gate_up_silu_torch(x, w).item())
    for who, out in ask(x, w).items():
        assert out.item() == 128.0, who


def test_strided_inputs_give_the_bits_of_contiguous_ones() -> None:
    x, w = draw(3, 20, 48), draw(4, 2 * 33, 48)
    plain = ask(x, w)
    for one, other in ((x.t().contiguous().t(), w), (x, w.t().contiguous().t())):
        for who, out in ask(one, other).items():
            assert torch.equal(out, plain[who]) or who == "None", who


def test_sizes_of_nothing_and_what_does_not_fit() -> None:
    """A sum of nothing is 0, and silu(0) x 0 is 0."""
    assert gate_up_silu(draw(1, 0, 8), draw(2, 6, 8)).shape == (0, 3)
    assert gate_up_silu(draw(1, 2, 8), draw(2, 0, 8)).shape == (2, 0)
    assert torch.equal(gate_up_silu(draw(1, 2, 0), draw(2, 6, 0)), torch.zeros(2, 3).half())
    for x, w in ((draw(1, 2, 8), draw(2, 5, 8)), (draw(1, 2, 8), draw(2, 6, 9)), (draw(1, 8), draw(2, 6, 8))):
        with pytest.raises(ValueError, match="wanted x"):
            gate_up_silu(x, w)
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        gate_up_silu(draw(1, 2, 8).float(), draw(2, 6, 8).float())
    with pytest.raises(ValueError, match="needs descriptors, refused by x: rows"):
        gate_up_silu(draw(1, 2, 9), draw(2, 6, 9), config=Config(block_m=16, block_n=16, descriptors=True))
