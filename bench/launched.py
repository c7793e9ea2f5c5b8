"""Which Triton kernels a call launched, and what the compiler really made of them: facts for the record.

A requested option that Triton silently dropped (warp specialisation at 8 warps, say) shows here as not engaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENGAGED = {
    "warp_specialized": "setmaxnreg",
    "wgmma": "wgmma.mma_async",
    "tma": "cp.async.bulk.tensor",
    "pdl": "griddepcontrol",
}
"""What an option leaves in PTX when the compiler took it."""
_loaded: dict[Any, dict[str, Any]] = {}
"""Facts of each kernel of this process by its function handle: a kernel is loaded once and launched often."""


@contextmanager
def kernels_launched() -> Iterator[list[dict[str, Any]]]:
    """Fills a list with the facts of the kernels launched inside, one of each in the order of their first launch."""
    launched: list[dict[str, Any]] = []
    try:
        from triton import knobs
    except ImportError:
        yield launched
        return

    def note(metadata: Any) -> None:
        facts = _loaded.get(metadata.get()["function"])
        if facts and facts not in launched:
            launched.append(facts)

    knobs.runtime.kernel_load_end_hook.add(_remember)
    knobs.runtime.launch_enter_hook.add(note)
    try:
        yield launched
    finally:
        knobs.runtime.launch_enter_hook.remove(note)


def _remember(module: Any, function: Any, name: str, files: Mapping[str, str], key: str) -> None:
    """Triton's hook at the end of a kernel's load; `files` are its artefacts in the compile cache, by name."""
    by_kind = {Path(file).suffix: Path(file) for file in files.values()}
    metadata = json.loads(by_kind[".json"].read_text(encoding="utf-8"))
    ptx = by_kind[".ptx"].read_text(encoding="utf-8")
    _loaded[function] = {
        "name": name,
        "num_warps": metadata["num_warps"],
        "num_stages": metadata["num_stages"],
        "shared_bytes": metadata["shared"],
        "engaged": sorted(option for option, trace in ENGAGED.items() if trace in ptx),
        "cubin_sha256": hashlib.sha256(by_kind[".cubin"].read_bytes()).hexdigest(),
    }
