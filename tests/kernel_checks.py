"""Running a variant on a case, and comparing what it returns with the reference."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels

from rpagen.evidence import cases, tolerance
from rpagen.spec.model import Variant


def params(pairs: Iterable[tuple[Variant, cases.Case]]) -> list:
    """Test parameters (variant, case); those that share a compilation stay on one worker."""
    return [
        pytest.param(
            variant,
            case,
            id=f"{variant.name}-{case.name}",
            marks=pytest.mark.xdist_group(
                f"{variant.name}-{case.geometry.name}-{case.sliding_window}"
            ),
        )
        for variant, case in pairs
    ]


def check(
    variant: Variant,
    inputs: cases.Inputs,
    kernel_mode,
    package: ModuleType = rpa_kernels,
    **options: object,
) -> None:
    """The output within its tolerance, the cache exactly; options are those of the interpreter."""
    with kernel_mode(detect_races=True, **options):
        out, kv_cache = package.ragged_paged_attention(
            *map(jnp.asarray, inputs.arrays), variant=variant.name, **inputs.kernel_kwargs
        )
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype=variant.query_dtype)
