"""Faults of public kernels: none of our variants has any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import rpa_kernels
from kernel_checks import check, params

from rpagen.evidence import cases, kill, mutants
from rpagen.evidence.calls import Call
from rpagen.evidence.named_bugs import BUGS, Bug
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
def test_the_case_of_a_fault_finds_it(bug: Bug, on_tpu: bool):
    """The case alone, in the first variant that can have the fault."""
    if on_tpu:
        pytest.skip("a fault may hang a TPU")
    (mutation,) = (each for each in mutants.every() if each.name == bug.mutation)
    host = next(
        variant
        for variant in VARIANTS
        if bug.touches(variant.key)
        and mutation.changes(variant, mutants.source_of(variant.name, rpa_kernels))
        and not mutation.harmless_in(variant)
    )
    call = Call(cases.adapt(bug.case, host.key))
    verdict = kill.kill_with(kill.Mutant(mutation, host.name), [call])
    assert verdict.outcome == "killed", verdict


def test_faults_of_scales_are_looked_for_where_there_are_scales():
    (bug,) = (bug for bug in BUGS if bug.is_of_scales)
    touched = {variant.name for variant in VARIANTS if bug.touches(variant.key)}
    assert "rpa_int8" in touched and "rpa" not in touched
