"""Windows, sinks and caps on logits as axes: what is accepted, what providers refuse, and what SDPA is handed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import attention_decode, attention_decode_triton, attention_prefill, attention_prefill_triton
from kernels.attention import sdpa
from kernels.attention_variants import Variant
from kernels.spec import Op, Workload

PREFILL, DECODE = attention_prefill.OP, attention_decode.OP
BOTH = pytest.mark.parametrize("op", [PREFILL, DECODE], ids=lambda op: op.name)
SIZES = {"batch": 1, "q_len": 1, "kv_len": 40, "q_heads": 4, "kv_heads": 2, "head_dim": 64}
NONE = {"window": 0, "sinks": 0, "softcap": 0}


def described(op: Op, **axes: int) -> Workload:
    own = {"causal": 1} if op is PREFILL else {}
    return op.describe_axes({**SIZES, **own, **NONE, **axes}, "float16", ("for a test",))


@BOTH
def test_a_variant_that_is_off_leaves_no_trace(op: Op) -> None:
    plain = described(op)
    assert not plain.axes.keys() & NONE.keys()
    assert op.make_inputs(plain, "meta", 0).keys() & {"sinks", "softcap"} == set()
    assert op.bucket(plain, 90) == op.bucket(plain, 90)[:3]
    assert plain.technique == ("chunked" if op is PREFILL else "kv_cache")


@BOTH
def test_a_variant_is_an_axis_of_the_id_and_a_bucket_of_its_own(op: Op) -> None:
    every = described(op, window=8, sinks=1, softcap=50)
    assert every.key.endswith(",window=8,sinks=1,softcap=50")
    assert every.technique == "window"
    assert op.bucket(every, 90)[3:] == ("window, sinks, softcap",)
    assert op.bucket(described(op, sinks=1), 90)[3:] == ("sinks",)
    sinks = op.make_inputs(every, "meta", 0)["sinks"]
    assert (sinks.shape, sinks.dtype, op.roles["sinks"]) == ((4,), torch.float32, "resident")


@BOTH
def test_providers_refuse_each_variant_they_cannot_express(op: Op) -> None:
    def why(provider: str, **variant: int) -> str | None:
        return op.unsupported(described(op, q_len=1, **variant), provider)

    assert why("triton", window=4, sinks=1, softcap=50) is None
    assert why("flash_attn", window=4, softcap=50) is None
    assert why("flash_attn", sinks=1) == "flash-attn 2 has no attention sinks"
    for provider in ("torch", "torch_flash", "torch_cudnn"):
        assert why(provider, sinks=1) == "SDPA has no attention sinks"
        assert why(provider, softcap=50) == "SDPA has no cap on logits"
        no_window = "SDPA has no sliding window without a mask of q_len x kv_len values"
        assert why(provider, window=4) == (None if op is DECODE else no_window)


def test_flash_backend_refuses_the_mask_that_a_decode_window_needs() -> None:
    drafts, ragged = described(DECODE, q_len=4, window=8), replace(described(DECODE, window=8), kv_lens=(30,))
    for workload in (drafts, ragged):
        assert "takes no mask" in (DECODE.unsupported(workload, "torch_flash") or "")
        assert DECODE.unsupported(workload, "torch") is None


def test_sdpa_reads_what_a_decode_window_reaches_and_no_more() -> None:
    """K and V outside are NaN: a read of them, masked or not, would show."""
    q, k, v = (torch.randn(1, n, heads, 64) for n, heads in ((1, 4), (40, 2), (40, 2)))
    k[:, :32], v[:, :32] = float("nan"), float("nan")
    lens = torch.tensor([40], dtype=torch.int32)
    out = DECODE.providers["torch"](q, k, v, lens, ragged=False, window=8)
    torch.testing.assert_close(out, sdpa("torch", q, k[:, 32:], v[:, 32:], causal=False))


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"window": 8, "causal": 0}, "a window of 8 needs causal=1"),
        ({"sinks": 2}, "sinks=2: wanted 0 or 1"),
    ],
)
def test_axes_that_mean_nothing_are_refused(axes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        described(PREFILL, **axes)


@pytest.mark.parametrize(
    ("variant", "causal", "complaint"),
    [
        (Variant(window=-1), True, "wanted window and softcap >= 0"),
        (Variant(softcap=-1), True, "wanted window and softcap >= 0"),
        (Variant(window=4), False, "a window with causal"),
        (Variant(sinks=torch.zeros(3)), True, r"wanted sinks \[4\] float32, contiguous, got \[3\]"),
        (Variant(sinks=torch.zeros(4, dtype=torch.float16)), True, "got .* torch.float16"),
        (Variant(sinks=torch.zeros(8)[::2]), True, "contiguous"),
    ],
)
def test_a_launch_refuses_what_does_not_fit_its_queries(variant: Variant, causal: bool, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        variant.check(torch.zeros(1, 1, 4, 64), causal=causal)


def test_both_wrappers_check_their_variant() -> None:
    q, k = torch.zeros(1, 1, 4, 64), torch.zeros(1, 8, 2, 64)
    with pytest.raises(ValueError, match="wanted sinks"):
        attention_prefill_triton.attention_prefill(q, k, k, causal=True, sinks=torch.zeros(2))
    with pytest.raises(ValueError, match="wanted sinks"):
        lens = torch.tensor([8], dtype=torch.int32)
        attention_decode_triton.attention_decode(q, k, k, lens, sinks=torch.zeros(2))
