"""Packages that a provider uses when they are there.

A broken build of one (a missing symbol, the wrong CUDA) raises anything at import, not only ImportError; whatever
it raises becomes the reason of an UNSUPPORTED record and never ends a run.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from kernels.spec import UnsupportedError


@cache
def _attempt(module: str) -> ModuleType | str:
    try:
        return importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def optional(module: str, package: str) -> ModuleType:
    """The module.

    Raises:
        UnsupportedError: it cannot be imported here; says why and how it is installed.
    """
    loaded = _attempt(module)
    if isinstance(loaded, str):
        raise UnsupportedError(f"{package} cannot be loaded ({loaded}); pip install {package}")
    return loaded


def flash_attn() -> ModuleType:
    """The flash-attn package's interface."""
    return optional("flash_attn", "flash-attn")
