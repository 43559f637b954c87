"""Which variant a call runs: the registry of all variants, and the dispatch to one of them.

What is data is in tables: a variant per row, one default per dispatch key and TPU generation, and
the reasons for what is not offered.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from . import support
from .support import Pipelining, Variant

VARIANTS = (
    Variant(
        name="rpa",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_sliding_window",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=("sliding_window",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=("soft_cap",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_sliding_window_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=("sliding_window", "soft_cap"),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e4m3fn",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
        quantization="per_tensor",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e4m3fn_sliding_window",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
        quantization="per_tensor",
        features=("sliding_window",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e4m3fn_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
        quantization="per_tensor",
        features=("soft_cap",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e4m3fn_sliding_window_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
        quantization="per_tensor",
        features=("sliding_window", "soft_cap"),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_int8",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="int8",
        quantization="per_tensor",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_int8_sliding_window",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="int8",
        quantization="per_tensor",
        features=("sliding_window",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_int8_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="int8",
        quantization="per_tensor",
        features=("soft_cap",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_int8_sliding_window_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="int8",
        quantization="per_tensor",
        features=("sliding_window", "soft_cap"),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e5m2",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e5m2",
        quantization="per_tensor",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float8_e4m3fn_query_scale",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
        quantization="per_tensor_with_query",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_float32",
        family="rpa",
        layout="head_interleaved",
        query_dtype="float32",
        kv_dtype="float32",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_kv_share",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=("kv_share",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_bidirectional",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=("bidirectional",),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_depth0",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=False,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=0, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=0, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=0, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_depth2",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=False,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=2, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=2, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=2, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_kv_slots3",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=False,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=3, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=3, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=3, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_wait_per_page",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=False,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="per_page", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="per_page", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="per_page", new_kv_fetch="select"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_new_kv_predicated",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=False,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="predicated"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="predicated"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="predicated"
                ),
            ),
        ),
    ),
    Variant(
        name="rpa_head_major",
        family="rpa_head_major",
        layout="head_major",
        query_dtype="bfloat16",
        kv_dtype="bfloat16",
        quantization="none",
        features=(),
        numerics="exact",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        launches=(
            (
                "decode",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "prefill",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
            (
                "mixed",
                Pipelining(
                    kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
                ),
            ),
        ),
    ),
)

# Combinations that no variant is emitted for: the axis values, and why.
EXCLUSIONS: tuple[tuple[dict[str, tuple[Any, ...]], str], ...] = (
    ({"kv.dtype": ("int8",), "quantization": ("none",)}, "an integer cache needs a scale"),
    (
        {"kv.dtype": ("float8_e4m3fn", "float8_e5m2"), "quantization": ("none",)},
        "an 8-bit float cache is served by per_tensor, where a scale that is not given means 1.0",
    ),
    (
        {
            "kv.dtype": ("float32", "bfloat16"),
            "quantization": ("per_tensor", "per_tensor_with_query"),
        },
        "a cache of 16 bits or more stores values as they are, so there is no scale to apply",
    ),
    (
        {"kv.dtype": ("int8",), "quantization": ("per_tensor_with_query",)},
        "queries quantized to integers would need int32 scores, which are not emitted yet",
    ),
    (
        {
            "query.dtype": ("float32",),
            "kv.dtype": ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"),
        },
        "float32 queries are offered with a float32 cache only",
    ),
    (
        {"query.dtype": ("bfloat16",), "kv.dtype": ("float32",)},
        "a float32 cache is offered with float32 queries only, so far",
    ),
    (
        {
            "layout": ("head_major",),
            "kv.dtype": ("float32", "float8_e4m3fn", "float8_e5m2", "int8"),
        },
        "the head_major layout is offered with a bfloat16 cache only, so far",
    ),
    (
        {
            "layout": ("head_major",),
            "features": (("sliding_window",), ("soft_cap",), ("bidirectional",), ("kv_share",)),
        },
        "the head_major layout is offered without features, so far",
    ),
)

KNOWN_FEATURES = ("sliding_window", "soft_cap", "bidirectional", "kv_share")


@dataclasses.dataclass(frozen=True)
class Key:
    """What the arguments of a call and the TPU generation decide: the dispatch key."""

    layout: str
    query_dtype: str
    kv_dtype: str
    quantization: str
    features: tuple[str, ...]
    generation: str


class UnsupportedVariantError(ValueError):
    """No emitted variant computes what a call asks for."""


_BY_NAME = {variant.name: variant for variant in VARIANTS}
_DEFAULTS = {
    Key(
        variant.layout,
        variant.query_dtype,
        variant.kv_dtype,
        variant.quantization,
        variant.features,
        generation,
    ): variant
    for variant in VARIANTS
    if variant.is_default
    for generation in variant.generations
}


def variants() -> tuple[Variant, ...]:
    """The record of every variant in this package."""
    return VARIANTS


def load(name: str) -> ModuleType:
    """The module of a variant.

    Raises:
        UnsupportedVariantError: if there is no variant of that name.
    """
    if name not in _BY_NAME:
        near = difflib.get_close_matches(name, _BY_NAME, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UnsupportedVariantError(f"there is no variant {name!r}{hint}")
    return importlib.import_module(f"{__package__}.{name}")


def get_kv_cache_shape(
    total_num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    kv_dtype: Any,
    layout: str = "head_interleaved",
) -> tuple[int, ...]:
    """The shape of a KV cache.

    head_interleaved: [pages, page size, align(2 * kv heads, packing) / packing, packing,
    align(head dim, 128)], K and V of a head next to each other. head_major: [pages, 2 * kv heads,
    page size, align(head dim, 128)], the K heads first.

    Raises:
        ValueError: if there is no such layout.
    """
    layouts = sorted({variant.layout for variant in VARIANTS})
    if layout not in layouts:
        raise ValueError(f"layout is {layout!r}; expected one of {', '.join(layouts)}")
    return support.kv_cache_shape(
        total_num_pages, page_size, num_kv_heads, head_dim, kv_dtype, layout=layout
    )


def ragged_paged_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
    *,
    use_causal_mask: bool = True,
    update_kv_cache: bool = True,
    skip_kv_mask: bool = False,
    sm_scale: Any = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    out_dtype: Any = None,
    mask_value: float | None = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    chunk_prefill_size: int | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    d_block_sizes: support.Blocks | None = None,
    p_block_sizes: support.Blocks | None = None,
    m_block_sizes: support.Blocks | None = None,
    vmem_limit_bytes: int | None = None,
    debug_mode: bool = False,
    disable_bounds_checks: bool = True,
    disable_semaphore_checks: bool = True,
    variant: str | None = None,
    attention_sink: Any = None,
    return_lse: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Attention of ragged sequences over a paged KV cache, and the update of that cache.

    The variant is chosen when the call is traced: from the dtypes and shapes of the operands, the
    features and scales that are given, and the TPU generation.

    Args:
        queries: [tokens, query heads, head dim], all sequences' new tokens one after the other.
        keys: [tokens, kv heads, head dim], in the cache's dtype, or wider and to be quantized.
        values: like `keys`.
        kv_cache: see `get_kv_cache_shape`; donate it, or it is copied.
        kv_lens: i32[sequences], keys of each sequence with those of this call.
        page_indices: i32[sequences * pages per sequence], the pages of each sequence.
        cu_q_lens: i32[sequences + 1], where each sequence's new tokens begin.
        distribution: i32[3], ends of the decode, prefill and mixed sequences; the last is their
            number. Decode sequences have one new token each.
        use_causal_mask: whether a query sees only keys up to its own position.
        update_kv_cache: whether the new tokens are written to the cache; if not, all keys and
            values are read from it, those of this call too.
        skip_kv_mask: accepted, changes no result.
        sm_scale: multiplies the scores; a number or a traced scalar.
        sliding_window: a query at position q sees keys after q - sliding_window.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).
        out_dtype: dtype of the output; that of the queries if None.
        mask_value: accepted, changes no result: a masked key does not count.
        q_scale: queries are rounded to the cache's dtype as queries / q_scale.
        k_scale: what a key code of 1 stands for; 1.0 if None.
        v_scale: what a value code of 1 stands for; 1.0 if None.
        chunk_prefill_size: most new tokens of a prefill sequence; if None, the prefill sequences
            are processed as mixed ones.
        num_kv_pages_per_block: pages of a KV block, in all launches.
        num_queries_per_block: tokens of a query block, in all launches.
        d_block_sizes: (query block, KV block, query tile, compute block) of the decode launch.
        p_block_sizes: the same for the prefill launch.
        m_block_sizes: the same for the mixed launch.
        vmem_limit_bytes: VMEM that a launch may take.
        debug_mode: accepted, changes no result.
        disable_bounds_checks: accepted, changes no result.
        disable_semaphore_checks: accepted, changes no result.
        variant: run exactly the variant of this name.
        attention_sink: not offered yet.
        return_lse: not offered yet.

    Returns:
        The output, [tokens, query heads, head dim]; rows past the last token are unspecified. And
        the KV cache with the new tokens in it.

    Raises:
        UnsupportedVariantError: if no variant computes what is asked for.
        ValueError: if an operand or an option does not fit.
        TypeError: if block sizes are given in both forms.
    """
    del skip_kv_mask, mask_value, debug_mode, disable_bounds_checks, disable_semaphore_checks
    blocks = _blocks(
        {"d": d_block_sizes, "p": p_block_sizes, "m": m_block_sizes},
        num_kv_pages_per_block,
        num_queries_per_block,
        kv_cache,
        queries,
    )
    asked = {
        "sliding_window": sliding_window is not None,
        "soft_cap": soft_cap is not None,
        "bidirectional": not use_causal_mask,
        "kv_share": not update_kv_cache,
        "attention_sink": attention_sink is not None,
        "lse": return_lse,
    }
    key = Key(
        layout=_layout(kv_cache),
        query_dtype=queries.dtype.name,
        kv_dtype=kv_cache.dtype.name,
        quantization=_quantization(kv_cache.dtype, q_scale, k_scale, v_scale),
        features=tuple(feature for feature, is_asked in asked.items() if is_asked),
        generation=support.tpu_generation(),
    )
    chosen = _choose(key, variant)
    options: dict[str, Any] = {}
    if sliding_window is not None:
        options["sliding_window"] = sliding_window
    if soft_cap is not None:
        options["soft_cap"] = soft_cap
    if chosen.quantization != "none":
        options["k_scale"] = 1.0 if k_scale is None else k_scale
        options["v_scale"] = 1.0 if v_scale is None else v_scale
    if q_scale is not None:
        options["q_scale"] = q_scale
    return load(chosen.name).ragged_paged_attention(
        queries,
        keys,
        values,
        kv_cache,
        kv_lens,
        page_indices,
        cu_q_lens,
        distribution,
        sm_scale=sm_scale,
        chunk_prefill_size=chunk_prefill_size,
        out_dtype=out_dtype,
        vmem_limit_bytes=vmem_limit_bytes,
        **blocks,
        **options,
    )


