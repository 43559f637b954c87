"""Every core variant against the reference: the output within its tolerance, the cache exactly."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels

from rpagen.evidence import cases, tolerance
from rpagen.spec import expand
from rpagen.spec.model import Variant

VARIANTS = expand.load_variants(Path(__file__).parent.parent / "specs")


def _cases() -> list[pytest.param]:
    # One group is one compilation, so that it is to stay on one worker.
    return [
        pytest.param(
            variant,
            case,
            id=f"{variant.name}-{case.name}",
            marks=pytest.mark.xdist_group(f"{variant.name}-{case.geometry.name}"),
        )
        for variant in VARIANTS
        for case in cases.cases_for(variant.key)
    ]


@pytest.fixture(autouse=True)
def _few_programs_in_memory(request: pytest.FixtureRequest) -> None:
    # Programs of the interpreter are large, and those of another group are not run again.
    mark = request.node.get_closest_marker("xdist_group")
    if mark is not None and [mark.args[0]] != _LAST_GROUP:
        jax.clear_caches()
        _LAST_GROUP[:] = [mark.args[0]]


_LAST_GROUP: list[str] = []


@pytest.mark.parametrize(("variant", "case"), _cases())
def test_kernel_computes_what_the_reference_does(variant: Variant, case: cases.Case, kernel_mode):
    check(variant, cases.build(case, variant.key), kernel_mode)


def test_wider_keys_and_values_are_rounded_once(kernel_mode):
    (variant,) = (each for each in VARIANTS if each.name == "rpa")
    case = next(each for each in cases.cases_for(variant.key) if each.name == "gqa4_decode_only")
    inputs = cases.build(case, variant.key)
    # Off the bfloat16 numbers, and some of them above the largest.
    keys = inputs.keys.astype(np.float32) * np.float32(1.001)
    values = inputs.values.astype(np.float32) * np.float32(0.999)
    values[0, 0, :4] = [3.4e38, -3.4e38, 1e-30, -0.0]
    check(variant, dataclasses.replace(inputs, keys=keys, values=values), kernel_mode)


def check(variant: Variant, inputs: cases.Inputs, kernel_mode) -> None:
    with kernel_mode(detect_races=True):
        out, kv_cache = rpa_kernels.ragged_paged_attention(
            *map(jnp.asarray, inputs.arrays), variant=variant.name, **inputs.kernel_kwargs
        )
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype=variant.query_dtype)
