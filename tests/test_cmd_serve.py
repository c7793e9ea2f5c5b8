"""The commands `serve` and `audit`: what they print, their keys, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_serving_models import LLAMA
from typer.testing import CliRunner

from analysis.__main__ import app

REFERENCE = Path(__file__).parents[1] / "reports" / "reference-h100"
FP8_70B = ("--model", "llama-3.1-70b", "--tp", "4", "--dtype", "fp8", "--kv-dtype", "fp8")
KEYS = {
    "fits", "max_concurrency", "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s_user", "tokens_per_s_system",
    "usd_per_mtok_output", "ladder",
}  # fmt: skip


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.stdout if code in (0, 1, 3) else done.stderr


def loads(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("serve", *arguments, "--json", code=code))["loads"]
    return found


def test_json_has_a_document_for_each_load() -> None:
    found = loads(*FP8_70B, "--concurrency", "1,8,64", "--price", "2.5")
    assert [d["concurrency"] for d in found] == [1, 8, 64]
    for d in found:
        assert d.keys() >= KEYS and d["fits"] is True
        assert d["e2e_ms"] == pytest.approx(d["ttft_ms"] + 511 * d["tpot_ms"])
        assert d["tokens_per_s_system"] == pytest.approx(d["concurrency"] * 512e3 / d["e2e_ms"])
        assert d["usd_per_mtok_output"] == pytest.approx(4 * 2.5 / 3600 / d["tokens_per_s_system"] * 1e6)
        rungs = list(d["ladder"].values())
        assert rungs == sorted(rungs) and rungs[-1] == d["tpot_ms"]
        assert 0 < d["mfu"] < 1 and 0 < d["mbu"] < 1
    assert found[0]["ladder"]["batching"] == found[0]["ladder"]["launch_and_host"]


def test_ops_add_up_to_the_kernels_part_of_tpot() -> None:
    """With neither host nor eager floor, TPOT is its ops and nothing else: of mixed steps and of waves."""
    for engine in ("vllm", "sglang"):
        for d in loads("--engine", engine, "--kernels-only", "--concurrency", "1,64"):
            assert sum(op["ms"] for op in d["ops"]) == pytest.approx(d["tpot_ms"])
            assert {op["how"] for op in d["ops"]} <= {"measured", "interpolated", "extrapolated", "assumed"}


def test_pipeline_shares_a_prompt_among_stages_and_weights_among_gpus() -> None:
    one, two = loads("--concurrency", "64"), loads("--concurrency", "64", "--pp", "2")
    assert two[0]["max_concurrency"] > 2 * one[0]["max_concurrency"]
    assert two[0]["ladder"]["batching"] - two[0]["ladder"]["launch_and_host"] < (
        one[0]["ladder"]["batching"] - one[0]["ladder"]["launch_and_host"]
    )


def test_host_constant_is_added_to_each_step() -> None:
    plain, slow = (loads("--concurrency", "1", "--host-us", us)[0]["tpot_ms"] for us in ("0", "1000"))
    assert slow == pytest.approx(plain + 1)


def test_roofline_has_no_measured_op_and_records_come_first() -> None:
    [roof] = loads("--kernels", "roofline", "--concurrency", "1")
    assert {op["how"] for op in roof["ops"] if op["ms"]} == {"assumed"}
    [own] = loads("--kernels", str(REFERENCE), "--concurrency", "64", "--isl", "1024", "--osl", "1")
    assert own["ttft_ms"] > 0


def test_spread_and_swap_stand_beside_a_runs_kernels(tmp_path: Path) -> None:
    """Three samples of 40, 42 and 44 us of 8B's qkv at one token, all else published: an interval, and a swap for the
    22.1 us of TensorRT-LLM: 32 layers x 19.9 us are 0.64 ms of TPOT."""
    lines = (REFERENCE / "records.jsonl").read_text().splitlines()
    of = "matmul_decode/trtllm/bfloat16/M=1,N=6144,K=4096"
    header = next(line for line in lines if '"run": "reference-h100-trtllm' in line and "environment" in line)
    record = json.loads(next(line for line in lines if f'"id": "{of}"' in line))
    slow = {**record, "times_us": [40.0, 42.0, 44.0] * 5}
    (tmp_path / "records.jsonl").write_text("\n".join([header, json.dumps(slow)]) + "\n")
    [d] = loads("--kernels", str(tmp_path), "--concurrency", "1", "--price", "2")
    assert d["tpot_ms"] - d["tpot_ms_reference"] == pytest.approx(32 * (42 - 22.1) / 1e3, rel=1e-2)
    assert d["tpot_ms_low"] < d["tpot_ms"] < d["tpot_ms_high"]
    assert d["usd_per_mtok_output"] > d["usd_per_mtok_output_reference"]
    text = run("serve", "--kernels", str(tmp_path), "--concurrency", "1")
    assert f"{d['tpot_ms_reference']:.2f} ms with the published kernels instead" in text
    assert d["tpot_ms_fastest"] < d["tpot_ms_reference"] and "with the fastest of them" in text


def test_prefix_hit_shortens_the_first_token_only_so_far() -> None:
    """Half of 8,192 tokens cached: half of the linear work, and attention over the rest still sees all keys."""
    cold, hit = (
        loads("--isl", "8192", "--concurrency", "1", "--kernels-only", "--prefix-hit", p)[0]["ttft_ms"]
        for p in ["0", "0.5"]
    )
    assert cold * 0.5 < hit < cold * 0.6


def test_what_does_not_fit_has_numbers_and_no_figures() -> None:
    [d] = loads("--model", "llama-3.1-405b", "--concurrency", "8", code=3)
    assert d["fits"] is False and d["max_concurrency"] == 0 and "at least 11 GPUs" in d["reason"]
    assert all(d[key] is None for key in KEYS - {"fits", "max_concurrency"})
    text = run("serve", "--model", "llama-3.1-405b", "--concurrency", "8", code=3)
    assert "smallest TP that fits: 16" in text


def test_clients_beyond_memory_queue() -> None:
    few, many = loads("--isl", "8192", "--osl", "8192", "--concurrency", "8,512")
    assert few["queued"] == 0 and many["queued"] == 512 - many["max_concurrency"]
    assert many["ttft_ms"] > many["e2e_ms"] / 2
    assert "wait for memory" in run("serve", "--isl", "8192", "--osl", "8192", "--concurrency", "512")


@pytest.mark.parametrize("osl", ["0", "1"])
def test_no_second_token_means_no_tpot(osl: str) -> None:
    [d] = loads("--osl", osl, "--concurrency", "4")
    assert d["tpot_ms"] is None and d["tokens_per_s_user"] is None and d["ladder"] is None and d["ttft_ms"] > 0
    assert "| 4 | yes |" in run("serve", "--osl", osl, "--concurrency", "4")


def test_s04_when_no_load_meets_the_target_the_nearest_is_told_as_such() -> None:
    text = run("serve", "--concurrency", "64,128", "--slo-tpot", "5")
    assert "none meets" in text and "nearest: concurrency 64" in text
    assert "meets TTFT 200 ms and TPOT 33 ms up to concurrency 8" in run(
        "serve", "--concurrency", "1,8", "--slo", "chat"
    )


def test_validation_and_assumptions_stand_beside_every_prediction() -> None:
    text = run("serve", "--concurrency", "1")
    assert "Checked against 465 runs" in text and "Engine: TensorRT-LLM" in text and "Host (us)" in text
    assert "Of trtllm: h100 Llama-3.1-8B-Instruct bf16?" in text and "sglang" not in text


def test_model_of_a_configuration_is_the_same_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert loads("--model-config", str(path)) == loads("--model", "meta-llama/Llama-3.1-8B-Instruct")
    path.write_text(json.dumps({**LLAMA, "architectures": ["BloomForCausalLM"]}))
    assert "unknown architecture 'BloomForCausalLM'" in run("serve", "--model-config", str(path), code=2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "gpt-9"), "unknown model"),
        (("--gpu", "h900"), "unknown GPU"),
        (("--dtype", "fp3"), "unknown dtype 'fp3'"),
        (("--engine", "tgi"), "unknown engine"),
        (("--tp", "3"), "tp 3 does not divide"),
        (("--concurrency", "1,x"), "whole numbers"),
        (("--concurrency", "0"), "at least 1 client"),
        (("--slo", "fast"), "unknown SLO"),
        (("--kernels", "nowhere"), "nowhere"),
    ],
)
def test_usage_errors_say_what_was_wanted(arguments: tuple[str, ...], part: str) -> None:
    assert part in run("serve", *arguments, code=2)


def test_audit_prints_the_verdict() -> None:
    claim = ("audit", "--model", "llama-3.1-70b", "--dtype", "fp8", "--tokens-per-s")
    text = run(*claim, "125", code=1)
    assert "at most 48.2 tok/s per stream" in text and "unless 3 tokens or more are accepted per step" in text
    assert json.loads(run(*claim, "40", "--json"))["possible"] is True
    assert "tokens/s above 0" in run(*claim, "-1", code=2)


def test_draft_options_reach_the_step() -> None:
    """A stream of one: 5 tokens verified in a step, 3.3616 of them right, at 4 x 5 % of a step: under half the TPOT."""
    plain, draft = (loads("--concurrency", "1", "--draft-tokens", g, "--draft-cost", "0.05")[0] for g in ("0", "4"))
    assert draft["tpot_ms"] < plain["tpot_ms"] / 2
    assert sum(op["ms"] for op in draft["ops"]) == pytest.approx(draft["ladder"]["measured_kernels"])
    assert "draft" in {op["op"] for op in draft["ops"]}
    for engine in ("vllm", "sglang"):
        asked = (
            "--engine",
            engine,
            "--kernels-only",
            "--concurrency",
            "64",
            "--draft-tokens",
            "4",
            "--draft-cost",
            "0.1",
        )
        [busy] = loads(*asked)
        assert sum(op["ms"] for op in busy["ops"]) == pytest.approx(busy["tpot_ms"])


def test_simulate_prints_quantiles() -> None:
    told = json.loads(run("simulate", "--rate", "2", "--requests", "50", "--json"))
    assert told["slots"] > 8 and told["ttft_ms"]["p50"] <= told["ttft_ms"]["p90"] <= told["ttft_ms"]["p99"]
    assert "| TTFT |" in run("simulate", "--rate", "2", "--requests", "20")
    assert (
        json.loads(run("simulate", "--rate", "2", "--requests", "5", "--osl", "1", "--json"))["tpot_ms"]["p50"] is None
    )
    assert "wanted a rate above 0" in run("simulate", "--rate", "0", code=2)


def test_what_a_prediction_does_not_know_is_said() -> None:
    """Published kernels come without spread, a router is taken to be even, and what is missing for KV is told."""
    assert "Error bars: none" in run("serve", "--concurrency", "1")
    assert "Error bars" not in run("serve", "--concurrency", "1", "--kernels", str(REFERENCE))
    assert "Experts: an even router" in run("serve", "--model", "qwen3-30b-a3b", "--concurrency", "1")
    short = run("serve", "--model", "llama-3.1-70b", "--dtype", "fp8", "--concurrency", "1", code=3)
    assert "GB too few, so no KV" in short and "at least 1 GPU for weights alone" in short and "Experts" not in short


def test_pipeline_with_fewer_sequences_than_stages_has_a_bubble() -> None:
    """Of four stages one client keeps one busy and two clients two; eight fill them. Alone, a token passes every stage
    in turn: no faster than on one GPU, and slower by what is sent between stages."""
    asked = ("--kernels-only", "--concurrency", "1,2,8")
    one, four = loads(*asked), loads(*asked, "--pp", "4")
    assert [d["pipeline_bubble"] for d in four] == [0.75, 0.5, 0] and {d["pipeline_bubble"] for d in one} == {0}
    sent = next(op["ms"] for op in four[0]["ops"] if op["op"] == "send_recv")
    assert four[0]["tpot_ms"] == pytest.approx(one[0]["tpot_ms"] + sent) and sent > 0
    text = run("serve", *asked, "--pp", "4")
    assert "1 clients: 75% of the pipeline is idle" in text and "8 clients: 0%" not in text
