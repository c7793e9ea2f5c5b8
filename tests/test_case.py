"""Cases: their ids, what is selected, and one case for one size whoever asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from bench.case import Case, merged, select
from kernels.spec import Op, Workload
from kernels.work import Work


def never(*args: Any, **inputs: Any) -> Any:
    raise AssertionError("selecting cases must run nothing of an op")


def op_named(name: str) -> Op:
    return Op(
        name=name,
        summary="",
        axes={"M": None},
        dtypes=("bfloat16",),
        make_inputs=never,
        reference=never,
        eager=never,
        providers={"triton": never, "torch": never},
        work=lambda workload: Work(flops=1, bytes=1),
        describe_axes=never,
        check_workloads=(),
        roles={},
    )


def sized(m: int = 4096, *, source: tuple[str, ...] = (), **changes: Any) -> Workload:
    axes = {"M": m, "N": 4096, "K": 4096}
    return Workload(**{"axes": axes, "dtype": "bfloat16", "phase": "prefill", "source": source, **changes})


RAGGED = Workload(axes={"batch": 2, "kv_len": 9}, dtype="bfloat16", phase="decode", kv_lens=(3, 5))
CASES = [
    Case(op_named("matmul"), "triton", sized()),
    Case(op_named("matmul"), "torch", sized()),
    Case(op_named("matmul_decode"), "triton", sized(1, weight_dtype="int4", phase="decode")),
    Case(op_named("attention_decode"), "triton", RAGGED),
]


def ids(cases: list[Case]) -> list[str]:
    return [case.id for case in cases]


def test_id_is_op_provider_dtype_and_sizes() -> None:
    assert ids(CASES) == [
        "matmul/triton/bfloat16/M=4096,N=4096,K=4096",
        "matmul/torch/bfloat16/M=4096,N=4096,K=4096",
        "matmul_decode/triton/bfloat16.w_int4/M=1,N=4096,K=4096",
        "attention_decode/triton/bfloat16/batch=2,kv_len=9,kv_lens=3+5",
    ]


def test_json_of_a_case_says_all_of_it() -> None:
    assert CASES[2].to_json() == {
        "id": "matmul_decode/triton/bfloat16.w_int4/M=1,N=4096,K=4096",
        "op": "matmul_decode",
        "provider": "triton",
        "phase": "decode",
        "dtype": "bfloat16",
        "technique": "dense",
        "axes": {"M": 1, "N": 4096, "K": 4096},
        "source": [],
        "weight_dtype": "int4",
        "kv_dtype": "",
        "scale": "",
        "kv_lens": [],
        "q_lens": [],
    }
    assert CASES[3].to_json()["kv_lens"] == [3, 5]


def test_every_id_selects_its_case_alone() -> None:
    for case in CASES:
        assert ids(select(CASES, match=case.id)) == [case.id]


def test_pattern_and_provider_both_restrict() -> None:
    assert ids(select(CASES)) == ids(CASES)
    assert ids(select(CASES, match=r"^matmul/")) == ids(CASES[:2])
    assert ids(select(CASES, providers=("torch",))) == ids(CASES[1:2])
    assert ids(select(CASES, providers=("triton",), match="M=4096")) == ids(CASES[:1])


@pytest.mark.parametrize(
    ("providers", "match", "message"),
    [
        (("cudnn",), "", r"unknown provider 'cudnn'; known for these ops: triton, torch"),
        ((), "(", r"--match '\(' is not a regular expression"),
        ((), "softmax", r"no case matches 'softmax'; `python -m bench list`"),
        (("torch",), "decode", r"no case of torch matches 'decode'"),
    ],
)
def test_selection_of_nothing_says_what_there_is(providers: tuple[str, ...], match: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(CASES, providers=providers, match=match)


def test_one_size_of_two_models_is_one_workload_with_both_sources() -> None:
    a, b = "llama-3.1-8b: o_proj, tp 1", "qwen3-8b: o_proj, tp 1"
    one, other = merged([sized(source=(a,)), sized(64), sized(source=(b, a)), sized(64, dtype="float16")])[:2]
    assert (one.source, other.source) == ((a, b), ())
    assert merged([sized(source=(b,)), sized(source=(a,))])[0].source == (b, a)


def test_merging_keeps_what_differs_apart() -> None:
    different = [sized(), sized(64), sized(dtype="float16"), sized(weight_dtype="int4"), sized(scale="tensor")]
    assert merged(different) == different
