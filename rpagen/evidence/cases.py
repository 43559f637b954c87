"""Ragged workloads that bite: named sets of lengths, and the arrays built from them.

A `Geometry` fixes everything that a kernel is compiled for: shapes, block sizes, static scalars.
A `Case` puts a set of ragged lengths into a geometry, so the cases of one geometry differ in data
alone and share one compilation (those with `new_kv_in_cache_dtype` share another one, where that
is a different dtype).  Cases say nothing of dtypes and features: `cases_for` adapts them to a
dispatch key, which is all of a variant that decides the result of a call, and `build` makes the
arrays.

Whatever must not matter is poison, so that a kernel which lets it count fails loudly: NaN,
infinity, or an extreme value where the dtype has neither.  Poisoned are all cache slots that hold
no token, those that this call is going to write, all pages that belong to no sequence, rows of
queries, keys and values that belong to no token, and keys and values of a call that reads all of
them from the cache.  Entries of `kv_lens` and `cu_q_lens` past the last sequence are far out of
range.  Pages that were there once and that nothing may look at any more are numbers of no page:
those before the window, and all of a sequence without new tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rpagen.evidence import reference
from rpagen.spec import model

Array = npt.NDArray[Any]
Lengths = tuple[tuple[int, int], ...]
Blocks = tuple[int, int, int, int]

# Larger than any length, and small enough that adding a few of them stays an int32.
_OUT_OF_RANGE = 1 << 28


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What a kernel is compiled for, apart from the variant.

    Block sizes are (bq, bkv, bq compute, bkv compute) in tokens.  `sliding_window` (in tokens)
    and `soft_cap` are the values for variants that have these features.
    """

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    pages_per_seq: int
    num_pages: int
    max_seqs: int
    max_tokens: int
    chunk_prefill_size: int | None
    decode_blocks: Blocks
    prefill_blocks: Blocks
    mixed_blocks: Blocks
    sm_scale: float
    sliding_window: int
    soft_cap: float


