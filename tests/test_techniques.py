"""The workloads of each technique against bytes and shapes worked by hand."""

from __future__ import annotations

import pytest

from bench.suites import fits_kv_limit, suite_workloads
from bench.technique_suite import techniques
from kernels import attention_decode, attention_paged_decode, gate_up_silu, kv_append, matmul_decode, matmul_weight_only
from kernels.attention_variants import VARIANT_AXES
from kernels.models import model_named
from kernels.quantised_matmuls import w8a8_workloads, weight_only_workloads
from kernels.quantised_workloads import quantised_decode_workloads
from kernels.registry import op_named
from kernels.spec import Workload
from kernels.techniques import (
    kv_append_workloads,
    kv_head_workloads,
    paged_decode_workloads,
    paged_prefill_workloads,
)

SEVENTY = model_named("llama-3.1-70b")

GLUE = ("rms_norm", "add_rms_norm", "residual_add", "silu_mul")


def test_every_technique_of_the_suite_is_told_with_its_models() -> None:
    by_op = suite_workloads("techniques")
    assert {op: {w.technique for w in workloads} for op, workloads in by_op.items()} == {
        "kv_append": {"kv_cache"},
        "attention_decode": {"kv_cache", "speculative", "quantised_kv", "window"},
        "attention_paged_decode": {"paged"},
        "attention_paged_prefill": {"paged"},
        "attention_prefill": {"chunked", "dense", "mla", "window"},
        "attention_prefix_decode": {"prefix"},
        "attention_varlen": {"continuous"},
        "attention_mixed": {"continuous"},
        "attention_mla_decode": {"mla"},
        "matmul": {"fp8", "int8", "dense", "tensor_parallel", "lm_head"},
        "matmul_decode": {"fp8", "int8", "dense", "tensor_parallel", "lm_head"},
        "matmul_weight_only": {"int4", "int8", "fp8"},
        "quantise_fp8": {"fp8"},
        **{op: {"glue"} for op in GLUE},
        "gate_up_silu": {"fused_mlp"},
        "grouped_matmul": {"moe"},
    }
    for op, workloads in by_op.items():
        if op == "grouped_matmul":
            continue
        if op in ("matmul", "matmul_decode", "quantise_fp8"):
            heads = {source for w in workloads for source in w.source if source.startswith("llama-3.1-8b:")}
            assert heads == (set() if op == "quantise_fp8" else {"llama-3.1-8b: lm_head, tp 1"})
            models = {source.split(":")[0] for w in workloads for source in w.source}
            assert models - {"llama-3.1-8b"} == {"llama-3.1-70b", "deepseek-v3"}
            continue
        workloads = [w for w in workloads if not w.source[0].startswith("qwen3-8b: q_norm")]
        own = [w for w in workloads if w.technique != "mla" and not set(w.axes) & set(VARIANT_AXES)]
        models = {source.split(":")[0] for w in own for source in w.source}
        only_large = op in ("attention_prefill", "attention_prefix_decode", "matmul_weight_only")
        if op != "attention_mla_decode":
            assert models == {"llama-3.1-70b"} | (set() if only_large else {"llama-3.1-8b"})
        latent = {source.split(":")[0] for w in workloads if w.technique == "mla" for source in w.source}
        assert latent <= {"deepseek-v3"}
        variants = [w for w in workloads if set(w.axes) & set(VARIANT_AXES)]
        if op in ("attention_decode", "attention_prefill"):
            told = {source.split(":")[0] for w in variants for source in w.source}
            assert told == {"gemma-2-27b", "gemma-3-27b", "gpt-oss-120b"}
        assert all(fits_kv_limit(w) for w in workloads)
    assert techniques() == techniques()


