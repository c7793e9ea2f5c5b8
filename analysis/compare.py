"""Two runs against each other: which cases belong together, what each side timed, and one verdict a case.

Rows join on case, device, timer, cache, regime, launch and inputs; what is left over of a case on both sides is one
pair whose conditions differ. What was flagged and rerun has the rerun's verdict. Records are read by `analysis.sides`;
the rule of the verdict is left to `analysis.verdicts`, what may be compared to `analysis.comparable`, the output to
`analysis.compare_output`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparable import PREFIX, compared_conditions, told_lines
from analysis.processes import order_of, paired, spreads
from analysis.sides import KEY, UNTIMED
from analysis.stats import CONFIDENCE, rerun_confidence
from analysis.verdicts import COMPARED, FLAGGED, FRESH, Rules, Verdict, confirmed, judged
from bench.record import Status

COLUMNS = (
    "case_id", "baseline_us", "candidate_us", "ratio", "low", "high", "adjusted_p", "verdict", "reason",
)  # fmt: skip

ABOUT = ("op", "phase", "dtype", "M", "flops", "bytes")
"""Columns of `analysis.frame` that stand beside a verdict, as does its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came out.

    Attributes:
        cases: COLUMNS, device and ABOUT, one row a case, the worst first.
        warnings: conditions that differ, runs in a bad order, and what else to know.
        code: 0, 1, 3 or 4.
    """

    cases: pd.DataFrame
    warnings: tuple[str, ...]
    code: int

    def verdicts(self) -> dict[str, int]:
        """How many cases have each verdict, those that none has too."""
        counts = self.cases["verdict"].value_counts()
        return {verdict.value: int(counts.get(verdict.value, 0)) for verdict in Verdict}


def compare(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    rules: Rules,
    *,
    allowed: Collection[str] = (),
    noise: pd.DataFrame | None = None,
    rerun: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    strict: bool = False,
) -> Comparison:
    """Every case of two sides.

    Args:
        baseline, candidate: the frames that `analysis.sides.side_of` gives.
        rules: how large a change must be.
        allowed: FIELDs of `analysis.comparable` that may differ.
        noise: runs of one code, for the A/A floor.
        rerun: fresh runs of both sides, of what they flag: SLOW and FAST need the same verdict of these.
        strict: a missing case is exit code 3.
    """
    rows, warnings = _verdicts(baseline, candidate, rules, allowed, noise)
    if rerun:
        flagged = rows[rows["verdict"].isin(FLAGGED)]
        confidence = rerun_confidence(flagged["few"].sum() if len(flagged) else 0)
        again, more = _verdicts(*rerun, rules, allowed, noise, confidence)
        rows, warnings = _confirmed(rows, again), list(dict.fromkeys([*warnings, *more]))
    rows = _ordered(_described(rows, baseline, candidate))
    warnings += [
        f"pattern {pattern!r} of --threshold-for matches no case"
        for pattern, _ in rules.of_cases
        if not Rules(threshold=0, of_cases=[(pattern, 1)]).thresholds(rows["case_id"]).any()
    ]
    return Comparison(cases=rows, warnings=tuple(warnings), code=exit_code(rows["verdict"], strict=strict))


def _described(rows: pd.DataFrame, baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    about = pd.concat([candidate, baseline])[["case_id", *ABOUT]].drop_duplicates("case_id")
    told = rows[list(COLUMNS)].assign(device=rows["device_b"].fillna(rows["device_a"]))
    return told.merge(about, on="case_id", how="left", validate="many_to_one")


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """The worst first: by verdict, then the largest change, then the id."""
    rank = {verdict.value: i for i, verdict in enumerate(RANK)}
    ids = np.argsort(np.argsort(rows["case_id"].to_numpy(dtype=object), kind="stable"), kind="stable")
    order = np.lexsort((ids, -(rows["ratio"] - 1).abs().to_numpy(), rows["verdict"].map(rank).to_numpy()))
    return rows.iloc[order].reset_index(drop=True)


def _verdicts(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    rules: Rules,
    allowed: Collection[str],
    noise: pd.DataFrame | None,
    confidence: float = CONFIDENCE,
) -> tuple[pd.DataFrame, list[str]]:
    """COLUMNS and those of KEY with _a, one row a case; what to warn of."""
    order = order_of(baseline, candidate)
    cases = _joined(_summary(baseline), _summary(candidate))
    both = cases["side"] == "both"
    refused, differences = compared_conditions(cases[both], allowed)
    cases = _settled(cases, refused.reindex(cases.index, fill_value=""))
    ready = cases["verdict"] == ""
    measured = spreads(paired(cases[ready], baseline, candidate, order, KEY), noise, KEY)
    rows = pd.concat(
        [cases[~ready], judged(measured, rules, confidence) if len(measured) else measured], ignore_index=True
    )
    changed = [*_changed("baseline", baseline), *_changed("candidate", candidate)]
    return rows, [*told_lines(differences, allowed), *order.warnings, *changed, *_uuids(baseline, candidate)]


def _confirmed(rows: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The flagged rows as the rerun has them."""
    flagged = rows["verdict"].isin(FLAGGED)
    keys = [f"{name}_a" for name in KEY]
    fresh = again[again["case_id_a"].notna()][[*keys, *FRESH]]
    joined = rows.loc[flagged, keys].merge(fresh, on=keys, how="left").set_index(rows.index[flagged])
    settled = rows.copy()
    settled.loc[flagged, list(FRESH)] = confirmed(rows[flagged], joined)
    return settled


