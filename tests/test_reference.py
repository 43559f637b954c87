"""The reference against numbers worked out by hand, and against a formulation in plain loops."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rpagen.evidence import reference
from rpagen.spec import model

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def call(
    queries: Any,
    keys: Any,
    values: Any,
    *,
    lengths: list[tuple[int, int]],
    kv_cache: Any = None,
    page_size: int = 4,
    pages: Any = None,
    layout: str = "head_interleaved",
    **kwargs: Any,
) -> reference.Result:
    """Calls the reference; the cache defaults to NaN and the page table to the identity."""
    queries, keys, values = (
        a if isinstance(a, np.ndarray) else np.array(a, np.float32) for a in (queries, keys, values)
    )
    pages_per_seq = -(-max(kv_len for _, kv_len in lengths) // page_size) + 1
    if pages is None:
        pages = np.arange(len(lengths) * pages_per_seq)
    if kv_cache is None:
        shape = reference.kv_cache_shape(
            len(pages), page_size, keys.shape[1], keys.shape[2], keys.dtype.name, layout
        )
        kv_cache = np.full(shape, np.nan, keys.dtype)
    return reference.reference(
        queries,
        keys,
        values,
        kv_cache,
        np.array([kv_len for _, kv_len in lengths], np.int32),
        np.asarray(pages, np.int32),
        np.cumsum([0, *(q_len for q_len, _ in lengths)]).astype(np.int32),
        np.array([0, 0, len(lengths)], np.int32),
        layout=layout,
        **kwargs,
    )


def one_head(numbers: list[float]) -> np.ndarray:
    """[tokens, 1, 1] with one number per token."""
    return np.array(numbers, np.float32).reshape(-1, 1, 1)


# Numbers worked out by hand.


def test_softmax_of_two_keys():
    log3 = math.log(3)
    result = call(one_head([log3, log3]), one_head([0, 1]), one_head([4, 8]), lengths=[(2, 2)])
    # The first query sees the first key only; the second one weighs them 1 : 3.
    np.testing.assert_allclose(result.out[:, 0, 0], [4, 7], rtol=1e-7)
    np.testing.assert_allclose(result.lse[:, 0], [0, math.log(4)], atol=1e-7)
    assert result.written.all()


def test_sm_scale_multiplies_scores():
    log3 = math.log(3)
    result = call(
        one_head([1, 1]), one_head([0, 1]), one_head([4, 8]), lengths=[(2, 2)], sm_scale=log3
    )
    np.testing.assert_allclose(result.out[1, 0, 0], 7, rtol=1e-12)


def test_soft_cap():
    result = call(
        one_head([0, 6]), one_head([0, 1]), one_head([0, 1]), lengths=[(2, 2)], soft_cap=3.0
    )
    score = 3 * math.tanh(6 / 3)
    expected = math.exp(score) / (1 + math.exp(score))
    np.testing.assert_allclose(result.out[1, 0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("sliding_window", "causal", "expected"),
    [
        # Equal scores: the output is the mean of the values 1, 10, 100, 1000 that are visible.
        (None, True, [1, 11 / 2, 111 / 3, 1111 / 4]),
        (None, False, [1111 / 4] * 4),
        (1, True, [1, 10, 100, 1000]),
        (2, True, [1, 11 / 2, 110 / 2, 1100 / 2]),
        (4, True, [1, 11 / 2, 111 / 3, 1111 / 4]),
        (1, False, [1111 / 4, 1110 / 3, 1100 / 2, 1000]),
        (2, False, [1111 / 4, 1111 / 4, 1110 / 3, 1100 / 2]),
    ],
)
def test_which_keys_are_visible(sliding_window, causal, expected):
    result = call(
        one_head([0] * 4),
        one_head([5] * 4),
        one_head([1, 10, 100, 1000]),
        lengths=[(4, 4)],
        page_size=2,
        sliding_window=sliding_window,
        causal=causal,
    )
    np.testing.assert_allclose(result.out[:, 0, 0], expected, rtol=1e-12)


def test_positions_count_from_the_start_of_the_context():
    visible = reference.visible_keys(np.array([3, 4]), 5, sliding_window=2)
    np.testing.assert_array_equal(visible, [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]])


def test_groups_of_query_heads_share_a_kv_head():
    keys = np.zeros((1, 2, 1), np.float32)
    values = np.array([[[5], [7]]], np.float32)
    result = call(np.ones((1, 6, 1), np.float32), keys, values, lengths=[(1, 1)])
    np.testing.assert_array_equal(result.out[0, :, 0], [5, 5, 5, 7, 7, 7])


def test_scales_of_keys_and_values():
    log3 = np.float32(math.log(3))
    codes = one_head([0, 10]).astype(np.int8), one_head([4, 8]).astype(np.int8)
    kv_cache = np.zeros(reference.kv_cache_shape(2, 4, 1, 1, "int8", "head_interleaved"), np.int8)
    result = call(
        one_head([0, log3]),
        *codes,
        lengths=[(2, 2)],
        kv_cache=kv_cache,
        pages=[0, 1],
        k_scale=0.1,
        v_scale=0.25,
    )
    np.testing.assert_allclose(result.out[1, 0, 0], 7 * 0.25, rtol=1e-6)


def test_query_scale_rounds_queries_like_keys():
    kv_cache = np.zeros(reference.kv_cache_shape(2, 4, 1, 1, "int8", "head_interleaved"), np.int8)
    result = call(
        one_head([0, 2.4]),
        one_head([0, 3]),
        one_head([0, 1]),
        lengths=[(2, 2)],
        kv_cache=kv_cache,
        pages=[0, 1],
        q_scale=0.5,
    )
    # 2.4 / 0.5 rounds to 5, which stands for 2.5.
    score = 2.5 * 3
    np.testing.assert_allclose(result.lse[1, 0], math.log(1 + math.exp(score)), rtol=1e-12)


# Sequences with nothing in them.


def test_empty_sequences():
    ones = np.ones((5, 1, 1), np.float32)
    result = call(ones, ones, ones, lengths=[(0, 7), (3, 0), (0, 0), (1, 1)], page_size=4)
    np.testing.assert_array_equal(result.written, [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(result.out[:3], 0)
    np.testing.assert_array_equal(result.lse[:3], -np.inf)
    np.testing.assert_array_equal(result.out[3], 1)
    assert np.isnan(result.out[4]).all() and np.isnan(result.lse[4]).all()
    # Only the last sequence has stored anything: two rows in the first slot of its first page.
    stored = np.argwhere(~np.isnan(result.kv_cache).all(axis=-1))
    np.testing.assert_array_equal(stored, [[9, 0, 0, 0], [9, 0, 1, 0]])


def test_query_whose_keys_are_all_masked():
    ones = np.ones((2, 1, 1), np.float32)
    result = call(ones, ones, ones, lengths=[(2, 2)], sliding_window=0)
    np.testing.assert_array_equal(result.out, 0)
    np.testing.assert_array_equal(result.lse, -np.inf)


def test_distribution_ends_the_work():
    ones = np.ones((2, 1, 1), np.float32)
    result = reference.reference(
        ones,
        ones,
        ones,
        np.full((2, 4, 2, 1, 128), np.nan, np.float32),
        np.array([1, 1 << 28]),
        np.array([1, -1]),
        np.array([0, 1, 1 << 28]),
        np.array([1, 1, 1]),
    )
    np.testing.assert_array_equal(result.written, [True, False])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_masked_key_does_not_count_whatever_it_holds(poison):
    keys, values = one_head([0, poison, 0]), one_head([1, poison, 3])
    with np.errstate(invalid="ignore"):
        result = call(one_head([1, 1, 1]), keys, values, lengths=[(3, 3)], sliding_window=1)
    np.testing.assert_array_equal(result.out[[0, 2], 0, 0], [1, 3])
    assert np.isnan(result.out[1]).all()


def test_a_value_that_is_not_finite_spoils_its_lane_only():
    values = np.array([[[1, np.nan]], [[3, 5]]], np.float32)
    zeros = np.zeros((2, 1, 2), np.float32)
    result = call(zeros, zeros, values, lengths=[(2, 2)])
    np.testing.assert_array_equal(result.out[:, 0], [[1, np.nan], [2, np.nan]])


# The KV cache.


def test_kv_cache_shape():
    shape = reference.kv_cache_shape
    assert shape(7, 16, 2, 64, "float32", "head_interleaved") == (7, 16, 4, 1, 128)
    assert shape(7, 16, 1, 128, "bfloat16", "head_interleaved") == (7, 16, 1, 2, 128)
    assert shape(7, 16, 3, 129, "int8", "head_interleaved") == (7, 16, 2, 4, 256)
    assert shape(7, 16, 3, 80, "int8", "head_major") == (7, 6, 16, 128)


def test_head_interleaved_places():
    # Tokens count in hundreds, heads in tens, values are negative.
    keys = (100 * np.arange(2)[:, None, None] + 10 * np.arange(3)[:, None] + np.arange(1, 3)) / 8
    packed = reference.pack(
        keys.astype("float8_e5m2"), -keys.astype("float8_e5m2"), "head_interleaved"
    ).astype(np.float32)
    assert packed.shape == (2, 2, 4, 128)
    keys = keys.astype("float8_e5m2").astype(np.float32)
    expected = np.zeros_like(packed)
    for head, (key_place, value_place) in enumerate(
        [((0, 0), (0, 1)), ((0, 2), (0, 3)), ((1, 0), (1, 1))]
    ):
        expected[:, *key_place, :2] = keys[:, head]
        expected[:, *value_place, :2] = -keys[:, head]
    np.testing.assert_array_equal(packed, expected)


def test_head_major_places():
    keys = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    packed = reference.pack(keys, keys + 100, "head_major")
    assert packed.shape == (2, 6, 128)
    np.testing.assert_array_equal(packed[:, :3, :2], keys)
    np.testing.assert_array_equal(packed[:, 3:, :2], keys + 100)
    np.testing.assert_array_equal(packed[..., 2:], 0)


@pytest.mark.parametrize("layout", model.LAYOUTS)
@pytest.mark.parametrize("dtype", model.BIT_WIDTHS)
def test_sequences_come_back_from_the_cache(layout, dtype):
    rng = np.random.default_rng(0)
    keys, values = rng.integers(-8, 8, (2, 11, 3, 80)).astype(dtype)
    kv_cache = np.zeros(reference.kv_cache_shape(9, 4, 3, 80, dtype, layout), dtype)
    pages = np.array([5, 0, 7, -1])
    reference.write_sequence(kv_cache, pages, 0, keys[:6], values[:6], layout)
    reference.write_sequence(kv_cache, pages, 6, keys[6:], values[6:], layout)
    read_keys, read_values = reference.read_sequence(kv_cache, pages, 0, 11, 3, 80, layout)
    np.testing.assert_array_equal(read_keys, keys)
    np.testing.assert_array_equal(read_values, values)
    touched = np.flatnonzero(kv_cache.astype(np.float32).reshape(9, -1).any(axis=1))
    np.testing.assert_array_equal(touched, [0, 5, 7])


def test_without_an_update_everything_is_read_from_the_cache():
    ones = np.ones((2, 1, 1), np.float32)
    kv_cache = call(ones, one_head([0, 0]), one_head([4, 8]), lengths=[(2, 2)]).kv_cache
    nan = np.full_like(ones, np.nan)
    result = call(
        ones, nan, nan, lengths=[(2, 2)], kv_cache=kv_cache, pages=[0, 1], update_kv_cache=False
    )
    np.testing.assert_array_equal(result.out[:, 0, 0], [4, 6])
    np.testing.assert_array_equal(result.kv_cache, kv_cache)


@pytest.mark.parametrize("no_page", [-1, 1 << 28])
def test_pages_that_no_query_sees_are_not_looked_at(no_page):
    """Those before a window, and all of a sequence without new tokens."""
    rng = np.random.default_rng(0)
    queries, keys, values = rng.standard_normal((3, 2, 1, 64)).astype(np.float32)
    kv_cache = rng.standard_normal((5, 4, 2, 1, 128)).astype(np.float32)
    rest = (np.array([14, 9]), np.array([0, 1, 2, 3, 4, 4, 4, 4]), np.array([0, 2, 2]))
    expected = reference.reference(
        *(queries, keys, values, kv_cache, *rest, np.array([0, 0, 2])), sliding_window=4
    )
    table = np.array([no_page, no_page, 2, 3, *[no_page] * 4])
    got = reference.reference(
        *(queries, keys, values, kv_cache, rest[0], table, rest[2], np.array([0, 0, 2])),
        sliding_window=4,
    )
    np.testing.assert_array_equal(got.out, expected.out)
    np.testing.assert_array_equal(got.kv_cache, expected.kv_cache)
    with pytest.raises(IndexError):  # but the page of the first key inside the window is
        reference.reference(
            *(queries, keys, values, kv_cache, rest[0], table, rest[2], np.array([0, 0, 2])),
            sliding_window=6,
        )


def test_the_cache_passed_in_is_left_alone():
    ones = np.ones((1, 1, 1), np.float32)
    kv_cache = np.full((2, 4, 2, 1, 128), np.nan, np.float32)
    call(ones, ones, ones, lengths=[(1, 1)], kv_cache=kv_cache, pages=[0, 1])
    assert np.isnan(kv_cache).all()


# Quantization.


def finite_magnitudes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of all finite numbers from zero up, and the numbers as float64."""
    bits = model.BIT_WIDTHS[dtype]
    largest = np.array(ml_dtypes.finfo(dtype).max, dtype).view(f"u{bits // 8}")
    codes = np.arange(largest + 1, dtype=largest.dtype)
    return codes, codes.view(dtype).astype(np.float64)


