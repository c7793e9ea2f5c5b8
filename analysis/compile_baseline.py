"""Two compilations of the same kernels against each other: what the compiler, or a change, made worse.

Whether a kernel got slower only a GPU can tell; these are the faults that are visible without one, and that no test of
results catches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.compiled import Kernel, config_text, stored_as
from bench.compiled import CompileRecord

GROWTH = 1.05
"""A hot loop may grow by this factor."""
LOAD_ORDER = ("tma", "cp.async", "ldg")
"""Best first: asynchronous and by one thread, asynchronous, and through registers."""
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out.

    Attributes:
        regressions: a line for each fault that OLD had not.
        missing, fresh: names of what only OLD or only NEW has.
        compared: kernels of both.
    """

    regressions: tuple[str, ...]
    missing: tuple[str, ...]
    fresh: tuple[str, ...]
    compared: int


def key_of(record: CompileRecord) -> Key:
    """What makes two records one kernel.

    The default of a case is compared with the default, whatever its launch parameters are, since that is what runs.
    """
    which = "default" if record.default else config_text(record)
    return (record.case["id"], str(record.arch), which, str(record.launch))


def compare(old: Sequence[Kernel], new: Sequence[Kernel], failed: Sequence[CompileRecord] = ()) -> Comparison:
    """Kernels of a baseline against newer ones.

    Args:
        old, new: as `analysis.compiled.load_kernels` gives them.
        failed: newer records without a kernel.
    """
    before = {key_of(kernel.record): kernel for kernel in old}
    after = {key_of(kernel.record): kernel for kernel in new}
    broken = {key_of(record)[:3]: record for record in failed}
    lines = [
        f"{name_of(broken[key[:3]])}: no longer compiles: {broken[key[:3]].error}"
        for key in before
        if key[:3] in broken and key[3] == "0"
    ]
    both = [key for key in before if key in after]
    for key in both:
        lines += [f"{name_of(after[key].record)}: {fault}" for fault in faults(before[key], after[key])]
    return Comparison(
        regressions=tuple(lines),
        missing=tuple(name_of(before[key].record) for key in before if key not in after and key[:3] not in broken),
        fresh=tuple(name_of(after[key].record) for key in after if key not in before),
        compared=len(both),
    )


def name_of(record: CompileRecord) -> str:
    """Op, dtype, sizes and launch parameters of a kernel."""
    return f"{record.case['op']} {stored_as(record)} sm_{record.arch} {config_text(record)}"


def faults(old: Kernel, new: Kernel) -> Iterator[str]:
    """What is worse about a kernel than it was, one line each."""
    a, b = old.record, new.record
    spilled = (max(a.spill_loads, a.spill_stores), max(b.spill_loads, b.spill_stores))
    if spilled[1] > spilled[0]:
        yield f"spills {'appeared' if not spilled[0] else 'grew'}: {spilled[0]} -> {spilled[1]}"
    kinds = [sorted({shape.partition(".")[0] for shape in kernel.mix.tensor}) for kernel in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"tensor instruction changed: {_joined(kinds[0])} -> {_joined(kinds[1])}"
    for option, was in a.engaged.items():
        if was and not b.engaged.get(option, False):
            asked = "is no longer asked for" if option not in b.engaged else "no longer engages"
            yield f"{option} {asked}"
    if new.mix.wgmma_serialised and not old.mix.wgmma_serialised:
        yield f"wgmma became serialised: {' '.join(new.mix.wgmma_order)}"
    yield from _load_faults(old, new)
    if new.blocks[0] < old.blocks[0]:
        yield (
            f"an occupancy step was crossed: {old.blocks[0]} -> {new.blocks[0]} blocks an SM "
            f"(registers {a.registers} -> {b.registers}, shared {a.shared_bytes} -> {b.shared_bytes} bytes)"
        )
    yield from _growth(old, new)


def _load_faults(old: Kernel, new: Kernel) -> Iterator[str]:
    best = [min((LOAD_ORDER.index(kind) for kind in kernel.load_kinds), default=None) for kernel in (old, new)]
    if best[0] is not None and best[1] is not None and best[1] > best[0]:
        yield f"{LOAD_ORDER[best[0]]} turned into {LOAD_ORDER[best[1]]}"
    elif old.load_bytes and new.load_bytes and new.load_bytes < old.load_bytes:
        yield f"bytes of a load fell: {old.load_bytes:.4g} -> {new.load_bytes:.4g}"


def _growth(old: Kernel, new: Kernel) -> Iterator[str]:
    """Instructions of a trip for the same work: of a FLOP, or of a byte where nothing is multiplied."""
    for unit, work in (("FLOP", [old.flops, new.flops]), ("byte", [old.trip_bytes, new.trip_bytes])):
        if all(work) and old.loop and new.loop:
            each = [k.mix.instructions * k.warps / amount for k, amount in zip((old, new), work, strict=True)]
            if each[1] > GROWTH * each[0]:
                yield (
                    f"the loop grew by {each[1] / each[0] - 1:.0%} for each {unit}: "
                    f"{old.mix.instructions} -> {new.mix.instructions} instructions"
                )
            return


def _joined(kinds: Sequence[str]) -> str:
    return "+".join(kinds) or "none"