@dataclasses.dataclass(frozen=True)
class Case:
    """Ragged lengths in a geometry, and what a call does with them.

    decode, prefill, mixed: (q_len, kv_len) of the sequences in each range of `distribution`.
    new_kv_in_cache_dtype: keys and values of this call come in the dtype of the cache instead of
      that of the queries.
    unused_pages_invalid: unused entries of the page table hold -1 or numbers past the last page,
      instead of the numbers of poisoned pages.
    data: what queries and keys are like, see `DATA`.
    poison: what must not matter is, where the dtype has it, see `POISON`.
    window: the sliding window of variants that have one, where it is not that of the geometry.
    out_dtypes: by the dtype of queries, that of the output, where it is not the same. No kernel
      takes a finer one.
    last_pages: the pages of sequences are the last ones of the cache.
    traced: the call is made as engines make it, under `jax.jit` with all operands traced.  Then
      nobody knows which launches have no sequences, and all of them run.
    """

    name: str
    geometry: Geometry
    decode: Lengths = ()
    prefill: Lengths = ()
    mixed: Lengths = ()
    new_kv_in_cache_dtype: bool = False
    unused_pages_invalid: bool = False
    data: str = "normal"
    poison: str = "nan"
    window: int | None = None
    out_dtypes: tuple[tuple[str, str], ...] = ()
    last_pages: bool = False
    traced: bool = False
    sliding_window: int | None = None
    soft_cap: float | None = None
    causal: bool = True
    update_kv_cache: bool = True
    out_dtype: str | None = None
    q_scale: float | None = None
    k_scale: float | None = None
    v_scale: float | None = None

    @property
    def lengths(self) -> Lengths:
        """(q_len, kv_len) of every sequence, in the order of `distribution`."""
        return self.decode + self.prefill + self.mixed

    @property
    def pages_in_use(self) -> tuple[range, ...]:
        """Which entries of its row of the page table each sequence uses.

        They are those from the first key that any query sees to the last one, and none of a
        sequence without new tokens.
        """
        page_size = self.geometry.page_size
        found = []
        for q_len, kv_len in self.lengths:
            first = 0
            if self.sliding_window is not None:
                first = max(kv_len - q_len - self.sliding_window + 1, 0) // page_size
            found.append(range(first, -(-kv_len // page_size)) if q_len else range(0))
        return tuple(found)

    @property
    def num_tokens(self) -> int:
        """Tokens of this call, all sequences together."""
        return sum(q_len for q_len, _ in self.lengths)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arguments of one call."""

    case: Case
    layout: str
    queries: Array
    keys: Array
    values: Array
    kv_cache: Array
    kv_lens: npt.NDArray[np.int32]
    page_indices: npt.NDArray[np.int32]
    cu_q_lens: npt.NDArray[np.int32]
    distribution: npt.NDArray[np.int32]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The positional arguments, of the entry point and of the reference."""
        return (
            self.queries,
            self.keys,
            self.values,
            self.kv_cache,
            self.kv_lens,
            self.page_indices,
            self.cu_q_lens,
            self.distribution,
        )

    @property
    def kernel_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of `rpa_kernels.ragged_paged_attention`."""
        geometry = self.case.geometry
        return {
            **self._scalars,
            "use_causal_mask": self.case.causal,
            "out_dtype": self.case.out_dtype,
            "d_block_sizes": geometry.decode_blocks,
            "p_block_sizes": geometry.prefill_blocks,
            "m_block_sizes": geometry.mixed_blocks,
        }

    @property
    def digest(self) -> str:
        """Of all that a call is given."""
        found = hashlib.sha256(repr(self.kernel_kwargs).encode())
        for array in self.arrays:
            found.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
        return found.hexdigest()[:16]

    def expected(self) -> reference.Result:
        """What the call must return."""
        return reference.reference(
            *self.arrays, layout=self.layout, causal=self.case.causal, **self._scalars
        )

    @property
    def _scalars(self) -> dict[str, Any]:
        case = self.case
        return {
            "sm_scale": case.geometry.sm_scale,
            "sliding_window": case.sliding_window,
            "soft_cap": case.soft_cap,
            "q_scale": case.q_scale,
            "k_scale": case.k_scale,
            "v_scale": case.v_scale,
            "chunk_prefill_size": case.geometry.chunk_prefill_size,
            "update_kv_cache": case.update_kv_cache,
        }


def _draw_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, np.float32)


def _draw_large(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 8 * rng.standard_normal(shape, np.float32)


def _draw_equal(_: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Keys [tokens, kv heads, head dim] that are all the same, and have both signs."""
    return np.broadcast_to(np.cos(np.arange(shape[-1], dtype=np.float32)), shape)


DATA: dict[str, tuple[float, Callable[[np.random.Generator, tuple[int, ...]], Array]]] = {
    "normal": (1.0, _draw_normal),
    # Logits of up to about 200, as real models have them: where scores are rounded before they
    # are scaled, or exponentials taken without their maximum, this shows.
    "large": (8.0, _draw_large),
    # Every score of a query is its maximum.
    "equal": (1.0, _draw_equal),
}
"""The size of queries, and how keys are drawn, by what a case says of them."""

POISON: dict[str, tuple[float, ...]] = {
    "nan": (np.nan,),
    # Which a maximum keeps and a product with zero does not.
    "inf": (np.inf, -np.inf),
    "all": (np.nan, np.inf, -np.inf),
}
"""The values of poison, by what a case says of it."""


# GQA ratio 4.  The page table is 19 pages wide and a block holds 4, so the last block is partial.
GQA4_PAGE16 = Geometry(
    name="gqa4_page16",
    num_q_heads=8,
    num_kv_heads=2,
    head_dim=128,
    page_size=16,
    pages_per_seq=19,
    num_pages=70,
    max_seqs=12,
    max_tokens=64,
    chunk_prefill_size=16,
    decode_blocks=(1, 64, 1, 32),
    prefill_blocks=(16, 64, 8, 32),
    mixed_blocks=(16, 64, 8, 32),
    sm_scale=0.21,
    sliding_window=24,
    soft_cap=3.0,
)
# As many query as kv heads, an odd number of them: rows of padding at packing 4, and no alignment
# anywhere.  Without a chunk size the prefill range is processed as mixed.
MHA3_PAGE4 = Geometry(
    name="mha3_page4",
    num_q_heads=3,
    num_kv_heads=3,
    head_dim=80,
    page_size=4,
    pages_per_seq=15,
    num_pages=64,
    max_seqs=6,
    max_tokens=48,
    chunk_prefill_size=None,
    decode_blocks=(1, 32, 1, 16),
    prefill_blocks=(8, 32, 4, 16),
    mixed_blocks=(8, 32, 4, 16),
    sm_scale=80**-0.5,
    sliding_window=5,
    soft_cap=1.5,
)
# One large kv head, seven query heads: a group that fills no tile.
MQA7_PAGE8 = Geometry(
    name="mqa7_page8",
    num_q_heads=7,
    num_kv_heads=1,
    head_dim=256,
    page_size=8,
    pages_per_seq=13,
    num_pages=48,
    max_seqs=5,
    max_tokens=40,
    chunk_prefill_size=8,
    decode_blocks=(1, 32, 1, 16),
    prefill_blocks=(8, 32, 8, 16),
    mixed_blocks=(8, 32, 4, 16),
    sm_scale=0.25,
    sliding_window=8,
    soft_cap=4.0,
)
# Many heads, pages as large as a compute block.
GQA8_PAGE64 = Geometry(
    name="gqa8_page64",
    num_q_heads=64,
    num_kv_heads=8,
    head_dim=64,
    page_size=64,
    pages_per_seq=3,
    num_pages=12,
    max_seqs=4,
    max_tokens=12,
    chunk_prefill_size=4,
    decode_blocks=(1, 128, 1, 64),
    prefill_blocks=(4, 128, 4, 64),
    mixed_blocks=(4, 128, 4, 64),
    sm_scale=0.09,
    sliding_window=65,
    soft_cap=2.5,
)

# Blocks that fit nothing else: several query blocks in a chunk, the last of them short; compute
# blocks that do not divide the KV block; a group that fills no word; a window of two keys.
GQA3_PAGE8 = Geometry(
    name="gqa3_page8",
    num_q_heads=6,
    num_kv_heads=2,
    head_dim=96,
    page_size=8,
    pages_per_seq=5,
    num_pages=24,
    max_seqs=8,
    max_tokens=27,
    chunk_prefill_size=10,
    decode_blocks=(1, 24, 1, 16),
    prefill_blocks=(4, 24, 2, 16),
    mixed_blocks=(4, 24, 2, 16),
    sm_scale=96**-0.5,
    sliding_window=2,
    soft_cap=3.0,
)

# Attention steps of several registers' lanes, and steps of half the size where scores are masked:
# before the whole blocks of a window, between two KV blocks, and after.
GQA2_PAGE128 = Geometry(
    name="gqa2_page128",
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=128,
    page_size=128,
    pages_per_seq=8,
    num_pages=40,
    max_seqs=8,
    max_tokens=96,
    chunk_prefill_size=16,
    decode_blocks=(1, 512, 1, 256),
    prefill_blocks=(16, 512, 8, 256),
    mixed_blocks=(16, 512, 8, 256),
    sm_scale=128**-0.5,
    sliding_window=600,
    soft_cap=5.0,
)

# More pages than 16 bits count, as small as can be.
MANY_PAGES = Geometry(
    name="many_pages",
    num_q_heads=1,
    num_kv_heads=1,
    head_dim=64,
    page_size=1,
    pages_per_seq=32,
    num_pages=(1 << 16) + 64,
    max_seqs=6,
    max_tokens=280,
    chunk_prefill_size=256,
    decode_blocks=(1, 16, 1, 16),
    prefill_blocks=(128, 16, 64, 16),
    mixed_blocks=(128, 16, 64, 16),
    sm_scale=0.125,
    sliding_window=9,
    soft_cap=2.0,
)

NAMED_CASES = (
    # All three ranges; (1, 32) and (16, 48) end on a page edge, (1, 17) and (1, 1) start a page.
    Case(
        name="gqa4_three_ranges",
        geometry=GQA4_PAGE16,
        decode=((1, 17), (1, 32), (1, 1)),
        prefill=((16, 48), (9, 41)),
        mixed=((5, 70), (21, 21)),
    ),
    # Sequences with no new tokens, with no keys, and with neither.
    Case(
        name="gqa4_empty_sequences",
        geometry=GQA4_PAGE16,
        decode=((1, 33),),
        prefill=((0, 7), (16, 16), (0, 0)),
        mixed=((3, 0), (0, 16), (7, 23), (0, 0)),
        unused_pages_invalid=True,
    ),
    # Lengths at block and compute block edges and their neighbours; more sequences than a launch
    # has slots of queries and of output.
    Case(
        name="gqa4_decode_only",
        geometry=GQA4_PAGE16,
        decode=(
            *((1, 300), (1, 64), (1, 65), (1, 63), (1, 2), (1, 128), (1, 33), (1, 16)),
            *((1, 5), (1, 32), (1, 17), (1, 48)),
        ),
        traced=True,
    ),
    # Tokens fill the array to its last row; last chunks are shorter than the chunk size.
    Case(
        name="gqa4_prefill_only",
        geometry=GQA4_PAGE16,
        prefill=((16, 16), (16, 32), (16, 100), (9, 9), (1, 65), (6, 64)),
        new_kv_in_cache_dtype=True,
        traced=True,
    ),
    # Several query blocks against several KV blocks; 304 tokens fill the page table.
    Case(
        name="gqa4_mixed_only",
        geometry=GQA4_PAGE16,
        mixed=((40, 304), (24, 24)),
        traced=True,
    ),
    Case(
        name="mha3_three_ranges",
        geometry=MHA3_PAGE4,
        decode=((1, 5), (1, 16)),
        prefill=((8, 13), (4, 4)),
        mixed=((11, 30), (2, 60)),
    ),
    Case(
        name="mha3_empty_sequences",
        geometry=MHA3_PAGE4,
        decode=((1, 4),),
        prefill=((0, 0), (6, 33), (0, 9)),
        mixed=((2, 0), (16, 16)),
        new_kv_in_cache_dtype=True,
        unused_pages_invalid=True,
    ),
    Case(
        name="mha3_full",
        geometry=MHA3_PAGE4,
        mixed=((37, 37), (11, 59)),
        out_dtypes=(("bfloat16", "float8_e4m3fn"), ("float32", "bfloat16")),
    ),
    Case(
        name="mqa7_three_ranges",
        geometry=MQA7_PAGE8,
        decode=((1, 9), (1, 40)),
        prefill=((8, 24), (3, 19)),
        mixed=((13, 50),),
    ),
    Case(
        name="mqa7_no_decode",
        geometry=MQA7_PAGE8,
        prefill=((8, 8), (8, 64), (0, 5)),
        mixed=((24, 104), (0, 0)),
        unused_pages_invalid=True,
    ),
    Case(
        name="mqa7_decode_only",
        geometry=MQA7_PAGE8,
        decode=((1, 1), (1, 8), (1, 104), (1, 31), (1, 96)),
        out_dtypes=(("bfloat16", "float8_e5m2"), ("float32", "float16")),
    ),
    Case(
        name="gqa8_three_ranges",
        geometry=GQA8_PAGE64,
        decode=((1, 65),),
        prefill=((4, 130),),
        mixed=((7, 64),),
    ),
    Case(
        name="gqa8_short",
        geometry=GQA8_PAGE64,
        decode=((1, 192),),
        prefill=((3, 3),),
        mixed=((5, 69), (0, 64)),
    ),
    # Queries that see one key or two have a maximum far below zero.
    Case(
        name="gqa4_large_logits",
        geometry=GQA4_PAGE16,
        decode=((1, 120), (1, 1)),
        prefill=((16, 80), (2, 2)),
        mixed=((7, 33), (20, 140), (3, 3)),
        data="large",
    ),
    Case(
        name="gqa4_equal_scores",
        geometry=GQA4_PAGE16,
        decode=((1, 120), (1, 16)),
        prefill=((16, 80),),
        mixed=((7, 33), (20, 140)),
        data="equal",
    ),
    Case(
        name="gqa4_infinite_poison",
        geometry=GQA4_PAGE16,
        decode=((1, 17), (1, 120)),
        prefill=((9, 41), (16, 80)),
        mixed=((3, 0), (5, 70)),
        poison="inf",
    ),
    # A prefill sequence much shorter than its chunk takes turns far past its own keys,
    Case(
        name="gqa3_three_ranges",
        geometry=GQA3_PAGE8,
        decode=((1, 25), (1, 24)),
        prefill=((3, 21), (10, 10), (0, 7), (7, 30)),
        mixed=((5, 9),),
    ),
    # and past the end of the array, where its tokens are the last.
    Case(
        name="gqa3_no_mixed",
        geometry=GQA3_PAGE8,
        decode=((1, 25), (1, 24), (1, 3), (1, 9)),
        prefill=((10, 10), (10, 14), (3, 21)),
    ),
    # The first key of a compute block is in the window of all queries but the last.
    Case(
        name="gqa4_window_ends_in_a_block",
        geometry=GQA4_PAGE16,
        mixed=((2, 57), (2, 73)),
        window=40,
    ),
    # The first query of all sees no more than the last key but one of a block, and the window hides
    # none of it.
    Case(
        name="gqa4_window_of_two_blocks",
        geometry=GQA4_PAGE16,
        prefill=((16, 46),),
        mixed=((16, 46), (2, 32)),
        window=64,
    ),
    # A context that ends with a whole block, one key before, and one and a half blocks later.
    Case(
        name="gqa2_three_ranges",
        geometry=GQA2_PAGE128,
        decode=((1, 700), (1, 257)),
        prefill=((16, 800), (9, 521)),
        mixed=((40, 1000), (21, 21), (3, 768)),
    ),
    # Pages and tokens whose numbers fill no 16 bits and no 8 bits; 256 tokens without keys take
    # little time.
    Case(
        name="many_pages",
        geometry=MANY_PAGES,
        decode=((1, 20), (1, 3)),
        prefill=((256, 0), (2, 18)),
        mixed=((5, 12), (1, 1)),
        last_pages=True,
    ),
)


def _with_heads(group: int, num_kv_heads: int, head_dim: int) -> Case:
    """All three ranges in a geometry with these heads, small in everything else."""
    geometry = Geometry(
        name=f"group{group}_kv{num_kv_heads}_dim{head_dim}",
        num_q_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=8,
        pages_per_seq=5,
        num_pages=24,
        max_seqs=4,
        max_tokens=16,
        chunk_prefill_size=6,
        decode_blocks=(1, 16, 1, 16),
        prefill_blocks=(6, 16, 3, 16),
        mixed_blocks=(4, 16, 4, 16),
        sm_scale=head_dim**-0.5,
        sliding_window=9,
        soft_cap=2.0,
    )
    return Case(
        name=geometry.name,
        geometry=geometry,
        decode=((1, 17), (1, 8)),
        prefill=((6, 22),),
        mixed=((7, 33),),
    )


# Every group from 1 to 16 that models have, kv heads from 1 to 8, and all head dims, in such
# pairs that each group and each number of kv heads meets a head dim that fills its lanes and one
# that does not.
HEAD_CASES = tuple(
    _with_heads(group, num_kv_heads, head_dim)
    for group, num_kv_heads, head_dim in (
        (1, 1, 64),
        (1, 5, 192),
        (1, 8, 256),
        (2, 2, 80),
        (2, 7, 128),
        (3, 1, 112),
        (3, 3, 96),
        (4, 6, 64),
        (5, 4, 112),
        (6, 4, 128),
        (7, 5, 128),
        (8, 2, 256),
        (8, 8, 128),
        (12, 1, 192),
        (16, 1, 128),
        (16, 2, 96),
    )
)

_THREE_RANGES = NAMED_CASES[0]
# Windows of one key (a query sees its own alone), and around a compute block of 32, a page of 16,
# a KV block of 64, and the lengths 41, 48 and 70.
WINDOW_CASES = tuple(
    dataclasses.replace(_THREE_RANGES, name=f"gqa4_window_{window}", window=window)
    for window in (1, 2, 15, 16, 17, 31, 32, 33, 40, 41, 42, 47, 48, 49, 63, 64, 65, 69, 70, 71)
)

# (query, key, value) scales by cache dtype.  None is a power of two; standard normal values reach
# far into the range of codes, and past the end of it for some of the values.
_SCALES = {
    "float32": (0.83, 1.37, 0.71),
    "bfloat16": (0.83, 1.37, 0.71),
    "float8_e4m3fn": (0.013, 0.011, 0.007),
    "float8_e5m2": (0.0003, 0.7, 0.00005),
    "int8": (0.027, 0.029, 0.021),
}


def cases_for(key: model.DispatchKey) -> tuple[Case, ...]:
    """The named cases, with the features and scales of the variants that share `key`."""
    return tuple(adapt(case, key) for case in NAMED_CASES)


def adapt(case: Case, key: model.DispatchKey) -> Case:
    """`case` as a call that has the dispatch key `key`."""
    q_scale, k_scale, v_scale = _SCALES[key.kv_dtype]
    has_kv_scales = key.quantization in ("per_tensor", "per_tensor_with_query")
    has_q_scale = key.quantization == "per_tensor_with_query"
    has_window = "sliding_window" in key.features
    geometry = case.geometry
    if key.layout == "head_major":  # which packs the tokens of a page
        page_size = max(geometry.page_size, model.packing(key.kv_dtype))
        geometry = dataclasses.replace(geometry, page_size=page_size)
    return dataclasses.replace(
        case,
        geometry=geometry,
        sliding_window=(case.window or geometry.sliding_window) if has_window else None,
        soft_cap=geometry.soft_cap if "soft_cap" in key.features else None,
        causal="bidirectional" not in key.features,
        update_kv_cache="kv_share" not in key.features,
        out_dtype=dict(case.out_dtypes).get(key.query_dtype),
        q_scale=q_scale if has_q_scale else None,
        k_scale=k_scale if has_kv_scales else None,
        v_scale=v_scale if has_kv_scales else None,
    )


def build(case: Case, key: model.DispatchKey, seed: int = 0) -> Inputs:
    """Random arguments for `case`, which depend on its name and on `seed`.

    Values are standard normal, and so are queries and keys unless `case.data` says otherwise.
    Page tables are permuted over the whole pool of pages, and no two sequences share a page.
    """
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    geometry = case.geometry
    layout = key.layout
    kv_dtype = np.dtype(key.kv_dtype)
    new_kv_dtype = kv_dtype if case.new_kv_in_cache_dtype else np.dtype(key.query_dtype)

    kv_lens = np.full(geometry.max_seqs, _OUT_OF_RANGE, np.int32)
    cu_q_lens = np.full(geometry.max_seqs + 1, _OUT_OF_RANGE, np.int32)
    kv_lens[: len(case.lengths)] = [kv_len for _, kv_len in case.lengths]
    cu_q_lens[: len(case.lengths) + 1] = np.cumsum([0, *(q_len for q_len, _ in case.lengths)])
    distribution = np.cumsum([len(case.decode), len(case.prefill), len(case.mixed)])

    shape = (geometry.max_tokens, geometry.num_kv_heads, geometry.head_dim)
    queries = _poison(
        (geometry.max_tokens, geometry.num_q_heads, geometry.head_dim),
        np.dtype(key.query_dtype),
        case.poison,
        rng,
    )
    query_size, draw_keys = DATA[case.data]
    queries[: case.num_tokens] = query_size * rng.standard_normal(queries[: case.num_tokens].shape)
    keys, values = (_poison(shape, new_kv_dtype, case.poison, rng) for _ in range(2))
    if case.update_kv_cache:
        draws = ((keys, case.k_scale, draw_keys), (values, case.v_scale, _draw_normal))
        for array, scale, draw in draws:
            new = draw(rng, array[: case.num_tokens].shape)
            # Whoever hands over keys and values in the cache's dtype has applied the scale.
            array[: case.num_tokens] = (
                reference.quantize(new, kv_dtype, scale) if case.new_kv_in_cache_dtype else new
            )

    kv_cache = _poison(
        reference.kv_cache_shape(
            geometry.num_pages,
            geometry.page_size,
            geometry.num_kv_heads,
            geometry.head_dim,
            key.kv_dtype,
            layout,
        ),
        kv_dtype,
        case.poison,
        rng,
    )
    tables = _page_tables(case, rng)
    for (q_len, kv_len), pages, table in zip(case.lengths, case.pages_in_use, tables, strict=False):
        in_cache = kv_len - q_len if case.update_kv_cache else kv_len
        start = pages.start * geometry.page_size
        tokens = max(in_cache - start, 0) if pages else 0
        old_shape = (tokens, geometry.num_kv_heads, geometry.head_dim)
        old_keys, old_values = draw_keys(rng, old_shape), _draw_normal(rng, old_shape)
        reference.write_sequence(
            kv_cache,
            table,
            start,
            reference.quantize(old_keys, kv_dtype, case.k_scale),
            reference.quantize(old_values, kv_dtype, case.v_scale),
            layout,
        )

    return Inputs(
        case=case,
        layout=layout,
        queries=queries,
        keys=keys,
        values=values,
        kv_cache=kv_cache,
        kv_lens=kv_lens,
        page_indices=tables.reshape(-1),
        cu_q_lens=cu_q_lens,
        distribution=distribution.astype(np.int32),
    )


def _page_tables(case: Case, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """The page table [max seqs, pages per sequence] of a case."""
    geometry = case.geometry
    shape = (geometry.max_seqs, geometry.pages_per_seq)
    pool = rng.permutation(geometry.num_pages)
    in_use = case.pages_in_use
    if case.last_pages:
        taken = sum(map(len, in_use))
        pool = np.concatenate([pool[pool >= pool.size - taken], pool[pool < pool.size - taken]])
    free = pool[sum(map(len, in_use)) :]
    # What is there no more, such as pages before a window, is never the number of a page.
    invalid = rng.choice([-1, geometry.num_pages, _OUT_OF_RANGE], shape)
    tables = invalid.copy() if case.unused_pages_invalid else rng.choice(free, shape)
    first = 0
    for table, no_page, pages in zip(tables, invalid, in_use, strict=False):
        table[: pages.stop] = no_page[: pages.stop]
        if not pages:
            table[:] = no_page
        table[pages.start : pages.stop] = pool[first : first + len(pages)]
        first += len(pages)
    return tables.astype(np.int32)


def _poison(
    shape: tuple[int, ...], dtype: np.dtype[Any], poison: str, rng: np.random.Generator
) -> Array:
    """An array of values that spoil every result they enter."""
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.max], dtype), shape)
    with np.errstate(invalid="ignore"):
        values = np.array(POISON[poison], np.float32).astype(dtype)  # NaN for want of infinity
    return np.full(shape, values[0]) if len(values) == 1 else rng.choice(values, shape)