@pytest.mark.parametrize("dtype", [*FLOAT8, "bfloat16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_quantize_rounds_to_nearest_even(dtype, sign):
    codes, numbers = finite_magnitudes(dtype)
    assert (np.diff(numbers) > 0).all()
    # Float32 holds the midpoint of any two neighbours, and numbers right beside it.
    middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    np.testing.assert_array_equal(middle.astype(np.float64), (numbers[:-1] + numbers[1:]) / 2)
    even = np.where(codes[:-1] % 2 == 0, numbers[:-1], numbers[1:])
    for offered, expected in [
        (numbers.astype(np.float32), numbers),
        (middle, even),
        (np.nextafter(middle, np.float32(0)), numbers[:-1]),
        (np.nextafter(middle, np.float32(np.inf)), numbers[1:]),
    ]:
        stored = reference.quantize(sign * offered, dtype, None)
        assert stored.dtype == dtype
        np.testing.assert_array_equal(stored.astype(np.float64), sign * expected)
        np.testing.assert_array_equal(np.signbit(stored.astype(np.float64)), sign < 0)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        ("float8_e4m3fn", 448.0),
        ("float8_e5m2", 57344.0),
        ("bfloat16", float(ml_dtypes.finfo("bfloat16").max)),
    ],
)
def test_quantize_saturates(dtype, limit):
    largest = np.finfo(np.float32).max
    offered = np.array([limit, np.nextafter(np.float32(limit), np.inf), largest, np.inf], "f4")
    for sign in (1, -1):
        stored = reference.quantize(sign * offered, dtype, None).astype(np.float64)
        np.testing.assert_array_equal(stored, sign * limit)
    assert np.isnan(reference.quantize(np.array([np.nan], "f4"), dtype, 0.5).astype("f4")).all()


