"""What each attention technique of LLM serving buys at kernel level: work before and after, by the counting rules.

Every figure is `kernels.work` applied to a published model's shape; none is measured. Times are attainable ones under
the published measured roofs of an H100. Which of these are ops that can be run, and how fast they are, is left to
`bench list --suite techniques` and to records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.peaks import MEASURED, MeasuredSet
from kernels.models import Model, model_named
from kernels.work import (
    MLA_LATENT,
    MLA_ROPE,
    Work,
    attention_work,
    keys_read,
    mla_decode_work,
    storage_bytes,
    unmasked_pairs,
)

DEVICE = "H100 SXM5 80GB"
DTYPE = "bfloat16"
BATCH, CACHED, PROMPT = 64, 8192, 8192
"""Sequences of a decode step, keys of each, and tokens of a prompt, unless a row says otherwise."""
LONG = 32_768
SHORT_SHARE = 8
"""Of a skewed batch one sequence in so many has all keys, the others `CACHED` / `SHORT_SHARE`."""
CHUNK, PREFIX, DRAFT, PAGE, RESERVED = 512, 4096, 4, 16, 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One technique, at one layer of one model on one GPU.

    Attributes:
        technique: as workloads name it.
        model: whose layer.
        before, after: what is done in words.
        works_before, works_after: one a launch, for the same tokens.
    """

    technique: str
    model: str
    before: str
    after: str
    works_before: tuple[Work, ...]
    works_after: tuple[Work, ...]


def attention(
    model: Model, *, q_len: int = 1, kv_len: int = CACHED, batch: int = BATCH, kv_heads: int = 0, window: int = 0,
    kv_dtype: str = "",
) -> Work:  # fmt: skip
    """Causal attention of one layer of equal sequences, K and V of each read once."""
    return attention_work(
        batch=batch, q_heads=model.q_heads, kv_heads=kv_heads or model.kv_heads, q_len=q_len,
        pairs=batch * unmasked_pairs(q_len, kv_len, causal=True, window=window),
        kv_tokens=batch * keys_read(q_len, kv_len, window=window), head_dim=model.head_dim,
        v_head_dim=model.v_head_dim, dtype=DTYPE, kv_dtype=kv_dtype,
    )  # fmt: skip


def total(works: Sequence[Work]) -> Work:
    """Launches one after another."""
    return Work(
        flops=sum(w.flops for w in works),
        bytes=sum(w.bytes for w in works),
        overhead_bytes=sum(w.overhead_bytes for w in works),
    )


def gains() -> list[Gain]:
    """All rows, in the order of serving's own history."""
    llama, gemma, deepseek = (model_named(name) for name in ("llama-3.1-70b", "gemma-3-27b", "deepseek-v3"))
    decode = attention(llama)
    return [
        *_of_the_cache(llama, decode),
        *_of_the_batch(llama, decode),
        *_of_the_prompt(llama),
        _gain("speculative", llama, f"{DRAFT} steps of a token", f"one step verifies {DRAFT}",
              [decode] * DRAFT, attention(llama, q_len=DRAFT)),
        _gain("window", gemma, f"all of {LONG} keys", f"a window of {gemma.window}",
              attention(gemma, kv_len=LONG), attention(gemma, kv_len=LONG, window=gemma.window)),
        _gain("quantised_kv", llama, "bfloat16 K and V", "float8 K and V",
              decode, attention(llama, kv_dtype="float8_e4m3fn")),
        _gain("mla", deepseek, "K and V of 128 heads", "one latent of 576 for all heads, absorbed",
              attention(deepseek), mla_decode_work(
                  batch=BATCH, q_heads=deepseek.q_heads, q_len=1, kv_tokens=BATCH * CACHED, pairs=BATCH * CACHED,
                  dtype=DTYPE)),
    ]  # fmt: skip


def _gain(
    technique: str, model: Model, before: str, after: str, work_before: Work | Sequence[Work],
    work_after: Work | Sequence[Work],
) -> Gain:  # fmt: skip
    def works(of: Work | Sequence[Work]) -> tuple[Work, ...]:
        return (of,) if isinstance(of, Work) else tuple(of)

    return Gain(
        technique=technique, model=model.name, before=before, after=after, works_before=works(work_before),
        works_after=works(work_after),
    )  # fmt: skip


