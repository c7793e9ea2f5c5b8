"""What tokens cost, from a price that the caller states."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.serving.grids import Array


def usd_per_mtok(tokens_per_s: npt.ArrayLike, gpus: int, usd_per_gpu_hour: float) -> Array:
    """Dollars for a million tokens at this rate: GPUs x price / 3600 / rate x 1e6."""
    return np.asarray(gpus * usd_per_gpu_hour / 3600 * 1e6 / np.asarray(tokens_per_s, dtype=float))