def _layout(kv_cache: jax.Array) -> str:
    """The layout that a cache of this rank has."""
    layouts = {4: "head_major", 5: "head_interleaved"}
    if kv_cache.ndim not in layouts:
        raise ValueError(
            f"kv_cache has shape {kv_cache.shape}; expected that of get_kv_cache_shape(...)"
        )
    return layouts[kv_cache.ndim]


def _quantization(kv_dtype: Any, q_scale: Any, k_scale: Any, v_scale: Any) -> str:
    """The quantization that a cache's dtype and the scales given ask for."""
    if q_scale is not None:
        return "per_tensor_with_query"
    scales = [scale for scale in (k_scale, v_scale) if scale is not None]
    is_one = all(isinstance(scale, (int, float)) and scale == 1 for scale in scales)
    return "none" if is_one and jnp.dtype(kv_dtype).itemsize > 1 else "per_tensor"


def _blocks(
    by_launch: dict[str, support.Blocks | None],
    pages_per_block: int | None,
    queries_per_block: int | None,
    kv_cache: jax.Array,
    queries: jax.Array,
) -> dict[str, support.Blocks | None]:
    """Block sizes by the launches' own arguments, from either form of giving them."""
    old_form = pages_per_block is not None or queries_per_block is not None
    if not old_form:
        return {f"{launch}_block_sizes": blocks for launch, blocks in by_launch.items()}
    if any(blocks is not None for blocks in by_launch.values()):
        raise TypeError(
            "give num_kv_pages_per_block and num_queries_per_block, or d_block_sizes,"
            " p_block_sizes and m_block_sizes, not both"
        )
    if pages_per_block is None or queries_per_block is None:
        raise TypeError("give num_kv_pages_per_block and num_queries_per_block together")
    page_size = support.page_size_of(kv_cache.shape, _layout(kv_cache))
    kv_block = pages_per_block * page_size
    compute_block = support.compute_block_for(page_size, kv_block)
    several = (queries_per_block, kv_block, queries_per_block, compute_block)
    return {
        "d_block_sizes": (1, kv_block, 1, compute_block),
        "p_block_sizes": several,
        "m_block_sizes": several,
    }


