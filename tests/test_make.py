"""bench.setup_venv and the Makefile: which torch is built on, and what each target would run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench import setup_venv
from bench.setup_venv import Found, Plan, SetupError, make_plan

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
NGC = Found("2.11.0a0+eb65b369.nv26.1", "13.0", "3.6.0+git1a2b", ("torch", "triton", "numpy", "Jinja2"))


def plan(found: Found | None) -> Plan:
    return make_plan(found, PROJECT, PINS)


def test_every_direct_dependency_is_pinned_once() -> None:
    pinned = [setup_venv.canonical(pin) for pin in PINS if pin and not pin.startswith("#")]
    needed = {setup_venv.canonical(requirement) for requirement in plan(None).requirements}
    assert sorted(pinned) == sorted(needed)
    assert "torch==2.13.0" in PINS and "triton==3.7.1" in PINS


def test_a_python3_without_torch_gets_the_pins() -> None:
    made = plan(None)
    assert not made.on_system and "no torch" in made.why
    assert {"torch==2.13.0", "triton==3.7.1", "ruff==0.17.6"} <= set(made.constraints)
    assert "torch>=2.11" in made.requirements and not any(pin.startswith("#") for pin in made.constraints)


def test_a_cuda_torch_is_kept_and_only_the_missing_is_installed() -> None:
    made = plan(NGC)
    assert made.on_system
    assert not any(setup_venv.canonical(requirement) in ("torch", "triton") for requirement in made.requirements)
    assert f"torch=={NGC.torch}" in made.constraints and f"triton=={NGC.triton}" in made.constraints
    assert "torch==2.13.0" not in made.constraints and "triton==3.7.1" not in made.constraints
    names = [setup_venv.canonical(pin) for pin in made.constraints]
    assert "numpy" not in names and "jinja2" not in names, "what the image has stays at the image's version"
    assert "mypy" in names and "numpy>=1.26" in made.requirements


@pytest.mark.parametrize(
    ("torch", "cuda", "triton", "why"),
    [
        ("2.13.0+cpu", None, "3.7.1", "not a CUDA build"),
        ("2.10.1+cu130", "13.0", "3.6.0", "torch 2.10.1+cu130 is outside torch>=2.11"),
        ("2.11.0", "13.0", "3.5.1", "triton 3.5.1 is outside triton>=3.6,<3.10"),
        ("2.14.0", "13.0", "3.10.0", "triton 3.10.0 is outside"),
        ("unknown", "13.0", "3.6.0", "torch unknown is outside"),
    ],
)
def test_another_torch_is_not_built_on(torch: str, cuda: str | None, triton: str, why: str) -> None:
    made = plan(Found(torch, cuda, triton, ()))
    assert not made.on_system and why in made.why
    assert "torch==2.13.0" in made.constraints


@pytest.mark.parametrize(("torch", "triton"), [("2.11.0+cu130", "3.6.0"), ("2.13.0", "3.9.4"), ("3.0.1", "3.7.1")])
def test_the_supported_range_is_built_on(torch: str, triton: str) -> None:
    made = plan(Found(torch, "13.0", triton, ()))
    assert made.on_system
    assert [pin for pin in made.constraints if pin.startswith(("torch==", "triton=="))] == [
        f"torch=={torch}",
        f"triton=={triton}",
    ]


def fake_python(folder: Path, body: str) -> str:
    script = folder / "python3"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_probe_reads_the_last_line_past_a_chatty_image(tmp_path: Path) -> None:
    python = fake_python(tmp_path, """echo "Welcome"; echo '["2.11.0", "13.0", "3.6.0", ["torch"]]'""")
    assert setup_venv.probe(python) == Found("2.11.0", "13.0", "3.6.0", ("torch",))


@pytest.mark.parametrize("body", ["echo 'no module named torch' >&2; exit 1", "echo gibberish", "exit 0"])
def test_probe_finds_nothing(tmp_path: Path, body: str) -> None:
    assert setup_venv.probe(fake_python(tmp_path, body)) is None


def test_probe_of_a_real_python() -> None:
    import torch
    import triton

    found = setup_venv.probe(sys.executable)
    assert found is not None
    assert (found.torch, found.cuda, found.triton) == (torch.__version__, torch.version.cuda, triton.__version__)
    assert "numpy" in found.packages


class Commands:
    """Stands in for what `main` runs, and remembers it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, found: Found | None, seen: Found | None) -> None:
        self.run: list[list[str]] = []
        monkeypatch.setattr(setup_venv, "run", self.run.append)
        monkeypatch.setattr(setup_venv, "probe", lambda python: found if python == sys.executable else seen)
        monkeypatch.setattr(setup_venv, "see_parent", lambda venv: None)