def test_quantize_to_integers():
    offered = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 1e9, np.inf, -128.5, -1e9, np.nan], "f4")
    stored = reference.quantize(offered, "int8", None)
    np.testing.assert_array_equal(stored, [0, 2, 2, 0, -2, 127, 127, 127, -128, -128, 0])


def test_quantize_divides_in_float32():
    offered, scale = np.float32(2.45), 0.1
    # In float32 the quotient is the tie 24.5, which goes to 24; the exact one is beyond the tie.
    assert offered / np.float32(scale) == 24.5 < float(offered) / float(np.float32(scale))
    stored = reference.quantize(np.array([offered]), "int8", scale)
    np.testing.assert_array_equal(stored, [24])
    assert reference.dequantize(stored, scale) == [24 * float(np.float32(scale))]


def test_quantize_is_one_rounding_from_float32():
    # Through bfloat16 this would first become the midpoint 1.0625 and then 1.0.
    offered = np.array([1.0625 + 2**-12], np.float32)
    stored = reference.quantize(offered, "float8_e4m3fn", None)
    np.testing.assert_array_equal(stored.astype(np.float32), [1.125])


def test_what_has_the_dtype_of_the_cache_is_stored_as_it_is():
    codes = np.arange(256, dtype=np.uint8).view("float8_e4m3fn")
    assert reference.quantize(codes, "float8_e4m3fn", 0.3) is codes


