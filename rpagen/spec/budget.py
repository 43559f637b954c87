"""The sizes of a call: the cache's shape, the launches, and how much VMEM and SMEM they take.

Plain Python that needs nothing else: all of it from the first constant on is emitted word for word
into `rpa_kernels/support.py`, so that the generator and an engine that has only the emitted package
cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math

LANES = 128  # values in a row of a vector register
SUBLANES = 8  # rows of a vector register
MOST_HEAD_DIM = 256
MOST_TOKENS = 1 << 30  # of a window: positions plus this are int32
SMEM_BYTES = 1 << 20  # per core
SMEM_OF_COMPILER = 8 << 10  # what it keeps for itself; it was seen to take 3 KiB
VMEM_BYTES = {  # per core
    "v4": 16 << 20,
    "v5e": 128 << 20,
    "v5p": 64 << 20,
    "v6e": 128 << 20,
    "v7x": 64 << 20,
}
VMEM_OF_COMPILER = 128 << 10  # what it keeps for itself; it was seen to take 64 + 36 KiB
SPILLED_PER_VALUE = 2.5  # query values for each that is alive; it was seen to be 1.9
SCRATCH_SHARE = 0.5  # of VMEM, for default blocks
TAIL_ROWS = 8  # rows of a KV slot past its last compute block, for clearing in whole steps

MOST_TOKENS_PER_TILE = 512  # queries that one attention step works on
QUERY_VALUES_PER_STEP = 1 << 20  # these times query heads and head dim
ROWS_PER_TILE = (256, 2048)  # these times group: the least of many kv heads, the most of few
KEYS_PER_STEP = 512  # compute block
KV_BYTES_PER_BLOCK = 9 << 18  # a power of two, and the row of 9 that `spread` adds
MOST_KEYS_PER_BLOCK = 4096  # of few heads: so that several short sequences are in flight
QUERY_SLOTS = {"decode": 8, "prefill": 2, "mixed": 2}  # a token's take less than their latency


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
    kv_row_bytes: int  # of K and V of all heads for one token in the cache
    layout: str  # of the cache

    @property
    def padded_sizes(self) -> dict[str, int]:
        """The sizes of heads in a launch: a group in whole words, a head dim in whole lanes."""
        return {
            "kv_heads": self.kv_heads,
            "group": align_to(self.query_heads // self.kv_heads, 4 // self.query_bytes),
            "head_dim": align_to(self.head_dim, LANES),
        }

    @property
    def widths(self) -> dict[str, int]:
        """The bytes of a query value, and of a token in a KV slot."""
        row_bytes = self.kv_row_bytes
        if self.layout == "head_interleaved":
            head_dim = align_to(self.head_dim, LANES)
            row_bytes = 4 * head_dim * spread(self.kv_words, head_dim)
        return {"query_bytes": self.query_bytes, "kv_row_bytes": row_bytes}

    @property
    def kv_words(self) -> int:
        """Rows of words, of a padded head dim each, that K and V of a token take in the cache."""
        return self.kv_row_bytes // (4 * align_to(self.head_dim, LANES))

    @property
    def max_keys(self) -> int:
        """The most keys that a sequence can have."""
        return self.pages_per_sequence * self.page_size


def align_to(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def spread(words: int, head_dim: int) -> int:
    """Rows of `head_dim` words that a token takes in VMEM, where its data are so many.

    Kernels load the same row of 8 tokens at once. At distances of a multiple of 8 lane rows these
    lie in one bank, and one load becomes two or more: a row that nothing uses keeps them apart.
    """
    return words + 1 if words * head_dim // LANES % SUBLANES == 0 else words


def page_shape(
    page_size: int, kv_heads: int, head_dim: int, value_bytes: int, *, layout: str
) -> tuple[int, ...]:
    """The shape of one page of a KV cache whose values have `value_bytes` bytes."""
    padded_head_dim = align_to(head_dim, LANES)
    if layout == "head_major":
        return (2 * kv_heads, page_size, padded_head_dim)
    packing = max(4 // value_bytes, 1)
    words = align_to(2 * kv_heads, packing) // packing
    return (page_size, words, packing, padded_head_dim)


def launch_parts(chunk_prefill_size: int | None) -> dict[str, tuple[int, int, int | None]]:
    """The launches: where in (0, *distribution) each begins and ends, and its static tokens."""
    if chunk_prefill_size is None:
        return {"decode": (0, 1, 1), "mixed": (1, 3, None)}
    return {"decode": (0, 1, 1), "prefill": (1, 2, chunk_prefill_size), "mixed": (2, 3, None)}


def smem_bytes(sequences: int, pages_per_sequence: int) -> int:
    """SMEM that a launch takes, in bytes: scalar operands, cursors and what the compiler needs."""
    operands = (sequences, sequences * pages_per_sequence, sequences + 1, 4, 3)
    scratch = 5  # or one more or less: cursors, turns and rows in flight, below 128 words each
    words = sum(align_to(words, LANES) for words in operands) + scratch * LANES
    return 4 * words + SMEM_OF_COMPILER


def vmem_bytes(
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    query_bytes: int,
    kv_row_bytes: int,
    kv_slots: int,
    query_slots: int,
    query_block: int,
    kv_block: int,
    compute_block: int,
) -> int:
    """VMEM that the scratch of a launch takes, in bytes.

    `group` (query heads per kv head) and `head_dim` are the padded ones, `query_bytes` is the size
    of one query value, and `kv_row_bytes` what K and V of all heads take for one token in a slot.
    """
    kv_rows = align_to(kv_block, compute_block) + TAIL_ROWS
    of_queries = _query_scratch_bytes(
        kv_heads, group, head_dim, query_bytes, query_slots, query_block
    )
    return kv_slots * kv_rows * kv_row_bytes + of_queries


def spill_bytes(
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    query_bytes: int,
    query_block: int,
    compute_block: int,
) -> int:
    """VMEM to leave to the compiler besides the scratch of a launch, in bytes.

    It overlaps the steps of all heads and query tiles, so their queries, keys, values and scores
    may all be alive at once; what registers do not hold is spilled.
    """
    rows = query_block * group
    values = rows * compute_block + (rows + compute_block) * head_dim
    return int(SPILLED_PER_VALUE * query_bytes * kv_heads * values) + VMEM_OF_COMPILER


def _query_scratch_bytes(
    kv_heads: int, group: int, head_dim: int, query_bytes: int, query_slots: int, query_block: int
) -> int:
    """Slots of queries and of output, the queries in order, and their softmax state."""
    rows = query_block * group
    padded_rows = align_to(rows, min(1 << (rows - 1).bit_length(), SUBLANES))
    words = kv_heads * group * query_bytes // 4
    slots = 2 * query_slots * query_block * 4 * head_dim * spread(words, head_dim)
    ordered = padded_rows * head_dim * query_bytes
    statistics = padded_rows * 2 * LANES * 4
    accumulator = padded_rows * head_dim * 4
    return slots + kv_heads * (ordered + statistics + accumulator)


def default_blocks(
    launch: str,
    *,
    vmem_limit_bytes: int,
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
    """Query block, KV block, query tile and compute block of a launch, in tokens.

    They start from what keeps the matrix unit and the HBM busy, no larger than `tokens` and
    `max_keys` (the keys that a sequence can have) make use of. While the scratch takes more than
    its share of VMEM, or all of it with what is left to the compiler, the larger part of the
    scratch is halved, down to one query and one page.
    """
    most_tokens = min(tokens, static_tokens or tokens)
    least, most = ROWS_PER_TILE
    tile_rows = max(least, min(QUERY_VALUES_PER_STEP // (kv_heads * head_dim), most))
    query_tile = 1
    while query_tile < most_tokens and 2 * query_tile * group <= tile_rows:
        query_tile *= 2
    query_tile = min(query_tile, MOST_TOKENS_PER_TILE)

    keys = min(KV_BYTES_PER_BLOCK // kv_row_bytes, MOST_KEYS_PER_BLOCK)
    keys = max(keys, KEYS_PER_STEP, page_size)
    whole = (math.lcm(page_size, KEYS_PER_STEP), math.lcm(page_size, LANES), page_size)
    multiple = next(each for each in whole if each <= keys)
    kv_block = min(keys // multiple * multiple, align_to(max_keys, page_size))

    while query_tile > 1 or kv_block > page_size:
        blocks = {
            "kv_heads": kv_heads,
            "group": group,
            "head_dim": head_dim,
            "query_bytes": query_bytes,
            "kv_row_bytes": kv_row_bytes,
            "query_slots": QUERY_SLOTS[launch],
            "query_block": query_tile,
            "kv_block": kv_block,
            "compute_block": compute_block_for(kv_block),
        }
        slots = fit_kv_slots(kv_slots, vmem_limit_bytes=vmem_limit_bytes, **blocks)
        scratch = vmem_bytes(kv_slots=slots, **blocks)
        spills = spill_bytes(
            kv_heads=kv_heads,
            group=group,
            head_dim=head_dim,
            query_bytes=query_bytes,
            query_block=query_tile,
            compute_block=compute_block_for(kv_block),
        )
        if scratch <= SCRATCH_SHARE * vmem_limit_bytes and scratch + spills <= vmem_limit_bytes:
            break
        of_queries = _query_scratch_bytes(
            kv_heads, group, head_dim, query_bytes, QUERY_SLOTS[launch], query_tile
        )
        queries_take_more = 2 * of_queries > scratch
        if query_tile > 1 and (queries_take_more or kv_block == page_size):
            query_tile //= 2
        else:
            kv_block = max(kv_block // page_size // 2, 1) * page_size
    return query_tile, kv_block, query_tile, compute_block_for(kv_block)


def fit_kv_slots(most: int, *, vmem_limit_bytes: int, **blocks: int) -> int:
    """The KV slots of a launch: at most so many, and two where the scratch of more is too large.

    `blocks` are the other arguments of `vmem_bytes`. Pages of thousands of tokens are blocks that
    cannot be made smaller.
    """
    for kv_slots in range(most, 2, -1):
        if vmem_bytes(kv_slots=kv_slots, **blocks) <= SCRATCH_SHARE * vmem_limit_bytes:
            return kv_slots
    return 2


def cut_to_tokens(query_block: int, query_tile: int, static_tokens: int | None) -> tuple[int, int]:
    """A query block and tile, no larger than a launch with that many tokens a sequence needs."""
    if static_tokens is None:
        return query_block, query_tile
    query_tile = min(query_tile, static_tokens)
    return min(query_block, align_to(static_tokens, query_tile)), query_tile


def compute_block_for(kv_block: int) -> int:
    """Keys of one attention step for a KV block: few enough to pipeline, in whole lanes.

    Where no large one divides the KV block, the last step of a block works on some padding.
    """
    if kv_block <= KEYS_PER_STEP:
        return align_to(kv_block, 16)
    whole_lanes = range(KEYS_PER_STEP, KEYS_PER_STEP // 2, -LANES)
    return next((keys for keys in whole_lanes if kv_block % keys == 0), KEYS_PER_STEP)
