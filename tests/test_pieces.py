"""kernels.pieces: how many elements of a row are loaded at once."""

from __future__ import annotations

import pytest
import torch

from kernels.pieces import row_piece


@pytest.mark.parametrize(
    ("columns", "apart", "piece"),
    [(8190, 8190, 2), (8188, 8188, 4), (8200, 8200, 8), (8191, 8191, 1), (8190, 8192, 2), (8192, 8190, 2), (6, 9, 1)],
)
def test_a_piece_divides_the_length_and_the_distance_of_rows(columns: int, apart: int, piece: int) -> None:
    rows = torch.empty_strided((3, columns), (apart, 1), dtype=torch.float16, device="meta")
    assert row_piece(rows) == row_piece(rows, torch.empty(5, 8192, dtype=torch.float16, device="meta")) == piece


def test_what_needs_no_hint_or_has_no_rows_side_by_side_gets_none() -> None:
    whole = torch.empty(4, 8192, dtype=torch.bfloat16, device="meta")
    assert row_piece(whole) == 1, "Triton sees multiples of 16 itself"
    assert row_piece(torch.empty(4, 8190, device="meta")) == 1, "4 bytes are copied asynchronously as they are"
    assert row_piece(torch.empty(8190, 4, dtype=torch.float16, device="meta").t()) == 1
    assert row_piece(whole[:, :8190], whole.t()) == 1