def test_main_on_a_cuda_python3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = Commands(monkeypatch, found=NGC, seen=NGC)
    setup_venv.main(tmp_path)
    venv, pip = commands.run
    assert "--system-site-packages" in venv
    assert not any(re.match(r"(torch|triton)\b", part) for part in pip)
    assert f"torch=={NGC.torch}" in (tmp_path / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_main_without_a_cuda_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = Commands(monkeypatch, found=None, seen=None)
    setup_venv.main(tmp_path)
    venv, pip = commands.run
    assert "--system-site-packages" not in venv and "--clear" in venv
    assert pip[0] == str(tmp_path / "bin" / "python") and "torch>=2.11" in pip and "-qq" in pip
    assert "torch==2.13.0" in (tmp_path / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_an_environment_that_sees_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Commands(monkeypatch, found=NGC, seen=NGC._replace(torch="2.13.0"))
    with pytest.raises(SetupError, match=r"does not see python3's torch 2\.11\.0a0.*it has 2\.13\.0"):
        setup_venv.main(tmp_path)


@pytest.mark.parametrize(("pip", "expected"), [(True, "--python"), (False, "apt-get install python3-venv")])
def test_python3_without_ensurepip_uses_its_own_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pip: bool, expected: str
) -> None:
    Commands(monkeypatch, found=None, seen=None)
    found = {"pip": object() if pip else None, "ensurepip": None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found[name])
    if pip:
        assert setup_venv.create(tmp_path, False)[-2:] == [expected, str(tmp_path / "bin" / "python")]
    else:
        with pytest.raises(SetupError, match=expected):
            setup_venv.create(tmp_path, False)


def test_a_fitting_environment_is_kept_and_another_cleared(tmp_path: Path) -> None:
    assert not setup_venv.is_same_kind(tmp_path, False)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    assert setup_venv.is_same_kind(tmp_path, False)
    assert not setup_venv.is_same_kind(tmp_path, True)
    text = (tmp_path / "pyvenv.cfg").read_text(encoding="utf-8")
    (tmp_path / "pyvenv.cfg").write_text(re.sub(r"(?m)^version = .*$", "version = 3.11.0a1", text), encoding="utf-8")
    assert not setup_venv.is_same_kind(tmp_path, False)


def test_made_from_inside_an_environment_it_sees_that_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """venv's --system-site-packages shows the base installation, not the environment an image keeps torch in."""
    parent, child = tmp_path / "parent", tmp_path / "child"
    parent.mkdir()
    (parent / "only_in_parent.py").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(child)], check=True)
    monkeypatch.setattr("sysconfig.get_path", lambda kind: str(parent))
    setup_venv.see_parent(child)
    subprocess.run([str(child / "bin" / "python"), "-c", "import only_in_parent"], check=True)


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_an_unsupported_python3_is_told_so(version: tuple[int, ...]) -> None:
    with pytest.raises(SetupError, match=r"needs >= 3\.11 and < 3\.14.*PYTHON=python3\.11"):
        setup_venv.check_python(version)


def test_python_range_is_that_of_pyproject() -> None:
    first, end = (".".join(map(str, v)) for v in (setup_venv.PYTHON_FIRST, setup_venv.PYTHON_END))
    assert PROJECT["requires-python"] == f">={first},<{end}"
    setup_venv.check_python(setup_venv.PYTHON_FIRST)


