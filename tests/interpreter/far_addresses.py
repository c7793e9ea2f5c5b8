"""Run by test_far_addresses: kernels at element offsets past 2^31, in memory of which little more is touched.

`python far_addresses.py NAME...` prints a line for each check: its name and "right" or what is wrong. An offset that
wrapped to 32 bits would reach 2^32 elements less far: memory in which every tensor starts that far inside holds zeros
there, so that a wrong kernel reads zeros; one that goes further off ends the process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import far_pages
import torch
from far_memory import ROW, alone, dense, equal, far, far_allocations, outputs_in
from launches import only_programs

from kernels import attention_decode_triton as decode
from kernels import attention_prefill_triton as prefill
from kernels import kv_append_triton as kv_append
from kernels import matmul_configs, matmul_decode_configs, matmul_problem
from kernels import matmul_decode_triton as matmul_decode
from kernels import matmul_triton as matmul
from kernels.attention_decode_configs import Config as DecodeConfig


def k05_last_row_of_a_matrix_of_more_than_2_to_the_31() -> str:
    """A 65,552 x 32,768 of zeros, last row ones; the program of the last tile."""
    a, b = dense(65552, 32768), torch.ones(16, 32768).half().t()
    a[-1] = 1
    tile = matmul_configs.Config(block_m=16, block_n=16, block_k=4096, descriptors="")
    with patch.object(matmul, "sm_count", lambda: 2**30), only_programs(-1):
        out = matmul.matmul(a, b, config=tile)
    return equal(out[-16:], torch.tensor([0.0] * 15 + [32768.0])[:, None])


def ask_matmul(module: ModuleType, name: str) -> str:
    """Ones from rows or columns that are far apart, to rows that are."""
    near, apart, out = torch.ones(101, 16).half(), far((101, 16), (ROW, 1)), far((101, 101), (ROW, 1))
    apart.fill_(1)
    a, w = (apart if name == "a" else near), (apart if name == "b" else near)
    tile = module.Config(block_m=128, block_n=128, block_k=16, descriptors="device" if name == "tma" else "")
    if name == "depth":  # [K = 101, 16] with K far apart
        return equal(module.matmul(apart.t(), near, config=tile), 101)
    if name in ("c", "tma"):
        with outputs_in(out):
            return equal(module.matmul(near, near.t(), config=tile), 16)
    return equal(module.matmul(a, w.t(), config=tile), 16)


def matmul_rows_far_apart() -> str:
    return ask_matmul(matmul, "a")


def matmul_columns_far_apart() -> str:
    return ask_matmul(matmul, "b")


def matmul_depth_far_apart() -> str:
    return ask_matmul(matmul, "depth")


def matmul_output_rows_far_apart() -> str:
    return ask_matmul(matmul, "c")


def matmul_output_rows_far_apart_by_descriptor() -> str:
    with patch.object(matmul_problem, "path_for", lambda *inputs: ""):
        return ask_matmul(matmul, "tma")


def matmul_decode_of_far_weights_and_depth() -> str:
    w, near = far((101, 16), (ROW, 1)).fill_(1), torch.ones(1, 16).half()
    for form in (*matmul_decode_configs.ONE_ROW[:3], matmul_decode_configs.MANY_ROWS[0]):
        for x, weights in ((near, w), (near[:, :1].expand(1, 101), w.t())):
            answer = equal(matmul_decode.matmul_decode(x, weights, config=form), x.shape[1])
            if answer != "right":
                return f"{form}: {answer}"
    return "right"


def k06_prefill_of_131080_tokens_and_128_heads() -> str:
    """Token stride 16,384, so that token 131,072 lies at 2^31: one key, whose value every token gives."""
    q, v = dense(1, 131080, 128, 128), torch.arange(128).half().view(1, 1, 128, 1).expand(1, 1, 128, 128)
    v = v.contiguous()
    for descriptors in prefill.RANKS:
        config = prefill.Config(block_m=16, block_n=32, descriptors=descriptors)
        with far_allocations(), only_programs(0, 127):  # the last tokens come first
            out = alone(prefill.attention_prefill(q, v, v, causal=False, config=config))
        if not torch.equal(out[0, -8:, [0, 127]], v[0, 0, [0, 127]].expand(8, 2, 128)):
            return f"{config}: {out[0, -8:, 127, 0].tolist()}"
    return "right"


def k06_decode_of_131080_sequences_and_128_heads() -> str:
    q, k = dense(131080, 1, 128, 128), dense(131080, 1, 128, 128)
    k[-1] = torch.arange(128).half().view(128, 1)
    lens = torch.ones(131080, dtype=torch.int32)
    for splits in (1, 2):
        config = DecodeConfig(block_n=32, splits=splits)
        with far_allocations(), only_programs(-1, -2, -3, -4):
            out = alone(decode.attention_decode(q, k, k, lens, config=config))
        if not torch.equal(out[-1, 0, -2:], k[-1, 0, -2:]):
            return f"{splits} splits: {out[-1, 0, -2:, 0].tolist()}"
    return "right"


def attention_of_far(axis: str) -> str:
    """Keys, KV heads, or widths that are far apart, by both attention kernels."""
    shape = {"keys": (1, 101, 1, 16), "heads": (1, 1, 101, 16), "width": (1, 1, 1, 101)}[axis]
    at = {"keys": 1, "heads": 2, "width": 3}[axis]
    strides = tuple(ROW if axis_at == at else 1 if axis_at == 3 else 0 for axis_at in range(4))
    k = far(shape, strides)
    v = far(shape, strides)
    v.copy_(torch.arange(101).half().view([-1 if axis_at == at else 1 for axis_at in range(4)]).expand(shape))
    q = torch.zeros(1, 1, *shape[2:]).half()
    expected = v.double().mean(dim=1, keepdim=True).half()
    lens = torch.tensor([shape[1]], dtype=torch.int32)
    tile = prefill.Config(block_m=16, block_n=32, descriptors="")
    answers = (
        decode.attention_decode(q, k, v, lens, config=DecodeConfig(block_n=32)),
        prefill.attention_prefill(q, k, v, causal=False, config=tile),
    )
    return next((told for out in answers if (told := equal(alone(out), expected)) != "right"), "right")


def attention_of_far_keys() -> str:
    return attention_of_far("keys")


def attention_of_far_heads() -> str:
    return attention_of_far("heads")


def attention_of_far_widths() -> str:
    return attention_of_far("width")


def append_to_rows_far_apart() -> str:
    """Row 100 of a cache lies past 2^31, as do the values of its second half."""
    new = torch.arange(64).half().view(1, 1, 2, 2, 16)
    for strides in ((0, ROW, 32, 16, 1), (0, 64, 100 * ROW, 16, 1), (0, 64, 32, 100 * ROW, 1)):
        cache = far((1, 101, 2, 2, 16), strides)
        with only_programs(0):
            kv_append.kv_append(new, cache, torch.tensor([100], dtype=torch.int32))
        if (told := equal(cache[:, 100:], new)) != "right":
            return f"strides {strides}: {told}"
    return "right"


def planted(path: str) -> Callable[[], str]:
    """The check of matmul's rows with another module in its place."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda: ask_matmul(module, "a")


CHECKS: dict[str, Callable[[], str]] = {
    check.__name__: check
    for check in (
        k05_last_row_of_a_matrix_of_more_than_2_to_the_31,
        k06_prefill_of_131080_tokens_and_128_heads,
        k06_decode_of_131080_sequences_and_128_heads,
        matmul_rows_far_apart,
        matmul_columns_far_apart,
        matmul_depth_far_apart,
        matmul_output_rows_far_apart,
        matmul_output_rows_far_apart_by_descriptor,
        matmul_decode_of_far_weights_and_depth,
        attention_of_far_keys,
        attention_of_far_heads,
        attention_of_far_widths,
        append_to_rows_far_apart,
        far_pages.ragged_rows_far_apart,
        far_pages.k07_ragged_page_past_2_to_the_31,
        far_pages.k07_a_page_past_2_to_the_31,
        far_pages.k08_a_page_past_2_to_the_31_of_an_interleaved_pool,
        far_pages.k07_a_page_of_latents_past_2_to_the_31,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:] or CHECKS:
        print(name, CHECKS[name]() if name in CHECKS else planted(name)(), flush=True)
