"""Builds the stub libcuda and runs functions in a child process in which Triton's own CUDA driver meets it.

Nothing of Triton is replaced: its `CudaDriver`, launcher and `fill_tma_descriptor` compile for sm_90 and call the
driver API, which refuses what an H100's driver would. A child, since a process can load only one libcuda and one
Triton; that also lets the same cases run under another Triton, from the folder it was unpacked in.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.case import Case

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / ".triton"
"""Ignored by git: other Tritons and the stub."""
OLDEST = Path(os.environ.get("ROOFMARK_TRITON_3_6", BUILT / "3.6.0"))
TRITONS: dict[str, Path | None] = {"installed": None, "3.6.0": OLDEST}
"""The Triton of this environment, and the oldest that is supported; `make test` unpacks that one."""
SOURCE = Path(__file__).with_name("cuda_stub.c")


class ChildError(RuntimeError):
    """The child process ended without a result; the message holds the end of what it printed."""


def build_stub() -> Path:
    """The folder of a libcuda.so.1 made from the source as it is now."""
    headers = _triton_folder() / "backends" / "nvidia" / "include"
    key = hashlib.sha256(SOURCE.read_bytes() + (headers / "cuda.h").read_bytes()).hexdigest()[:16]
    folder = BUILT / f"stub-{key}"
    library = folder / "libcuda.so.1"
    if library.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{os.getpid()}.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-I{headers}"]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-o", str(unfinished), str(SOURCE)], check=True)
    unfinished.replace(library)
    return folder


def _triton_folder() -> Path:
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise ChildError("no triton is installed: its wheel holds the cuda.h that the stub is built with")
    return Path(spec.origin).parent


def run_in_stub(target: str, argument: Any = None, *, triton_path: Path | None = None) -> Any:
    """What a function returns in a child process that has the stub for a driver.

    Args:
        target: "module:function", importable from the checkout or from tests.
        argument: its only argument, pickled; the function must return what JSON holds.
        triton_path: folder of an unpacked Triton to use in place of the installed one.

    Raises:
        ChildError: the child crashed or raised, or no Triton is unpacked in the folder.
    """
    if triton_path is not None and not (triton_path / "triton").is_dir():
        raise ChildError(f"no Triton in {triton_path}: make .triton/{triton_path.name}")
    stub = build_stub()
    with tempfile.TemporaryDirectory() as scratch:
        job, result = Path(scratch) / "job", Path(scratch) / "result"
        job.write_bytes(pickle.dumps((target, argument)))
        done = subprocess.run(
            [sys.executable, "-m", "stub_cuda.child", str(job), str(result)],
            cwd=ROOT,
            env=_environment(stub, Path(scratch) / "log", triton_path),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not result.exists():
            raise ChildError(f"{target}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def _environment(stub: Path, log: Path, triton_path: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "PYTHONPATH")}
    paths = [str(ROOT), str(ROOT / "tests")]
    if triton_path is not None:
        paths.insert(0, str(triton_path.resolve()))
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "STUB_CUDA_LOG": str(log),
        "TRITON_LIBCUDA_PATH": str(stub),
        "LD_LIBRARY_PATH": str(stub),
        "LIBRARY_PATH": str(stub),
    }


def run_cases(cases: Sequence[Case], triton_path: Path | None = None) -> list[dict[str, Any]]:
    """Launches each case twice in one child: plainly, then as if captured and with other copies of streamed inputs.

    Args:
        cases: of Triton providers, any size and configuration: inputs are shapes and addresses alone.
        triton_path: folder of an unpacked Triton.

    Returns:
        For each case `case_id`, `error` ('' when it ran), `rules` that were broken, `loads_first` and `loads_second`
        (modules), `launches` and `maps` of the first time.
    """
    described = [(c.op.name, c.op.make_inputs.__module__, c.provider, c.workload, c.config) for c in cases]
    results: list[dict[str, Any]] = run_in_stub("stub_cuda.child:run_cases_here", described, triton_path=triton_path)
    return results


def problems(results: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with results of `run_cases`, one line each; empty when every launch would have gone through."""
    found = []
    for result in results:
        wrong = [result["error"]] if result["error"] else []
        wrong += result["rules"]
        wrong += [] if result["launches"] else ["launched nothing"]
        wrong += [f"a second launch loads {result['loads_second']} modules"] if result["loads_second"] else []
        found += [f"{result['case_id']}: {line}" for line in dict.fromkeys(wrong)]
    return found
