"""Chunked prefill, shared prefixes and drafts of Llama-3.1-70B: pairs, bytes and intensity worked by hand."""

from __future__ import annotations

import pytest

from bench.suites import fits_kv_limit, suite_workloads
from kernels import attention_decode, attention_prefill, attention_prefix_decode
from kernels.cache_reuse import chunked_workloads, drafted_workloads, shared_prefix_workloads
from kernels.models import model_named

SEVENTY = model_named("llama-3.1-70b")
BYTES_OF_A_KEY = 2 * 8 * 128 * 2
"""K and V of 8 KV heads of 128 in bfloat16: 4,096."""
Q_AND_O = 2 * 64 * 128 * 2
"""One token's 64 query heads in and out: 32,768 bytes."""


def test_a_prefix_is_read_once_and_a_plain_decode_reads_it_for_every_sequence() -> None:
    """64 sequences with 512 keys each behind 8,192: 8,192 + 64 x 512 = 40,960 keys read against 64 x 8,704 = 557,056,
    13.4 times fewer bytes for the same arithmetic, whose intensity rises from 8 to 107 FLOP/byte."""
    by_op = shared_prefix_workloads(SEVENTY, 1, (64,), (8192,), 512, "bfloat16")
    [shared], [plain] = by_op["attention_prefix_decode"], by_op["attention_decode"]
    once, each = attention_prefix_decode.OP.work(shared), attention_decode.OP.work(plain)
    assert once.flops == each.flops == 2 * 64 * 557_056 * 256
    assert once.bytes == 40_960 * BYTES_OF_A_KEY + 64 * Q_AND_O == 169_869_312
    assert each.bytes == 557_056 * BYTES_OF_A_KEY + 64 * Q_AND_O == 2_283_798_528
    assert each.bytes - once.bytes == 63 * 8192 * BYTES_OF_A_KEY
    assert (round(each.flops / each.bytes, 2), round(once.flops / once.bytes, 2)) == (7.99, 107.46)
    assert (shared.technique, plain.technique) == ("prefix", "kv_cache")
    assert shared.source == ("llama-3.1-70b: attention, tp 1, a system prompt of 8192, shared",)
    assert plain.source == ("llama-3.1-70b: attention, tp 1, a system prompt of 8192, not shared",)


def test_every_shared_prefix_of_the_suite_has_its_plain_decode() -> None:
    by_op = suite_workloads("techniques")
    plain = {(w.axes["batch"], w.axes["kv_len"]): attention_decode.OP.work(w) for w in by_op["attention_decode"]
             if w.axes["q_heads"] == 64 and w.axes["kv_heads"] == 8 and w.axes["q_len"] == 1}  # fmt: skip
    shared = by_op["attention_prefix_decode"]
    assert {w.axes["prefix_len"] for w in shared} == {1024, 4096, 8192}
    assert {w.axes["batch"] for w in shared} == {8, 16, 64}
    for workload in shared:
        a, work = workload.axes, attention_prefix_decode.OP.work(workload)
        each = plain[a["batch"], a["prefix_len"] + a["kv_len"]]
        assert work.flops == each.flops
        assert each.bytes - work.bytes == (a["batch"] - 1) * a["prefix_len"] * BYTES_OF_A_KEY
        assert fits_kv_limit(workload)


@pytest.mark.parametrize(
    ("draft", "pairs"), [(2, 16_383), (4, 32_762), (8, 65_508), (16, 130_952)], ids=lambda value: str(value)
)
def test_a_draft_reads_the_cache_once_for_all_its_tokens(draft: int, pairs: int) -> None:
    """n tokens over 8,192 keys, the last token at the last: n x 8,192 - n (n - 1) / 2 pairs, over one cache read."""
    [workload] = drafted_workloads(SEVENTY, 1, (1,), (draft,), 8192, "bfloat16")
    work = attention_decode.OP.work(workload)
    assert work.flops == 2 * 64 * pairs * 256
    assert work.bytes == 8192 * BYTES_OF_A_KEY + draft * Q_AND_O
    assert (workload.technique, workload.phase) == ("speculative", "decode")
    assert attention_decode.OP.unsupported(workload, "triton") is None


def test_intensity_rises_with_the_draft() -> None:
    """16 tokens: 4,291,035,136 FLOPs over 34,078,720 bytes are 125.92 FLOP/byte; 2 are 15.97, 4 31.87, 8 63.48."""
    for batch in (1, 16):
        drafts = [w for w in suite_workloads("techniques")["attention_decode"] if w.technique == "speculative"]
        works = {w.axes["q_len"]: attention_decode.OP.work(w) for w in drafts if w.axes["batch"] == batch}
        intensity = {draft: round(work.flops / work.bytes, 2) for draft, work in works.items()}
        assert intensity == {2: 15.97, 4: 31.87, 8: 63.48, 16: 125.92}


def test_a_chunk_counts_what_is_cached_and_its_own_triangle() -> None:
    """8 of 64 heads on each of 8 GPUs and one KV head: 512 tokens on 8,192 are 512 x 8,192 + 512 x 513 / 2 =
    4,325,632 pairs; 8,704 keys of 2 x 128 values and 512 rows of 8 heads in and out."""
    first, later = chunked_workloads(SEVENTY, 8, (512,), (0, 8192), "bfloat16")
    assert later.key == "bfloat16/batch=1,q_len=512,kv_len=8704,q_heads=8,kv_heads=1,head_dim=128,causal=1"
    work = attention_prefill.OP.work(later)
    assert work.flops == 2 * 8 * 4_325_632 * 256
    assert work.bytes == 8704 * 2 * 128 * 2 + 2 * 512 * 8 * 128 * 2
    assert attention_prefill.OP.work(first).flops == 2 * 8 * (512 * 513 // 2) * 256
    assert {w.technique for w in (first, later)} == {"chunked"}
    assert later.source == ("llama-3.1-70b: attention, tp 8, a chunk of 512 on 8192 cached",)


def test_chunks_add_up_to_their_prompt() -> None:
    """Four chunks of 2,048, each on those before, do the FLOPs of a prompt of 8,192 and read 2.5 times its keys."""
    made = chunked_workloads(SEVENTY, 8, (2048, 8192), (0, 2048, 4096, 6144), "bfloat16")
    works = [attention_prefill.OP.work(w) for w in made]
    assert sum(work.flops for work in works[:4]) == works[4].flops
    q_and_o, keys = 2 * 8192 * 8 * 128 * 2, 8192 * 2 * 128 * 2
    assert [sum(work.bytes for work in works[:4]), works[4].bytes] == [q_and_o + 5 * keys // 2, q_and_o + keys]


def test_models_without_full_attention_of_this_kind_have_none() -> None:
    model = model_named("deepseek-v3")
    assert chunked_workloads(model, 1, (8,), (0,), "bfloat16") == []
    assert drafted_workloads(model, 1, (1,), (2,), 8, "bfloat16") == []
    assert not any(shared_prefix_workloads(model, 1, (2,), (8,), 8, "bfloat16").values())
