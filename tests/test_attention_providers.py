"""Attention by other people's libraries: which backend of torch's runs, and what flash-attn is asked for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerActivity, profile

from bench.check import check_case
from kernels import attention, attention_decode, attention_prefill, matmul
from kernels import optional as optional_module
from kernels.attention import masked_attention, sdpa
from kernels.spec import Op, UnsupportedError, Workload

PREFILL, DECODE = attention_prefill.OP, attention_decode.OP
BOTH = pytest.mark.parametrize("op", [PREFILL, DECODE], ids=lambda op: op.name)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[SDPBackend]:
    """The backends that calls to SDPA are pinned to."""
    backends: list[SDPBackend] = []
    really_pin = torch.nn.attention.sdpa_kernel

    def watched(backend: SDPBackend) -> Any:
        backends.append(backend)
        return really_pin(backend)

    monkeypatch.setattr(attention, "sdpa_kernel", watched)
    return backends


def choose(monkeypatch: pytest.MonkeyPatch, backend: SDPBackend) -> list[dict[str, Any]]:
    """Makes torch's own choice `backend`; returns what it is asked."""
    asked: list[dict[str, Any]] = []

    def choice(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, **how: Any) -> int:
        asked.append({"heads": (q.shape[1], k.shape[1]), "mask": mask, "causal": causal, **how})
        return int(backend.value)

    monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
    return asked


def tensors(q_len: int, kv_len: int, q_heads: int = 4, kv_heads: int = 2, **how: Any) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(1, q_len, q_heads, 64, **how),
        torch.randn(1, kv_len, kv_heads, 64, **how),
        torch.randn(1, kv_len, kv_heads, 64, **how),
    )


@BOTH
def test_recorded_backend_is_the_one_that_ran(op: Op, pinned: list[SDPBackend]) -> None:
    for workload in op.check_workloads:
        if op.unsupported(workload, "torch") is None:
            inputs = op.make_inputs(workload, "cpu", 0)
            op.providers["torch"](**inputs)
            assert op.facts("torch", inputs) == {"sdpa_backend": pinned[-1].name}
    assert len(pinned) >= 4


@BOTH
def test_named_backends_are_recorded_under_their_name_and_other_libraries_have_none(op: Op) -> None:
    inputs = op.make_inputs(op.check_workloads[0], "cpu", 0)
    assert op.facts("torch_flash", inputs) == {"sdpa_backend": "FLASH_ATTENTION"}
    assert op.facts("torch_cudnn", inputs) == {"sdpa_backend": "CUDNN_ATTENTION"}
    assert op.facts("flash_attn", inputs) == {}


def test_torchs_choice_is_asked_about_the_very_problem_it_then_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = choose(monkeypatch, SDPBackend.FLASH_ATTENTION)
    q, k, v = tensors(6, 6)
    seen = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    for causal, mask in ((True, None), (False, None), (True, seen)):
        sdpa("torch", q, k, v, causal=causal, seen=mask)
    sdpa("torch", q, *tensors(6, 6, kv_heads=4)[1:], causal=False)
    assert [(a["causal"], a["mask"] is seen, a["enable_gqa"]) for a in asked] == [
        (True, False, True),
        (False, False, True),
        (False, True, True),
        (False, False, False),
    ]


@BOTH
def test_math_backend_is_refused_where_it_would_expand_keys(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, SDPBackend.MATH)
    sizes = {"batch": 1, "q_len": 2, "kv_len": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "causal": 1}
    axes = {axis: size for axis, size in sizes.items() if axis in op.axes}
    shared = Workload(axes=axes, dtype="float32", phase="mixed")
    inputs = op.make_inputs(shared, "cpu", 0)
    for refused in (lambda: op.providers["torch"](**inputs), lambda: op.facts("torch", inputs)):
        with pytest.raises(UnsupportedError, match="math backend for this, which expands K and V"):
            refused()
    own = op.make_inputs(replace(shared, axes={**axes, "kv_heads": 4}), "cpu", 0)
    assert op.facts("torch", own) == {"sdpa_backend": "MATH"}


