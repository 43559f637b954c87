"""One call of one variant, judged by the reference."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from rpagen.evidence import cases, tolerance
from rpagen.spec.model import Variant


def judge(
    package: ModuleType,
    variant: Variant,
    inputs: cases.Inputs,
    mode: contextlib.AbstractContextManager[Any],
) -> None:
    """Runs a variant of an emitted package: its output is to be close, its cache the same bits.

    mode: in which the kernels run, such as `interpreter.tpu_interpret_mode()`.

    Raises:
        AssertionError: the output or the cache is wrong.
        Exception: whatever the mode has against the kernels.
    """
    with mode:
        out, kv_cache = package.ragged_paged_attention(
            *map(jnp.asarray, inputs.arrays), variant=variant.name, **inputs.kernel_kwargs
        )
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype=variant.query_dtype)
