"""What ragged paged attention computes, in float64 NumPy: the one reference of the project.

`reference` takes the arrays of `rpa_kernels.ragged_paged_attention` and returns what its output
and its KV cache must be.  It shares no code with any kernel and does not import JAX; float64
stands in for exact arithmetic, and only what the semantics round is rounded: keys and values when
they are stored in a narrower cache, and queries when a query scale is given.

The KV cache holds, for every token of a sequence, one *row* per kv head and kind: K and V.  Two
layouts exist, and nothing outside `pack`, `unpack`, `read_sequence` and `write_sequence` knows
them:

  head_interleaved  [pages, page size, rows / packing, packing, lanes]
                    K of kv head h is row 2h and V is row 2h + 1; the number of rows is
                    2 * kv heads rounded up to the packing.
  head_major        [pages, 2 * kv heads, page size, lanes]
                    K of kv head h is row h and V is row kv heads + h.

`lanes` is the head dim rounded up to 128.  Rows and lanes that belong to no head are zero for
every stored token.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rpagen.evidence import tolerance
from rpagen.spec import model

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LANES = 128

# Bounds the memory of a tile of scores, of which about ten exist at a time: this many float64.
_MAX_TILE_SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Result:
    """What a call must return.

    out: float64 [tokens, q heads, head dim]; NaN in the rows that are not `written`.
    lse: float64 [tokens, q heads], the natural logarithm of the sum of the exponentials of a
      query's scores; -inf for a query that sees no key, NaN in the rows that are not `written`.
    written: bool [tokens], the tokens that belong to a sequence.  Rows of `out` past the last
      token are unspecified.
    kv_cache: like the argument, to be matched bit for bit.
    noise: how far float32 arithmetic may move every element of `out`, see `tolerance`.
    """

    out: Float64Array
    lse: Float64Array
    written: BoolArray
    kv_cache: Array
    noise: tolerance.Noise


def reference(
    queries: Array,
    keys: Array,
    values: Array,
    kv_cache: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    distribution: Array,
    *,
    layout: str = "head_interleaved",
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    causal: bool = True,
    update_kv_cache: bool = True,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
) -> Result:
    """Ragged paged attention of every sequence in `distribution`.

    Args:
      queries: [tokens, q heads, head dim].
      keys: [tokens, kv heads, head dim], in the cache's dtype or a wider one.
      values: like `keys`.
      kv_cache: in the layout `layout`; left unchanged.
      kv_lens: i32 [seqs], tokens of a sequence including those of this call.
      page_indices: i32 [seqs * pages per sequence].
      cu_q_lens: i32 [seqs + 1], where each sequence's tokens start.
      distribution: i32 [3], ends of the decode, prefill and mixed ranges; the last one is the
        number of sequences.
      layout: one of `model.LAYOUTS`.
      sm_scale: multiplies the scores.
      sliding_window: w, a query at position q sees only keys at positions k with q - w < k.
      soft_cap: c, scores become c * tanh(scores / c).
      causal: a query at position q sees only keys at positions k <= q.
      update_kv_cache: whether this call's keys and values are stored; without it they are taken
        to be in the cache, and `keys` and `values` are not looked at.
      q_scale: queries are quantized with this scale to the cache's dtype.
      k_scale: stored keys stand for this many times their value; 1 if missing.
      v_scale: the same for values.
      chunk_prefill_size: how a kernel cuts its work; it has no part in the result, and is
        accepted so that one set of arguments serves both.
    """
    del chunk_prefill_size
    num_tokens, num_q_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    group = num_q_heads // num_kv_heads
    num_seqs = int(distribution[2])
    tables = page_indices.reshape(len(kv_lens), -1)

    if q_scale is None:
        queries = queries.astype(np.float64)
    else:
        queries = dequantize(quantize(queries, kv_cache.dtype, q_scale), q_scale)
    if update_kv_cache:
        keys = quantize(keys, kv_cache.dtype, k_scale)
        values = quantize(values, kv_cache.dtype, v_scale)

    kv_cache = kv_cache.copy()
    written = np.zeros(num_tokens, np.bool_)
    out = np.full((num_tokens, num_q_heads, head_dim), np.nan)
    lse = np.full((num_tokens, num_q_heads), np.nan)
    noise = tolerance.Noise.unspecified(out.shape)

    for seq in range(num_seqs):
        tokens = slice(int(cu_q_lens[seq]), int(cu_q_lens[seq + 1]))
        q_len = tokens.stop - tokens.start
        kv_len = int(kv_lens[seq])
        written[tokens] = True
        if update_kv_cache and kv_len:
            write_sequence(
                kv_cache, tables[seq], kv_len - q_len, keys[tokens], values[tokens], layout
            )
        first_key = _first_visible_key(q_len, kv_len, sliding_window)
        seq_keys, seq_values = read_sequence(
            kv_cache, tables[seq], first_key, kv_len, num_kv_heads, head_dim, layout
        )
        seq_keys = dequantize(seq_keys, k_scale)
        seq_values = dequantize(seq_values, v_scale)
        tile = max(1, _MAX_TILE_SIZE // max(1, kv_len * group))
        for start in range(0, q_len, tile):
            stop = min(start + tile, q_len)
            rows = slice(tokens.start + start, tokens.start + stop)
            q_positions = np.arange(start, stop) + kv_len - q_len
            visible = visible_keys(
                q_positions, kv_len, sliding_window=sliding_window, causal=causal
            )[:, first_key:]
            for kv_head in range(num_kv_heads):
                heads = slice(kv_head * group, (kv_head + 1) * group)
                attention = _attend(
                    queries[rows, heads],
                    seq_keys[:, kv_head],
                    seq_values[:, kv_head],
                    visible,
                    sm_scale=sm_scale,
                    soft_cap=soft_cap,
                )
                out[rows, heads], lse[rows, heads], noise[rows, heads] = attention

    return Result(out=out, lse=lse, written=written, kv_cache=kv_cache, noise=noise)


def _first_visible_key(q_len: int, kv_len: int, sliding_window: int | None) -> int:
    """The position of the first key that a query of a sequence sees: all pages before are unknown.

    It is `kv_len` where there are no queries.
    """
    if not q_len:
        return kv_len
    return 0 if sliding_window is None else max(kv_len - q_len - sliding_window + 1, 0)


def visible_keys(
    q_positions: npt.NDArray[np.int64],
    kv_len: int,
    *,
    sliding_window: int | None = None,
    causal: bool = True,
) -> BoolArray:
    """Which keys a query sees, as bool [queries, kv_len].

    A sliding window bounds the past only, so without the causal mask all later keys are seen.
    """
    q_pos = q_positions[:, np.newaxis]
    k_pos = np.arange(kv_len)[np.newaxis, :]
    visible = np.ones((len(q_positions), kv_len), np.bool_)
    if causal:
        visible &= k_pos <= q_pos
    if sliding_window is not None:
        visible &= q_pos - sliding_window < k_pos
    return visible


def _attend(
    queries: Float64Array,
    keys: Float64Array,
    values: Float64Array,
    visible: BoolArray,
    *,
    sm_scale: float,
    soft_cap: float | None,
) -> tuple[Float64Array, Float64Array, tolerance.Noise]:
    """Attention of the queries of one kv head.

    Args:
      queries: [queries, group, head dim].
      keys: [kv_len, head dim].
      values: [kv_len, head dim].
      visible: [queries, kv_len].
      sm_scale: multiplies the scores.
      soft_cap: bounds the scores, if given.

    Returns:
      The output [queries, group, head dim], the log-sum-exp [queries, group], and the noise of
      the output.
    """
    visible = visible[:, np.newaxis, :]
    # Sums over keys must not touch what a masked key holds, not even as 0 * NaN.
    finite = np.isfinite(values)
    finite_values = np.where(finite, values, 0.0)
    sees_non_finite = visible.astype(np.float64) @ ~finite > 0

    logits = queries @ keys.T * sm_scale
    scores = logits if soft_cap is None else soft_cap * np.tanh(logits / soft_cap)
    scores = np.where(visible, scores, -np.inf)
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    # A query that sees nothing has no maximum; any finite one leaves its weights at zero.
    maximum = np.where(np.isneginf(maximum), 0.0, maximum)
    weights = np.exp(scores - maximum)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (maximum + np.log(total))[..., 0]
    weights /= np.where(total == 0.0, 1.0, total)
    out = weights @ finite_values
    noise = tolerance.propagate(
        queries, keys, finite_values, visible, weights, out, sm_scale=sm_scale, soft_cap=soft_cap
    )
    return np.where(sees_non_finite, np.nan, out), lse, noise


def quantize(array: Array, dtype: npt.DTypeLike, scale: float | None) -> Array:
    """`array` as it is stored in a cache of `dtype`.

    An array that has this dtype already is stored as it is.  Any other is divided by the scale
    in float32, rounded once, to nearest even, and saturated to the finite range of `dtype`.  NaN
    stays NaN, and becomes 0 in an integer cache.
    """
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return array
    scaled = array.astype(np.float32) / np.float32(1.0 if scale is None else scale)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        rounded: Array = np.nan_to_num(np.rint(scaled), nan=0.0)
        return rounded.clip(info.min, info.max).astype(dtype)
    # Saturating before the conversion gives the same as after it, and `float8_e4m3fn` turns what
    # is too large for it into NaN.
    limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return scaled.clip(-limit, limit).astype(dtype)


def dequantize(array: Array, scale: float | None) -> Float64Array:
    """The numbers that stored values stand for, exact up to float64."""
    return array.astype(np.float64) * float(np.float32(1.0 if scale is None else scale))


def kv_cache_shape(
    num_pages: int, page_size: int, num_kv_heads: int, head_dim: int, kv_dtype: str, layout: str
) -> tuple[int, ...]:
    """The shape of a KV cache."""
    lanes = _align(head_dim, LANES)
    if layout == "head_interleaved":
        packing = model.packing(kv_dtype)
        rows = _align(2 * num_kv_heads, packing)
        return (num_pages, page_size, rows // packing, packing, lanes)
    return (num_pages, 2 * num_kv_heads, page_size, lanes)


def pack(keys: Array, values: Array, layout: str) -> Array:
    """Keys and values [tokens, kv heads, head dim] as the cache holds tokens.

    Returns:
      [tokens, rows / packing, packing, lanes] for `head_interleaved`, [tokens, rows, lanes] for
      `head_major`, in the dtype of `keys`.
    """
    num_tokens, num_kv_heads, head_dim = keys.shape
    lanes = _align(head_dim, LANES)
    if layout == "head_interleaved":
        packing = model.packing(keys.dtype.name)
        num_rows = _align(2 * num_kv_heads, packing)
        rows = np.zeros((num_tokens, num_rows, lanes), keys.dtype)
        rows[:, 0 : 2 * num_kv_heads : 2, :head_dim] = keys
        rows[:, 1 : 2 * num_kv_heads : 2, :head_dim] = values
        return rows.reshape(num_tokens, num_rows // packing, packing, lanes)
    rows = np.zeros((num_tokens, 2 * num_kv_heads, lanes), keys.dtype)
    rows[:, :num_kv_heads, :head_dim] = keys
    rows[:, num_kv_heads:, :head_dim] = values
    return rows


def unpack(packed: Array, num_kv_heads: int, head_dim: int, layout: str) -> tuple[Array, Array]:
    """The inverse of `pack`: keys and values, each [tokens, kv heads, head dim]."""
    num_tokens, *row_axes, lanes = packed.shape
    rows = packed.reshape(num_tokens, math.prod(row_axes), lanes)
    rows = rows[:, : 2 * num_kv_heads, :head_dim]
    if layout == "head_interleaved":
        return rows[:, 0::2], rows[:, 1::2]
    return rows[:, :num_kv_heads], rows[:, num_kv_heads:]


def write_sequence(
    kv_cache: Array, pages: Array, start: int, keys: Array, values: Array, layout: str
) -> None:
    """Stores tokens at positions `start`, `start` + 1, ... of a sequence, in place.

    Args:
      kv_cache: in the layout `layout`.
      pages: [pages per sequence], the sequence's row of the page table.
      start: position of the first token.
      keys: [tokens, kv heads, head dim] in the cache's dtype.
      values: like `keys`.
      layout: one of `model.LAYOUTS`.
    """
    positions = np.arange(start, start + len(keys))
    page_size = _page_size(kv_cache, layout)
    packed = pack(keys, values, layout)
    if layout == "head_interleaved":
        kv_cache[pages[positions // page_size], positions % page_size] = packed
    else:
        kv_cache[pages[positions // page_size], :, positions % page_size] = packed


def read_sequence(
    kv_cache: Array,
    pages: Array,
    start: int,
    kv_len: int,
    num_kv_heads: int,
    head_dim: int,
    layout: str,
) -> tuple[Array, Array]:
    """Keys and values of positions `start` to `kv_len` of a sequence.

    Only pages that hold such positions are looked up.  Returns two arrays
    [kv_len - start, kv heads, head dim] in the cache's dtype.

    Raises:
      IndexError: if one of these pages is none of the cache.
    """
    positions = np.arange(start, kv_len)
    page_size = _page_size(kv_cache, layout)
    of_positions = pages[positions // page_size]
    if (of_positions < 0).any():  # which NumPy would count from the end
        raise IndexError(f"positions {start} to {kv_len} are in the pages {pages}")
    if layout == "head_interleaved":
        packed = kv_cache[of_positions, positions % page_size]
    else:
        packed = kv_cache[of_positions, :, positions % page_size]
    return unpack(packed, num_kv_heads, head_dim, layout)


def _page_size(kv_cache: Array, layout: str) -> int:
    return int(kv_cache.shape[1 if layout == "head_interleaved" else 2])


def _align(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
