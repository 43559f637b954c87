"""What every kernel of this package shares: budgets, checks and the form of the operands.

A kernel's module needs this file and jax, and nothing else: copy the two into one package to take
a kernel into another tree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

LANES = 128  # values in a row of a vector register
SMEM_BYTES = 1 << 20
VMEM_BYTES = {"v5e": 128 << 20, "v6e": 128 << 20, "v7x": 64 << 20}  # per core
SCRATCH_SHARE = 0.5  # of VMEM, for default blocks: the compiler's spills need the rest
TAIL_ROWS = 8  # rows of a KV slot past its last compute block, for clearing in whole steps

QUERY_ROWS_PER_TILE = 512  # query tokens times group that one attention step works on
KEYS_PER_STEP = 512  # compute block
KV_BYTES_PER_BLOCK = {"decode": 2 << 20, "prefill": 4 << 20, "mixed": 4 << 20}


def align_to(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def smem_bytes(sequences: int, pages_per_sequence: int) -> int:
    """SMEM that a launch's scalar operands and cursors take, in bytes."""
    operands = (sequences, sequences * pages_per_sequence, sequences + 1, 4, 3)
    scratch = 6  # cursors, turns and rows in flight, less than 128 words each
    return 4 * (sum(align_to(words, LANES) for words in operands) + scratch * LANES)


def vmem_bytes(
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    query_bytes: int,
    kv_row_bytes: int,
    kv_slots: int,
    query_block: int,
    kv_block: int,
    compute_block: int,
) -> int:
    """VMEM that the scratch of a launch takes, in bytes.

    `group` (query heads per kv head) and `head_dim` are the padded ones, `query_bytes` is the size
    of one query value, and `kv_row_bytes` what K and V of all heads take for one token.
    """
    query_rows = kv_heads * group * query_block
    kv_rows = align_to(kv_block, compute_block) + TAIL_ROWS
    slots = kv_slots * kv_rows * kv_row_bytes + 4 * query_rows * head_dim * query_bytes
    statistics = 2 * query_rows * LANES * 4
    accumulator = query_rows * head_dim * 4
    return slots + statistics + accumulator


