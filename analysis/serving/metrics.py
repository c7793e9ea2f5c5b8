"""Serving metrics by their standard definitions. What is undefined (a TPOT of one token) is NaN, never an error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.serving.grids import Array


def tpot_ms(e2e_ms: npt.ArrayLike, ttft_ms: npt.ArrayLike, produced: npt.ArrayLike) -> Array:
    """(E2E - TTFT) / (output - 1), over the tokens really produced; NaN for 0 or 1 of them."""
    tokens = np.asarray(produced, dtype=float)
    later = np.where(tokens > 1, tokens - 1, np.nan)
    return np.asarray((np.asarray(e2e_ms, dtype=float) - np.asarray(ttft_ms, dtype=float)) / later)


def e2e_ms(ttft_ms: npt.ArrayLike, tpot_ms: npt.ArrayLike, output: npt.ArrayLike) -> Array:
    """TTFT + (output - 1) TPOT; TTFT for one token, NaN for none."""
    tokens, ttft = np.asarray(output, dtype=float), np.asarray(ttft_ms, dtype=float)
    several = ttft + (tokens - 1) * np.asarray(tpot_ms, dtype=float)
    return np.asarray(np.where(tokens > 1, several, np.where(tokens == 1, ttft, np.nan)))


def tokens_per_s_user(tpot_ms: npt.ArrayLike) -> Array:
    """1 / TPOT."""
    return np.asarray(1e3 / np.asarray(tpot_ms, dtype=float))


def tokens_per_s_system(concurrency: npt.ArrayLike, output: npt.ArrayLike, e2e_ms: npt.ArrayLike) -> Array:
    """Output tokens: c x output / E2E."""
    produced = np.asarray(concurrency, dtype=float) * np.asarray(output, dtype=float)
    return np.asarray(produced * 1e3 / np.asarray(e2e_ms, dtype=float))


def requests_per_s(concurrency: npt.ArrayLike, e2e_ms: npt.ArrayLike) -> Array:
    """Little's law in a closed loop: c / E2E."""
    return np.asarray(np.asarray(concurrency, dtype=float) * 1e3 / np.asarray(e2e_ms, dtype=float))


def goodput(
    requests_per_s: npt.ArrayLike, ttft_ms: npt.ArrayLike, tpot_ms: npt.ArrayLike, slo: tuple[float, float]
) -> Array:
    """Requests a second that meet both limits, TTFT and TPOT in ms: in a closed loop of equal requests all or none."""
    meets = (np.asarray(ttft_ms, dtype=float) <= slo[0]) & (np.asarray(tpot_ms, dtype=float) <= slo[1])
    return np.asarray(np.where(meets, requests_per_s, 0.0))


def mfu(tokens_per_s: npt.ArrayLike, parameters: float, gpus: int, peak_tflops: float) -> Array:
    """2 x parameters x tokens (of prompts and answers) a second over the GPUs' datasheet peak."""
    return np.asarray(2 * parameters * np.asarray(tokens_per_s, dtype=float) / (gpus * peak_tflops * 1e12))


def mbu(bytes_per_step: npt.ArrayLike, tpot_ms: npt.ArrayLike, gpus: int, dram_gb_per_s: float) -> Array:
    """Bytes that a step must read (weights and KV, of all GPUs) over what DRAM could deliver in a TPOT."""
    moved = np.asarray(bytes_per_step, dtype=float) * 1e3 / np.asarray(tpot_ms, dtype=float)
    return np.asarray(moved / (gpus * dram_gb_per_s * 1e9))
