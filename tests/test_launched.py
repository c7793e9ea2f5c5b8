"""Facts of launched kernels, through Triton's own load and launch hooks under the ahead-of-time driver."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.compile import compile_driver
from bench.launched import kernels_launched
from kernels import matmul, matmul_configs, matmul_triton


def launch(config: matmul_configs.Config) -> list[dict[str, object]]:
    workload = matmul.describe_axes({"M": 512, "N": 512, "K": 512}, "bfloat16", ())
    with compile_driver(90), kernels_launched() as kernels:
        matmul_triton.matmul(**matmul.make_inputs(workload, "meta", 0), config=config)
        matmul_triton.matmul(**matmul.make_inputs(workload, "meta", 0), config=config)
    return kernels


def test_each_kernel_is_told_once_with_what_engaged() -> None:
    (facts,) = launch(matmul_configs.HOPPER[0])
    assert (facts["name"], facts["num_warps"], facts["num_stages"]) == ("_matmul_kernel", 8, 2)
    assert facts["engaged"] == ["tma", "wgmma"]
    assert len(str(facts["cubin_sha256"])) == 64


def test_specialisation_shows_when_it_engaged_and_when_it_was_dropped() -> None:
    """Triton specialises 4 warps into 12 and silently ignores the request at 8."""
    asked = next(c for c in matmul_configs.HOPPER if c.warp_specialize)
    (engaged,) = launch(asked)
    assert engaged["num_warps"] == 12 and "warp_specialized" in str(engaged["engaged"])
    (dropped,) = launch(replace(asked, num_warps=8))
    assert dropped["num_warps"] == 8 and "warp_specialized" not in str(dropped["engaged"])


def test_a_call_without_triton_launches_none() -> None:
    with kernels_launched() as kernels:
        torch.zeros(3).add_(1)
    assert kernels == []