def test_a_failing_command_is_named() -> None:
    with pytest.raises(SetupError, match="exit 3 from: "):
        setup_venv.run([sys.executable, "-c", "raise SystemExit(3)"])


def make(target: str, *variables: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", target, *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_make_bench_runs_the_quick_suite_and_its_roofline() -> None:
    text = make("bench", "DEVICE=cpu", "RUN=reports/run-x")
    assert re.search(r"-m bench run --suite quick --device cpu -o reports/run-x\b", text)
    assert text.index("-m bench run") < text.index("-m analysis roofline reports/run-x")
    assert "--device" not in make("bench")


def test_make_gpu_installs_nothing() -> None:
    """On a rented image: its own python3 and torch, one command, no environment to make first."""
    text = make("gpu", "RUN=reports/run-x")
    assert text.strip() == "python3 -m bench gpu --budget 480s -o reports/run-x"
    assert "--budget 15m" in make("gpu", "BUDGET=15m")


def test_make_bench_names_one_run_directory_that_git_ignores() -> None:
    assert len(set(re.findall(r"reports/run-[^/;\" ]+", make("bench")))) == 1
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "reports/run-*/" in ignored and ".venv/" in ignored


def test_make_test_lints_then_runs_the_timed_tests_alone() -> None:
    text = make("test")
    steps = [
        "ruff check",
        "ruff format --check",
        "-m mypy",
        "pytest -n 2 -m 'not speed and not perf'",
        "tests/interpreter",
    ]
    steps.append("pytest -m speed")
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_make_test_interprets_kernels_in_a_process_of_their_own() -> None:
    [line] = [line for line in make("test").splitlines() if "TRITON_INTERPRET" in line]
    assert re.fullmatch(r"TRITON_INTERPRET=1 \S+ -m pytest .*tests/interpreter", line)


def test_make_compile_matrix_runs_the_ends_of_the_supported_range_and_the_pin() -> None:
    text = make("compile-matrix")
    first, end = re.findall(r"3\.(\d+)", next(r for r in PROJECT["dependencies"] if r.startswith("triton")))
    paths = re.findall(r"(?m)^(?:PYTHONPATH=\.triton/(\S+) )?\S+ -m pytest .*tests/test_kernel_builds\.py$", text)
    assert paths == ["", f"3.{first}.0", f"3.{int(end) - 1}.0"]


def test_make_compile_compare_holds_each_triton_against_its_own_baseline() -> None:
    text = make("compile-compare")
    compiled = re.findall(r"(?m)^(?:PYTHONPATH=\.triton/(\S+) )?\S+ -m bench compile --arch 90 -o (\S+)$", text)
    oldest = re.findall(r"PYTHONPATH=\.triton/(\S+) \S+ -m pytest", make("compile-matrix"))[0]
    assert [version for version, _ in compiled] == ["", oldest]
    compared = re.findall(r"-m analysis compile --baseline (\S+) (\S+) \|\| status=", text)
    assert [new for _, new in compared] == [directory for _, directory in compiled]
    assert all((ROOT / old / "compiled.jsonl").exists() for old, _ in compared)
    assert "make compile-compare" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_make_compile_baseline_writes_what_compile_compare_reads() -> None:
    text = make("compile-baseline")
    written = re.findall(r"-m bench compile --arch \d+ -o (\S+)", text)
    reported = re.findall(r"(?m)-m analysis compile (\S+)$", text)
    assert written == reported and f"rm -rf {' '.join(written)}\n" in text
    assert set(re.findall(r"--baseline (\S+)", make("compile-compare"))) < set(written)


def test_nothing_installs_outside_the_environment() -> None:
    for name in ("Makefile", ".ci/run", "constraints.txt", "bench/setup_venv.py"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|--index-url|--find-links|--break-system-packages|pip install -e", text), name
