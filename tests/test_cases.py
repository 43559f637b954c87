"""The named cases: what they cover, and that the arrays built from them are as claimed."""

import dataclasses
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from rpagen.evidence import cases, named_bugs, reference
from rpagen.spec import model

PLAIN = model.DispatchKey("head_interleaved", "bfloat16", "bfloat16", "none", ())
KEYS = {
    "float32": model.DispatchKey("head_interleaved", "float32", "float32", "none", ()),
    "bfloat16": PLAIN,
    "head_major": dataclasses.replace(PLAIN, layout="head_major"),
    "window and cap": dataclasses.replace(PLAIN, features=("sliding_window", "soft_cap")),
    "bidirectional": dataclasses.replace(PLAIN, features=("bidirectional",)),
    "kv_share": dataclasses.replace(PLAIN, features=("kv_share",)),
    "float8": dataclasses.replace(PLAIN, kv_dtype="float8_e4m3fn", quantization="per_tensor"),
    "float8 queries": dataclasses.replace(
        PLAIN, kv_dtype="float8_e4m3fn", quantization="per_tensor_with_query"
    ),
    "float8_e5m2": dataclasses.replace(PLAIN, kv_dtype="float8_e5m2"),
    "int8": dataclasses.replace(PLAIN, kv_dtype="int8", quantization="per_tensor"),
}
every_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
ALL_CASES = (
    *cases.NAMED_CASES,
    *cases.HEAD_CASES,
    *cases.WINDOW_CASES,
    *(bug.case for bug in named_bugs.BUGS),
)
every_case = pytest.mark.parametrize("case", cases.NAMED_CASES, ids=lambda case: case.name)


def is_poison(array: np.ndarray) -> np.ndarray:
    """Where an array holds what spoils results; a float32 array that is 1 there."""
    if array.dtype == np.int8:
        return (array == 127) | (array == -128)
    return ~np.isfinite(array.astype(np.float32))


