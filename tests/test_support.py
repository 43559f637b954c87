"""What the kernels share on the host: checks with their texts, plans of launches, platforms."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from rpa_kernels import support

from rpagen.evidence import compile as aot
from rpagen.evidence.interpreter import tpu_interpret_mode

RPA = rpa_kernels.load("rpa").VARIANT
INT8 = rpa_kernels.load("rpa_int8").VARIANT
HEAD_MAJOR = rpa_kernels.load("rpa_head_major").VARIANT
KV_SHARE = rpa_kernels.load("rpa_kv_share").VARIANT

NAMES = (
    "queries",
    "keys",
    "values",
    "kv_cache",
    "kv_lens",
    "page_indices",
    "cu_q_lens",
    "distribution",
)


def operands(**changed: Any) -> dict[str, Any]:
    """Operands that fit `rpa`: 6 tokens, 8 query and 2 kv heads, 4 sequences of 3 pages."""
    return {
        "queries": np.zeros((6, 8, 64), jnp.bfloat16),
        "keys": np.zeros((6, 2, 64), jnp.bfloat16),
        "values": np.zeros((6, 2, 64), jnp.bfloat16),
        "kv_cache": np.zeros((10, 16, 2, 2, 128), jnp.bfloat16),
        "kv_lens": np.zeros(4, np.int32),
        "page_indices": np.zeros(12, np.int32),
        "cu_q_lens": np.zeros(5, np.int32),
        "distribution": np.zeros(3, np.int32),
        **changed,
    }


def text_of(error: type[Exception], function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def tpu_mesh(device_kind: str) -> Any:
    """The context of a trace for that device."""
    platform = "tpu" if device_kind.startswith("TPU") else "cpu"
    device = AbstractDevice(device_kind=device_kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


# --- operands ------------------------------------------------------------------------------------


def test_sizes_of_a_call():
    assert support.check_operands(RPA, **operands()) == support.Problem(
        tokens=6,
        query_heads=8,
        kv_heads=2,
        head_dim=64,
        page_size=16,
        sequences=4,
        pages_per_sequence=3,
        query_bytes=2,
        kv_row_bytes=1024,
        layout="head_interleaved",
    )
    # The same from jax's arrays, and where each is traced.
    on_device = {name: jnp.asarray(array) for name, array in operands().items()}
    expected = support.check_operands(RPA, **operands())
    assert support.check_operands(RPA, **on_device) == expected
    jax.eval_shape(
        lambda each: _assert_equal(support.check_operands(RPA, **each), expected), on_device
    )


def _assert_equal(one: Any, other: Any) -> None:
    assert one == other


def test_numpys_64_bits_are_what_jax_makes_of_them():
    wide = {
        name: np.zeros(operands()[name].shape, np.int64)
        for name in ("kv_lens", "page_indices", "cu_q_lens", "distribution")
    }
    assert support.check_operands(RPA, **operands(**wide)).sequences == 4
    with jax.enable_x64(True):
        text = text_of(ValueError, support.check_operands, RPA, **operands(**wide))
    assert text == "kv_lens is int64; expected int32: convert it with .astype(jnp.int32)"


TOKENS = "give the new tokens of all sequences one after the other"
CACHE = "make it with get_kv_cache_shape(pages, page_size, 2, 64, dtype)"
PAGES = "give the pages of all sequences one after the other, as page_indices.reshape(-1)"
STARTS = "give the row of queries where each sequence of kv_lens begins, and where the last ends"
BFLOAT16 = "convert it with .astype(jnp.bfloat16)"


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("queries", [[1.0]], "is a list; expected an array: give jnp.asarray(...) of it"),
        ("kv_lens", [1, 2, 3, 4], "is a list; expected an array: give jnp.asarray(...) of it"),
        ("keys", None, "is a NoneType; expected an array: give jnp.asarray(...) of it"),
        ("kv_cache", 1.0, "is a float; expected an array: give jnp.asarray(...) of it"),
        ("kv_lens", np.array(list("abcd")), "is an array of <U1; expected numbers: convert it"),
        ("cu_q_lens", np.zeros(5, bool), "is an array of bool; expected numbers: convert it"),
        # Shapes.
        (
            "queries",
            np.zeros((6, 64), jnp.bfloat16),
            f"has shape [6, 64]; expected [tokens, query heads, head dim]: {TOKENS}",
        ),
        (
            "queries",
            np.zeros((0, 8, 64), jnp.bfloat16),
            "has shape [0, 8, 64]; expected [tokens, query heads, head dim], none of them 0:"
            f" {TOKENS}",
        ),
        (
            "keys",
            np.zeros((7, 2, 64), jnp.bfloat16),
            "has shape [7, 2, 64]; expected [6, kv heads, 64]: give a row for each row of queries",
        ),
        (
            "keys",
            np.zeros((6, 0, 64), jnp.bfloat16),
            "has shape [6, 0, 64]; expected [6, kv heads, 64], none of them 0: give a row for each"
            " row of queries",
        ),
        (
            "values",
            np.zeros((6, 2, 128), jnp.bfloat16),
            "has shape [6, 2, 128]; expected [6, 2, 64]: give the same shape as keys",
        ),
        (
            "kv_cache",
            np.zeros((10, 16, 4, 128), jnp.bfloat16),
            "has shape [10, 16, 4, 128]; expected [pages, page size, words, packing, head dim]:"
            f" {CACHE}",
        ),
        (
            "kv_cache",
            np.zeros((10, 0, 2, 2, 128), jnp.bfloat16),
            "has shape [10, 0, 2, 2, 128]; expected [pages, page size, words, packing, head dim],"
            f" none of them 0: {CACHE}",
        ),
        (
            "kv_cache",
            np.zeros((10, 16, 2, 2, 64), jnp.bfloat16),
            f"has shape [10, 16, 2, 2, 64]; expected [10, 16, 2, 2, 128]: {CACHE}",
        ),
        (
            "kv_lens",
            np.zeros((2, 2), np.int32),
            "has shape [2, 2]; expected [sequences]: give the number of keys of each sequence",
        ),
        (
            "kv_lens",
            np.zeros(0, np.int32),
            "has shape [0]; expected [sequences], none of them 0: give the number of keys of each"
            " sequence",
        ),
        (
            "page_indices",
            np.zeros((4, 3), np.int32),
            f"has shape [4, 3]; expected [sequences * pages per sequence]: {PAGES}",
        ),
        (
            "page_indices",
            np.zeros(0, np.int32),
            "has shape [0]; expected [sequences * pages per sequence], none of them 0: " + PAGES,
        ),
        (
            "page_indices",
            np.zeros(13, np.int32),
            "has 13 entries; expected a multiple of 4, the sequences in kv_lens: give each sequence"
            " the same number of pages, its last ones unused",
        ),
        ("cu_q_lens", np.zeros(4, np.int32), f"has shape [4]; expected [5]: {STARTS}"),
        (
            "distribution",
            np.zeros(2, np.int32),
            "has shape [2]; expected [3]: give the ends of the decode, the prefill and the mixed"
            " sequences",
        ),
        # Dtypes.
        ("queries", np.zeros((6, 8, 64), np.float32), f"is float32; expected bfloat16: {BFLOAT16}"),
        (
            "keys",
            np.zeros((6, 2, 64), np.float16),
            f"is float16; expected bfloat16 or float32: {BFLOAT16}",
        ),
        ("values", np.zeros((6, 2, 64), np.int8), f"is int8; expected bfloat16: {BFLOAT16}"),
        (
            "kv_cache",
            np.zeros((10, 16, 4, 1, 128), np.float32),
            "is float32; expected bfloat16: make it in that dtype, or load a variant for this one",
        ),
        (
            "page_indices",
            np.zeros(12, np.float32),
            "is float32; expected int32: convert it with .astype(jnp.int32)",
        ),
        (
            "distribution",
            np.zeros(3, np.uint32),
            "is uint32; expected int32: convert it with .astype(jnp.int32)",
        ),
    ],
)
def test_an_operand_that_does_not_fit(name, array, text):
    said = text_of(ValueError, support.check_operands, RPA, **operands(**{name: array}))
    assert said == f"{name} {text}"


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "head_dim", "text"),
    [
        (
            8,
            3,
            64,
            "queries have 8 heads; expected a multiple of 3, the heads of keys: pad the query heads"
            " of each kv head to the same number",
        ),
        (
            2,
            4,
            64,
            "queries have 2 heads; expected a multiple of 4, the heads of keys: pad the query heads"
            " of each kv head to the same number",
        ),
        (
            8,
            2,
            257,
            "queries have a head dim of 257; expected at most 256: no kernel is emitted for more",
        ),
        (
            8,
            2,
            0,
            "queries has shape [6, 8, 0]; expected [tokens, query heads, head dim], none of them 0:"
            f" {TOKENS}",
        ),
    ],
)
def test_heads_that_do_not_fit(query_heads, kv_heads, head_dim, text):
    new_kv = np.zeros((6, kv_heads, head_dim), jnp.bfloat16)
    queries = np.zeros((6, query_heads, head_dim), jnp.bfloat16)
    changed = operands(queries=queries, keys=new_kv, values=new_kv)
    assert text_of(ValueError, support.check_operands, RPA, **changed) == text


def test_new_keys_and_values_may_be_wider_than_a_cache_of_codes():
    cache = np.zeros((10, 16, 1, 4, 128), np.int8)
    for dtype in (np.int8, jnp.bfloat16, np.float32):
        new_kv = np.zeros((6, 2, 64), dtype)
        support.check_operands(INT8, **operands(kv_cache=cache, keys=new_kv, values=new_kv))
    wrong = np.zeros((6, 2, 64), np.float16)
    said = text_of(ValueError, support.check_operands, INT8, **operands(kv_cache=cache, keys=wrong))
    assert said == (
        "keys is float16; expected int8 or bfloat16 or float32: convert it with .astype(jnp.int8)"
    )


def test_dtypes_of_keys_and_values_do_not_matter_where_they_are_not_used():
    new_kv = np.zeros((6, 2, 64), np.float16)
    support.check_operands(KV_SHARE, **operands(keys=new_kv, values=new_kv))


def test_layouts_by_rank():
    cache = np.zeros((10, 4, 16, 128), jnp.bfloat16)
    assert support.layout_of(cache) == "head_major"
    assert support.layout_of(operands()["kv_cache"]) == "head_interleaved"
    assert support.check_operands(HEAD_MAJOR, **operands(kv_cache=cache)).page_size == 16
    # The compiler refuses pages that begin within a word.
    odd = np.zeros((10, 4, 15, 128), jnp.bfloat16)
    assert text_of(ValueError, support.check_operands, HEAD_MAJOR, **operands(kv_cache=odd)) == (
        "kv_cache has pages of 15 tokens; expected a multiple of 2, since head_major packs the"
        " tokens of a page: give 16"
    )
    assert text_of(ValueError, support.layout_of, np.zeros((3, 4))) == (
        "kv_cache has shape [3, 4]; expected one of 4 or 5 axes: make it with"
        " get_kv_cache_shape(...)"
    )


# --- options -------------------------------------------------------------------------------------


class Index:
    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(7), jnp.asarray(7), Index()])
def test_sizes(value):
    size = support.check_size("chunk_prefill_size", value)
    assert type(size) is int and size in (1, 7)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (-3, "-3"),
        (True, "True"),
        (np.True_, "np.True_"),
        (2.0, "2.0"),
        ("2", "'2'"),
        ((2,), "(2,)"),
        (None, "None"),
    ],
)
def test_what_is_no_size(value, said):
    assert text_of(ValueError, support.check_size, "chunk_prefill_size", value) == (
        f"chunk_prefill_size is {said}; expected a whole number above zero"
    )


def test_a_size_cannot_be_traced():
    check = jax.jit(lambda value: support.check_size("sliding_window", value))
    assert text_of(ValueError, check, 3) == (
        "sliding_window is traced; expected a whole number above zero: make it a static argument of"
        " the function that is traced"
    )


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float16(2), np.array(2.0), np.int8(2)])
def test_numbers_are_scalars(value):
    scalar = support.check_scalar("sm_scale", value)
    assert type(scalar) is float and scalar == 2.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
def test_traced_scalars_are_float32(dtype):
    """In their own dtype a product with them would be rounded to it."""
    value = jnp.asarray(3, dtype)
    scalar = jax.jit(lambda each: support.check_positive("k_scale", each))(value)
    assert scalar.dtype == jnp.float32 and scalar == 3
    known = support.check_scalar("sm_scale", value)
    assert type(known) is float and known == 3.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        ("1", "'1'"),
        (True, "True"),
        (1j, "1j"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ([1.0], "[1.0]"),
        (np.ones(1), "float64[1]"),
        (jnp.ones((2, 3)), "float32[2, 3]"),
        (jnp.asarray(True), "True"),
        (jnp.float32(math.nan), "nan"),
    ],
)
def test_what_is_no_scalar(value, said):
    assert text_of(ValueError, support.check_scalar, "sm_scale", value) == (
        f"sm_scale is {said}; expected one finite number, or an array of shape ()"
    )


@pytest.mark.parametrize("value", [0, 0.0, -1.5, np.float32(-1.5)])
def test_what_is_not_positive(value):
    assert support.check_scalar("sm_scale", value) == value
    assert text_of(ValueError, support.check_positive, "soft_cap", value) == (
        f"soft_cap is {value!r}; expected a number above zero"
    )


@pytest.mark.parametrize("value", [1e39, -1e39, 3.5e38, np.float64(1e300)])
def test_what_is_infinite_in_float32(value):
    for check in (support.check_scalar, *[support.check_positive] * int(value > 0)):
        assert text_of(ValueError, check, "sm_scale", value) == (
            f"sm_scale is {float(value)!r}; expected at most 3.4e+38, the largest number of float32"
        )
    assert support.check_scalar("sm_scale", 3.4e38) == 3.4e38


@pytest.mark.parametrize("value", [1e-50, 1e-46, 1e-39])
def test_what_is_zero_in_float32(value):
    """As a factor that is what was asked for; as what is divided by, it is not."""
    assert support.check_scalar("sm_scale", value) == value
    assert text_of(ValueError, support.check_positive, "k_scale", value) == (
        f"k_scale is {value!r}; expected at least 1.18e-38: what is smaller is zero to a TPU"
    )
    assert support.check_positive("k_scale", 1.2e-38) == 1.2e-38


def test_products_of_scales_fit_float32_too():
    assert support.pack_scales(2.0, 0.0, jnp.float32(3)).tolist() == [2, 0, 3]
    assert support.pack_scales(-2.0).dtype == jnp.float32
    made = "what sm_scale, soft_cap and the scales make together is"
    assert text_of(ValueError, support.pack_scales, 1.0, -1e60) == (
        f"{made} -1e+60; expected at most 3.4e+38, the largest number of float32"
    )
    assert text_of(ValueError, support.pack_scales, -1e-60) == (
        f"{made} 1e-60; expected at least 1.18e-38: what is smaller is zero to a TPU"
    )


@pytest.mark.parametrize("value", [True, False, np.bool_(True), np.bool_(False)])
def test_flags(value):
    assert support.check_flag("use_causal_mask", value) is bool(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        (1, "1"),
        ("True", "'True'"),
        (np.array([True, False]), "bool[2]"),
        (jnp.asarray(True), "bool[]"),
    ],
)
def test_what_is_no_flag(value, said):
    assert text_of(ValueError, support.check_flag, "use_causal_mask", value) == (
        f"use_causal_mask is {said}; expected True or False"
    )


def test_a_flag_cannot_be_traced():
    flag = jax.jit(lambda value: support.check_flag("return_lse", value))
    assert text_of(ValueError, flag, True) == (
        "return_lse is traced; expected True or False: make it a static argument of the function"
        " that is traced"
    )


def test_output_dtypes():
    queries = operands()["queries"]
    assert support.check_out_dtype(None, queries) == jnp.bfloat16
    assert support.check_out_dtype(None, queries.astype(np.float64)) == jnp.float32
    for dtype in ("bfloat16", jnp.bfloat16, "float8_e4m3fn"):
        assert support.check_out_dtype(dtype, queries) == jnp.dtype(dtype)
    for dtype in ("float32", np.dtype("float16"), "bfloat16"):
        of_float32 = queries.astype(np.float32)
        assert support.check_out_dtype(dtype, of_float32) == jnp.dtype(dtype)
    assert text_of(ValueError, support.check_out_dtype, jnp.float32, queries) == (
        "out_dtype is float32; expected one no finer than bfloat16, the dtype of queries, to which"
        " kernels round: convert the output, or give the queries in float32"
    )
    for dtype in ("float33", "float64", "int8", 3):
        assert text_of(ValueError, support.check_out_dtype, dtype, queries) == (
            f"out_dtype is {dtype!r}; expected a floating dtype of at most 32 bits, such as"
            " jnp.bfloat16, or None for that of queries"
        )


# --- launches ------------------------------------------------------------------------------------

PROBLEM = support.check_operands(RPA, **operands())
NO_BLOCKS = {"decode": None, "prefill": None, "mixed": None}


def plan(problem: support.Problem = PROBLEM, **changed: Any) -> tuple[support.Launch, ...]:
    options = {
        "kv_slots": {"decode": 2, "prefill": 2, "mixed": 3},
        "chunk_prefill_size": None,
        "block_sizes": NO_BLOCKS,
        "vmem_limit_bytes": None,
        "distribution": np.array([1, 2, 4], np.int32),
        **changed,
    }
    return support.plan_launches(support.Launch, problem, **options)


def parts(launches: tuple[support.Launch, ...]) -> list[tuple[str, int, int, int | None]]:
    return [(each.name, each.first_bound, each.end_bound, each.static_tokens) for each in launches]


def test_launches_of_a_call():
    decode, mixed = plan()
    assert parts((decode, mixed)) == [("decode", 0, 1, 1), ("mixed", 1, 3, None)]
    assert parts(plan(chunk_prefill_size=5)) == [
        ("decode", 0, 1, 1),
        ("prefill", 1, 2, 5),
        ("mixed", 2, 3, None),
    ]
    assert decode.query_block == decode.query_tile == 1
    assert (decode.kv_slots, mixed.kv_slots) == (2, 3)
    assert mixed.query_tile == 8  # six tokens
    assert mixed.kv_block == mixed.compute_block == 48  # three pages of 16
    assert mixed.vmem_limit_bytes == support.VMEM_BYTES["v6e"]


@pytest.mark.parametrize(
    ("distribution", "chunk", "names"),
    [
        ((4, 4, 4), 5, ["decode"]),
        ((0, 4, 4), 5, ["prefill"]),
        ((0, 4, 4), None, ["mixed"]),
        ((0, 0, 4), 5, ["mixed"]),
        ((1, 1, 4), 5, ["decode", "mixed"]),
        ((0, 0, 0), 5, []),
    ],
)
def test_a_part_that_is_known_to_be_empty_has_no_launch(distribution, chunk, names):
    for make in (np.array, jnp.array):
        launches = plan(distribution=make(distribution), chunk_prefill_size=chunk)
        assert [launch.name for launch in launches] == names


def test_a_traced_distribution_has_all_launches():
    names = []
    jax.eval_shape(
        lambda each: names.extend(launch.name for launch in plan(distribution=each)),
        np.zeros(3, np.int32),
    )
    assert names == ["decode", "mixed"]


@pytest.mark.parametrize("distribution", [(2, 1, 4), (0, 3, 2), (-1, 2, 4), (0, 0, 5)])
def test_a_known_distribution_is_checked(distribution):
    assert text_of(ValueError, plan, distribution=np.array(distribution)) == (
        f"distribution is {list(distribution)}; expected ends in ascending order, from 0 to 4: give"
        " where the decode, the prefill and the mixed sequences of kv_lens end"
    )


@pytest.mark.parametrize(
    ("blocks", "static_tokens", "fitted"),
    [
        (None, None, (16, 64, 16, 64)),
        ((32, 128, 8, 32), None, (32, 128, 8, 32)),
        ([32, 128, 8, 32], None, (32, 128, 8, 32)),
        (tuple(map(np.int64, (32, 128, 8, 32))), None, (32, 128, 8, 32)),
        # What is None is chosen: a query tile divides its block.
        ((None, None, None, None), None, (16, 64, 16, 64)),
        ((None, 1024, None, None), None, (16, 1024, 16, 512)),
        ((100, None, None, None), None, (100, 64, 10, 64)),
        ((8, None, None, None), None, (8, 64, 8, 64)),
        ((None, None, 4, None), None, (4, 64, 4, 64)),
        ((None, None, None, 32), None, (16, 64, 16, 32)),
        # Cut to the tokens that a sequence can have.
        ((32, 128, 8, 32), 1, (1, 128, 1, 32)),
        ((32, 128, 8, 32), 3, (3, 128, 3, 32)),
        ((32, 128, 8, 32), 12, (16, 128, 8, 32)),
        ((32, 128, 8, 32), 100, (32, 128, 8, 32)),
    ],
)
def test_blocks_are_completed_and_cut(blocks, static_tokens, fitted):
    chosen = support.fit_blocks("mixed", blocks, (16, 64, 16, 64), static_tokens, 16)
    assert chosen == fitted and all(type(size) is int for size in chosen)


FORM = (
    "expected (query block, KV block, query tile, compute block) in tokens, with None for what is"
    " to be chosen"
)


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (64, f"m_block_sizes is 64; {FORM}"),
        ((64, 64, 64), f"m_block_sizes is (64, 64, 64); {FORM}"),
        ("abcd", f"m_block_sizes is 'abcd'; {FORM}"),
        (
            (8.0, 64, 8, 64),
            "the query block in m_block_sizes is 8.0; expected a whole number above zero",
        ),
        ((8, 0, 8, 64), "the KV block in m_block_sizes is 0; expected a whole number above zero"),
        (
            (8, 64, -8, 64),
            "the query tile in m_block_sizes is -8; expected a whole number above zero",
        ),
        (
            (8, 64, 8, True),
            "the compute block in m_block_sizes is True; expected a whole number above zero",
        ),
        (
            (8, 64, 3, 64),
            "the query block in m_block_sizes is 8; expected a multiple of the query tile, 3:"
            " give 9",
        ),
        (
            (8, 40, 8, 64),
            "the KV block in m_block_sizes is 40; expected a multiple of the page size, 16:"
            " give 48",
        ),
    ],
)
def test_blocks_that_do_not_fit(blocks, text):
    assert text_of(ValueError, plan, block_sizes={**NO_BLOCKS, "mixed": blocks}) == text


@pytest.mark.parametrize("name", ["chunk_prefill_size", "vmem_limit_bytes"])
def test_options_of_a_plan_are_sizes(name):
    for value in (0, -1, True, 2.5):
        assert text_of(ValueError, plan, **{name: value}) == (
            f"{name} is {value!r}; expected a whole number above zero"
        )


def test_vmem_that_does_not_suffice():
    blocks = {**NO_BLOCKS, "decode": (1, 1 << 20, 1, 512)}
    text = (
        " bytes of VMEM with the blocks {blocks}, {left} of them for the compiler; expected at most"
        " {limit} on v6e: give smaller d_block_sizes (query block, KV block, query tile, compute"
        " block), smaller pages or a larger vmem_limit_bytes"
    )
    assert text_of(ValueError, plan, block_sizes=blocks) == (
        "the decode launch needs 2148359168"
        + text.format(blocks=(1, 1 << 20, 1, 512), left=812032, limit=128 << 20)
    )
    # A limit is no larger than VMEM is.
    assert plan(vmem_limit_bytes=1 << 40) == plan()
    # Default blocks keep to a smaller one as long as they can.
    assert plan(vmem_limit_bytes=1 << 20)[1].kv_block == 48
    assert plan(vmem_limit_bytes=270_000, distribution=np.array([4, 4, 4]))[0].kv_block == 16
    assert text_of(ValueError, plan, vmem_limit_bytes=1000) == (
        "the decode launch needs 253568"
        + text.format(blocks=(1, 16, 1, 16), left=157312, limit=1000)
    )


def test_a_page_table_that_smem_cannot_hold():
    """A million tokens fit in pages of 16, but not for all sequences of a large batch."""
    large = operands(
        kv_lens=np.zeros(64, np.int32),
        cu_q_lens=np.zeros(65, np.int32),
        page_indices=np.zeros(64 << 16, np.int32),
    )
    assert text_of(ValueError, plan, support.check_operands(RPA, **large)) == (
        "page_indices holds 65536 pages for each of 64 sequences, which needs 16790016 bytes of"
        " SMEM; expected at most 1048576: use larger pages, fewer sequences a call, or shorter ones"
    )
    one = operands(
        kv_lens=np.zeros(1, np.int32),
        cu_q_lens=np.zeros(2, np.int32),
        page_indices=np.zeros(1 << 16, np.int32),
    )
    assert plan(support.check_operands(RPA, **one), distribution=np.array([1, 1, 1]))


def pallas_calls(jaxpr: Any) -> Iterator[Any]:
    """The launches in a jaxpr, those in the functions that it calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        else:
            for inner in jax.tree.leaves(list(equation.params.values())):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from pallas_calls(inner)


