"""kernels.tuned: a table's entry is what runs on its device, Triton and bucket, and nowhere else."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.runtime import JITFunction, KernelInterface, driver

from bench.case import Case
from bench.compile import compile_driver
from bench.method import Method
from bench.request import request_of, requested
from bench.run import configured
from kernels import tuned
from kernels.registry import OPS, op_named
from kernels.spec import Workload

H100 = "NVIDIA H100 80GB HBM3"
WITH_TRITON = [op for op in OPS if op.name in ("matmul", "matmul_decode", "attention_prefill", "attention_decode")]


class Cuda:
    """An active driver whose tensors live on a GPU."""

    utils = SimpleNamespace(get_device_properties=lambda device: {"multiprocessor_count": 132})

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.fixture
def on_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda and Triton's driver as on an H100, as far as the look-up asks."""
    tuned._device.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: H100)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (9, 0))
    monkeypatch.setattr(driver, "_active", Cuda())


def kernel_of(op: Any) -> ModuleType:
    return import_module(f"kernels.{op.name}_triton")


def workload(op: Any) -> Workload:
    sizes: dict[str, dict[str, int]] = {
        "matmul": {"M": 8192, "N": 8192, "K": 4096},
        "matmul_decode": {"M": 1, "N": 8192, "K": 4096},
        "attention_prefill": {"q_len": 4096},
        "attention_decode": {"kv_len": 4096},
    }
    axes = {axis: size for axis, size in op.axes.items() if size is not None} | sizes[op.name]
    described: Workload = op.describe_axes(axes, "bfloat16", ("test",))
    return described


def literal(op: Any, config: Any) -> dict[Any, Any]:
    """The table as a person pastes it: text that Python reads."""
    text = repr({(H100, triton.__version__): {op.bucket(workload(op), 90): config}})
    table: dict[Any, Any] = eval(text, {"Config": type(config)})
    return table


@pytest.mark.usefixtures("on_h100")
@pytest.mark.parametrize("op", WITH_TRITON, ids=lambda op: op.name)
def test_a_pasted_literal_is_what_the_op_runs_first(monkeypatch: pytest.MonkeyPatch, op: Any) -> None:
    usual, elsewhere = op.configs(workload(op), 90), op.configs(workload(op), 100)
    chosen = usual[-1]
    assert len(usual) > 1
    monkeypatch.setattr(kernel_of(op), "TUNED", literal(op, chosen))
    configs = op.configs(workload(op), 90)
    assert configs[0] == chosen and sorted(map(repr, configs)) == sorted(map(repr, usual))
    assert configured(Case(op, "triton", workload(op)), "cuda")[1] == asdict(chosen)
    assert op.configs(workload(op), 100) == elsewhere, "what is compiled for another arch is not this device's"


@pytest.mark.parametrize("op", WITH_TRITON, ids=lambda op: op.name)
def test_the_wrapper_itself_launches_it(monkeypatch: pytest.MonkeyPatch, op: Any) -> None:
    """Called without a configuration, as an engine would; with another table key it takes its own default."""
    usual = op.configs(workload(op), 90)
    chosen = replace(usual[0], num_warps=2 * usual[0].num_warps)
    monkeypatch.setattr(kernel_of(op), "TUNED", literal(op, chosen))
    warps = []
    for key in ((H100, triton.__version__), ("NVIDIA H100 NVL", triton.__version__), (H100, "3.5.0"), None):
        monkeypatch.setattr(tuned, "device_key", lambda arch=None, key=key: key)
        inputs = op.make_inputs(workload(op), "meta", 0)
        with compile_driver(90) as compiler:
            op.providers["triton"](**inputs)
        warps.append(compiler.launches[0][0].metadata.num_warps)
    assert warps == [chosen.num_warps, *[usual[0].num_warps] * 3]


