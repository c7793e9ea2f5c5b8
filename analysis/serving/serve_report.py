"""What `serve` prints: the figures, the ladder, the ops by weight, and what stands behind them."""

from __future__ import annotations

from typing import Any

from analysis.serving.deployment import Deployment, Engine, Host
from analysis.serving.memory import budget
from analysis.serving.validate_report import fitted

LADDER = ("speed_of_light", "measured_kernels", "launch_and_host", "batching")
OPS = 8
"""Ops that a table lists, the heaviest first."""
SUMS = 0.995
"""Part of TPOT below which the ops' gains are told not to sum."""


def assumptions(deployment: Deployment, *, spread: bool = False) -> list[str]:
    """Memory, engine, kernels and fitted constants, with their units; `spread` where intervals are told."""
    b, engine = budget(deployment), deployment.engine
    room = f"{b.room / 1e9:.2f} GB KV" if b.room >= 0 else f"{-b.room / 1e9:.2f} GB too few, so no KV"
    kernels = [] if spread else ["Error bars: none, the kernels' times are published or computed without their spread; "
                                 "--kernels RUN tells TPOT over the intervals of a run's own"]  # fmt: skip
    router = ["Experts: an even router; a skewed one reads fewer weights and loads some GPUs more"]
    return [
        f"GPU memory: {b.capacity / 1e9:.0f} GB (1e9 bytes), {b.fraction:.0%} used by the engine: "
        f"{b.weights / 1e9:.2f} GB weights ({deployment.dtype}), {b.activations / 1e9:.2f} GB activations, "
        f"{b.context / 1e9:.1f} GB context and graphs, {room} ({deployment.kv_dtype}) = "
        f"{b.kv_tokens} tokens of {b.kv_bytes_per_token:,.0f} bytes",
        f"Engine: {engine.source}",
        *kernels,
        *(router if deployment.model.experts else []),
        *trust(engine, deployment.host),
    ]


def trust(engine: Engine, host: Host) -> list[str]:
    """The host constants of an engine, and the error of TPOT on sets that their fit has not seen."""
    told = fitted()["cross_validated_over_sets"]
    return [
        f"Host (us): {host.step_us:g} a step, {host.all_reduce_us:g} an all-reduce, "
        f"{host.sequence_us:g} a sequence, {host.eager_layer_us:g} a layer with a prompt at "
        "least; fitted, 0 with --kernels-only",
        f"Checked against 465 runs of real engines: TPOT error on sets that the fit has not seen, mean "
        f"{told['mean_ape_percent']} %, median {told['median_ape_percent']} %. Of {engine.name}: "
        + ", ".join(f"{name.removesuffix(' ' + engine.name)} {error} %" for name, error in _sets_of(engine.name, told))
        + ". TTFT: not claimed.",
    ]


def _sets_of(engine: str, told: dict[str, Any]) -> list[tuple[str, float]]:
    return [(name, error) for name, error in told["sets"].items() if name.endswith(f" {engine}")]