def test_fp8_projections_against_bytes_worked_by_hand() -> None:
    """Llama-3.1-70B's qkv_proj on one GPU is [10,240, 8,192]: of 16 tokens 83,886,080 + 131,072 bytes of one byte a
    value, 327,680 of bfloat16 out, and scales of 4 bytes for each channel and token, or 80 x 64 + 16 x 64 blocks."""
    operands, out = 83_886_080 + 131_072, 2 * 16 * 10_240
    for scale, scales in (("tensor", 2), ("token", 10_240 + 16), ("block128", 80 * 64 + 16 * 64)):
        [workload] = w8a8_workloads(SEVENTY, 1, (16,), "float8_e4m3fn", scale, ("qkv_proj",))["matmul_decode"]
        assert matmul_decode.OP.work(workload).bytes == operands + out + 4 * scales
        assert matmul_decode.OP.work(workload).flops == 2 * 16 * 10_240 * 8_192
        assert workload.key == f"float8_e4m3fn.{scale}/M=16,N=10240,K=8192" and workload.technique == "fp8"
    cases = suite_workloads("techniques")
    eight_bits = [w for w in (*cases["matmul"], *cases["matmul_decode"]) if w.technique in ("fp8", "int8")]
    assert len(eight_bits) == 28 + 10, "fp8, and int8 at five numbers of rows of two projections"


