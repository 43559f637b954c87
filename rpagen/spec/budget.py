"""How much VMEM and SMEM a launch takes, and the blocks that fit by default.

Plain Python that needs nothing else: all of it below the imports is emitted word for word into
`rpa_kernels/support.py`, so that the generator and an engine that has only the emitted package
cannot disagree.
"""

from __future__ import annotations

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
    keys = 2 * max(KV_BYTES_PER_BLOCK[launch] // kv_row_bytes, KEYS_PER_STEP)
    needed = VMEM_BYTES[generation]
    while needed > SCRATCH_SHARE * VMEM_BYTES[generation]:
        if keys > max(KEYS_PER_STEP, page_size):
            keys //= 2
        elif query_tile > 1:
            query_tile //= 2
        else:
            break
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
