"""`summary.md` of a visit: how the steps ended, what failed, times against times; rates are the analysis's business.

Made again after each step from what is on disk, so that a visit that is cut off has one. Needs nothing but the records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from bench.gpu import FAILED, NOISE, RECORDS, VARIANTS, Visit
from bench.gpu_plan import PROVIDERS
from bench.plan import left_out_lines
from bench.record import Record, RecordError, Status, read_records, write_atomically
from kernels.registry import ROOF_OPS

SUMMARY = "summary.md"
LINES = 12
"""Of details that are each told in full."""
FINE = (Status.OK, Status.SKIPPED, Status.UNSUPPORTED)
ROOFS = tuple(op.name for op in ROOF_OPS)
Table = list[list[str]]


def write_summary(visit: Visit) -> str:
    """Writes `summary.md` and returns it."""
    found = {name: _records(visit.directory / name) for name in (RECORDS, VARIANTS, *NOISE)}
    parts = [
        _head(visit),
        _section("Steps", [["step", "expected s", "took s", "ended", "what came of it"], *_steps(visit)]),
        _lines("What failed", _failures(visit, [r for records in found.values() for r in records])),
        _lines("Left out for want of time", _left_out(visit)),
        _section("The device's own roofs, us", _roofs(found[RECORDS])),
        _section(
            "Against torch, us (the last column: the fastest of the others over triton)", _compared(found[RECORDS])
        ),
        _section("The same cases otherwise, median over the cold burst's", _variants(found[RECORDS], found[VARIANTS])),
        _section("Two fresh processes, one median over the other", _noise(*(found[name] for name in NOISE))),
        _block("Launch configurations found", visit.facts.get("tune", {}).get("printed", ())),
        _block("Analysis", visit.facts.get("analysis", ())),
    ]
    text = "\n".join(part for part in parts if part)
    write_atomically(visit.directory / SUMMARY, text)
    return text


def every_record(directory: Path) -> list[Record]:
    """Those of all files of a visit."""
    return [record for name in (RECORDS, VARIANTS, *NOISE) for record in _records(directory / name)]


def _records(path: Path) -> list[Record]:
    """What can be read; nothing where a step has written nothing yet, or the file is torn."""
    try:
        return read_records(path, may_be_empty=True) if path.exists() else []
    except RecordError:
        return []


def _head(visit: Visit) -> str:
    e = visit.session.environment
    told = {"driver": e.driver, "torch": e.torch, "triton": e.triton, "commit": e.commit}
    lines = [f"# {e.device_name}, run {visit.session.run}", ", ".join(f"{k} {v}" for k, v in told.items() if v)]
    return "\n\n".join(line for line in lines if line) + "\n"


def _steps(visit: Visit) -> Table:
    return [[s.name, f"{s.expected_s:.0f}", f"{s.took_s:.0f}", s.ended or "runs", s.detail] for s in visit.endings]


def _failures(visit: Visit, records: Sequence[Record]) -> list[str]:
    lines = [f"step {step.name}: {step.detail}" for step in visit.endings if step.ended == FAILED]
    bad = [(str(r.status), r.case["id"], r.detail) for r in records if r.status not in FINE]
    checked = [one for one in visit.facts.get("correctness", ()) if one["status"] not in map(str, FINE)]
    bad += [(one["status"], one["case_id"], one["detail"]) for one in checked]
    lines += [f"{status}: {case_id}: {detail}" for status, case_id, detail in bad[:LINES]]
    lines += [f"and {len(bad) - LINES} more: in the records and gpu.json"] if len(bad) > LINES else []
    lines += [f"did not compile: {line}" for line in visit.facts.get("compile", {}).get("failed", ())[:LINES]]
    return lines


def _left_out(visit: Visit) -> list[str]:
    return [f"{step}: {line.strip()}" for step, cases in visit.left_out.items() for line in left_out_lines(cases)]


def _roofs(records: Iterable[Record]) -> Table:
    rows = [[r.case["id"], _us(r)] for r in records if r.case["op"] in ROOFS and r.status is Status.OK]
    return [["roof", "median"], *rows] if rows else []


def _compared(records: Iterable[Record]) -> Table:
    by_workload: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.case["op"] not in ROOFS:
            op, provider, key = record.case["id"].split("/", 2)
            by_workload[f"{op}/{key}"][provider] = record
    rows = []
    for workload, of in by_workload.items():
        cells = [_us(of[p]) if p in of and of[p].times_us else str(of[p].status) if p in of else "" for p in PROVIDERS]
        others = [median(r.times_us) for p, r in of.items() if p != "triton" and r.times_us]
        ours = of["triton"].times_us if "triton" in of else ()
        rows.append([workload, *cells, f"{min(others) / median(ours):.2f}" if others and ours else ""])
    return [["workload", *PROVIDERS, "ratio"], *rows] if rows else []


def _variants(records: Iterable[Record], variants: Iterable[Record]) -> Table:
    """Each sentinel's hot, sustained and zeros medians over its plain one: what the cache, heat and data are worth."""
    plain = {r.case["id"]: median(r.times_us) for r in records if r.times_us}
    rows = []
    for r in variants:
        if r.times_us and r.case["id"] in plain and plain[r.case["id"]]:
            how = ", ".join((r.cache, r.regime, str(r.data.get("distribution", ""))))
            rows.append([r.case["id"], how, f"{median(r.times_us) / plain[r.case['id']]:.4f}"])
    return [["case", "measured", "ratio"], *rows] if rows else []


def _noise(first: Iterable[Record], second: Iterable[Record]) -> Table:
    before = {r.case["id"]: median(r.times_us) for r in first if r.times_us}
    pairs = [(r.case["id"], median(r.times_us), before.get(r.case["id"])) for r in second if r.times_us]
    rows = [[case_id, f"{now / then:.4f}"] for case_id, now, then in pairs if then]
    return [["case", "ratio"], *rows] if rows else []


def _us(record: Record) -> str:
    return f"{median(record.times_us):.4g}"


def _section(title: str, table: Table) -> str:
    if len(table) < 2:
        return ""
    rows = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in table]
    head = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([f"## {title}", "", *head, *("| " + " | ".join(row) + " |" for row in rows[1:]), ""])


def _lines(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"* {line}" for line in lines), ""]) if lines else ""


def _block(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", "```", *lines, "```", ""]) if lines else ""
