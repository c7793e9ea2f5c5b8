"""The validation table as text and as JSON: what is predicted, how well, and what of it was fitted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pandas as pd

from analysis.serving.deployment import CONSTANTS
from analysis.serving.engine_facts import as_markdown as engine_facts
from analysis.serving.validate import Summary, by_set, summary

ROW_COLUMNS = (
    "id", "set", "tp_size", "concurrency", "isl", "osl", "capacity", "tpot_ms", "silicon_tpot_ms",
    "speed_of_light_tpot_ms", "flagged", "memory_limited", "error_percent", "ttft_ms", "silicon_ttft_ms",
    "ttft_error_percent", "peer_error_percent",
)  # fmt: skip
HEADER = "| set | runs | flagged | mean % | median % | bias % | peer, same runs % | ours there % | TTFT median % |"


def fitted() -> dict[str, Any]:
    """The fitted constants with their cross-validation, as committed."""
    read: dict[str, Any] = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    return read


def as_document(rows: pd.DataFrame, unseen: pd.DataFrame | None = None) -> dict[str, Any]:
    """One JSON document: overall, sets, rows, what was fitted, and `cross_validated` where it was asked for."""
    document = {
        "overall": _plain(summary(rows)),
        "sets": {name: _plain(s) for name, s in by_set(rows).items()},
        "fitted": fitted(),
        "rows": json.loads(rows[list(ROW_COLUMNS)].to_json(orient="records", double_precision=6)),
    }
    if unseen is not None:
        sets = {name: _plain(s) for name, s in by_set(unseen).items()}
        document["cross_validated"] = {"overall": _plain(summary(unseen)), "sets": sets}
    return document


def as_markdown(rows: pd.DataFrame, unseen: pd.DataFrame | None = None) -> str:
    """The table by set, the same cross-validated where it was asked for, and how to read them."""
    parts = ["# Predicted and measured TPOT", "", _table(rows), ""]
    if unseen is not None:
        parts += [
            "## Cross-validated", "",
            "Each set predicted with host constants fitted to the other sets only.", "", _table(unseen), "",
        ]  # fmt: skip
    return "\n".join([*parts, *_notes(), "", "## The engines", "", engine_facts(), ""])


def _notes() -> list[str]:
    told = fitted()
    engines = "; ".join(
        f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in host.items())
        for name, host in told["engines"].items()
    )
    lines = [
        "Errors of TPOT over the runs that are not flagged. Flagged: measured below the speed of light of the run's "
        "own label. Peer: aiconfigurator 0.12.0. TTFT is shown and not claimed: the measured ones hold queues and "
        "ramps that no label tells.",
        "What is known of each engine is listed below; it was looked up with these runs in view and is no prediction.",
        f"Kernel times: measured ones of the package, never fitted. Fitted host constants (us): {engines}.",
    ]
    unseen = told.get("cross_validated_over_sets")
    if unseen:
        lines.append(
            f"Fitted to {told['fitted_to']}; on sets that a fit has not seen, mean {unseen['mean_ape_percent']} %, "
            f"median {unseen['median_ape_percent']} %."
        )
    return lines


def _table(rows: pd.DataFrame) -> str:
    lines = [HEADER, "|---|" + "---:|" * (HEADER.count("|") - 2)]
    lines += [_line(name, s) for name, s in by_set(rows).items()]
    return "\n".join([*lines, _line("all", summary(rows))])


def _line(name: str, s: Summary) -> str:
    figures = (
        s.mean_ape_percent, s.median_ape_percent, s.bias_percent, s.peer_mean_ape_percent,
        s.mean_ape_percent_on_peer_rows, s.ttft_median_ape_percent,
    )  # fmt: skip
    cells = [name, str(s.rows), str(s.rows_flagged), *("" if math.isnan(f) else f"{f:.1f}" for f in figures)]
    return "| " + " | ".join(cells) + " |"


def _plain(s: Summary) -> dict[str, Any]:
    return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in asdict(s).items()}
