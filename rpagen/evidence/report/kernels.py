"""Which kernels are at hand: what the digests of records are held against."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rpagen.emit import render, resources, single
from rpagen.evidence import records
from rpagen.spec.model import Variant


def digests(variants: Sequence[Variant]) -> dict[str, str]:
    """By name, of the kernels in the source checkout, or else of those that the specs make now."""
    package = (resources.checkout() or Path()) / "generated" / render.PACKAGE
    checked_in = [
        variant
        for variant in variants
        if resources.checkout() is not None and _is_emitted(package, variant)
    ]
    found = {variant.name: records.digest(package, variant.name) for variant in checked_in}
    others = [variant for variant in variants if variant.name not in found]
    if others:
        with tempfile.TemporaryDirectory(prefix="rpagen-") as name:
            folder = Path(name)
            single.emit(folder, others, "rpagen report")
            found |= {variant.name: records.digest(folder, variant.name) for variant in others}
    return found


def _is_emitted(package: Path, variant: Variant) -> bool:
    return all((package / f"{name}.py").is_file() for name in (variant.name, "support"))
