"""Stamps of compilations that went well, so that the same need not be compiled again.

A stamp's name is the digest of all that the compiler's work follows from. Lowered text is not part
of it but what it is made of is: lowering takes as long as many a compilation, and writes down where
the module lies.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpagen.emit import resources
from rpagen.evidence import allocations, records

FOLDER = ".stamps"

_SOURCES = (
    "ahead.py",
    "allocations.py",
    "compile.py",
    "devices.py",
    "libtpu.py",
    "options.py",
    "shapes.py",
)
_VARIABLES = ("JAX_", "XLA_")


def default_folder() -> Path:
    """In a source checkout, `.stamps`; else a folder of the user's cache."""
    checkout = resources.checkout()
    if checkout is not None:
        return checkout / FOLDER
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rpagen" / "stamps"


def surroundings() -> dict[str, str]:
    """What a compilation follows from besides its call: versions, sources and variables."""
    here = Path(__file__).parent
    return {
        **records.made_with(),
        **{name: (here / name).read_text(encoding="utf-8") for name in _SOURCES},
        **{name: os.environ[name] for name in os.environ if name.startswith(_VARIABLES)},
        "flags": allocations.without_dump(os.environ.get("LIBTPU_INIT_ARGS", "")),
    }


def name(inputs: Mapping[str, object]) -> str:
    """The name of the stamp of a compilation with these inputs."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def read(folder: Path, stamp: str) -> Any:
    """What was written under that name; None if nothing was, or nothing whole."""
    try:
        return json.loads((folder / stamp).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(folder: Path, stamp: str, content: object) -> None:
    """Write a stamp, whole or not at all."""
    records.write_text(folder / stamp, json.dumps(content))
