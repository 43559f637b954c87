"""Every core variant against the reference: the output within its tolerance, the cache exactly."""

from __future__ import annotations

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
def _few_compilations_in_memory(variant: Variant, case: cases.Case) -> None:
    # Programs of the interpreter are large, and those of another group are not run again.
    group = (variant.name, case.geometry.name)
    if _LAST_GROUP[:] != [group]:
        jax.clear_caches()
        _LAST_GROUP[:] = [group]


_LAST_GROUP: list[tuple[str, str]] = []


@pytest.mark.parametrize(("variant", "case"), _cases())
def test_kernel_computes_what_the_reference_does(variant: Variant, case: cases.Case, kernel_mode):
    inputs = cases.build(case, variant.key)
    with kernel_mode(detect_races=True):
        out, kv_cache = rpa_kernels.ragged_paged_attention(
            *map(jnp.asarray, inputs.arrays), variant=variant.name, **inputs.kernel_kwargs
        )
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype=variant.query_dtype)