@pytest.mark.usefixtures("on_h100")
def test_whose_key_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the GPU; of none for another arch, in a compile for a machine elsewhere, or where nothing is launched."""
    assert tuned.device_key() == tuned.device_key(90) == (H100, triton.__version__)
    assert tuned.device_key(100) is None
    monkeypatch.undo()
    with compile_driver(90):
        assert tuned.device_key() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with compile_driver(90):
        assert tuned.device_key() is None
    monkeypatch.setattr(tuned, "INTERPRETED", True)
    assert tuned.device_key() is None


def test_buckets_are_what_the_rules_tell_apart() -> None:
    def bucket(op: str, dtype: str = "bfloat16", **axes: int) -> tuple[Any, ...]:
        found = op_named(op)
        sizes = {axis: size for axis, size in found.axes.items() if size is not None} | axes
        return found.bucket(found.describe_axes(sizes, dtype, ()), 90)

    assert bucket("matmul", M=300, N=4096, K=7) == ("bfloat16", "pointers, ragged K", 512, 4096), "rows of 14 bytes"
    assert bucket("matmul", "float32", M=64, N=64, K=8)[1] == "pointers", "rows of 32 bytes, on the CUDA cores"
    assert bucket("matmul", "float32", M=64, N=9, K=8)[1] == "pointers, ragged N", "rows of 36 bytes"
    assert bucket("matmul", M=64, N=9, K=9)[1] == "pointers, ragged NK"
    assert bucket("matmul", M=1, N=100_000, K=64) == ("bfloat16", "descriptors", 64, 8192)
    assert bucket("matmul", M=64, N=99, K=64) == ("bfloat16", "descriptors, ragged N", 64, 128)
    assert bucket("matmul", "tfloat32", M=512, N=512, K=64)[0] == "tfloat32"
    rows = [bucket("matmul_decode", M=M, N=8, K=8)[1] for M in (1, 2, 16, 17, 64)]
    assert rows == [1, 16, 16, 64, 64]
    assert bucket("matmul_decode", N=8, K=9) == ("bfloat16", 1, "ragged"), "rows of 18 bytes"
    assert bucket("matmul_decode", "tfloat32", N=8, K=8) != bucket("matmul_decode", "float32", N=8, K=8)
    assert bucket("attention_prefill", q_len=64, head_dim=80) == ("bfloat16", 128, "descriptors")
    assert bucket("attention_decode", kv_len=9) == ("bfloat16", 128, "few rows")
    assert bucket("attention_decode", kv_len=9, q_len=4, q_heads=64) == ("bfloat16", 128, "rows between")
    assert bucket("attention_decode", kv_len=9, q_len=8, q_heads=64) == ("bfloat16", 128, "many rows")


@pytest.mark.parametrize("op", WITH_TRITON, ids=lambda op: op.name)
def test_a_configuration_reaches_another_process(op: Any) -> None:
    for config in (None, *op.configs(workload(op), 90)):
        case = Case(op, "triton", workload(op), config)
        assert requested(request_of(case, Method()), ()) == (case, Method())


def test_the_likeliest_of_a_matmul_come_first_so_that_four_are_worth_measuring() -> None:
    """M=128, N=4096 on 132 SMs is one wave of every tile: area over speed is 8192/0.65 for 64x128, 16384/0.85 for
    128x128 and 32768 for the larger two."""
    op = op_named("matmul")
    configs = op.configs(op.describe_axes({"M": 128, "N": 4096, "K": 4096}, "bfloat16", ()), 90)
    assert [(c.block_m, c.block_n, c.block_k) for c in configs[:4]] == [
        (64, 128, 128), (64, 128, 64), (128, 128, 128), (128, 128, 64),
    ]  # fmt: skip
    assert len(set(configs)) == len(configs) > 9


def test_no_launch_tunes() -> None:
    """T16: a tuner inside a capture would kill it, so configurations come from tables and rules alone.

    K47: nor is a first call wrong by what tuning left in an output.
    """
    defined = [value for op in WITH_TRITON for value in vars(kernel_of(op)).values()]
    kernels = [value for value in defined if isinstance(value, KernelInterface)]
    assert len(kernels) > 10 and {type(kernel) for kernel in kernels} == {JITFunction}