def traced(module: Any, shape: aot.CallShape, **options: Any) -> list[Any]:
    """The launches that a call is traced to."""
    call = functools.partial(module.ragged_paged_attention, **aot.options_of(module.VARIANT))
    with tpu_mesh("TPU v6 lite"):
        jaxpr = jax.make_jaxpr(functools.partial(call, **options))(*aot.operands_of(module, shape))
    return list(pallas_calls(jaxpr.jaxpr))


@pytest.mark.parametrize(("distribution", "launches"), [((0, 0, 0), 0), ((4, 4, 4), 1)])
def test_nothing_is_traced_for_a_part_that_is_known_to_be_empty(distribution, launches):
    *arrays, _ = operands().values()
    call = functools.partial(
        rpa_kernels.ragged_paged_attention, distribution=np.array(distribution, np.int32)
    )
    with tpu_mesh("TPU v6 lite"):
        jaxpr = jax.make_jaxpr(call)(*arrays)
    assert len(list(pallas_calls(jaxpr.jaxpr))) == launches


def padded_size(array: Any) -> int:
    """The values of an array in VMEM, whose rows come in ones, twos, fours and eights."""
    *outer, rows, lanes = array.shape
    multiple = next((each for each in (1, 2, 4) if rows <= each), 8)
    return math.prod(outer) * -(-rows // multiple) * multiple * lanes


@pytest.mark.parametrize(
    "name",
    ["rpa", "rpa_float32", "rpa_int8", "rpa_head_major", "rpa_kv_slots2", "rpa_wait_per_page"],
)
def test_the_budget_is_what_launches_allocate(name, monkeypatch):
    plans = []
    plan_launches = support.plan_launches

    def recorded(make_launch: Any, problem: support.Problem, **options: Any) -> Any:
        launches = plan_launches(make_launch, problem, **options)
        plans.extend((problem, launch) for launch in launches)
        return launches

    monkeypatch.setattr(support, "plan_launches", recorded)
    shape = aot.CallShape(
        query_heads=14,
        kv_heads=2,
        head_dim=80,
        page_size=48,
        tokens=300,
        sequences=4,
        pages_per_sequence=40,
    )
    calls = traced(rpa_kernels.load(name), shape, chunk_prefill_size=100)
    assert len(calls) == len(plans) == 3
    for call, (problem, launch) in zip(calls, plans, strict=True):
        count = call.params["grid_mapping"].num_scratch_operands
        scratch = [variable.aval for variable in call.params["jaxpr"].invars[-count:]]
        in_vmem = [each for each in scratch if "vmem" in str(each)]
        in_smem = [each for each in scratch if "smem" in str(each)]
        allocated = sum(padded_size(each) * each.dtype.itemsize for each in in_vmem)
        assert allocated == support.vmem_bytes(
            query_bytes=problem.query_bytes,
            kv_row_bytes=problem.widths["kv_row_bytes"],
            kv_heads=launch.kv_heads,
            group=launch.group,
            head_dim=launch.head_dim,
            kv_slots=launch.kv_slots,
            query_slots=launch.query_slots,
            query_block=launch.query_block,
            kv_block=launch.kv_block,
            compute_block=launch.compute_block,
        )
        # As `smem_bytes` has it: about so many arrays, none of more than 128 words.
        assert len(in_smem) in (4, 5, 6) and all(math.prod(each.shape) <= 128 for each in in_smem)


# --- platforms and transformations ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_kind", "generation"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5e", "v5e"),
        ("TPU v6 lite", "v6e"),
        ("TPU v6e", "v6e"),
        ("TPU7x", "v7x"),
        ("cpu", "v6e"),
    ],
)
def test_the_generation_is_that_of_the_abstract_mesh(device_kind, generation):
    with tpu_mesh(device_kind):
        assert support.tpu_generation() == generation