def as_text(deployment: Deployment, documents: list[dict[str, Any]], slo: str) -> str:
    """Tables of figures and ladder, ops of the last load, then the assumptions."""
    lines = ["| clients | fits | TTFT ms | TPOT ms | gap ms | E2E s | tok/s/user | tok/s | $/Mtok out | MFU | MBU |",
             "|---:|---|" + "---:|" * 9]  # fmt: skip
    lines += [_line(d) for d in documents]
    lines += [f"{d['concurrency']} clients: {d['reason']}" for d in documents if d["reason"]]
    lines += [
        f"{d['concurrency']} clients: {d['queued']} wait for memory, {d['max_concurrency']} requests fit at their end"
        for d in documents if d["queued"]
    ]  # fmt: skip
    shown = [d for d in documents if d["ladder"]]
    lines += [
        f"{d['concurrency']} clients: TPOT {d['tpot_ms_low']:.2f} to {d['tpot_ms_high']:.2f} ms over the kernels' "
        f"intervals; {d['tpot_ms_reference']:.2f} ms with the published kernels instead, {d['tpot_ms_fastest']:.2f} "
        "with the fastest of them"
        for d in shown if "tpot_ms_reference" in d
    ]  # fmt: skip
    lines += [
        f"{d['concurrency']} clients: {d['pipeline_bubble']:.0%} of the pipeline is idle in decode, stages without a "
        "sequence (its bubble)"
        for d in shown if d["pipeline_bubble"]
    ]  # fmt: skip
    lines += _caching(documents[0])
    if shown:
        lines += ["", "| clients | speed of light | measured kernels | + host | + batching = TPOT ms |",
                  "|---:|---:|---:|---:|---:|"]  # fmt: skip
        lines += [
            f"| {d['concurrency']} | " + " | ".join(f"{d['ladder'][r]:.2f}" for r in LADDER) + " |" for d in shown
        ]
        lines += ["", *ops_table(shown[-1])]
    return "\n".join([*lines, *([slo] if slo else []), "", *assumptions(deployment, spread=has_spread(documents))])


def has_spread(documents: list[dict[str, Any]]) -> bool:
    """Whether the loads tell TPOT over the intervals of their kernels."""
    return any("tpot_ms_low" in d for d in documents)


def _line(d: dict[str, Any]) -> str:
    scaled = (
        ("ttft_ms", 1.0, 1), ("tpot_ms", 1.0, 2), ("longest_gap_ms", 1.0, 1), ("e2e_ms", 1e-3, 2),
        ("tokens_per_s_user", 1.0, 1), ("tokens_per_s_system", 1.0, 0), ("usd_per_mtok_output", 1.0, 3),
        ("mfu", 1.0, 3), ("mbu", 1.0, 3),
    )  # fmt: skip
    cells = ["-" if d[name] is None else f"{d[name] * scale:.{digits}f}" for name, scale, digits in scaled]
    return f"| {d['concurrency']} | {'yes' if d['fits'] else 'no'} | " + " | ".join(cells) + " |"


def _caching(d: dict[str, Any]) -> list[str]:
    """What of a request's KV is empty, and whether bringing a hit back beats computing it anew."""
    lines = [f"KV of a request at its end: {d['kv_waste']:.1%} of what it holds is empty"]
    if "recompute_ms" in d and d["reload_ms"] is not None:
        less = "reloading" if d["reload_ms"] < d["recompute_ms"] else "recomputing"
        lines.append(
            f"A hit: {d['reload_ms']:.1f} ms to reload, {d['recompute_ms']:.1f} to recompute: {less} is faster"
        )
    return lines


def ops_table(d: dict[str, Any]) -> list[str]:
    """A heading, and a table of the heaviest ops with what 1 % of each is worth; under it, if that sums to less."""
    heaviest = sorted(d["ops"], key=lambda op: -op["ms"])[:OPS]
    lines = [f"TPOT of {d['concurrency']} clients by op, and what 1 % of an op is worth:",
             "| op | ms | share | time is | us of TPOT | $/Mtok |", "|---|---:|---:|---|---:|---:|"]  # fmt: skip
    for op in heaviest:
        usd = op["usd_per_mtok_per_percent"]
        worth = f"{op['tpot_ms_per_percent'] * 1e3:.1f} | {'-' if usd is None else f'{usd:.5f}'}"
        lines.append(f"| {op['op']} | {op['ms']:.3f} | {op['share']:.1%} | {op['how']} | {worth} |")
    kernels = sum(op["tpot_ms_per_percent"] for op in d["ops"]) * 100 / d["tpot_ms"]
    if kernels < SUMS:
        lines.append(
            f"1 % of every kernel is {kernels:.2f} % of TPOT: the rest is the host's, or of prompts that it bounds"
        )
    return lines
