"""How many elements of a row a kernel may load at once where rows are no multiples of 16 bytes.

Triton itself asks of a size or stride only whether it is a multiple of 16, and loads element by element where it is
not. Bytes in whole 4 allow asynchronous copies, and with them a pipeline.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

MOST_BYTES = 16
"""Of one load."""
SEEN = 16
"""Elements: sizes in whole multiples of so many need no hint."""


def row_piece(*matrices: torch.Tensor) -> int:
    """The most elements, a power of two up to 16 bytes, that rows are whole multiples of, in length and distance.

    Args:
        matrices: [rows, columns] of one dtype.

    Returns:
        1 where a row's elements do not lie side by side, and where a kernel needs no hint: Triton sees multiples of 16
        itself, and each of 4 bytes is copied asynchronously as it is.
    """
    sizes = [size for matrix in matrices for size in (matrix.shape[1], matrix.stride(0))]
    if matrices[0].element_size() >= 4 or any(matrix.stride(1) != 1 for matrix in matrices):
        return 1
    return 1 if math.gcd(*sizes) % SEEN == 0 else math.gcd(MOST_BYTES // matrices[0].element_size(), *sizes)


@triton.jit
def in_pieces(size, PIECE: tl.constexpr):
    """The same size, as the compiler can see that it is whole multiples of PIECE."""
    if PIECE > 1:
        size = size // PIECE * PIECE
    return size
