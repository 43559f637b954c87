"""Emitted modules in a folder, imported apart from those of any other folder."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import types
from pathlib import Path
from typing import Any

_numbers = itertools.count()


def module(folder: Path, name: str) -> Any:
    """The module of that name, below a package that nothing else has."""
    return importlib.import_module(f"{_package(folder)}.{name}")


@functools.cache
def _package(folder: Path) -> str:
    package = types.ModuleType(f"_rpagen_emitted_{next(_numbers)}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    return package.__name__
