"""Makes the environment of `make`: on a python3 that already has a CUDA torch, else by itself with pinned versions.

The torch of a CUDA image fits the image's driver, and another one would be gigabytes that may not fit; so where it is
in the supported range only what is missing is installed. Leaves what is needed, and the ranges, to pyproject.toml and
the pins to constraints.txt. Standard library only, with nothing at import that an old python3 lacks: it is this
module that says so. Run as `python3 -m bench.setup_venv .venv`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTHON_FIRST, PYTHON_END = (3, 11), (3, 14)
EXTRAS = ("reference", "dev")
STACK = ("torch", "triton")

PROBE = """
import importlib.metadata, json, torch, triton
names = sorted({d.metadata["Name"] for d in importlib.metadata.distributions() if d.metadata["Name"]})
print(json.dumps([torch.__version__, torch.version.cuda, triton.__version__, names]))
"""


class SetupError(RuntimeError):
    """The environment cannot be made; the message says what to do."""


class Found(NamedTuple):
    """What a Python can import: versions of torch, of the CUDA it is built for, of triton; every package's name."""

    torch: str
    cuda: str | None
    triton: str
    packages: tuple[str, ...]


class Plan(NamedTuple):
    """How to make the environment: on python3's packages or not, what to ask pip for, under which pins."""

    on_system: bool
    requirements: list[str]
    constraints: list[str]
    why: str


def probe(python: str) -> Found | None:
    """What `python` has; None when it cannot import torch or triton."""
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    try:
        torch, cuda, triton, packages = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return Found(torch, cuda, triton, tuple(packages))


def canonical(requirement: str) -> str:
    """The package a requirement or a pin names, spelt as pip compares names: `Jinja2>=3` -> `jinja2`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", name.group()).lower() if name else ""


def in_range(version: str, requirement: str) -> bool:
    """Whether major.minor of a version lies in a requirement's `>=` and `<`.

    By numbers, not by PEP 440: NVIDIA's images carry `2.11.0a0+...`, which is older than 2.11 to pip and 2.11 to us.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers:
        return False
    have = (int(numbers[1]), int(numbers[2]))
    for sign, major, minor in re.findall(r"(>=|<)\s*(\d+)\.(\d+)", requirement):
        bound = (int(major), int(minor))
        if (have < bound) if sign == ">=" else (have >= bound):
            return False
    return True


def unsuitable(found: Found | None, requirements: Iterable[str]) -> str | None:
    """Why python3's own torch and triton are not to be built on; None when they are."""
    if found is None:
        return "python3 has no torch and triton of its own"
    if not found.cuda:
        return f"python3's torch {found.torch} is not a CUDA build"
    wanted = {canonical(r): r for r in requirements}
    for name, version in (("torch", found.torch), ("triton", found.triton)):
        if not in_range(version, wanted[name]):
            return f"python3's {name} {version} is outside {wanted[name].split(';')[0]}"
    return None


def make_plan(found: Found | None, project: Mapping[str, Any], pins: Iterable[str]) -> Plan:
    """Decides, from what python3 has, pyproject's `project` table and the lines of constraints.txt."""
    requirements = [*project["dependencies"]]
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    pins = [line for line in (pin.split("#")[0].strip() for pin in pins) if line]
    reason = unsuitable(found, requirements)
    if found is None or reason is not None:
        return Plan(False, requirements, pins, f"pinned versions, since {reason}")
    present = {canonical(name) for name in found.packages}
    constraints = [pin for pin in pins if canonical(pin) not in (*present, *STACK)]
    constraints += [f"torch=={found.torch}", f"triton=={found.triton}"]
    missing = [r for r in requirements if canonical(r) not in STACK]
    why = f"on python3's torch {found.torch} (CUDA {found.cuda}) and triton {found.triton}"
    return Plan(True, missing, constraints, why)


def check_python(version: tuple[int, ...]) -> None:
    """Raises SetupError unless pyproject's requires-python admits this major and minor version."""
    if not PYTHON_FIRST <= version < PYTHON_END:
        first, end = (".".join(map(str, v)) for v in (PYTHON_FIRST, PYTHON_END))
        raise SetupError(
            f"python3 is {'.'.join(map(str, version))}; Roofmark needs >= {first} and < {end}: "
            f"install one and say which, `make PYTHON=python{first} .venv`"
        )


def is_same_kind(venv: Path, on_system: bool) -> bool:
    """Whether an environment is there that was made the same way, by the same Python, and needs no clearing."""
    try:
        lines = (venv / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    has = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    return (
        has.get("include-system-site-packages") == str(on_system).lower()
        and has.get("version") == ".".join(map(str, sys.version_info[:3]))
        and has.get("home") == str(Path(getattr(sys, "_base_executable", sys.executable)).parent)
    )


def create(venv: Path, on_system: bool) -> list[str]:
    """Makes the environment and returns the pip command that installs into it.

    Raises:
        SetupError: when python3 has neither ensurepip nor pip.
    """
    command = [sys.executable, "-m", "venv"]
    command += ["--system-site-packages"] if on_system else []
    command += [] if is_same_kind(venv, on_system) else ["--clear"]
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip"]
    if importlib.util.find_spec("ensurepip") is None:  # as in Debian without python3-venv, and images made from it
        if importlib.util.find_spec("pip") is None:
            raise SetupError("python3 can neither bring pip nor has it: apt-get install python3-venv")
        command += ["--without-pip"]
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
    run([*command, str(venv)])
    if on_system and sys.prefix != sys.base_prefix:
        see_parent(venv)
    return pip


def see_parent(venv: Path) -> None:
    """Lets an environment made from inside another see that one: venv alone shows only the base installation."""
    names = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
    (venv / "lib" / names / "site-packages" / "parent.pth").write_text(lines, encoding="utf-8")


def run(command: list[str]) -> None:
    """Runs a command whose own output tells what went wrong."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise SetupError(f"exit {code} from: {' '.join(command[:6])} ...; its message is above")


def main(venv: Path) -> None:
    """Makes or updates the environment."""
    check_python(sys.version_info[:2])
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = probe(sys.executable)
    plan = make_plan(found, project, pins)
    print(f"{venv}: {plan.why}", flush=True)
    pip = create(venv, plan.on_system)
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join([*plan.constraints, ""]), encoding="utf-8")
    run([*pip, "install", "-qq", "--disable-pip-version-check", "-c", str(constraints), *plan.requirements])
    seen = probe(str(venv / "bin" / "python")) if plan.on_system else None
    if found is not None and plan.on_system and (seen is None or seen.torch != found.torch):
        raise SetupError(
            f"{venv} does not see python3's torch {found.torch} (it has {seen.torch if seen else 'none'}): "
            f"remove {venv} and make again"
        )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SetupError as error:
        sys.exit(f"setup_venv: {error}")
