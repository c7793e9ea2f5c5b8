"""The page of a compile report: what does not hold, a table of the kernels, and what their class reaches when it runs.

A ceiling says what the instruction mix allows; beside each stands what the same class of kernel was published to
reach on an H100, so that nobody reads the one as the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.compile_labels import short_labels
from analysis.compiled import Kernel, config_text, row_of
from bench.compiled import CompileRecord

PUBLISHED_ARCH = 90
PUBLISHED: Mapping[tuple[str, int | None], str] = {
    ("matmul", None): "Triton 0.67-0.80, cuBLAS 0.81",
    ("attention_prefill", 128): "Triton 0.41-0.49, FA3 0.75",
    ("attention_prefill", 64): "Triton 0.30-0.33, FA3 0.32-0.43",
    ("matmul_decode", None): "torch 0.69 of DRAM",
    ("attention_decode", None): "FA3 0.37-0.55, FlashMLA 0.90 of DRAM",
}
"""(op, head_dim) -> published fractions of the tensor peak, or of the DRAM peak, on H100 in 16-bit data."""
SOURCES = (
    "Published fractions, H100, 16-bit: matmul Triton with descriptors 8192 x 8192 (tritonbench#894) and cuBLAS 8192^3 "
    "(pranjalssh/fast.cu README); attention D = 128 Triton tutorial (facebookexperimental/triton#206) and FA3 (arXiv "
    "2407.08608), D = 64 on the PCIe part (flash-attention#1777); decode matmul M = 1, N = K = 8192 by torch "
    "(inclusionAI/humming#2); decode attention FA3 paged (flash-attention#1572) and FlashMLA on an H800 (its README)."
)
ABOUT = (
    "**Nothing was run.** These figures are read from compiled kernels and worked out with the pipe rates of "
    "`analysis/pipes.py`; no time was measured. A ceiling is the largest fraction of the tensor peak that the hot "
    "loop's instruction mix allows: *overlapped* when every pipe works at once, *in turn* when the tensor cores and "
    "the busiest other pipe alternate. **A ceiling is not a speed**: the column beside it is what the same class of "
    "kernel was published to reach.",
    "The hot loop is the innermost one with the most tensor work; of two as large, the shorter. Instructions are a "
    "warp's for one trip; cycles an SM's for one trip of one block. In decode, KB and bytes in flight are those of "
    "weights or KV alone. *Waves* are the grid over what 132 SMs hold (148 for sm_100). *Stalls* is the least a warp "
    "needs for a trip by its stall counts. Where warps are "
    "specialised, the loop is the consumers'; their producer's instructions are not in it.",
)
DTYPE_ON_PAGE = "bfloat16"
HEAD = (
    "kernel", "regs", "spills", "CTAs/SM", "waves", "tensor", "loads", "KB in flight/SM", "instructions", "stalls", "T",
    "MUFU", "FP32", "ALU", "issue", "binds", "barriers", "per kFLOP", "per KB", "overlapped", "in turn", "published",
)  # fmt: skip


def page(kernels: Sequence[Kernel], failed: Sequence[CompileRecord], title: str, figure: str) -> str:
    """Markdown of one arch's kernels.

    Args:
        kernels: all of them; the table has those of bfloat16, where there are such.
        failed: records of cases that did not compile.
        title: the heading.
        figure: file name of the figure beside the page.
    """
    shown = on_page(kernels)
    lines = [f"# {title}", "", *(line for text in ABOUT for line in (text, ""))]
    lines += ["## What does not hold", "", *(f"* {line}" for line in complaints(kernels, failed) or ["nothing"]), ""]
    lines += [f"![Cycles of each pipe]({figure})", "", "## Kernels", ""]
    if len(shown) < len(kernels):
        lines += [f"Of dtype {DTYPE_ON_PAGE}, without the reductions that follow; `kernels.csv` has all.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    names = short_labels(shown)
    lines += [f"| {' | '.join(_cells(kernel, name))} |" for kernel, name in zip(shown, names, strict=True)]
    return "\n".join([*lines, "", SOURCES, ""])


def on_page(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The main kernels of bfloat16; of every dtype where none has that."""
    main = [kernel for kernel in kernels if kernel.record.launch == 0]
    usual = [kernel for kernel in main if kernel.record.case["dtype"] == DTYPE_ON_PAGE]
    return usual or main


def complaints(kernels: Sequence[Kernel], failed: Sequence[CompileRecord]) -> list[str]:
    """One line for each kernel that spills, has its wgmma serialised or lacks what was asked for, and each failure."""
    lines = [f"{_name(record)}: does not compile: {record.error}" for record in failed]
    for kernel in kernels:
        record = kernel.record
        dropped = [option for option, is_there in record.engaged.items() if not is_there]
        told = [f"not engaged: {', '.join(dropped)}"] if dropped else []
        told += [f"spills: {record.spill_stores} STL, {record.spill_loads} LDL"] if record.spill_stores else []
        told += ["wgmma serialised: a full wait after each"] if kernel.mix.wgmma_serialised else []
        told += ["does not fit an SM"] if not kernel.blocks[0] else []
        lines += [f"{_name(record)}: {'; '.join(told)}"] if told else []
    return lines


def _name(record: CompileRecord) -> str:
    return f"`{record.case['op']}` {record.case['dtype']} {config_text(record)}"


def published(kernel: Kernel) -> str:
    """What the kernel's class reaches on an H100; '' where nothing was found."""
    case = kernel.record.case
    if kernel.record.arch != PUBLISHED_ARCH or case["dtype"] not in ("bfloat16", "float16"):
        return ""
    head_dim = case["axes"].get("head_dim")
    return PUBLISHED.get((case["op"], head_dim), PUBLISHED.get((case["op"], None), ""))


def _cells(kernel: Kernel, name: str) -> list[str]:
    row, record = row_of(kernel), kernel.record
    spills = f"{record.spill_stores}/{record.spill_loads}" if record.spill_stores or record.spill_loads else "0"
    tensor = row["tensor_instruction"] + (" **serialised**" if kernel.mix.wgmma_serialised else "")
    in_flight = round(kernel.bytes_in_flight_per_sm / 1024)
    cycles = kernel.cycles
    return [
        f"`{record.case['op']}` {name}".strip(), str(record.registers), spills,
        f"{row['ctas_per_sm']} ({row['ctas_limiter']})", f"{kernel.waves:.2f}", tensor or "none",
        row["loads"] or "none", str(in_flight),
        _told(row["loop_instructions"]), _told(kernel.loop.stall_cycles if kernel.loop else None),
        *(f"{value:.0f}" for value in (cycles.tensor, *cycles.others.values())), row["binding_pipe"],
        _told(row["cta_barriers_per_iteration"]), _told(row["instructions_per_kflop"]),
        _told(row["instructions_per_kb"]), _told(row["ceiling_overlapped"]), _told(row["ceiling_serial"]),
        published(kernel) or "-",
    ]  # fmt: skip


def _told(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