@pytest.mark.parametrize("q_len", [1, 4])
def test_keys_of_a_group_are_never_expanded_in_memory(q_len: int) -> None:
    """K is 1 MiB; expanded to 32 query heads it would be 32 MiB."""
    q, k, v = tensors(q_len, 4096, q_heads=32, kv_heads=1)
    lens = torch.tensor([4096], dtype=torch.int32)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocations:
        DECODE.providers["torch"](q, k, v, lens, ragged=False)
    made = sum(max(0, event.self_cpu_memory_usage) for event in allocations.events() or [])
    assert 32 * 64 * 4 <= made < 8 * 2**20


@pytest.mark.parametrize(
    ("flash", "efficient", "backend"),
    [(True, True, "FLASH_ATTENTION"), (False, True, "EFFICIENT_ATTENTION"), (False, False, "CUDNN_ATTENTION")],
)
def test_bottom_right_mask_is_left_to_the_kernels_that_have_one(
    flash: bool, efficient: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned to another backend, torch would write the mask out at every call."""
    choose(monkeypatch, SDPBackend.CUDNN_ATTENTION)
    monkeypatch.setattr(attention, "can_use_flash_attention", lambda problem: flash)
    monkeypatch.setattr(attention, "can_use_efficient_attention", lambda problem: efficient)
    (q, k, v), (square, *_) = tensors(2, 6), tensors(6, 6)
    facts = PREFILL.facts("torch", {"q": q, "k": k, "v": v, "causal": True})
    assert facts == {"sdpa_backend": backend}
    for inputs in ({"q": square, "causal": True}, {"q": q, "causal": False}):
        assert PREFILL.facts("torch", {"k": k, "v": v, **inputs}) == {"sdpa_backend": "CUDNN_ATTENTION"}


@BOTH
def test_a_backend_that_refuses_is_unsupported_with_torchs_words(op: Op) -> None:
    inputs = op.make_inputs(op.check_workloads[0], "cpu", 0)
    with pytest.raises(UnsupportedError, match="backend for torch_cudnn refuses this problem"):
        op.providers["torch_cudnn"](**inputs)


@pytest.mark.parametrize(
    ("words", "raised"),
    [("No available kernel. Aborting execution.", UnsupportedError), ("CUDA error: out of luck", RuntimeError)],
)
def test_only_a_refusal_is_unsupported_and_a_failure_stays_one(
    words: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*tensors: torch.Tensor, **how: Any) -> torch.Tensor:
        raise RuntimeError(words)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fails)
    with pytest.raises(raised, match=words) as caught:
        sdpa("torch_flash", *tensors(6, 6), causal=True)
    assert caught.type is raised


def test_a_window_is_refused_and_never_ignored() -> None:
    q, k, v = tensors(6, 6)
    with pytest.raises(UnsupportedError, match="no sliding window"):
        PREFILL.providers["torch"](q, k, v, causal=True, window=3)


@pytest.mark.parametrize("provider", ["torch_flash", "torch_cudnn"])
@pytest.mark.parametrize(("q_len", "causal"), [(6, True), (6, False), (1, False)])
def test_cuda_backends_accept_the_call(provider: str, q_len: int, causal: bool) -> None:
    """torch checks signature, shapes and dtypes on fake CUDA tensors; nothing is computed."""
    with FakeTensorMode():
        q, k, v = tensors(q_len, 6, device="cuda", dtype=torch.bfloat16)
        out = PREFILL.providers[provider](q, k, v, causal=causal)
        lens = torch.empty(1, dtype=torch.int32, device="cuda")
        one, *_ = tensors(1, 6, device="cuda", dtype=torch.bfloat16)
        decoded = DECODE.providers[provider](one, k, v, lens, ragged=False)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, torch.bfloat16, "cuda")
    assert (decoded.shape, decoded.device.type) == ((1, 1, 4, 64), "cuda")


@pytest.fixture
def precision() -> Iterator[Any]:
    """torch's setting of CUDA float32 products, given back afterwards."""
    before = torch.backends.cuda.matmul.fp32_precision
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.fp32_precision = before


def test_attention_after_a_tf32_matmul_is_not_in_tf32(precision: Any) -> None:
    with FakeTensorMode():
        q, k, v = tensors(6, 6, device="cuda")
        seen = torch.empty(1, 6, 6, dtype=torch.bool, device="cuda")
        for attend in (lambda: sdpa("torch_flash", q, k, v, causal=True), lambda: masked_attention(q, k, v, seen)):
            matmul.set_tf32(q.device, True)
            assert precision.fp32_precision == "tf32"
            with contextlib.suppress(RuntimeError):  # without the real device it gets no further
                attend()
            assert precision.fp32_precision == "ieee"


def between(q_len: int, lens: torch.Tensor, kv_len: int, left: int, right: int) -> torch.Tensor:
    """flash-attn's mask: query i sees keys i + len - q_len - left .. i + len - q_len + right; -1 is no limit."""
    keys = torch.arange(kv_len)
    place = torch.arange(q_len)[None, :, None] + lens[:, None, None] - q_len
    seen = (keys < lens[:, None, None]) & (place == place)
    seen = seen & (keys >= place - left) if left >= 0 else seen
    return seen & (keys <= place + right) if right >= 0 else seen


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> torch.Tensor:  # fmt: skip
    lens, (left, right) = torch.full((q.shape[0],), k.shape[1]), window_size
    seen = between(q.shape[1], lens, k.shape[1], left, 0 if causal else right)
    return masked_attention(q, k, v, seen, scale=softmax_scale, softcap=softcap)[0]


def flash_attn_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: Any = None, v: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: torch.Tensor | None = None, cache_batch_idx: Any = None,
    cache_leftpad: Any = None, block_table: Any = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
    alibi_slopes: Any = None, num_splits: int = 0, return_softmax_lse: bool = False,
) -> torch.Tensor:  # fmt: skip
    assert k is v is block_table is None
    assert cache_seqlens is not None
    assert cache_seqlens.dtype == torch.int32
    seen = between(q.shape[1], cache_seqlens, k_cache.shape[1], window_size[0], 0 if causal else window_size[1])
    return masked_attention(q, k_cache, v_cache, seen, scale=softmax_scale, softcap=softcap)[0]