# Everything at once, in plain loops.


def plain_attention(arrays: tuple[np.ndarray, ...], layout: str, **kwargs: Any) -> Any:
    """The semantics once more, one number at a time: (out, lse, kv_cache)."""
    queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution = arrays
    num_tokens, num_q_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    pages_per_seq = len(page_indices) // len(kv_lens)
    page_size = kv_cache.shape[2 if layout == "head_major" else 1]
    packing = 4 // kv_cache.dtype.itemsize
    kv_cache = kv_cache.copy()
    out = np.full(queries.shape, np.nan)
    lse = np.full((num_tokens, num_q_heads), np.nan)

    def slot(seq: int, position: int, kv_head: int, kind: int) -> Any:
        page = page_indices[seq * pages_per_seq + position // page_size]
        if layout == "head_major":
            return kv_cache[page, kind * num_kv_heads + kv_head, position % page_size]
        row = 2 * kv_head + kind
        return kv_cache[page, position % page_size, row // packing, row % packing]

    for seq in range(distribution[2]):
        first = int(cu_q_lens[seq])
        q_len = int(cu_q_lens[seq + 1]) - first
        kv_len = int(kv_lens[seq])
        for i in range(q_len if kwargs["update_kv_cache"] else 0):
            position = kv_len - q_len + i
            for kv_head in range(num_kv_heads):
                for kind, new, scale in (
                    (0, keys, kwargs["k_scale"]),
                    (1, values, kwargs["v_scale"]),
                ):
                    into = slot(seq, position, kv_head, kind)
                    into[:] = 0
                    into[:head_dim] = (
                        new[first + i, kv_head].astype(np.float32) / np.float32(scale)
                    ).astype(kv_cache.dtype)
        for i in range(q_len):
            q_position = kv_len - q_len + i
            for head in range(num_q_heads):
                kv_head = head * num_kv_heads // num_q_heads
                total, numerator = 0.0, np.zeros(head_dim)
                for k_position in range(kv_len):
                    if kwargs["causal"] and k_position > q_position:
                        continue
                    if k_position <= q_position - (kwargs["sliding_window"] or math.inf):
                        continue
                    key = slot(seq, k_position, kv_head, 0)[:head_dim].astype(np.float64)
                    value = slot(seq, k_position, kv_head, 1)[:head_dim].astype(np.float64)
                    score = float(queries[first + i, head].astype(np.float64) @ key)
                    score *= kwargs["sm_scale"] * float(np.float32(kwargs["k_scale"]))
                    if kwargs["soft_cap"] is not None:
                        score = kwargs["soft_cap"] * math.tanh(score / kwargs["soft_cap"])
                    total += math.exp(score)
                    numerator += math.exp(score) * value * float(np.float32(kwargs["v_scale"]))
                out[first + i, head] = numerator / total
                lse[first + i, head] = math.log(total)
    return out, lse, kv_cache


@pytest.mark.parametrize("layout", model.LAYOUTS)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize(
    "features",
    [
        {},
        {"sliding_window": 3},
        {"soft_cap": 0.7, "sliding_window": 5},
        {"causal": False, "sliding_window": 2},
        {"update_kv_cache": False},
    ],
    ids=str,
)
def test_agrees_with_plain_loops(layout, kv_dtype, features):
    rng = np.random.default_rng(1)
    lengths = [(1, 8), (4, 4), (0, 3), (5, 9)]
    tokens = (12, 2, 24)
    new_dtype = "float32" if kv_dtype == "float32" else "bfloat16"
    kv_cache = rng.standard_normal(reference.kv_cache_shape(20, 4, 2, 24, kv_dtype, layout))
    arrays = (
        rng.standard_normal((12, 6, 24)).astype(new_dtype),
        rng.standard_normal(tokens).astype(new_dtype),
        rng.standard_normal(tokens).astype(new_dtype),
        kv_cache.astype(kv_dtype),
        np.array([kv_len for _, kv_len in lengths], np.int32),
        rng.permutation(20)[:16].astype(np.int32),
        np.cumsum([0, *(q_len for q_len, _ in lengths)]).astype(np.int32),
        np.array([1, 3, 4], np.int32),
    )
    scales = {"k_scale": 1.0, "v_scale": 1.0}
    if kv_dtype == "float8_e5m2":
        scales = {"k_scale": 0.3, "v_scale": 1.7}
    kwargs = {
        "sm_scale": 0.3,
        "sliding_window": None,
        "soft_cap": None,
        "causal": True,
        "update_kv_cache": True,
        **scales,
        **features,
    }
    result = reference.reference(*arrays, layout=layout, **kwargs)
    out, lse, kv_cache = plain_attention(arrays, layout, **kwargs)
    np.testing.assert_allclose(result.out, out, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(result.lse, lse, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(result.kv_cache.view(np.uint8), kv_cache.view(np.uint8))


# Size.


def test_tiles_do_not_show(monkeypatch):
    rng = np.random.default_rng(2)
    queries = rng.standard_normal((19, 2, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 19, 1, 8)).astype(np.float32)
    whole = call(queries, keys, values, lengths=[(19, 19)])
    monkeypatch.setattr(reference, "_MAX_TILE_SIZE", 5 * 19 * 2)
    tiled = call(queries, keys, values, lengths=[(19, 19)])
    np.testing.assert_allclose(tiled.out, whole.out, rtol=1e-13)
    np.testing.assert_allclose(tiled.noise.float32, whole.noise.float32, rtol=1e-10)


def test_long_context():
    kv_len, page_size = 70_001, 64
    num_pages = -(-kv_len // page_size) + 1
    kv_cache = np.zeros(
        reference.kv_cache_shape(num_pages, page_size, 1, 16, "int8", "head_major"), np.int8
    )
    pages = np.arange(num_pages)[::-1]
    positions = np.arange(kv_len - 1)
    reference.write_sequence(
        kv_cache,
        pages,
        0,
        np.zeros((kv_len - 1, 1, 16), np.int8),
        np.broadcast_to((positions % 100)[:, None, None], (kv_len - 1, 1, 16)).astype(np.int8),
        "head_major",
    )
    new = np.full((1, 1, 16), 50, np.int8)
    result = call(
        np.ones((1, 3, 16), np.float32),
        np.zeros_like(new),
        new,
        lengths=[(1, kv_len)],
        kv_cache=kv_cache,
        page_size=page_size,
        pages=pages,
        layout="head_major",
        sliding_window=4,
    )
    np.testing.assert_allclose(result.out, (97 + 98 + 99 + 50) / 4, rtol=1e-12)
