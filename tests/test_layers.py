"""The one direction: who may import whom, and how large a file or function may grow; read from the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "bench", "analysis")
ALLOWED = {
    "kernels": (),
    "bench": ("kernels",),
    "analysis": ("bench.record", "bench.compiled", "bench.stopping", "kernels.work", "kernels.models"),
}
"""What a package may import of the others: a package with all in it, or single modules. Its own it always may."""
CATCH_ALL_NAMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_KERNEL_LINES = 300, 40, 80


def sources(root: Path) -> list[Path]:
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a module, by statement or by importlib.

    `from a import b` gives `a.b`, since b may be a module; relative names are made absolute within `package`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in IMPORTERS:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


IMPORTERS = ("import_module", "importlib.import_module", "__import__")


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def wrong_arrows(root: Path) -> list[str]:
    """`file:line: imports name` for every import against the direction."""
    found = []
    for path in sources(root):
        relative = path.relative_to(root)
        allowed = (relative.parts[0], *ALLOWED[relative.parts[0]])
        package = ".".join(relative.parts[:-1])
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), package):
            ours = any(within(name, p) for p in PACKAGES)
            if ours and not any(within(name, module) for module in allowed):
                found.append(f"{relative}:{line}: imports {name}")
    return found


def catch_alls(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in sources(root) if path.name in CATCH_ALL_NAMES]


def too_long(root: Path) -> list[str]:
    """Files and functions that ask to be split.

    A function is measured from its signature's first line to its last, without the docstring that every public one
    must have: shapes and units are no reason to split.
    """
    found = []
    for path in sources(root):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MAX_FILE_LINES:
            found.append(f"{path.relative_to(root)}: {lines} lines, at most {MAX_FILE_LINES}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
                limit = MAX_KERNEL_LINES if is_kernel(node) else MAX_FUNCTION_LINES
                if lines > limit:
                    found.append(f"{path.relative_to(root)}:{node.lineno}: {node.name} {lines} lines, at most {limit}")
    return found


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.end_lineno or first.lineno) - first.lineno + 1 if told else 0


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    return bool({"triton.jit", "jit", "gluon.jit"} & set(names))


def not_bare(root: Path) -> list[str]:
    """Packages whose `__init__.py` is not one docstring."""
    found = []
    for package in PACKAGES:
        init = root / package / "__init__.py"
        body = ast.parse(init.read_text(encoding="utf-8")).body if init.exists() else []
        if len(body) != 1 or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
            found.append(package)
    return found


Checker = Callable[[Path], list[str]]
CHECKERS: list[Checker] = [wrong_arrows, catch_alls, too_long, not_bare]


@pytest.mark.parametrize("checker", CHECKERS)
def test_tree_keeps_the_rule(checker: Checker) -> None:
    assert len(sources(ROOT)) > 10
    assert checker(ROOT) == []


def planted(root: Path, file: str, text: str) -> Path:
    """A tree that keeps every rule, but for one file."""
    for package in PACKAGES:
        (root / package).mkdir()
        (root / package / "__init__.py").write_text('"""One."""\n')
    path = root / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("kernels/a.py", "import torch\nfrom kernels.work import Work\nfrom kernels import spec\nfrom . import b\n"),
        ("bench/a.py", "import kernels.matmul\nfrom bench.record import Record\nfrom kernels import registry\n"),
        ("analysis/a.py", "from bench.record import Record\nfrom bench import stopping\nfrom kernels import work\n"),
        ("analysis/serving/a.py", "from kernels.models import MODELS\nfrom ..peaks import match\nimport pandas\n"),
        ("analysis/b.py", "import analysis.serving.step\nimport benchmarks\nimport kernelspec\n"),
    ],
)
def test_right_arrow_is_let_through(tmp_path: Path, file: str, text: str) -> None:
    assert wrong_arrows(planted(tmp_path, file, text)) == []


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("kernels/a.py", "import bench", "bench"),
        ("kernels/a.py", "from bench.record import Record", "bench.record.Record"),
        ("kernels/a.py", "def f():\n    from analysis import peaks", "analysis.peaks"),
        ("bench/a.py", "from analysis.metrics import gb_per_s", "analysis.metrics.gb_per_s"),
        ("bench/a.py", "if TYPE_CHECKING:\n    import analysis.peaks", "analysis.peaks"),
        ("analysis/a.py", "from bench import clock", "bench.clock"),
        ("analysis/a.py", "import bench", "bench"),
        ("analysis/a.py", "from bench import *", "bench.*"),
        ("analysis/a.py", "from bench.case import Case", "bench.case.Case"),
        ("analysis/a.py", "import bench.recorder", "bench.recorder"),
        ("analysis/a.py", "from kernels import spec, work", "kernels.spec"),
        ("analysis/a.py", "import kernels.registry as r", "kernels.registry"),
        ("analysis/serving/a.py", "from kernels.matmul import OP", "kernels.matmul.OP"),
        ("analysis/serving/a.py", "from ...bench import clock", "bench.clock"),
        ("analysis/a.py", "importlib.import_module('bench.run')", "bench.run"),
    ],
)
def test_wrong_arrow_is_caught(tmp_path: Path, file: str, text: str, name: str) -> None:
    line = text.count("\n") + 1
    assert wrong_arrows(planted(tmp_path, file, f"{text}\n")) == [f"{file}:{line}: imports {name}"]


@pytest.mark.parametrize(
    ("decorator", "lines", "caught"),
    [("", 40, False), ("", 41, True), ("@triton.jit\n", 80, False), ("@triton.jit(debug=True)\n", 81, True)],
)
def test_long_function_is_caught(tmp_path: Path, decorator: str, lines: int, caught: bool) -> None:
    text = f"{decorator}def f():\n" + "    pass\n" * (lines - 1)
    assert bool(too_long(planted(tmp_path, "kernels/a.py", text))) == caught


@pytest.mark.parametrize(("lines", "caught"), [(300, False), (301, True)])
def test_long_file_is_caught(tmp_path: Path, lines: int, caught: bool) -> None:
    assert bool(too_long(planted(tmp_path, "bench/a.py", "pass\n" * lines))) == caught


@pytest.mark.parametrize("name", sorted(CATCH_ALL_NAMES))
def test_catch_all_name_is_caught(tmp_path: Path, name: str) -> None:
    assert catch_alls(planted(tmp_path, f"analysis/serving/{name}", "")) == [f"analysis/serving/{name}"]


@pytest.mark.parametrize("text", ["", "import os\n", '"""One."""\nimport os\n'])
def test_package_that_imports_is_caught(tmp_path: Path, text: str) -> None:
    assert not_bare(planted(tmp_path, "bench/__init__.py", text)) == ["bench"]


def modules_after(*arguments: str) -> set[str]:
    """Names of the modules that a Python command imports, and of their packages."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)
    return {*names, *(name.split(".")[0] for name in names)}


@pytest.mark.parametrize("module", ["kernels.spec", "kernels.work", "kernels.models"])
def test_sizes_and_counting_need_no_torch(module: str) -> None:
    loaded = modules_after("-c", f"import {module}")
    assert "kernels" in loaded
    assert not loaded & {"torch", "triton", "numpy", "pandas"}


def test_analysis_answers_help_without_its_heavy_libraries() -> None:
    loaded = modules_after("-m", "analysis", "--help")
    assert "argparse" in loaded or "typer" in loaded
    assert not loaded & {"torch", "triton", "pandas", "matplotlib"}


@pytest.mark.parametrize("module", ["analysis.roofline", "analysis.frame", "analysis.peaks"])
def test_analysis_needs_neither_torch_nor_triton(module: str) -> None:
    loaded = modules_after("-c", f"import {module}")
    assert "analysis" in loaded
    assert not loaded & {"torch", "triton"}


def test_a_worker_starts_without_torchs_compiler() -> None:
    """torch._dynamo, which `torch.nn.attention.bias` imports, takes as long as all else: every process would wait."""
    loaded = modules_after("-c", "import bench.worker")
    assert "torch" in loaded and "kernels.registry" in loaded
    assert not {name for name in loaded if name.startswith("torch._dynamo")}
