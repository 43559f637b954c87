"""Running a variant on a case, and comparing what it returns with the reference."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pytest
import rpa_kernels

from rpagen.evidence import cases
from rpagen.evidence.judge import judge, through_dispatch
from rpagen.spec.model import Variant


def params(pairs: Iterable[tuple[Variant, cases.Case]]) -> list:
    """Test parameters (variant, case)."""
    return [
        pytest.param(
            variant, case, id=f"{variant.name}-{case.name}", marks=shared_compilation(variant, case)
        )
        for variant, case in pairs
    ]


def shared_compilation(variant: Variant, case: cases.Case) -> pytest.MarkDecorator:
    """Lets tests that share a compilation, of whatever file, run after each other in one worker."""
    return pytest.mark.xdist_group(f"{variant.name}-{case.geometry.name}-{case.sliding_window}")


def check(
    variant: Variant,
    inputs: cases.Inputs,
    kernel_mode,
    package: ModuleType = rpa_kernels,
    **options: object,
) -> None:
    """Judges a call, with races detected; options are those of the interpreter."""
    attention = through_dispatch(package, variant.name)
    judge(attention, variant.query_dtype, inputs, kernel_mode(detect_races=True, **options))
