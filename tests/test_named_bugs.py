"""Faults of public kernels: none of our variants has any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_checks import check, params

from rpagen.evidence import cases
from rpagen.evidence.named_bugs import BUGS
from rpagen.spec import expand
from rpagen.spec.model import Variant

VARIANTS = expand.load_variants(Path(__file__).parent.parent / "specs")


@pytest.mark.parametrize(
    ("variant", "case"),
    params(
        (variant, cases.adapt(bug.case, variant.key))
        for variant in VARIANTS
        for bug in BUGS
        if bug.touches(variant.key)
    ),
)
def test_no_variant_has_the_fault(variant: Variant, case: cases.Case, kernel_mode):
    check(variant, cases.build(case, variant.key), kernel_mode)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.case.name)
def test_every_fault_is_looked_for_somewhere(bug):
    assert bug.said
    assert any(bug.touches(variant.key) for variant in VARIANTS)