def _choose(key: Key, name: str | None) -> Variant:
    """The variant of a call: the one named, else the default of the key."""
    if name is None:
        if key not in _DEFAULTS:
            raise UnsupportedVariantError(_miss(key))
        return _DEFAULTS[key]
    load(name)
    chosen = _BY_NAME[name]
    differing = _differing(key, chosen)
    if differing:
        raise UnsupportedVariantError(
            f"variant {name!r} does not compute what the call asks for:\n" + "\n".join(differing)
        )
    return chosen


def _differing(key: Key, variant: Variant) -> list[str]:
    """Where a variant is not what a key asks for, one line each."""
    lines = [
        f"  {path}: the call asks for {_said(asked)}, the variant has {_said(has)}"
        for path, asked, has in (
            ("layout", key.layout, variant.layout),
            ("query.dtype", key.query_dtype, variant.query_dtype),
            ("kv.dtype", key.kv_dtype, variant.kv_dtype),
            ("quantization", key.quantization, variant.quantization),
            ("features", key.features, variant.features),
        )
        if asked != has
    ]
    if key.generation not in variant.generations:
        lines.append(f"  generation: {key.generation}, the variant is for {variant.generations}")
    return lines


def _said(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)


def _miss(key: Key) -> str:
    """What to say of a key without a variant: what comes near, why not, and what to add."""
    nearest = sorted(VARIANTS, key=lambda variant: len(_differing(key, variant)))[:3]
    asked = {
        "layout": key.layout,
        "query.dtype": key.query_dtype,
        "kv.dtype": key.kv_dtype,
        "quantization": key.quantization,
        "features": key.features,
    }
    lines = [
        "no emitted variant computes this:",
        *(f"  {path}: {_said(value)}" for path, value in asked.items()),
        f"  generation: {key.generation}",
        "the nearest variants, and where they differ:",
    ]
    for variant in nearest:
        lines += [f"- {variant.name}", *(f"  {line}" for line in _differing(key, variant))]
    reasons = [reason for when, reason in EXCLUSIONS if _applies(when, asked)]
    unknown = [feature for feature in key.features if feature not in KNOWN_FEATURES]
    if unknown:
        reasons.append(f"this version of rpagen has no feature {', '.join(unknown)}")
    if reasons:
        return "\n".join([*lines, "it is not offered:", *(f"  {reason}" for reason in reasons)])
    values = ", ".join(f"{path}: {_said(value)}" for path, value in asked.items())
    return "\n".join(
        [
            *lines,
            "to add it, put this line below `combos:` in a family of specs/families and run"
            " `make generate`:",
            f"  - {{{values}}}",
        ]
    )


def _applies(when: dict[str, tuple[Any, ...]], asked: dict[str, Any]) -> bool:
    """Whether an exclusion speaks of a key; one that names other axes does not."""
    return all(
        path in asked
        and any(
            set(value) <= set(asked[path]) if isinstance(value, tuple) else value == asked[path]
            for value in values
        )
        for path, values in when.items()
    )