def test_every_projection_of_one_gpu_of_1_2_4_and_8() -> None:
    """Llama-3.1-70B: 64 query and 2 x 8 KV heads of 128 are 10,240 columns; column-parallel layers (qkv_proj,
    gate_up_proj, lm_head) lose columns, row-parallel ones (o_proj, down_proj) lose rows of their weights."""
    by_op = suite_workloads("techniques")
    split = [w for op in ("matmul", "matmul_decode") for w in by_op[op] if w.dtype == "bfloat16"]
    assert {w.technique for w in split} == {"dense", "tensor_parallel", "lm_head"}
    shapes = [("qkv_proj", 10_240, 8_192), ("gate_up_proj", 57_344, 8_192), ("lm_head", 128_256, 8_192)]
    for name, n, k in (*shapes, ("o_proj", 8_192, 8_192), ("down_proj", 8_192, 28_672)):
        for tp in (1, 2, 4, 8):
            part = {"N": n, "K": k // tp} if name in ("o_proj", "down_proj") else {"N": n // tp, "K": k}
            rows = {w.axes["M"] for w in split if f"llama-3.1-70b: {name}, tp {tp}" in w.source}
            assert rows == {1, 16, 64, 256, 4096} - ({4096} if name == "lm_head" else set())
            told = [w.axes for w in split if f"llama-3.1-70b: {name}, tp {tp}" in w.source]
            assert all({"N": axes["N"], "K": axes["K"]} == part for axes in told)


def test_the_head_of_both_models_over_their_whole_vocabulary() -> None:
    """Of 128,256 tokens and 4,096 columns: 2 bytes for 525,336,576 weights, 16 x 4,096 in and 16 x 128,256 out."""
    by_op = suite_workloads("techniques")
    heads = [w for op in ("matmul", "matmul_decode") for w in by_op[op] if w.axes["N"] == 128_256]
    assert {(w.axes["M"], w.axes["K"]) for w in heads} == {(M, K) for M in (1, 16, 64, 256) for K in (4_096, 8_192)}
    assert {(w.technique, w.dtype) for w in heads} == {("lm_head", "bfloat16")}
    [workload] = [w for w in heads if (w.axes["M"], w.axes["K"]) == (16, 4_096)]
    assert matmul_decode.OP.work(workload).bytes == 2 * (525_336_576 + 65_536 + 2_052_096)


def test_fused_gate_and_up_projections_against_bytes_worked_by_hand() -> None:
    """Llama-3.1-8B's are 2 x 14,336 x 4,096 values of 2 bytes; of 16 rows 16 x 4,096 go in and 16 x 14,336 come out."""
    fused = suite_workloads("techniques")["gate_up_silu"]
    assert {(w.axes["M"], w.axes["N"], w.axes["K"]) for w in fused} == {
        (M, N, K) for M in (1, 16, 64, 256, 4096) for N, K in ((14_336, 4_096), (28_672, 8_192))
    }
    [workload] = [w for w in fused if (w.axes["M"], w.axes["K"]) == (16, 4_096)]
    assert gate_up_silu.OP.work(workload).bytes == 234_881_024 + 131_072 + 458_752
    assert gate_up_silu.OP.work(workload).flops == 4 * 16 * 14_336 * 4_096
    assert workload.source == ("llama-3.1-8b: gate_up_proj and silu, tp 1",)


def test_stored_weights_against_bytes_worked_by_hand() -> None:
    """Llama-3.1-70B's down_proj on one GPU is [8,192, 28,672], 234,881,024 weights: half of it in 4 bits, a scale of 2
    bytes for 8,192 x 224 groups of 128, a zero point of one beside; 16 rows in and out are 917,504 + 262,144 bytes."""
    weights, rows, groups = 234_881_024, 917_504 + 262_144, 8_192 * 224
    for stored, group, moved in (
        ("int4", 128, weights // 2 + 2 * groups),
        ("uint4", 128, weights // 2 + 3 * groups),
        ("int4", 32, weights // 2 + 8 * groups),
        ("int8", 0, weights + 2 * 8_192),
        ("float8_e4m3fn", 0, weights + 2 * 8_192),
    ):
        [workload] = weight_only_workloads(SEVENTY, 1, (16,), stored, group, ("down_proj",), "bfloat16")
        counted = matmul_weight_only.OP.work(workload)
        assert (counted.bytes, counted.flops) == (moved + rows, 2 * 16 * weights)
        of_group = (".channel", "") if not group else ("", f",group_size={group}")
        assert workload.key == f"bfloat16.w_{stored}{of_group[0]}/M=16,N=8192,K=28672{of_group[1]}"


def test_glue_of_a_layer_against_bytes_worked_by_hand() -> None:
    """Llama-3.1-70B's 16 rows of 8,192 are 262,144 bytes of bfloat16, its 16 of 28,672 in the MLP 917,504; a norm's
    weight is 16,384. Qwen3-8B's 32 queries of 16 tokens are 512 rows of 128, in and out, and 256 bytes of weight."""
    row, width = 262_144, 917_504
    moved = {
        "rms_norm": 2 * row + 16_384,
        "add_rms_norm": 4 * row + 16_384,
        "residual_add": 3 * row,
        "silu_mul": 3 * width,
    }
    cases = suite_workloads("techniques")
    for op, wanted in moved.items():
        [found] = [w for w in cases[op] if w.axes["M"] == 16 and "llama-3.1-70b" in w.source[0]]
        counted = op_named(op).work(found)
        assert (counted.bytes, counted.flops, counted.overhead_bytes) == (wanted, 0, 0)
    rows = {op: sorted({w.axes["M"] for w in cases[op] if "llama" in w.source[0]}) for op in moved}
    assert rows["add_rms_norm"] == rows["silu_mul"] == [1, 16, 64, 256, 4096]
    assert rows["rms_norm"] == rows["residual_add"] == [16, 4096]
    [heads] = [w for w in cases["rms_norm"] if "qwen3-8b" in w.source[0]]
    assert op_named("rms_norm").work(heads).bytes == 2 * 512 * 128 * 2 + 256


def test_kv_bytes_against_heads() -> None:
    """64 query heads of 128 over 1,024 keys in bfloat16: 2 x 1,024 x 128 x 2 = 524,288 bytes a KV head, and Q and O
    of 2 x 64 x 128 x 2 = 32,768."""
    made = kv_head_workloads(SEVENTY, 1, (1,), (1024,), "bfloat16")
    counted = {w.axes["kv_heads"]: attention_decode.OP.work(w) for w in made}
    assert {heads: work.bytes for heads, work in counted.items()} == {
        heads: heads * 524_288 + 32_768 for heads in (64, 8, 1)
    }
    assert len({work.flops for work in counted.values()}) == 1, "the arithmetic is the query heads'"
    assert [w.source for w in made] == [
        ("llama-3.1-70b: attention, tp 1, with 64 KV heads for 8",),
        ("llama-3.1-70b: attention, tp 1",),
        ("llama-3.1-70b: attention, tp 1, with 1 KV heads for 8",),
    ]
    eight = kv_head_workloads(model_named("llama-3.1-8b"), 1, (1,), (1024,), "bfloat16")
    assert [w.axes["kv_heads"] for w in eight] == [32, 4, 1, 8]


def test_caches_of_8_bits_are_half_the_bytes_and_their_scales() -> None:
    """8 KV heads over 1,024 keys: 2 x 1,024 x 128 bytes each; Q and O of 32,768; 2 x 8 scales of 4 bytes, or 2."""
    stored = (("float8_e4m3fn", "tensor"), ("float8_e4m3fn", "head"), ("int8", "head"))
    made = quantised_decode_workloads(SEVENTY, 1, (1,), (1024,), stored, "bfloat16")
    assert [(w.kv_dtype, w.scale) for w in made] == list(stored)
    assert [attention_decode.OP.work(w).bytes for w in made] == [
        8 * 262_144 + 32_768 + scales for scales in (8, 64, 64)
    ]
    [plain] = [w for w in kv_head_workloads(SEVENTY, 1, (1,), (1024,), "bfloat16") if w.axes["kv_heads"] == 8]
    assert {attention_decode.OP.work(w).flops for w in made} == {attention_decode.OP.work(plain).flops}
    [page] = quantised_decode_workloads(SEVENTY, 8, (16,), (8192,), stored[:1], "bfloat16", page_size=16)
    assert (page.axes["page_size"], page.axes["kv_heads"], page.technique) == (16, 1, "quantised_kv")


def bytes_a_token(kv_heads: int) -> int:
    """Of all layers' caches in float16, by what one more key costs a decode."""
    sizes = {"batch": 1, "q_len": 1, "q_heads": SEVENTY.q_heads, "kv_heads": kv_heads, "head_dim": SEVENTY.head_dim}
    one, two = (
        attention_decode.OP.work(Workload(axes={**sizes, "kv_len": n}, dtype="float16", phase="decode")).bytes
        for n in (1, 2)
    )
    return SEVENTY.layers * int(two - one)


def test_golden_tokens_of_20_gb() -> None:
    """80 layers x 2 x 8 heads x 128 x 2 bytes = 327,680 a token: 61 thousand tokens; with 64 heads 7.6 thousand."""
    assert bytes_a_token(8) == 327_680
    assert (20 * 10**9 // bytes_a_token(8), 20 * 10**9 // bytes_a_token(64)) == (61_035, 7_629)


def test_an_append_writes_what_one_more_key_costs() -> None:
    [step, prompt] = kv_append_workloads(SEVENTY, 1, (1,), 8192, (2048,), "float16")
    assert SEVENTY.layers * kv_append.OP.work(step).bytes == 2 * 327_680
    assert kv_append.OP.work(prompt).bytes == 2048 * kv_append.OP.work(step).bytes
    assert [w.phase for w in (step, prompt)] == ["decode", "prefill"]


def test_every_tuned_page_size_is_there_for_decode_and_prefill() -> None:
    by_op = suite_workloads("techniques")
    for op in ("attention_paged_decode", "attention_paged_prefill"):
        assert {w.axes["page_size"] for w in by_op[op]} == {16, 32, 64, 128, 256}
    ragged = [w for w in by_op["attention_paged_decode"] if w.kv_lens]
    assert len(ragged) == 4 and all(any(n % 16 for n in w.kv_lens) for w in ragged)


def test_pages_cost_their_table_and_nothing_else() -> None:
    """16 sequences of 1,000 keys in pages of 16: 63 entries of 4 bytes each, and a length; K and V as without pages."""
    [paged] = paged_decode_workloads(SEVENTY, 1, (16,), (1000,), (16,), "bfloat16")
    axes = {axis: size for axis, size in paged.axes.items() if axis != "page_size"}
    without = attention_decode.OP.work(Workload(axes=axes, dtype="bfloat16", phase="decode"))
    counted = attention_paged_decode.OP.work(paged)
    assert (counted.flops, counted.bytes) == (without.flops, without.bytes)
    assert (counted.overhead_bytes, without.overhead_bytes) == (16 * 63 * 4 + 16 * 4, 16 * 4)


def test_a_prompt_in_pages_sees_itself_causally() -> None:
    [prompt] = paged_prefill_workloads(SEVENTY, 1, (4096,), (64,), "bfloat16")
    assert prompt.axes["q_len"] == prompt.axes["kv_len"] == 4096 and prompt.axes["page_size"] == 64


@pytest.mark.parametrize("name", ["deepseek-v3", "mistral-7b"])
def test_models_without_full_attention_of_this_kind_have_none(name: str) -> None:
    model = model_named(name)
    assert kv_append_workloads(model, 1, (1,), 8, (8,), "bfloat16") == []
    assert kv_head_workloads(model, 1, (1,), (8,), "bfloat16") == []
