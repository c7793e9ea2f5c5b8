"""bench.selection and `bench list`: which cases the options mean, and usage errors that name what is known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bench import cmd_run
from bench.__main__ import app
from bench.device import DeviceError, TorchBuild
from bench.selection import shard_of
from bench.suites import SUITES, suite_cases, suite_workloads
from kernels.models import MODELS
from kernels.registry import OPS

CASE_KEYS = {"op", "provider", "phase", "dtype", "technique", "axes"}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection that should have been refused fails its test instead of running for minutes."""

    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("cases would have run")

    monkeypatch.setattr(cmd_run, "sweep", refuse)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = bench("list", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    cases: list[dict[str, Any]] = json.loads(result.stdout)
    return cases


def axes_of(cases: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(case["axes"].values()) for case in cases if case["provider"] == "torch"]


@pytest.mark.parametrize("command", ["list", "run"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["matmull"], ["unknown op 'matmull'", *(op.name for op in OPS)]),
        (["--dtype", "fp4"], ["unknown dtype 'fp4'", "bfloat16", "bf16"]),
        (["--suite", "slow"], ["unknown suite 'slow'", *SUITES]),
        (["--suite", ""], ["unknown suite ''", *SUITES]),
        (["--model", "llama-9"], ["unknown model 'llama-9'", *(model.name for model in MODELS)]),
        (["--model", ""], ["unknown model ''"]),
        (["--model", "llama-3.1-8b", "--tp", "3"], ["llama-3.1-8b", "3"]),
        (["--tp", "8"], ["--tp", "give --model too"]),
        (["--suite", "smoke", "--provider", "tritn"], ["unknown provider 'tritn'", "torch"]),
        (["--suite", "smoke", "--match", "("], ["--match '(' is not a regular expression"]),
        (["--suite", "smoke", "--match", "nothing_like_it"], ["no case", "nothing_like_it", "bench list"]),
        (["--suite", "smoke", "--dtype", "int8"], ["dtype int8", "bfloat16", "float32"]),
        (["matmul_decode", "--suite", "smoke", "--dtype", "fp32"], ["dtype float32", "bfloat16"]),
        (["matmul", "--set", "m=1", "--set", "N=8", "--set", "K=8"], ["no axis 'm'", "M, N, K"]),
        (["matmul", "--set", "M=1"], ["needs a size for axis 'N'", "M, N, K"]),
        (["matmul", "--set", "M"], ["--set 'M'", "AXIS=SIZE"]),
        (["matmul", "--set", "M=1.5"], ["--set 'M=1.5'", "AXIS=SIZE"]),
        (["matmul", "--set", "M=1,,2"], ["--set 'M=1,,2'", "AXIS=SIZE"]),
        (["matmul", "--set", "M=-1", "--set", "N=8", "--set", "K=8"], ["axis M must be a whole number >= 0", "-1"]),
        (["matmul", "--set", "M=0", "--set", "N=8", "--set", "K=8"], ["M=0 leaves no work", "M of at least 1"]),
        (["matmul", "--set", "M=1", "--set", "N=8", "--set", "K=8,0"], ["K=0 leaves no work"]),
        (["attention_decode", "--set", "kv_len=8", "--set", "batch=0"], ["batch=0 leaves no work"]),
        (["attention_prefill", "--set", "q_len=0"], ["q_len=0 leaves no work"]),
        (["attention_decode", "--set", "kv_len=8", "--set", "head_dim=0"], ["head_dim=0 leaves no work"]),
        (["matmul", "--set", "M=1", "--set", "M=2"], ["--set M is given twice"]),
        (["matmul", "matmul_decode", "--set", "M=1"], ["--set asks about one op"]),
        (["--set", "M=1"], ["--set asks about one op"]),
        (["matmul", "--set", "M=1", "--set", "N=8", "--set", "K=8", "--dtype", "e5m2"], ["float8_e5m2", "float16"]),
        (["--suite", "smoke", "--model", "llama-3.1-8b"], ["--suite, --set and --model", "give one"]),
        (["matmul", "--set", "M=1", "--suite", "smoke"], ["--suite, --set and --model", "give one"]),
        (["--tp", "0"], ["--tp"]),
        (["--warmup", "3"], ["--warmup"]),
    ],
    ids=" ".join,
)
def test_usage_errors_end_with_2_and_say_on_stderr_what_is_known(
    command: str, arguments: list[str], told: list[str]
) -> None:
    """L01, L03: refused before anything runs, with nothing on stdout."""
    result = bench(command, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    for text in told:
        assert text in result.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(seconds: str) -> None:
    """L03: the option's name has the unit, and 0 or less is no time."""
    for command in (["run", "--suite", "smoke", "--no-peaks"], ["peaks"]):
        for option in ("--case-seconds", "--timeout"):
            result = bench(*command, "--device", "cpu", option, seconds)
            assert (result.exit_code, result.stdout) == (2, "")
            assert option in result.stderr


def test_no_gpu_or_another_device_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.device.torch_build", lambda: TorchBuild("2.13.0", "13.0", usable=False))
    monkeypatch.setattr("bench.device.nvidia_gpus", lambda: None)
    for command in (["run", "--suite", "smoke"], ["peaks"]):
        result = bench(*command, "--device", "cuda")
        assert (result.exit_code, result.stdout) == (3, "")
        assert "no NVIDIA GPU" in result.stderr
        assert "--device cpu" in result.stderr
        assert bench(*command, "--device", "tpu").exit_code == 2


def test_a_message_with_brackets_or_colons_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would take `[cuda]` for a style and `:100:` for an emoji."""

    def refuse(asked: str | None) -> str:
        raise error

    monkeypatch.setattr(cmd_run, "choose_device", refuse)
    for kind, code in ((DeviceError, 3), (ValueError, 2)):
        error = kind("a.jsonl:100: [cuda] driver [/] of [bold]it[/bold]")
        result = bench("run", "--suite", "smoke")
        assert (result.exit_code, result.stderr) == (code, f"error: {error}\n")


def test_list_gives_one_object_a_case_and_nothing_else_on_stdout() -> None:
    cases = listed("--suite", "smoke")
    assert len({case["id"] for case in cases}) == len(cases) >= 8
    assert {case["op"] for case in cases} == set(suite_workloads("smoke"))
    for case in cases:
        assert set(case) >= CASE_KEYS
        sizes = ",".join(f"{axis}={size}" for axis, size in case["axes"].items())
        assert case["id"] == f"{case['op']}/{case['provider']}/{case['dtype']}/{sizes}"
        assert all(isinstance(size, int) for size in case["axes"].values())


def test_list_prints_every_case_in_full_and_their_number() -> None:
    ids = [case["id"] for case in listed("--suite", "smoke")]
    result = bench("list", "--suite", "smoke")
    assert result.exit_code == 0
    for case_id in ids:
        assert case_id in result.stdout
    assert f"{len(ids)} cases: " in result.stdout


def test_a_question_is_every_combination_of_the_sizes() -> None:
    cases = listed("matmul", "--set", "M=1,16", "--set", "N=256", "--set", "K=256,512", "--dtype", "bf16,fp32")
    by_dtype = {dtype: axes_of([c for c in cases if c["dtype"] == dtype]) for dtype in ("bfloat16", "float32")}
    combinations = [(1, 256, 256), (1, 256, 512), (16, 256, 256), (16, 256, 512)]
    assert by_dtype == {"bfloat16": combinations, "float32": combinations}


def test_said_twice_is_one_case() -> None:
    once = ["matmul", "--set", "M=1", "--set", "N=8", "--set", "K=8", "--dtype", "bf16"]
    twice = ["matmul", "matmul", "--set", "M=1,1", "--set", "N=8", "--set", "K=8", "--dtype", "bf16,bfloat16"]
    assert listed(*twice) == listed(*once)
    assert listed("matmul", "matmul", "--suite", "smoke") == listed("matmul", "--suite", "smoke")


def test_axes_that_are_not_set_have_the_ops_default() -> None:
    """attention_decode: batch 1, q_len 1, 32 query heads on 8 KV heads of 128."""
    cases = listed("attention_decode", "--set", "kv_len=100,200", "--provider", "torch")
    names = ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim")
    assert [case["axes"] for case in cases] == [
        dict(zip(names, (1, 1, kv_len, 32, 8, 128), strict=True)) for kv_len in (100, 200)
    ]
    assert {case["phase"] for case in cases} == {"decode"}


def test_the_layers_of_a_model_on_one_of_eight_gpus() -> None:
    """Llama-3.1-70B: hidden 8192, 64 query heads on 8 KV heads of 128, FFN 28672; an eighth of each on a GPU."""
    cases = listed("--model", "llama-3.1-70b", "--tp", "8", "--provider", "torch")
    matmuls = {axes[1:] for axes in axes_of([case for case in cases if case["op"] == "matmul"])}
    qkv, o_proj, gate_up, down = (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)
    assert {qkv, o_proj, gate_up, down} <= matmuls
    heads = {(c["axes"]["q_heads"], c["axes"]["kv_heads"]) for c in cases if c["op"].startswith("attention")}
    assert heads == {(8, 1)}
    assert all("llama-3.1-70b" in case["source"][0] for case in cases)


def test_providers_and_patterns_narrow_the_selection() -> None:
    everything = listed("--suite", "smoke")
    torch_only = listed("--suite", "smoke", "--provider", "torch")
    assert torch_only == [case for case in everything if case["provider"] == "torch"]
    both = listed("--suite", "smoke", "--provider", "torch,torch_flash")
    assert both == [case for case in everything if case["provider"] in ("torch", "torch_flash")]
    matched = listed("--suite", "smoke", "--match", "^matmul/.*M=128")
    assert matched == [case for case in everything if case["op"] == "matmul" and case["axes"]["M"] == 128]


def test_a_dtype_narrows_a_suite_and_ops_keep_the_order_asked_for() -> None:
    assert {case["dtype"] for case in listed("matmul", "--suite", "smoke", "--dtype", "fp32")} == {"float32"}
    ops = [case["op"] for case in listed("matmul_decode", "matmul", "--suite", "smoke")]
    assert list(dict.fromkeys(ops)) == ["matmul_decode", "matmul"]


def test_a_dtype_may_tell_storage_as_case_ids_spell_it() -> None:
    [case] = listed("attention_decode", "--set", "kv_len=64", "--dtype", "bf16.kv_fp8.head", "--provider", "triton")
    assert case["id"].startswith("attention_decode/triton/bfloat16.kv_float8_e4m3fn.head/batch=1,q_len=1,kv_len=64,")
    assert case["technique"] == "quantised_kv"
    sizes = [f"--set={axis}=64" for axis in "MNK"]
    ids = [
        case["id"] for case in listed("matmul_decode", *sizes, "--dtype", "fp8,fp8.block128", "--provider", "triton")
    ]
    assert [text.split("/")[2] for text in ids] == ["float8_e4m3fn.token", "float8_e4m3fn.block128"]


def test_storage_narrows_a_suite_and_what_no_case_has_is_refused() -> None:
    narrowed = listed("--suite", "techniques", "--dtype", "bf16.kv_int8.head", "--provider", "triton")
    assert {case["id"].split("/")[2] for case in narrowed} == {"bfloat16.kv_int8.head"}
    whole = listed("attention_decode", "--suite", "techniques", "--dtype", "bf16", "--provider", "triton")
    assert {case["id"] for case in narrowed} < {case["id"] for case in whole}
    refused = bench("list", "--suite", "techniques", "--dtype", "bf16.kv_int8.block128")
    assert refused.exit_code == 2 and "no case of these ops in this suite has dtype" in refused.stderr


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("bf16.kv_fp4", "unknown storage dtype 'fp4'"),
        ("bf16.heads", "unknown granularity of scales 'heads'; known: tensor, head"),
        ("bf16.kv_fp8.head", "attention_prefill takes no float8_e4m3fn KV cache"),
    ],
)
def test_storage_that_means_nothing_is_refused(dtype: str, told: str) -> None:
    result = bench("list", "attention_prefill", "--set", "q_len=64", "--dtype", dtype)
    assert result.exit_code == 2 and told in " ".join(result.stderr.split())


def test_list_without_options_is_the_full_suite() -> None:
    assert listed() == listed("--suite", "full")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shards_share_the_cases_out_by_their_ids_alone(count: int) -> None:
    cases = suite_cases("quick", OPS)
    shards = [shard_of(cases, f"{index}/{count}") for index in range(1, count + 1)]
    assert sorted(case.id for shard in shards for case in shard) == sorted(case.id for case in cases)
    assert min(map(len, shards)) > len(cases) / count / 2, "shares of a like size"
    few = cases[::7]
    for index, shard in enumerate(shards, start=1):
        assert shard_of(few, f"{index}/{count}") == [case for case in few if case in shard]


def test_the_shard_of_a_case_stays_from_version_to_version() -> None:
    """Shards of one sweep may run on machines with another Python: a hash with a seed would lose cases."""
    [case, *_] = suite_cases("smoke", OPS)
    assert case.id == "matmul/triton/bfloat16/M=128,N=256,K=256"
    assert [shard_of([case], f"{index}/5") != [] for index in range(1, 6)] == [False, False, True, False, False]


@pytest.mark.parametrize("shard", ["", "0/2", "3/2", "1/0", "1", "a/b", "-1/2", "1/2/3", "1.0/2"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    result = bench("run", "--suite", "smoke", "--shard", shard)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--shard {shard!r}: wanted I/N" in result.stderr


def test_a_shard_without_cases_says_so_and_ends_with_3() -> None:
    one = ("matmul", "--set", "M=1", "--set", "N=8", "--set", "K=8", "--provider", "torch")
    results = [bench("run", *one, "--device", "cpu", "--shard", f"{index}/50") for index in (1, 2)]
    empty = next(result for result in results if result.exit_code == 3)
    assert "none of the 1 cases falls into it" in empty.stderr


def test_resume_needs_a_directory() -> None:
    result = bench("run", "--suite", "smoke", "--device", "cpu", "--resume")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--resume" in result.stderr and "-o DIR" in result.stderr


def test_zeros_that_mean_something_are_legal() -> None:
    """A cache without keys; no causal mask; 0 KV heads are as many as query heads, and 0 keys as many as queries."""
    [decode] = [c for c in listed("attention_decode", "--set", "kv_len=0") if c["provider"] == "torch"]
    assert decode["axes"]["kv_len"] == 0
    sets = ("--set", "q_len=64", "--set", "kv_len=0", "--set", "causal=0", "--set", "kv_heads=0", "--set", "q_heads=4")
    [prefill] = [c for c in listed("attention_prefill", *sets) if c["provider"] == "torch"]
    assert (prefill["axes"]["kv_len"], prefill["axes"]["causal"], prefill["axes"]["kv_heads"]) == (64, 0, 4)