def holds_token(inputs: cases.Inputs, *, include_new: bool) -> np.ndarray:
    """Which slots [pages, page size] hold tokens before the call, or after it."""
    geometry = inputs.case.geometry
    slots = np.zeros((geometry.num_pages, geometry.page_size), bool)
    tables = inputs.page_indices.reshape(geometry.max_seqs, geometry.pages_per_seq)
    for table, pages, (q_len, kv_len) in zip(
        tables, inputs.case.pages_in_use, inputs.case.lengths, strict=False
    ):
        past = min(kv_len if include_new else kv_len - q_len, pages.stop * geometry.page_size)
        for position in range(pages.start * geometry.page_size, past):
            slots[table[position // geometry.page_size], position % geometry.page_size] = True
    return slots


# What the cases cover.


def test_names_are_unique():
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_case_is_a_valid_call(case):
    geometry = case.geometry
    assert len(case.lengths) <= geometry.max_seqs
    assert case.num_tokens <= geometry.max_tokens
    assert all(q_len == 1 for q_len, _ in case.decode)
    assert all(q_len <= (geometry.chunk_prefill_size or q_len) for q_len, _ in case.prefill)
    for q_len, kv_len in case.lengths:
        assert q_len <= kv_len or kv_len == 0
        assert kv_len <= geometry.pages_per_seq * geometry.page_size
    # The last page of a sequence, pages of none, and one to spare for unused table entries.
    used = sum(-(-kv_len // geometry.page_size) for _, kv_len in case.lengths)
    assert used < geometry.num_pages
    assert geometry.num_q_heads % geometry.num_kv_heads == 0


def test_geometries_cover_heads_and_pages():
    geometries = {case.geometry for case in cases.NAMED_CASES}
    assert {g.num_q_heads // g.num_kv_heads for g in geometries} == {1, 2, 3, 4, 7, 8}
    assert {g.num_kv_heads for g in geometries} == {1, 2, 3, 8}
    assert {g.head_dim for g in geometries} == {64, 80, 96, 128, 256}
    assert {g.page_size for g in geometries} == {1, 4, 8, 16, 64, 128}
    assert {g.chunk_prefill_size is None for g in geometries} == {True, False}
    for geometry in geometries:
        for bq, bkv, bq_compute, bkv_compute in (
            geometry.decode_blocks,
            geometry.prefill_blocks,
            geometry.mixed_blocks,
        ):
            assert bq % bq_compute == 0 and bkv_compute % 16 == 0
            assert bkv % geometry.page_size == 0
    # Compute blocks that do not divide their KV block; chunks of several, uneven query blocks.
    assert any(g.mixed_blocks[1] % g.mixed_blocks[3] for g in geometries)
    chunked = [g for g in geometries if g.chunk_prefill_size]
    assert any(g.chunk_prefill_size % g.prefill_blocks[0] for g in chunked)
    # A window that cuts through pages and compute blocks, and one that reaches past a block.
    assert any(g.sliding_window % g.page_size for g in geometries)
    assert any(g.sliding_window % g.mixed_blocks[3] for g in geometries)
    assert any(g.sliding_window == g.page_size for g in geometries)
    # A page table whose width is no multiple of the pages in a block.
    assert any(g.pages_per_seq % (g.mixed_blocks[1] // g.page_size) for g in geometries)


@pytest.mark.parametrize(
    "covers",
    [
        pytest.param(lambda c: c.decode and c.prefill and c.mixed, id="all ranges"),
        pytest.param(lambda c: c.decode == c.lengths, id="decode only"),
        pytest.param(lambda c: c.prefill == c.lengths, id="prefill only"),
        pytest.param(lambda c: c.mixed == c.lengths, id="mixed only"),
        pytest.param(lambda c: any(q == 0 < kv for q, kv in c.prefill), id="no query in prefill"),
        pytest.param(lambda c: any(q == 0 < kv for q, kv in c.mixed), id="no query in mixed"),
        pytest.param(lambda c: (0, 0) in c.prefill, id="nothing in prefill"),
        pytest.param(lambda c: (0, 0) in c.mixed, id="nothing in mixed"),
        pytest.param(lambda c: any(q > 0 == kv for q, kv in c.mixed), id="no keys in mixed"),
        pytest.param(lambda c: c.num_tokens == c.geometry.max_tokens, id="tokens fill the array"),
        pytest.param(lambda c: c.num_tokens < c.geometry.max_tokens, id="padding tokens"),
        pytest.param(
            lambda c: any(q and kv and kv % c.geometry.page_size == 0 for q, kv in c.lengths),
            id="ends on a page edge",
        ),
        pytest.param(
            lambda c: any(q and kv - q > 0 and not (kv - q) % c.geometry.page_size
                          for q, kv in c.lengths),
            id="starts a page",
        ),
        pytest.param(
            lambda c: any(kv == c.geometry.page_size * c.geometry.pages_per_seq
                          for _, kv in c.lengths),
            id="fills the page table",
        ),
        pytest.param(
            lambda c: any(0 < q < (c.geometry.chunk_prefill_size or 0) for q, _ in c.prefill),
            id="short last chunk",
        ),
        pytest.param(
            lambda c: c.prefill and c.geometry.chunk_prefill_size is None,
            id="prefill without a chunk size",
        ),
        pytest.param(
            lambda c: any(q > 2 * c.geometry.mixed_blocks[0] and kv > 2 * c.geometry.mixed_blocks[1]
                          for q, kv in c.mixed),
            id="several query blocks against several KV blocks",
        ),
    ],
)  # fmt: skip
def test_some_case_covers(covers):
    assert any(covers(case) for case in cases.NAMED_CASES)


def test_each_launch_runs_alone_and_without_sequences_where_nobody_knows_it():
    """Under `jax.jit`, as in engines, no launch is left out: an empty one has to do nothing."""
    traced = [case for case in cases.NAMED_CASES if case.traced]
    assert all(case.geometry.chunk_prefill_size for case in traced)  # all three launches
    assert len({case.geometry for case in traced}) == 1  # which they compile once
    for only in (lambda c: c.decode, lambda c: c.prefill, lambda c: c.mixed):
        assert any(only(case) == case.lengths for case in traced)
    # The empty launches begin past the last sequence that the arrays have.
    assert any(case.decode == case.lengths and case.geometry.max_seqs == len(case.decode)
               for case in traced)  # fmt: skip
    assert not all(case.traced for case in cases.NAMED_CASES)


@pytest.mark.parametrize("query_dtype", ["bfloat16", "float32"])
def test_some_outputs_are_of_a_narrower_dtype(query_dtype):
    key = dataclasses.replace(PLAIN, query_dtype=query_dtype, kv_dtype=query_dtype)
    asked = [case.out_dtype for case in cases.cases_for(key) if case.out_dtype]
    assert len(asked) == 2 and len(set(asked)) == 2
    assert all(ml_dtypes.finfo(dtype).nmant < ml_dtypes.finfo(query_dtype).nmant for dtype in asked)


# Adapting to a variant.


def test_features_of_the_variant():
    for case in cases.cases_for(KEYS["window and cap"]):
        assert case.sliding_window == (case.window or case.geometry.sliding_window)
        assert case.soft_cap == case.geometry.soft_cap
        assert case.causal and case.update_kv_cache
    for case in cases.cases_for(KEYS["bidirectional"]):
        assert not case.causal and case.sliding_window is None and case.soft_cap is None
    for case in cases.cases_for(KEYS["kv_share"]):
        assert not case.update_kv_cache


def test_scales_of_the_variant():
    def scales(key: model.DispatchKey) -> tuple[bool, ...]:
        case = cases.cases_for(key)[0]
        return tuple(s is not None for s in (case.q_scale, case.k_scale, case.v_scale))

    assert scales(KEYS["float8_e5m2"]) == (False, False, False)
    assert scales(KEYS["int8"]) == (False, True, True)
    assert scales(KEYS["float8 queries"]) == (True, True, True)


# The arrays.


@every_key
def test_shapes_and_dtypes(key):
    for case in cases.cases_for(key):
        geometry, inputs = case.geometry, cases.build(case, key)
        tokens, head_dim = geometry.max_tokens, geometry.head_dim
        assert inputs.queries.shape == (tokens, geometry.num_q_heads, head_dim)
        assert inputs.keys.shape == inputs.values.shape == (tokens, geometry.num_kv_heads, head_dim)
        assert inputs.queries.dtype == key.query_dtype
        assert inputs.keys.dtype == (
            key.kv_dtype if case.new_kv_in_cache_dtype else key.query_dtype
        )
        assert inputs.kv_cache.dtype == key.kv_dtype
        assert inputs.kv_lens.shape == (geometry.max_seqs,)
        assert inputs.cu_q_lens.shape == (geometry.max_seqs + 1,)
        assert inputs.page_indices.shape == (geometry.max_seqs * geometry.pages_per_seq,)
        assert inputs.distribution.tolist() == [
            len(case.decode),
            len(case.decode + case.prefill),
            len(case.lengths),
        ]
        for array in inputs.arrays[4:]:
            assert array.dtype == np.int32


@every_key
def test_poison_is_where_nothing_matters(key):
    for case in cases.cases_for(key):
        inputs = cases.build(case, key)
        padding = inputs.case.num_tokens
        assert is_poison(inputs.queries[padding:]).all()
        assert not is_poison(inputs.queries[:padding]).any()
        for new in (inputs.keys, inputs.values):
            assert is_poison(new if not case.update_kv_cache else new[padding:]).all()
        cache = inputs.kv_cache
        if key.layout == "head_major":
            cache = np.moveaxis(cache, 1, 2)
        cache = cache.reshape(*cache.shape[:2], -1)
        tokens = holds_token(inputs, include_new=not case.update_kv_cache)
        assert is_poison(cache[~tokens]).all()
        # Int8 codes of tokens may be extreme too, where they saturate.
        assert key.kv_dtype == "int8" or not is_poison(cache[tokens]).any()


@every_key
def test_padding_lanes_of_tokens_are_zero(key):
    for case in cases.cases_for(key):
        inputs = cases.build(case, key)
        cache = inputs.expected().kv_cache
        if key.layout == "head_major":
            cache = np.moveaxis(cache, 1, 2)
        cache = cache[holds_token(inputs, include_new=True)].astype(np.float32)
        cache = cache.reshape(len(cache), -1, cache.shape[-1])
        assert not cache[..., case.geometry.head_dim :].any()
        assert not cache[:, 2 * case.geometry.num_kv_heads :].any()
        assert cache[:, : 2 * case.geometry.num_kv_heads, : case.geometry.head_dim].any()


@every_case
@pytest.mark.parametrize("key", [PLAIN, KEYS["window and cap"]], ids=["plain", "window"])
def test_no_two_sequences_share_a_page(case, key):
    case = cases.adapt(case, key)
    inputs = cases.build(case, key)
    geometry = case.geometry
    tables = inputs.page_indices.reshape(geometry.max_seqs, geometry.pages_per_seq)
    in_use = (*case.pages_in_use, *[range(0)] * (geometry.max_seqs - len(case.lengths)))
    used = np.concatenate([table[list(n)] for table, n in zip(tables, in_use, strict=True)])
    assert len(set(used)) == len(used)
    assert (used >= 0).all() and (used < geometry.num_pages).all()
    assert (np.diff(used) < 0).any() or len(used) < 3
    unused = np.concatenate([t[n.stop :] for t, n in zip(tables, in_use, strict=True) if n])
    is_valid = (unused >= 0) & (unused < geometry.num_pages)
    if case.unused_pages_invalid:
        assert not is_valid.any() and -1 in unused and geometry.num_pages in unused
    else:
        assert is_valid.all() and not set(unused) & set(used)


@every_case
def test_what_nobody_may_look_at_is_no_page(case):
    """All that `validate_inputs` says may be anything: it takes it, and the reference too."""
    key = KEYS["window and cap"]
    case = cases.adapt(case, key)
    inputs = cases.build(case, key)
    geometry = case.geometry
    tables = inputs.page_indices.reshape(geometry.max_seqs, geometry.pages_per_seq)
    for table, (q_len, kv_len) in zip(tables, case.lengths, strict=False):
        first_key = max(kv_len - q_len - case.sliding_window + 1, 0)
        nobodys = table[: first_key // geometry.page_size] if q_len else table
        assert ((nobodys < 0) | (nobodys >= geometry.num_pages)).all()
    assert np.isfinite(inputs.expected().out[inputs.expected().written]).all()


def test_there_are_pages_that_nobody_may_look_at():
    """Of every kind, in each range, and some so near that one page too early is one of them."""
    windowed = [cases.adapt(case, KEYS["window and cap"]) for case in cases.NAMED_CASES]
    for lengths_of in (lambda c: c.decode, lambda c: c.prefill, lambda c: c.mixed):
        assert any(
            kv_len - q_len + 1 - case.sliding_window >= case.geometry.page_size
            for case in windowed
            for q_len, kv_len in lengths_of(case)
            if q_len
        )
    for lengths_of in (lambda c: c.prefill, lambda c: c.mixed):
        assert any(q_len == 0 < kv_len for case in windowed for q_len, kv_len in lengths_of(case))


def logits(name: str) -> np.ndarray:
    """Products of the queries and keys of a case, scaled: f32[tokens, tokens]."""
    (case,) = (case for case in cases.NAMED_CASES if case.name == name)
    inputs = cases.build(cases.adapt(case, PLAIN), PLAIN)
    queries, keys = (
        array[: case.num_tokens, 0].astype(np.float32) for array in (inputs.queries, inputs.keys)
    )
    return case.geometry.sm_scale * queries @ keys.T


def test_large_logits_are_large():
    assert np.abs(logits("gqa4_large_logits")).max() > 200
    assert np.abs(logits("gqa4_three_ranges")).max() < 20


def test_large_logits_meet_queries_of_one_key():
    """A maximum far below zero is no maximum of many keys: a query has to see one or two."""
    (case,) = (case for case in cases.NAMED_CASES if case.name == "gqa4_large_logits")
    for lengths in (case.decode, case.prefill, case.mixed):
        assert any(q_len == kv_len for q_len, kv_len in lengths)
    own = np.diagonal(logits("gqa4_large_logits"))
    starts = np.cumsum([0, *(q_len for q_len, _ in case.lengths)])
    assert min(own[s] for s, (q, kv) in zip(starts, case.lengths, strict=False) if q == kv) < -90


@every_key
def test_pages_and_tokens_have_numbers_beyond_16_and_8_bits(key):
    """And the cache of so many pages stays small."""
    (case,) = (case for case in cases.cases_for(key) if case.name == "many_pages")
    inputs = cases.build(case, key)
    tables = inputs.page_indices.reshape(case.geometry.max_seqs, -1)
    for table, pages in zip(tables, case.pages_in_use, strict=False):
        assert (table[pages.start : pages.stop] >= 1 << 16).all()
    (first_mixed, *_) = inputs.cu_q_lens[len(case.decode + case.prefill) :]
    assert first_mixed > 255 and inputs.cu_q_lens[len(case.lengths) - 2] > 255
    assert inputs.kv_cache.nbytes < 70 << 20


def test_equal_scores_are_equal():
    scores = logits("gqa4_equal_scores")
    assert (scores == scores[:, :1]).all() and (scores > 0).any() and (scores < 0).any()


def test_values_have_both_signs_and_some_saturate():
    for name in ("float8", "int8"):
        key = KEYS[name]
        stored = []
        for case in [each for each in cases.cases_for(key) if each.data == "normal"]:
            inputs = cases.build(case, key)
            assert (inputs.queries[: case.num_tokens] < 0).mean() == pytest.approx(0.5, abs=0.1)
            slots = holds_token(inputs, include_new=True)
            stored.append(np.abs(inputs.expected().kv_cache[slots].astype(np.float32)).ravel())
        largest = 448 if name == "float8" else 127
        share = (np.concatenate(stored) >= largest).mean()
        assert 1e-5 < share < 1e-2


@every_key
def test_the_reference_touches_no_poison(key):
    for case in cases.cases_for(key):
        result = cases.build(case, key).expected()
        assert np.isfinite(result.out[result.written]).all()
        assert result.written.sum() == case.num_tokens


def test_one_slot_too_many_is_noticed():
    """Unless a sequence fills its last page, whatever reads on meets NaN."""
    case = dataclasses.replace(cases.NAMED_CASES[0], causal=False, update_kv_cache=False)
    inputs = cases.build(case, PLAIN)
    inputs = dataclasses.replace(inputs, kv_lens=inputs.kv_lens + 1)
    assert np.isnan(inputs.expected().out).all()


def test_same_seed_same_arrays():
    case = cases.NAMED_CASES[0]
    first, again, other = (cases.build(case, PLAIN, seed) for seed in (3, 3, 4))
    for one, two in zip(first.arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), two.view(np.uint8))
    assert not np.array_equal(first.page_indices, other.page_indices)
    assert not np.array_equal(first.queries, other.queries)


def test_arrays_do_not_depend_on_the_hash_seed():
    program = (
        "from tests.test_cases import PLAIN; from rpagen.evidence import cases; import zlib;"
        "inputs = cases.build(cases.NAMED_CASES[0], PLAIN);"
        "print([zlib.crc32(array.tobytes()) for array in inputs.arrays])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_arguments_of_kernel_and_reference():
    case = cases.cases_for(KEYS["kv_share"])[0]
    inputs = cases.build(case, KEYS["kv_share"])
    assert inputs.kernel_kwargs == {
        "sm_scale": 0.21,
        "sliding_window": None,
        "soft_cap": None,
        "q_scale": None,
        "k_scale": None,
        "v_scale": None,
        "chunk_prefill_size": 16,
        "update_kv_cache": False,
        "use_causal_mask": True,
        "out_dtype": None,
        "d_block_sizes": (1, 64, 1, 32),
        "p_block_sizes": (16, 64, 8, 32),
        "m_block_sizes": (16, 64, 8, 32),
    }
    assert isinstance(inputs.expected(), reference.Result)
