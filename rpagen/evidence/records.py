"""What was measured, on disk: docs/evidence holds what the runs behind the report found.

A record says of each variant which text of it was tried, by digest, so that whoever reads it later
knows whether it is about the kernels at hand.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rpagen.emit import header, resources
from rpagen.emit.write import write_changed

_PACKAGES = ("jax", "jaxlib", "libtpu", "numpy")

ON_TPU = "tpu"
"""The mode of a call that ran on hardware; all others are the interpreter's."""

TOO_LOOSE = 8
"""A bound that is more than so many times the largest error is too loose."""

ENOUGH_CALLS = 100
"""Of a pair of dtypes, to say so of its bound."""

_JUDGES = ("judge.py", "reference.py", "tolerance.py")
"""With the interpreter, what decides whether a call is right."""

_CASES = "cases.py"
"""The calls that can be made. A record says which were."""


def default_folder() -> Path:
    """Where the records of the project are: in the source checkout, else in the current folder."""
    return (resources.checkout() or Path()) / "docs" / "evidence"


def made_with() -> dict[str, str]:
    """What a run follows from besides the kernels: the Python and the packages at hand."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def digest(package: Path, variant: str) -> str:
    """Of all that a variant computes with: the bodies of its module and of its support module.

    package: the folder of an emitted package.
    """
    bodies = [
        header.split((package / f"{name}.py").read_text(encoding="utf-8"))[1]
        for name in (variant, "support")
    ]
    return header.digest("".join(bodies))


def instrument(folder: Path | None = None) -> str:
    """A digest of what judges kernels: the reference, its tolerance and cases, the interpreter.

    folder: rpagen/evidence, or a copy of it.
    """
    return _digest(folder, (*_JUDGES, _CASES))


def judge(folder: Path | None = None) -> str:
    """The same without the cases: what a verdict on one call follows from, besides the call."""
    return _digest(folder, _JUDGES)


def _digest(folder: Path | None, names: Iterable[str]) -> str:
    folder = folder or Path(__file__).parent
    chosen = [folder / name for name in names]
    chosen += (folder / "interpreter").glob("*.py")
    found = hashlib.sha256()
    for name in sorted(each.relative_to(folder).as_posix() for each in chosen):
        content = (folder / name).read_bytes()
        # With its length, so that no byte may pass from one file to the next.
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def write(file: Path, record: dict[str, Any]) -> None:
    """Write a record, whole or not at all."""
    write_text(file, json.dumps(record, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    write_changed(file.parent, {file.name: text})


def read(file: Path) -> Any:
    """What a record holds.

    Raises:
        OSError: it cannot be read, or there is none.
        ValueError: it is no JSON.
    """
    return json.loads(file.read_text(encoding="utf-8"))