def _of_the_cache(model: Model, decode: Work) -> list[Gain]:
    heads = f"{model.kv_heads} KV heads (GQA)"
    return [
        _gain("kv_cache", model, "attend from every token anew", "from the new token over cached K and V",
              attention(model, q_len=CACHED), decode),
        _gain("kv_cache", model, f"{model.q_heads} KV heads (MHA)", heads,
              attention(model, kv_heads=model.q_heads), decode),
        _gain("kv_cache", model, heads, "1 KV head (MQA)", decode, attention(model, kv_heads=1)),
        _gain("paged", model, "K and V in one piece a sequence", f"pages of {PAGE} and a block table", decode,
              replace(decode, overhead_bytes=4 * BATCH * (CACHED // PAGE + 1))),
    ]  # fmt: skip


def _of_the_batch(model: Model, decode: Work) -> list[Gain]:
    long = BATCH // SHORT_SHARE
    parts = attention(model, batch=long), attention(model, batch=BATCH - long, kv_len=CACHED // SHORT_SHARE)
    ragged = total(parts)
    return [_gain("continuous", model, f"{BATCH} sequences padded to the longest", "their own lengths, one in "
                  f"{SHORT_SHARE} is long", decode, ragged)]  # fmt: skip


def _of_the_prompt(model: Model) -> list[Gain]:
    chunks = [attention(model, q_len=CHUNK, kv_len=end, batch=1) for end in range(CHUNK, PROMPT + 1, CHUNK)]
    return [
        _gain("chunked", model, f"a prompt of {PROMPT} at once", f"in chunks of {CHUNK}",
              attention(model, q_len=PROMPT, kv_len=PROMPT, batch=1), chunks),
        _gain("prefix", model, f"each of {BATCH} prompts attends from all {CACHED} tokens",
              f"from those behind {PREFIX} cached ones", attention(model, q_len=CACHED),
              attention(model, q_len=CACHED - PREFIX)),
        _gain("prefix", model, f"{BATCH} sequences read a shared prefix of {PREFIX} each", "it is read once (cascade)",
              attention(model), shared_prefix(model, BATCH)),
    ]  # fmt: skip


def shared_prefix(model: Model, batch: int) -> list[Work]:
    """Decode of sequences whose first PREFIX of CACHED keys are the same: those for all at once, then each its own."""
    shared = attention_work(
        batch=1, q_heads=model.q_heads, kv_heads=model.kv_heads, q_len=batch, pairs=batch * PREFIX,
        kv_tokens=PREFIX, head_dim=model.head_dim, v_head_dim=model.v_head_dim, dtype=DTYPE,
    )  # fmt: skip
    partials = 4 * batch * model.q_heads * (model.v_head_dim + 1) * 2
    return [replace(shared, overhead_bytes=partials), attention(model, kv_len=CACHED - PREFIX, batch=batch)]


def intensity(works: Sequence[Work]) -> float:
    """Useful FLOP per compulsory byte."""
    work = total(works)
    return float(work.flops / work.bytes)


def attainable_us(works: Sequence[Work], roofs: MeasuredSet = MEASURED[DEVICE]) -> float:
    """T0 + max(FLOPs/P, bytes/BW), summed over the launches."""
    compute, memory = roofs.tflops[DTYPE] * 1e6, roofs.dram_gb_per_s * 1e3
    return float(sum(roofs.launch_us + max(work.flops / compute, work.bytes / memory) for work in works))


def padded_of_useful(model: Model) -> float:
    """Tensor work of a prefill over the useful: its kernel pads both head widths to powers of two."""
    widths = (model.head_dim, model.v_head_dim)
    return sum(1 << (width - 1).bit_length() for width in widths) / sum(widths)


def unused_of_pages(length: int, page: int = PAGE) -> float:
    """Fraction of a paged sequence's memory that holds no key."""
    held = -(-length // page) * page
    return 1 - length / held


def unused_of_reservation(length: int, reserved: int = RESERVED) -> float:
    """Fraction that holds no key where every sequence gets room for the longest."""
    return 1 - length / reserved


def kv_bytes_per_token(model: Model, kv_heads: int = 0, dtype: str = DTYPE) -> int:
    """Of all layers, for a token that every layer keeps; MLA's latent where the model has one and no head is named."""
    if model.kv_lora_rank and not kv_heads:
        return model.layers * int(storage_bytes(MLA_LATENT + MLA_ROPE, dtype))
    heads = kv_heads or model.kv_heads
    return model.layers * int(storage_bytes(heads * (model.head_dim + model.v_head_dim), dtype))


def cached_bytes(model: Model, length: int, dtype: str = DTYPE) -> int:
    """KV of one sequence: windowed layers keep their window."""
    kept = model.window_layers * min(length, model.window) + (model.layers - model.window_layers) * length
    return int(kv_bytes_per_token(model, dtype=dtype) // model.layers * kept)


def tokens_in(budget_bytes: float, model: Model, kv_heads: int = 0) -> int:
    """Tokens whose KV fits a budget."""
    return int(budget_bytes // kv_bytes_per_token(model, kv_heads))
