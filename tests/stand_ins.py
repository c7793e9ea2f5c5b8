"""Packages of other people in place of real ones: what a provider behind import asks of them is theirs to refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from kernels import optional


@contextmanager
def installed_packages(packages: Mapping[str, tuple[Any, ...] | None]) -> Iterator[None]:
    """Inside, each package can be imported and has these functions and classes by their names; nothing is remembered.

    Args:
        packages: name of a package or module -> what is in it; None where it cannot be imported.
    """
    modules: dict[str, Any] = {}
    for name, held in packages.items():
        if held is None:
            modules[name] = None
            continue
        made = modules[name] = ModuleType(name)
        vars(made).update({each.__name__: each for each in held})
    optional._attempt.cache_clear()
    with patch.dict(sys.modules, modules):
        yield
    optional._attempt.cache_clear()