def test_the_generation_off_a_tpu_and_on_one(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert support.tpu_generation() == "v6e"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    device = AbstractDevice(device_kind="TPU7x", num_cores=1, platform="tpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert support.tpu_generation() == "v7x"
    with tpu_mesh("TPU v5 lite"):
        assert support.tpu_generation() == "v5e"


def test_a_tpu_without_kernels():
    with tpu_mesh("TPU v4"):
        assert text_of(ValueError, support.tpu_generation) == (
            "the device is a 'TPU v4'; expected one of TPU v5 lite, TPU v5e, TPU v6 lite, TPU v6e,"
            " TPU7, TPU7x: kernels are emitted for no other TPU"
        )


ON_CPU = (
    "this kernel runs on TPUs, and the backend is cpu: to run it here, slowly, wrap the call in"
    " rpagen.evidence.interpreter.tpu_interpret_mode(); to compile it for a TPU that is not here,"
    " trace it under an abstract mesh of that TPU"
)


def test_a_cpu_is_refused_outside_of_interpret_mode(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    arrays = [jnp.asarray(array) for array in operands().values()]
    for call in (rpa_kernels.ragged_paged_attention, jax.jit(rpa_kernels.ragged_paged_attention)):
        assert text_of(RuntimeError, call, *arrays) == ON_CPU
    with tpu_mesh("cpu"):
        assert text_of(RuntimeError, support.check_platform) == ON_CPU
    for context in (tpu_mesh("TPU7x"), tpu_interpret_mode()):
        with context:
            support.check_platform()


NO_DERIVATIVE = (
    "ragged_paged_attention has no derivative: it is for inference; train with an attention that"
    " keeps no cache"
)


def test_derivatives_and_batches_are_refused():
    arrays = [jnp.asarray(array) for array in operands().values()]

    def total(queries: jax.Array, sm_scale: Any = 1.0) -> jax.Array:
        out, _ = rpa_kernels.ragged_paged_attention(queries, *arrays[1:], sm_scale=sm_scale)
        return out.astype(jnp.float32).sum()

    queries = arrays[0]
    with tpu_mesh("TPU v6 lite"):
        for differentiate in (jax.grad(total), jax.jit(jax.grad(total)), jax.grad(jax.jit(total))):
            assert text_of(NotImplementedError, differentiate, queries) == NO_DERIVATIVE
        scale_gradient = jax.grad(total, argnums=1)
        assert text_of(NotImplementedError, scale_gradient, queries, 1.0) == NO_DERIVATIVE
        forward = functools.partial(jax.jvp, total)
        assert text_of(NotImplementedError, forward, [queries], [queries]) == NO_DERIVATIVE
        assert text_of(NotImplementedError, jax.vmap(total), queries[None]) == (
            "ragged_paged_attention has no jax.vmap: give it all sequences in one call, each with"
            " its part of queries and its pages"
        )


def test_kernels_count_in_32_bits():
    guarded = support.for_inference(lambda x: x + jnp.arange(x.shape[0]))
    with jax.enable_x64(True):
        assert guarded(jnp.arange(3, dtype=jnp.int32)).dtype == jnp.int32
        traced_too = jax.jit(guarded)(jnp.arange(3, dtype=jnp.int32))
        assert traced_too.dtype == jnp.int32 and traced_too.tolist() == [0, 2, 4]


def test_x64_mode_traces_the_same_launches():
    shape = aot.CallShape(8, 2, 64, 16, 6, 4, 3)
    module = rpa_kernels.load("rpa_sliding_window_soft_cap")
    launches = [str(launch.params["jaxpr"]) for launch in traced(module, shape)]
    with jax.enable_x64(True):
        assert [str(launch.params["jaxpr"]) for launch in traced(module, shape)] == launches
