"""Grouped products by the interpreter: each row meets its own expert, and nobody's else, whoever has no rows."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from guarded import guard_bands, surrounded

from kernels.grouped_matmul import OP
from kernels.grouped_matmul_triton import Config, grouped_matmul, most_tiles

FORMS = (
    None,
    Config(block_m=16, block_n=32, block_k=32),
    Config(block_m=32, block_n=64, block_k=32, group_m=1),
    Config(block_m=64, block_n=32, block_k=64, group_m=2),
)
COUNTS = {
    "none for the first": (0, 5, 18),
    "none for some between": (17, 0, 0, 16, 1),
    "none for the last": (3, 33, 0, 0),
    "all for one": (0, 0, 70, 0),
    "one row": (0, 1, 0),
    "as many as a tile": (16, 32, 64),
    "one expert": (19,),
}


def ends(counts: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(list(accumulate(counts)), dtype=torch.int32)


def whole(rows: int, columns: int, step: int) -> torch.Tensor:
    """Small whole numbers, whose products and sums float16 and float32 hold exactly."""
    return ((torch.arange(rows)[:, None] * step + torch.arange(columns) * 3) % 5 - 2).half()


@pytest.mark.parametrize("config", FORMS, ids=str)
@pytest.mark.parametrize(("N", "K"), [(40, 48), (33, 35)])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=list(COUNTS))
def test_each_row_meets_its_own_expert(counts: tuple[int, ...], N: int, K: int, config: Config | None) -> None:
    """Row by row in float64, each expert's weights its own; guarded output, NaN between the rows of x."""
    rows, experts = sum(counts), len(counts)
    x, w = whole(rows, K, 2), torch.stack([whole(N, K, expert + 1) for expert in range(experts)])
    owner = [expert for expert, count in enumerate(counts) for _ in range(count)]
    wanted = torch.stack([w[expert].double() @ x[row].double() for row, expert in enumerate(owner)])
    with guard_bands():
        out = grouped_matmul(surrounded(x), w.transpose(1, 2), ends(counts), config=config)
    assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize("K", [48, 35])
def test_a_row_of_nan_and_an_expert_without_rows_stay_to_themselves(K: int) -> None:
    x, w = whole(20, K, 2), torch.stack([whole(24, K, e + 1) for e in range(3)])
    x[9], w[1] = torch.nan, torch.nan
    out = grouped_matmul(x, w.transpose(1, 2), ends((9, 0, 11)))
    assert out.isnan().all(1).tolist() == [row == 9 for row in range(20)]
    assert out.isnan().any(1).tolist() == [row == 9 for row in range(20)]


def test_experts_apart_and_in_rows_of_n_take_pointers() -> None:
    x, w = whole(20, 48, 2), torch.stack([whole(40, 48, e + 1) for e in range(3)])
    wanted = grouped_matmul(x, w.transpose(1, 2), ends((9, 0, 11)))
    apart = surrounded(w).transpose(1, 2)
    n_major = w.transpose(1, 2).contiguous()
    for other in (apart, n_major):
        assert torch.equal(grouped_matmul(x, other, ends((9, 0, 11))), wanted)


def test_rows_past_the_last_end_are_not_written() -> None:
    with guard_bands():
        out = grouped_matmul(whole(30, 48, 2), whole(40, 48, 1)[None].transpose(1, 2), ends((21,)))
    assert out[:21].isfinite().all() and out[21:].isnan().all()


def test_no_rows_no_columns_no_depth() -> None:
    weights = torch.ones(2, 32, 8).half()
    assert grouped_matmul(torch.ones(0, 32).half(), weights, ends((0, 0))).shape == (0, 8)
    assert grouped_matmul(torch.ones(3, 32).half(), weights[:, :, :0], ends((1, 2))).shape == (3, 0)
    assert torch.equal(grouped_matmul(torch.ones(3, 0).half(), weights[:, :0], ends((1, 2))), torch.zeros(3, 8).half())


@pytest.mark.parametrize(("rows", "experts", "block_m"), [(1, 8, 16), (5, 3, 2), (130, 3, 64), (7, 7, 16)])
def test_the_grid_holds_any_offsets(rows: int, experts: int, block_m: int) -> None:
    """Worst: one row for all experts but one, which gets the rest."""
    hit = min(rows, experts)
    worst = max(k - 1 + -(-(rows - (k - 1)) // block_m) for k in range(1, hit + 1))
    assert worst <= most_tiles(rows, experts, block_m) <= rows


def test_what_does_not_fit_is_refused() -> None:
    x, w, offsets = torch.ones(4, 32).half(), torch.ones(2, 32, 8).half(), ends((2, 2))
    for given in ((x.float(), w.float(), offsets), (x, w[:, :16], offsets), (x[0], w, offsets)):
        with pytest.raises(ValueError, match=r"wanted x \[rows, K\] and w \[E, K, N\]"):
            grouped_matmul(*given)
    for wrong in (offsets.long(), offsets[:1], torch.arange(4, dtype=torch.int32)[::2]):
        with pytest.raises(ValueError, match="wanted offsets int32"):
            grouped_matmul(x, w, wrong)
    for counts in ((2, 1), (3, -1), (-1, 5)):
        with pytest.raises(ValueError, match="offsets must rise"):
            OP.validate(x, w, ends(counts))
