"""One call of one variant, judged by the reference."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rpagen.evidence import cases, tolerance

Attention = Callable[..., Any]
"""Takes the operands and keyword arguments of `rpa_kernels.ragged_paged_attention`."""


# The options that an engine may trace: all numbers but those that kernels are compiled for.
_TRACEABLE = ("sm_scale", "soft_cap", "q_scale", "k_scale", "v_scale")


@functools.cache  # one for each variant, so that what it compiles is found again
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


@functools.lru_cache(maxsize=8)  # of those at hand: calls that differ in data share a compilation
def _traced(attention: Attention) -> Attention:
    """The same under `jax.jit`, with all that an engine may trace traced."""

    def attend(
        *operands: Any, numbers: dict[str, Any], options: tuple[tuple[str, Any], ...]
    ) -> Any:
        return attention(*operands, **numbers, **dict(options))

    compiled = jax.jit(attend, static_argnames="options")

    def call(*operands: Any, **options: Any) -> Any:
        numbers = {
            name: jnp.float32(options.pop(name))
            for name in _TRACEABLE
            if options.get(name) is not None
        }
        return compiled(*operands, numbers=numbers, options=tuple(options.items()))

    return call


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
        AssertionError: the output, its dtype or the cache is wrong.
        Exception: whatever the mode has against the kernels.
    """
    call = _traced(attention) if inputs.case.traced else attention
    with mode:
        out, kv_cache = call(*map(jnp.asarray, inputs.arrays), **inputs.kernel_kwargs)
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    out_dtype = inputs.case.out_dtype or query_dtype
    assert out.dtype.name == out_dtype, f"out: {out.dtype.name}, not {out_dtype}"
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    return tolerance.assert_close(out, expected, query_dtype=query_dtype)