def default_blocks(
    launch: str,
    *,
    generation: str,
    static_tokens: int | None,
    tokens: int,
    max_keys: int,
    page_size: int,
    kv_slots: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    query_bytes: int,
    kv_row_bytes: int,
) -> tuple[int, int, int, int]:
    """Query block, KV block, query tile and compute block that fit the VMEM of `generation`.

    Sizes are in tokens. They start from what keeps the matrix unit and the HBM busy and are halved
    until the scratch fits its share of VMEM.
    """
    most_tokens = static_tokens or tokens
    query_tile = 1
    while query_tile * 2 * group <= QUERY_ROWS_PER_TILE and query_tile < most_tokens:
        query_tile *= 2
    keys = max(KV_BYTES_PER_BLOCK[launch] // kv_row_bytes, KEYS_PER_STEP)
    while True:
        kv_block = max(min(align_to(max_keys, page_size), keys // page_size * page_size), page_size)
        compute_block = compute_block_for(page_size, kv_block)
        needed = vmem_bytes(
            kv_heads=kv_heads,
            group=group,
            head_dim=head_dim,
            query_bytes=query_bytes,
            kv_row_bytes=kv_row_bytes,
            kv_slots=kv_slots,
            query_block=query_tile,
            kv_block=kv_block,
            compute_block=compute_block,
        )
        if needed <= SCRATCH_SHARE * VMEM_BYTES[generation]:
            return query_tile, kv_block, query_tile, compute_block
        if keys > max(KEYS_PER_STEP, page_size):
            keys //= 2
        elif query_tile > 1:
            query_tile //= 2
        else:
            return query_tile, kv_block, query_tile, compute_block


def compute_block_for(page_size: int, kv_block: int) -> int:
    """Keys of one attention step for a KV block: few enough to pipeline, none of them padding.

    Where no such size divides the KV block, the last step of a block works on some padding.
    """
    if kv_block <= KEYS_PER_STEP:
        return align_to(kv_block, 16)
    for keys in (KEYS_PER_STEP, KEYS_PER_STEP // 2, KEYS_PER_STEP // page_size * page_size):
        if keys >= LANES and keys % 16 == 0 and kv_block % keys == 0:
            return keys
    return KEYS_PER_STEP


Blocks = tuple[int, int, int, int]  # query block, KV block, query tile, compute block
LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Pipelining:
    """How a launch overlaps its work."""

    kv_slots: int
    attention_depth: int
    dma_wait: str
    new_kv_fetch: str


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel module computes, and how."""

    name: str
    family: str
    layout: str
    query_dtype: str
    kv_dtype: str
    quantization: str
    features: tuple[str, ...]
    launches: tuple[tuple[str, Pipelining], ...]
    numerics: str
    generations: tuple[str, ...]
    is_default: bool


@dataclasses.dataclass(frozen=True)
class Problem:
    """The sizes of one call, all of them known when it is traced."""

    tokens: int
    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    sequences: int
    pages_per_sequence: int
    query_bytes: int  # of one query value
    kv_row_bytes: int  # of K and V of all heads for one token


@dataclasses.dataclass(frozen=True)
class Launch:
    """What is known of a launch when it is traced. Sizes are in tokens unless they say otherwise."""

    name: str
    first_bound: int  # where in (0, *distribution) the launch's sequences begin
    end_bound: int  # and where they end
    static_tokens: int | None  # most new tokens of a sequence, where the launch fixes them
    kv_heads: int
    group: int  # query heads per kv head, padded to whole words
    query_packing: int
    head_dim: int  # padded to whole lanes
    page_size: int
    pages_per_sequence: int
    kv_slots: int
    query_block: int  # one fetch of queries
    query_tile: int  # queries of one attention step
    kv_block: int  # one fetch of keys and values
    compute_block: int  # keys of one attention step
    vmem_limit_bytes: int

    @property
    def tile_rows(self) -> int:
        """Query rows of one kv head in a query tile."""
        return self.query_tile * self.group

    @property
    def kv_rows(self) -> int:
        """Rows of a KV slot: whole compute blocks, and room to clear past them."""
        return align_to(self.kv_block, self.compute_block) + TAIL_ROWS

    def query_blocks(self, tables: Any, sequence: jax.Array) -> Any:
        """Query blocks of a sequence; one without new tokens still takes a turn, of no rows."""
        if self.static_tokens is not None:
            return -(-self.static_tokens // self.query_block)
        tokens = tables.cu_q_lens_ref[sequence + 1] - tables.cu_q_lens_ref[sequence]
        return jnp.maximum(pl.cdiv(tokens, self.query_block), 1)

    def profile_name(self, variant: str) -> str:
        """The launch's name in a profile."""
        blocks = f"q{self.query_block}_{self.query_tile}_kv{self.kv_block}_{self.compute_block}"
        return f"{variant}_{self.name}_p{self.page_size}_{blocks}"


def words_of(ref: Any, slot: Any) -> Any:
    """A slot seen as 32-bit words: [slots, ..., packing, head dim] as u32[words / 128, 128]."""
    words = math.prod(ref.shape[1:]) * ref.dtype.itemsize // 4
    return ref.bitcast(jnp.uint32).at[slot].reshape(words // LANES, LANES)


def load_rows(words: Any, first: Any, count: int, stride: int, head_dim: int) -> jax.Array:
    """Every `stride`-th row of `head_dim` words, from row `first`: u32[count, head dim].

    A strided load reads 128 lanes, so wider rows are put together from several.
    """
    folds = head_dim // LANES
    parts = [words[pl.ds(first * folds + fold, count, stride * folds), :] for fold in range(folds)]
    return jnp.concatenate(parts, axis=1)


def store_rows(words: Any, first: Any, stride: int, values: jax.Array) -> None:
    """Stores `values`, u32[count, head dim], as every `stride`-th row from row `first`."""
    count, head_dim = values.shape
    folds = head_dim // LANES
    for fold in range(folds):
        lanes = values[:, fold * LANES : (fold + 1) * LANES]
        words[pl.ds(first * folds + fold, count, stride * folds), :] = lanes


def across_lanes(column: jax.Array, lanes: int) -> jax.Array:
    """Widens or narrows [rows, 128] that holds one value in all lanes: only registers are named."""
    copies = -(-lanes // LANES)
    return jnp.concatenate([column] * copies, axis=1)[:, :lanes]


def interleave(keys: jax.Array, values: jax.Array, cache_shape: tuple[int, ...]) -> jax.Array:
    """K and V of new tokens in the form of a cache row.

    [tokens, kv heads, head dim] each, in the cache's dtype, become [tokens, align(2 * kv heads,
    packing) / packing, packing, align(head dim, 128)], padded with zeros.
    """
    tokens, kv_heads, head_dim = keys.shape
    words, packing, padded_head_dim = cache_shape[2:]
    rows = jnp.stack([keys, values], axis=2).reshape(tokens, 2 * kv_heads, head_dim)
    padding = ((0, 0), (0, words * packing - 2 * kv_heads), (0, padded_head_dim - head_dim))
    return jnp.pad(rows, padding).reshape(tokens, words, packing, padded_head_dim)


def quantize(values: jax.Array, scale: Any, dtype: Any) -> jax.Array:
    """Values as codes of the cache's dtype: saturate(round to nearest even(values / scale)).

    Values given in the cache's dtype are codes already.
    """
    if values.dtype == dtype:
        return values
    scaled = values.astype(jnp.float32) / scale
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return jnp.clip(jnp.round(scaled), limits.min, limits.max).astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(scaled, -limit, limit).astype(dtype)


def pad_queries(queries: jax.Array, kv_heads: int, head_dim: int) -> jax.Array:
    """Queries in the kernels' form: [tokens, kv heads * group / packing, packing, head dim].

    The group of every kv head is padded to whole words, and the head dim to whole lanes.
    """
    tokens, query_heads, actual_head_dim = queries.shape
    packing = 4 // queries.dtype.itemsize
    group = query_heads // kv_heads
    padding = ((0, 0), (0, 0), (0, -group % packing), (0, head_dim - actual_head_dim))
    grouped = queries.reshape(tokens, kv_heads, group, actual_head_dim)
    return jnp.pad(grouped, padding).reshape(tokens, -1, packing, head_dim)


def unpad_output(out: jax.Array, kv_heads: int, query_heads: int, head_dim: int) -> jax.Array:
    """The output without the padding of `pad_queries`: [tokens, query heads, head dim]."""
    tokens, _, _, padded_head_dim = out.shape
    grouped = out.reshape(tokens, kv_heads, -1, padded_head_dim)
    return grouped[:, :, : query_heads // kv_heads, :head_dim].reshape(
        tokens, query_heads, head_dim
    )


def tpu_generation() -> str:
    """The TPU generation a call is traced for: the abstract mesh's, the backend's, or v6e."""
    device_kind = "TPU v6 lite"
    mesh_device = jax.sharding.get_abstract_mesh().abstract_device
    if mesh_device is not None:
        device_kind = mesh_device.device_kind
    elif jax.default_backend() == "tpu":
        device_kind = jax.devices()[0].device_kind
    for mark, generation in (("v5 lite", "v5e"), ("v5e", "v5e"), ("v6", "v6e"), ("7", "v7x")):
        if mark in device_kind:
            return generation
    raise ValueError(
        f"{device_kind!r} is no TPU generation that kernels are emitted for:"
        f" expected one of {', '.join(VMEM_BYTES)}"
    )


def check_operands(
    variant: Variant,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
) -> Problem:
    """The sizes of a call, from operands that fit the variant and each other.

    Raises:
        ValueError: if they do not; it names the operand, and what was expected of it.
    """
    _check("queries", queries, ("tokens", "query heads", "head dim"), variant.query_dtype)
    tokens, query_heads, head_dim = queries.shape
    _check("keys", keys, (tokens, "kv heads", head_dim))
    kv_heads = keys.shape[1]
    _check("values", values, (tokens, kv_heads, head_dim), keys.dtype.name)
    if not kv_heads or query_heads % kv_heads:
        raise ValueError(
            f"queries have {query_heads} heads, which {kv_heads} kv heads do not divide"
        )
    accepted = [variant.kv_dtype]
    if variant.quantization != "none":
        accepted += ["bfloat16", "float32"]
    if keys.dtype.name not in accepted and "kv_share" not in variant.features:
        raise ValueError(
            f"keys and values are {keys.dtype.name}; {variant.name} takes {' or '.join(accepted)}"
        )
    if head_dim > 256:
        raise ValueError(f"head dim is {head_dim}; at most 256 is supported")
    pages, page_size = kv_cache.shape[0], page_size_of(kv_cache.shape, variant.layout)
    expected = kv_cache_shape(
        pages, page_size, kv_heads, head_dim, variant.kv_dtype, layout=variant.layout
    )
    _check("kv_cache", kv_cache, expected, variant.kv_dtype)
    _check("kv_lens", kv_lens, ("sequences",), "int32")
    sequences = kv_lens.shape[0]
    _check("page_indices", page_indices, ("sequences * pages per sequence",), "int32")
    if not sequences or page_indices.shape[0] % sequences:
        raise ValueError(
            f"page_indices has {page_indices.shape[0]} entries, which is no whole number of pages"
            f" for each of {sequences} sequences"
        )
    _check("cu_q_lens", cu_q_lens, (sequences + 1,), "int32")
    _check("distribution", distribution, (3,), "int32")
    return Problem(
        tokens=tokens,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        sequences=sequences,
        pages_per_sequence=page_indices.shape[0] // sequences,
        query_bytes=queries.dtype.itemsize,
        kv_row_bytes=math.prod(kv_cache.shape[1:]) // page_size * kv_cache.dtype.itemsize,
    )


def _check(name: str, array: Any, shape: tuple[Any, ...], dtype: str | None = None) -> None:
    """Refuses an operand of another shape or dtype; a word in `shape` stands for any size."""
    fits = len(array.shape) == len(shape) and all(
        isinstance(expected, str) or size == expected for size, expected in zip(array.shape, shape)
    )
    if not fits:
        raise ValueError(f"{name} has shape {tuple(array.shape)}; expected {_said(shape)}")
    if dtype is not None and array.dtype.name != dtype:
        raise ValueError(f"{name} is {array.dtype.name}; expected {dtype}")


def _said(shape: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def check_positive(name: str, value: Any) -> None:
    """Refuses a number that is not above zero.

    Raises:
        ValueError: names it.
    """
    if not value > 0:
        raise ValueError(f"{name} is {value}; expected a number above zero")


def page_size_of(kv_cache_shape: tuple[int, ...], layout: str) -> int:
    """Tokens per page of a cache of that shape."""
    return kv_cache_shape[2 if layout == "head_major" else 1]


def kv_cache_shape(
    pages: int, page_size: int, kv_heads: int, head_dim: int, kv_dtype: Any, *, layout: str
) -> tuple[int, ...]:
    """The shape of a KV cache: what `kv_cache` must look like."""
    padded_head_dim = align_to(head_dim, LANES)
    if layout == "head_major":
        return (pages, 2 * kv_heads, page_size, padded_head_dim)
    packing = 4 // jnp.dtype(kv_dtype).itemsize
    words = align_to(2 * kv_heads, packing) // packing
    return (pages, page_size, words, packing, padded_head_dim)


def refuse_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a clear error where a derivative of it is asked for."""
    guarded = jax.custom_jvp(function)

    @guarded.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "ragged_paged_attention has no derivative: it is for inference;"
            " train with an attention that keeps no cache"
        )

    return guarded


def check_platform() -> None:
    """Refuses a call that neither a TPU nor the TPU interpreter would run.

    Raises:
        RuntimeError: on another backend, outside interpret mode.
    """
    if jax.default_backend() == "tpu" or _interprets():
        return
    if jax.sharding.get_abstract_mesh().abstract_device is None:
        raise RuntimeError(
            f"this kernel runs on TPUs, and the backend is {jax.default_backend()}: to run it here,"
            " slowly, wrap the call in pltpu.force_tpu_interpret_mode(); to compile it for a TPU"
            " that is not here, trace it under an abstract mesh of that TPU"
        )


def _interprets() -> bool:
    """Whether jax's TPU interpret mode is on; jax has no public name for it."""
    from jax._src import config

    mode = getattr(config, "pallas_tpu_interpret_mode_context_manager", None)
    return mode is None or mode.value is not None


def plan_launches(
    make_launch: Callable[..., Launch],
    problem: Problem,
    *,
    kv_slots: dict[str, int],
    chunk_prefill_size: int | None,
    block_sizes: dict[str, Blocks | None],
    vmem_limit_bytes: int | None,
    distribution: Any,
) -> tuple[Launch, ...]:
    """The launches of a call, in order.

    Launches whose part of `distribution` is known to be empty are left out. `block_sizes` and
    `kv_slots` are by launch.

    Raises:
        ValueError: if block sizes do not fit each other, or the blocks do not fit VMEM, or the
            page table does not fit SMEM.
    """
    generation = tpu_generation()
    packing = 4 // problem.query_bytes
    sizes = {
        "kv_heads": problem.kv_heads,
        "group": align_to(problem.query_heads // problem.kv_heads, packing),
        "head_dim": align_to(problem.head_dim, LANES),
    }
    widths = {"query_bytes": problem.query_bytes, "kv_row_bytes": problem.kv_row_bytes}
    if chunk_prefill_size is not None:
        check_positive("chunk_prefill_size", chunk_prefill_size)
        bounds = {"decode": (0, 1), "prefill": (1, 2), "mixed": (2, 3)}
    else:
        bounds = {"decode": (0, 1), "mixed": (1, 3)}
    static_tokens = {"decode": 1, "prefill": chunk_prefill_size, "mixed": None}
    limit = vmem_limit_bytes or VMEM_BYTES[generation]
    check_smem(problem)
    ends = None if isinstance(distribution, jax.core.Tracer) else (0, *np.asarray(distribution))
    plan = []
    for name, (first, end) in bounds.items():
        if ends is not None and ends[first] >= ends[end]:
            continue
        blocks = block_sizes[name]
        if blocks is None:
            blocks = default_blocks(
                name,
                generation=generation,
                static_tokens=static_tokens[name],
                tokens=problem.tokens,
                max_keys=problem.pages_per_sequence * problem.page_size,
                page_size=problem.page_size,
                kv_slots=kv_slots[name],
                **sizes,
                **widths,
            )
        query_block, kv_block, query_tile, compute_block = fit_blocks(
            name, blocks, static_tokens[name], problem.page_size
        )
        needed = vmem_bytes(
            kv_slots=kv_slots[name],
            query_block=query_block,
            kv_block=kv_block,
            compute_block=compute_block,
            **sizes,
            **widths,
        )
        if needed > limit:
            raise ValueError(
                f"the {name} launch needs {needed} bytes of VMEM with blocks {tuple(blocks)}, and"
                f" may take {limit} on {generation}: give smaller {name[0]}_block_sizes"
                " (query block, KV block, query tile, compute block)"
            )
        plan.append(
            make_launch(
                name=name,
                first_bound=first,
                end_bound=end,
                static_tokens=static_tokens[name],
                query_packing=packing,
                page_size=problem.page_size,
                pages_per_sequence=problem.pages_per_sequence,
                kv_slots=kv_slots[name],
                query_block=query_block,
                query_tile=query_tile,
                kv_block=kv_block,
                compute_block=compute_block,
                vmem_limit_bytes=limit,
                **sizes,
            )
        )
    return tuple(plan)


def fit_blocks(name: str, blocks: Blocks, static_tokens: int | None, page_size: int) -> Blocks:
    """Block sizes cut to the tokens that a launch's sequences can have.

    Raises:
        ValueError: if they do not fit each other, or the pages.
    """
    argument = f"{name[0]}_block_sizes"
    if len(blocks) != 4 or not all(size > 0 for size in blocks):
        raise ValueError(
            f"{argument} is {tuple(blocks)}; expected four sizes above zero: query block,"
            " KV block, query tile, compute block"
        )
    query_block, kv_block, query_tile, compute_block = blocks
    if query_block % query_tile:
        raise ValueError(
            f"{argument}: the query block, {query_block}, is no multiple of the query tile,"
            f" {query_tile}"
        )
    if kv_block % page_size:
        raise ValueError(
            f"{argument}: the KV block, {kv_block}, is no multiple of the page size, {page_size}"
        )
    if static_tokens is not None:
        query_tile = min(query_tile, static_tokens)
        query_block = min(query_block, align_to(static_tokens, query_tile))
    return query_block, kv_block, query_tile, compute_block


def check_smem(problem: Problem) -> None:
    """Refuses a page table that does not fit SMEM.

    Raises:
        ValueError: says how much it takes.
    """
    needed = smem_bytes(problem.sequences, problem.pages_per_sequence)
    if needed > SMEM_BYTES:
        raise ValueError(
            f"the page table of {problem.sequences} sequences with {problem.pages_per_sequence}"
            f" pages each needs {needed} bytes of SMEM, and there are {SMEM_BYTES}: use larger"
            " pages, fewer sequences a call, or shorter ones"
        )


def validate_inputs(
    queries: Any,
    keys: Any,
    values: Any,
    kv_cache: Any,
    kv_lens: Any,
    page_indices: Any,
    cu_q_lens: Any,
    distribution: Any,
    *,
    chunk_prefill_size: int | None = None,
    update_kv_cache: bool = True,
) -> None:
    """Checks on the host what a kernel takes for granted, for concrete arrays.

    Raises:
        ValueError: for the first rule that is broken; it names the sequence.
    """
    del keys, values
    page_size = kv_cache.shape[2 if len(kv_cache.shape) == 4 else 1]
    lens, starts, ends = (np.asarray(each) for each in (kv_lens, cu_q_lens, distribution))
    decode_end, prefill_end, sequences = (int(end) for end in ends)
    if not 0 <= decode_end <= prefill_end <= sequences <= lens.size:
        raise ValueError(
            f"distribution is {ends.tolist()}; expected three ends in ascending order, the last"
            f" at most {lens.size}, the length of kv_lens"
        )
    tables = np.asarray(page_indices).reshape(lens.size, -1)
    if int(starts[0]) != 0:
        raise ValueError(f"cu_q_lens begins with {starts[0]}; expected 0")
    owners: dict[int, int] = {}  # by page, the sequence that writes to it
    used = []
    for sequence in range(sequences):
        where = f"sequence {sequence}"
        first, past = int(starts[sequence]), int(starts[sequence + 1])
        tokens, kv_len = past - first, int(lens[sequence])
        if not 0 <= first <= past <= queries.shape[0]:
            raise ValueError(
                f"{where} has the tokens {first} to {past}; expected ascending numbers up to"
                f" {queries.shape[0]}"
            )
        if sequence < decode_end and tokens != 1:
            raise ValueError(f"{where} is a decode sequence with {tokens} new tokens; expected 1")
        if decode_end <= sequence < prefill_end and tokens > (chunk_prefill_size or tokens):
            raise ValueError(
                f"{where} is a prefill sequence with {tokens} new tokens; expected at most"
                f" chunk_prefill_size, {chunk_prefill_size}"
            )
        if kv_len < tokens and (kv_len != 0 or sequence < decode_end):
            raise ValueError(
                f"{where} has {kv_len} keys and {tokens} new tokens, which count as keys too"
            )
        pages = -(-kv_len // page_size)
        if kv_len < 0 or pages > tables.shape[1]:
            raise ValueError(
                f"{where} has {kv_len} keys; expected 0 to {tables.shape[1] * page_size}, what its"
                " part of page_indices can hold"
            )
        table = tables[sequence, :pages]
        outside = table[(table < 0) | (table >= kv_cache.shape[0])]
        if outside.size:
            raise ValueError(
                f"{where} has the page {outside[0]}; expected 0 to {kv_cache.shape[0] - 1}"
            )
        used.append(table)
        if update_kv_cache and tokens and kv_len:
            for page in table[(kv_len - tokens) // page_size :].tolist():
                if owners.setdefault(page, sequence) != sequence:
                    raise ValueError(
                        f"{where} writes to page {page}, and so does sequence {owners[page]}"
                    )
    for sequence, table in enumerate(used):
        for page in table.tolist():
            if owners.get(page, sequence) != sequence:
                raise ValueError(
                    f"sequence {sequence} reads page {page}, to which sequence {owners[page]}"
                    " writes"
                )
