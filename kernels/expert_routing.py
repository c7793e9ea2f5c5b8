"""Which experts the tokens of a workload visit: a draw that is the same everywhere, in pure Python.

Leaves models to `kernels.models` and the matmuls over the experts' rows to `kernels.grouped_matmul`.
"""

from __future__ import annotations

from bisect import bisect
from functools import cache
from itertools import accumulate
from random import Random

SEED = 8
"""Of `Random.random`, whose sequence Python promises to keep."""


@cache
def expert_rows(tokens: int, experts: int, top_k: int, *, skewed: bool) -> tuple[int, ...]:
    """Rows that each expert gets when every token visits `top_k` distinct ones.

    Experts are drawn one after another, evenly or, skewed, with chances of 1, 1/2, 1/3 and so on (Zipf) in an order of
    their own, so that the busy ones are not neighbours; one that the token has already is drawn again. Evenly
    E (1 - (1 - k/E)^T) experts are expected to get a row.

    Args:
        tokens: T.
        experts: E, at least top_k.
        top_k: k.

    Returns:
        One count an expert; T k in all.
    """
    random = Random(SEED)
    order = sorted(range(experts), key=lambda expert: random.random())
    bounds = list(accumulate(1 / (rank + 1) if skewed else 1.0 for rank in range(experts)))
    rows = [0] * experts
    for _ in range(tokens):
        visited: set[int] = set()
        while len(visited) < top_k:
            visited.add(order[bisect(bounds, random.random() * bounds[-1], hi=experts - 1)])
        for expert in visited:
            rows[expert] += 1
    return tuple(rows)
