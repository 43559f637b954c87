"""One call of one variant, judged by the reference."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from rpagen.evidence import cases, tolerance

Attention = Callable[..., Any]
"""Takes the operands and keyword arguments of `rpa_kernels.ragged_paged_attention`."""


def through_dispatch(package: ModuleType, variant: str) -> Attention:
    """A variant as engines call it: through the entry point of its package."""
    return functools.partial(package.ragged_paged_attention, variant=variant)


def of_module(module: ModuleType) -> Attention:
    """The entry point of a variant's own module, which takes no option of other variants."""
    taken = inspect.signature(module.ragged_paged_attention).parameters

    def attention(*operands: Any, **options: Any) -> Any:
        own = {name: value for name, value in options.items() if name in taken}
        return module.ragged_paged_attention(*operands, **own)

    return attention


def judge(
    attention: Attention,
    query_dtype: str,
    inputs: cases.Inputs,
    mode: contextlib.AbstractContextManager[Any],
) -> float:
    """Makes a call: its output is to be close to the reference, its cache the same bits.

    mode: in which the kernels run, such as `interpreter.tpu_interpret_mode()`.

    Returns:
        The largest error of the output, as a fraction of what is tolerated.

    Raises:
        AssertionError: the output or the cache is wrong.
        Exception: whatever the mode has against the kernels.
    """
    with mode:
        out, kv_cache = attention(*map(jnp.asarray, inputs.arrays), **inputs.kernel_kwargs)
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    return tolerance.assert_close(out, expected, query_dtype=query_dtype)
