"""`analysis reference` as a command: its files, its one JSON document, its exit codes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

from analysis.cmd_reference import reference as command
from bench.record import read_records

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `reference`"
)


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    pytest.importorskip("aiconfigurator_core")
    directory = tmp_path_factory.mktemp("reference")
    return invoke("--device", "h100", "--all", "--json", "-o", str(directory)), directory


def test_every_row_is_written(full_run: tuple[Result, Path]) -> None:
    """As many as the package's files say they hold; the MLA tables of SGLang hold every row twice."""
    result, directory = full_run
    assert result.exit_code == 0, result.output
    ops = pd.read_parquet(directory / "all_rows.parquet", columns=["op", "class"])
    mla_rows = ops["op"].str.startswith("mla")
    assert (~mla_rows).sum() == 625_293
    assert mla_rows.sum() == 2 * (1760 + 2896)
    assert not ops["class"].isin(["invalid", "no roofs"]).any()


def test_files_and_one_json_document(full_run: tuple[Result, Path]) -> None:
    result, directory = full_run
    document = json.loads(result.stdout)
    assert document["problems"] == []
    written = {path.name for path in directory.iterdir()}
    assert written >= {"records.jsonl", "points.csv", "table.md", "roofline.png", "roofline.svg", "NOTICE"}
    assert len(pd.read_csv(directory / "points.csv")) == len(read_records(directory / "records.jsonl"))
    assert (directory / "records.jsonl").stat().st_size < 10e6
    page = (directory / "table.md").read_text(encoding="utf-8")
    assert "bytes count activations at 2 bytes" in page and "Apache" in page


def test_a_missing_package_is_exit_3_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = invoke("--device", "h100", "-o", str(tmp_path))
    assert result.exit_code == 3
    assert "pip install 'aiconfigurator-core==0.12.0'" in result.stderr


@needs_package
def test_another_version_of_the_package_is_exit_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.13.0")
    result = invoke("--device", "h100", "-o", str(tmp_path))
    assert (result.exit_code, "0.13.0" in result.stderr) == (3, True)


@needs_package
@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["--device", "a100"], "known: h100, h200"),
        (["--device", "h100", "--framework", "ollama"], "known for h100: sglang, trtllm, vllm"),
        (["--device", "h100", "--framework", "vllm", "--version", "9"], "known for h100: vllm: 0.24.0"),
    ],
)
def test_an_unknown_name_is_exit_2_with_the_known_ones(arguments: list[str], known: str, tmp_path: Path) -> None:
    result = invoke(*arguments, "-o", str(tmp_path))
    assert result.exit_code == 2
    assert known in result.stderr
    assert list(tmp_path.iterdir()) == []