@pytest.fixture
def fresh_imports() -> Iterator[None]:
    """Optional packages are looked for anew, before and after."""
    optional_module._attempt.cache_clear()
    yield
    optional_module._attempt.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, fresh_imports: None) -> None:
    """A flash_attn package of the real one's signatures and semantics, in plain torch."""
    module = ModuleType("flash_attn")
    for function in (flash_attn_func, flash_attn_with_kvcache):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "flash_attn", module)


@BOTH
@pytest.mark.usefixtures("installed")
def test_flash_attn_is_asked_for_what_the_reference_gives(op: Op) -> None:
    workloads = [replace(w, dtype="float16") for w in op.check_workloads if not w.axes.get("sinks")]
    windows = [w for w in workloads if w.axes.get("causal", 1)]
    workloads += [replace(w, axes={**w.axes, "window": n}) for w in windows for n in (1, 4)]
    for workload in workloads:
        if workload.kv_dtype:
            refused = f"takes no {workload.kv_dtype} KV cache with scales per {workload.scale}"
            assert refused in str(op.unsupported(workload, "flash_attn"))
            continue
        assert op.unsupported(workload, "flash_attn") is None
        inputs = op.make_inputs(workload, "cpu", 0)
        assert check_case(op, op.providers["flash_attn"], inputs).problem == "", workload.key


@BOTH
def test_a_broken_flash_attn_is_unsupported_with_its_own_error(
    op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_imports: None
) -> None:
    (tmp_path / "flash_attn.py").write_text('raise OSError("libcudart.so.11.0: cannot open shared object file")')
    monkeypatch.syspath_prepend(tmp_path)
    inputs = op.make_inputs(replace(op.check_workloads[0], dtype="float16"), "cpu", 0)
    with pytest.raises(UnsupportedError, match=r"OSError: libcudart.so.11.0: cannot open .*; pip install flash-attn"):
        op.providers["flash_attn"](**inputs)


@BOTH
def test_a_missing_flash_attn_is_unsupported_and_says_how_to_get_it(
    op: Op, monkeypatch: pytest.MonkeyPatch, fresh_imports: None
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    inputs = op.make_inputs(replace(op.check_workloads[0], dtype="float16"), "cpu", 0)
    with pytest.raises(UnsupportedError, match=r"ModuleNotFoundError: .*flash_attn.*; pip install flash-attn"):
        op.providers["flash_attn"](**inputs)