def _changed(name: str, side: pd.DataFrame) -> list[str]:
    """A side whose sources were edited between its processes is two sides."""
    told = side[side["source_sha256"] != ""]
    several = int((told.groupby(KEY, dropna=False)["source_sha256"].nunique() > 1).sum())
    return [f"processes of the {name} ran different kernel sources in {several} cases"] if several else []


RANK = (
    Verdict.SLOW, Verdict.INVALID, Verdict.MISSING, Verdict.NOT_COMPARABLE, Verdict.AMBIGUOUS, Verdict.FAST,
    Verdict.NEW, Verdict.SAME,
)  # fmt: skip
"""In the order of a table."""


def exit_code(verdicts: pd.Series[str], *, strict: bool = False) -> int:
    """1 any SLOW; else 4 any INVALID; else 3 nothing comparable, or strict and any MISSING; else 0."""
    seen = set(verdicts)
    if Verdict.SLOW in seen:
        return 1
    if Verdict.INVALID in seen:
        return 4
    if not seen & set(COMPARED) or (strict and Verdict.MISSING in seen):
        return 3
    return 0


def _summary(side: pd.DataFrame) -> pd.DataFrame:
    """One row a case: n, mean, var of the logarithms of its processes' medians; why it is invalid or has no time."""
    ok = side["status"] == Status.OK
    usable = ok & ~side["doubted"] & (side["time_us"] > 0) & np.isfinite(side["time_us"])
    absent = side["status"].isin(UNTIMED)
    detail = side["status"] + ": " + side["detail"].astype(str)
    time = "time of " + side["time_us"].astype(str) + " us"
    fault = np.where(~ok, detail, np.where(side["doubted"], "its run flagged it suspect: " + side["flags"], time))
    rows = side.assign(
        log=np.log(side["time_us"].where(usable)),
        fault=pd.Series(fault, index=side.index).where(~usable & ~absent),
        absent=detail.where(absent),
        code=(side["cubins"] + side["config"]).where(side["cubins"] != "", ""),
    )
    names = [c for c in side.columns if c.startswith(PREFIX)]
    groups = rows.groupby(KEY, sort=False, dropna=False)
    summary = groups.agg(
        n=("log", "count"), mean=("log", "mean"), var=("log", "var"), fault=("fault", "first"),
        absent=("absent", "first"), code=("code", "first"), **{name: (name, "first") for name in names},
    )  # fmt: skip
    summary["mixed"] = ""
    if len(summary) < len(side):
        summary["code"] = summary["code"].mask(groups["code"].nunique() > 1, "")
        for name in names:
            several = groups[name].nunique() > 1
            if several.any():
                named = summary["mixed"] + np.where(summary["mixed"] == "", "", ", ") + name.removeprefix(PREFIX)
                summary["mixed"] = summary["mixed"].mask(several, named)
    return summary.reset_index()


