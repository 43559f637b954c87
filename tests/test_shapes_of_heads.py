"""Every group, number of kv heads and head dim, for every packing and layout; and every window."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_checks import check, params

from rpagen.evidence import cases
from rpagen.spec import expand
from rpagen.spec.model import Variant

VARIANTS = {
    each.name: each for each in expand.load_variants(Path(__file__).parent.parent / "specs")
}

# Every shape of heads meets packing 2, and in turn one of packing 1, packing 4, quantized queries
# and the other layout. `make validate` has all of them in all plain variants.
IN_TURN = ("rpa_float32", "rpa_int8", "rpa_float8_e4m3fn_query_scale", "rpa_head_major")
FOR_WINDOWS = ("rpa_sliding_window",)


@pytest.mark.parametrize(
    ("variant", "case"),
    params(
        (VARIANTS[name], cases.adapt(case, VARIANTS[name].key))
        for index, case in enumerate(cases.HEAD_CASES)
        for name in ("rpa", IN_TURN[index % len(IN_TURN)])
    ),
)
def test_heads(variant: Variant, case: cases.Case, kernel_mode):
    check(variant, cases.build(case, variant.key), kernel_mode)


@pytest.mark.parametrize(
    ("variant", "case"),
    params(
        (VARIANTS[name], cases.adapt(case, VARIANTS[name].key))
        for name in FOR_WINDOWS
        for case in cases.WINDOW_CASES
    ),
)
def test_windows(variant: Variant, case: cases.Case, kernel_mode):
    check(variant, cases.build(case, variant.key), kernel_mode)


def test_the_heads_are_those_of_models():
    geometries = [case.geometry for case in cases.HEAD_CASES]
    groups = {each.num_q_heads // each.num_kv_heads for each in geometries}
    assert groups >= {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}
    assert {each.num_kv_heads for each in geometries} == set(range(1, 9))
    assert {each.head_dim for each in geometries} == {64, 80, 96, 112, 128, 192, 256}