def _joined(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """The cases of both sides, columns with _a and _b; `side` is both, left (MISSING) or right (NEW)."""
    a, b = a.assign(id_a=range(len(a))), b.assign(id_b=range(len(b)))
    exact = a[[*KEY, "id_a"]].merge(b[[*KEY, "id_b"]], on=KEY, validate="one_to_one")
    left, right = a[~a["id_a"].isin(exact["id_a"])], b[~b["id_b"].isin(exact["id_b"])]
    alone = [rest[~rest["case_id"].duplicated(keep=False)] for rest in (left, right)]
    changed = alone[0][["case_id", "id_a"]].merge(alone[1][["case_id", "id_b"]], on="case_id")
    pairs = pd.concat([exact[["id_a", "id_b"]], changed[["id_a", "id_b"]]], ignore_index=True)
    both = [
        side.iloc[pairs[name]].drop(columns=name).add_suffix(suffix).reset_index(drop=True)
        for side, name, suffix in ((a, "id_a", "_a"), (b, "id_b", "_b"))
    ]
    # Conditions are held against each other, so a case of one side alone needs none.
    plain = [c for c in a.columns if c != "id_a" and not c.startswith(PREFIX)]
    missing = left.loc[~left["id_a"].isin(pairs["id_a"]), plain]
    new = right.loc[~right["id_b"].isin(pairs["id_b"]), plain]
    parts = [missing.add_suffix("_a").assign(side="left"), new.add_suffix("_b").assign(side="right")]
    cases = pd.concat([pd.concat(both, axis=1).assign(side="both"), *parts], ignore_index=True)
    of_a, of_b = (set(side["case_id"].tolist()) for side in (a, b))
    elsewhere = [x in of_b or y in of_a for x, y in zip(cases["case_id_a"], cases["case_id_b"], strict=True)]
    return cases.assign(case_id=cases["case_id_a"].fillna(cases["case_id_b"]), elsewhere=elsewhere)


def _settled(cases: pd.DataFrame, refused: pd.Series[str]) -> pd.DataFrame:
    """Verdict and reason of the cases that need no times, '' for the others; and the times of all."""
    told: dict[str, Any] = {name: cases[name].astype("object").where(cases[name].notna(), "") for name in TEXTS}
    both, n_a, n_b = cases["side"] == "both", cases["n_a"].fillna(0), cases["n_b"].fillna(0)
    otherwise: Any = pd.Series(np.where(cases["elsewhere"], "; the other side has it in other ways", ""), cases.index)
    fault = ("baseline: " + told["fault_a"]).where(told["fault_a"] != "", "candidate: " + told["fault_b"])
    mixed = ("processes of the baseline differ in " + told["mixed_a"]).where(
        told["mixed_a"] != "", "processes of the candidate differ in " + told["mixed_b"]
    )
    invalid = ((told["fault_a"] != "") & (cases["side"] != "right")) | (told["fault_b"] != "")
    no_a, no_b = both & (n_a == 0), both & (n_b == 0)
    left, right = cases["side"] == "left", cases["side"] == "right"
    steps = [
        (invalid, Verdict.INVALID, fault),
        (left & (n_a == 0), Verdict.NOT_COMPARABLE, "baseline: " + told["absent_a"] + "; not in the candidate"),
        (right & (n_b == 0), Verdict.NOT_COMPARABLE, "candidate: " + told["absent_b"] + "; not in the baseline"),
        (left, Verdict.MISSING, "not in the candidate" + otherwise),
        (right, Verdict.NEW, "not in the baseline" + otherwise),
        (no_a & no_b, Verdict.NOT_COMPARABLE, "timed by neither side: " + told["absent_b"]),
        (no_a, Verdict.NEW, "baseline: " + told["absent_a"]),
        (no_b, Verdict.MISSING, "candidate: " + told["absent_b"]),
        (refused != "", Verdict.NOT_COMPARABLE, refused),
        ((told["mixed_a"] != "") | (told["mixed_b"] != ""), Verdict.NOT_COMPARABLE, mixed),
    ]  # fmt: skip
    verdict = pd.Series("", index=cases.index, dtype="object")
    reason = verdict.copy()
    for holds, said, why in steps:
        first = holds & (verdict == "")
        verdict, reason = verdict.mask(first, said.value), reason.mask(first, why)
    nothing = dict.fromkeys(("ratio", "low", "high", "adjusted_p"), np.nan)
    return cases.assign(
        verdict=verdict, reason=reason, baseline_us=np.exp(cases["mean_a"].astype(float)),
        candidate_us=np.exp(cases["mean_b"].astype(float)),
        same_code=(cases["code_a"] == cases["code_b"]) & (cases["code_a"].fillna("") != ""), **nothing,
    )  # fmt: skip


TEXTS = ("fault_a", "fault_b", "absent_a", "absent_b", "mixed_a", "mixed_b")


def _uuids(baseline: pd.DataFrame, candidate: pd.DataFrame) -> list[str]:
    """Boards of the same model are no fault, but worth a look."""
    a, b = (", ".join(sorted(set(side["uuid"]) - {""})) for side in (baseline, candidate))
    return [f"another board of the same name or another device: UUID {a} -> {b}"] if a and b and a != b else []
