"""Ragged paged attention with a cache that another layer fills, over a bfloat16 cache.

layout                      head_interleaved
query.dtype                 bfloat16
kv.dtype                    bfloat16
quantization                none
features                    kv_share
numerics                    exact
pipelining.kv_slots         2
pipelining.attention.depth  1
pipelining.dma_wait         aggregate
pipelining.new_kv_fetch     select
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from . import support

NAME = "rpa_kv_share"
QUERY_DTYPE = jnp.dtype(jnp.bfloat16)
KV_DTYPE = jnp.dtype(jnp.bfloat16)
KV_SLOTS = {"decode": 2, "prefill": 2, "mixed": 2}  # buffers of KV blocks in flight, per launch
LOWEST_MAXIMUM = -1e38  # where a running maximum starts


class Tables(NamedTuple):
    """Where the sequences' tokens and pages are."""

    kv_lens_ref: Any  # i32[sequences], SMEM
    page_indices_ref: Any  # i32[sequences * pages per sequence], SMEM
    cu_q_lens_ref: Any  # i32[sequences + 1], SMEM


class Span(NamedTuple):
    """The keys that a query block can see; scalars."""

    sequence: Any
    start: Any  # position of the first key fetched, on a page edge
    end: Any  # position past the last key
    new_start: Any  # position of the sequence's first new token: keys before it are cached
    new_token: Any  # that token's row among the new tokens
    first_query: Any  # position of the query block's first query
    rows: Any  # tokens of the query block


class ComputeBlock(NamedTuple):
    """The keys of one attention step; scalars."""

    slot: Any
    index: Any  # of the compute block in its KV block
    first_key: Any  # position of its first key
    end_key: Any  # position past the last key of its KV block


class KvScratch(NamedTuple):
    """KV blocks in flight."""

    slots_ref: Any  # [kv slots, kv rows, kv heads, 2, head dim], VMEM
    fetch_semaphores: Any  # DMA[kv slots]
    cursor_ref: Any  # i32[4], SMEM: sequence, query block, KV block and slot of the next fetch
    turn_ref: Any  # i32[1], SMEM: slot of the next block to attend to


class QueryScratch(NamedTuple):
    """Query blocks in flight."""

    slots_ref: Any  # [2, query block, kv heads * group / 2, 2, head dim], VMEM
    fetch_semaphores: Any  # DMA[2]
    turn_ref: Any  # i32[1], SMEM: slot of the next query block


class OutputScratch(NamedTuple):
    """Output blocks in flight."""

    slots_ref: Any  # [2, query block, kv heads * group / 2, 2, head dim], VMEM
    semaphores: Any  # DMA[2]
    rows_ref: Any  # i32[2], SMEM: tokens last sent from each slot


class SoftmaxScratch(NamedTuple):
    """Running state of the softmax of a query block; statistics have the same value in all lanes."""

    maximum_ref: Any  # f32[kv heads, query block * group, 128], VMEM
    sum_ref: Any  # f32[kv heads, query block * group, 128], VMEM
    accumulator_ref: Any  # f32[kv heads, query block * group, head dim], VMEM


def kv_block_count(span, launch):
    """KV blocks of a span; a span without keys still takes a turn, of no rows."""
    return jnp.maximum(pl.cdiv(span.end - span.start, launch.kv_block), 1)


def kv_block_rows(span, kv_block, launch):
    """Position of the first key of a KV block, and its number of keys."""
    start = span.start + kv_block * launch.kv_block
    return start, jnp.clip(span.end - start, 0, launch.kv_block)


def next_slot(slot, slots):
    """The slot that is used after this one."""
    return jnp.where(slot + 1 == slots, 0, slot + 1)


def start_turns(kv, queries, outputs, first_sequence, launch):
    """Sets all turns and cursors to the launch's first sequence, with nothing in flight."""
    kv.cursor_ref[0] = first_sequence
    for field in range(1, 4):
        kv.cursor_ref[field] = 0
    kv.turn_ref[0] = 0
    queries.turn_ref[0] = 0
    for slot in range(2):
        outputs.rows_ref[slot] = 0


def span_of_token(tables, sequence, launch):
    """The keys that the one new token of a sequence can see."""
    kv_len = tables.kv_lens_ref[sequence]
    start = 0
    return Span(
        sequence=sequence,
        start=start,
        end=kv_len,
        new_start=kv_len - 1,
        new_token=tables.cu_q_lens_ref[sequence],
        first_query=kv_len - 1,
        rows=1,
    )


def query_rows(tables, sequence, query_block, launch):
    """First token and number of tokens of a query block; without tokens, the first is 0."""
    first_token = tables.cu_q_lens_ref[sequence] + query_block * launch.query_block
    left = tables.cu_q_lens_ref[sequence + 1] - first_token
    rows = jnp.clip(left, 0, launch.query_block)
    return jnp.where(rows > 0, first_token, 0), rows


def span_of_query_block(tables, sequence, query_block, launch):
    """The keys that a query block can see."""
    new_token = tables.cu_q_lens_ref[sequence]
    new_tokens = tables.cu_q_lens_ref[sequence + 1] - new_token
    _, rows = query_rows(tables, sequence, query_block, launch)
    kv_len = tables.kv_lens_ref[sequence]
    new_start = kv_len - new_tokens
    first_query = new_start + query_block * launch.query_block
    start = 0
    # Causal: up to the key of the last query itself.
    end = jnp.where(rows > 0, jnp.minimum(kv_len, first_query + rows), start)
    return Span(
        sequence=sequence,
        start=start,
        end=jnp.maximum(end, start),
        new_start=new_start,
        new_token=new_token,
        first_query=first_query,
        rows=rows,
    )


def start_token_query_fetch(tables, queries_ref, queries, sequence, slot, end_sequence):
    """Starts the copy of a sequence's one query token into a slot, if there is such a sequence."""

    @pl.when(sequence < end_sequence)
    def fetch():
        pltpu.make_async_copy(
            queries_ref.at[tables.cu_q_lens_ref[sequence]],
            queries.slots_ref.at[slot, 0],
            queries.fetch_semaphores.at[slot],
        ).start()


def wait_token_query_fetch(queries, slot):
    """Waits until a query token is in its slot."""
    landed = queries.slots_ref.at[slot, 0]
    pltpu.make_async_copy(landed, landed, queries.fetch_semaphores.at[slot]).wait()


def start_query_fetch(tables, queries_ref, queries, sequence, query_block, slot, launch):
    """Starts the copy of a query block into a slot."""
    first_token, rows = query_rows(tables, sequence, query_block, launch)
    pltpu.make_async_copy(
        queries_ref.at[pl.ds(first_token, rows)],
        queries.slots_ref.at[slot, pl.ds(0, rows)],
        queries.fetch_semaphores.at[slot],
    ).start()


def start_next_query_fetch(
    tables, queries_ref, queries, sequence, query_block, slot, end_sequence, launch
):
    """Starts the fetch of the query block that comes after this one, if there is one."""
    is_last = query_block + 1 == launch.query_blocks(tables, sequence)
    next_sequence = jnp.where(is_last, sequence + 1, sequence)
    next_query_block = jnp.where(is_last, 0, query_block + 1)

    @pl.when(next_sequence < end_sequence)
    def fetch():
        start_query_fetch(
            tables, queries_ref, queries, next_sequence, next_query_block, slot, launch
        )


def wait_query_fetch(queries, slot, rows):
    """Waits until a query block is in its slot."""
    landed = queries.slots_ref.at[slot, pl.ds(0, rows)]
    pltpu.make_async_copy(landed, landed, queries.fetch_semaphores.at[slot]).wait()


def start_kv_fetch(tables, cache_ref, kv, span, kv_block, slot, launch):
    """Starts the copies that bring a KV block into a slot, all of it from the cache."""
    start, keys = kv_block_rows(span, kv_block, launch)
    first_page = span.sequence * launch.pages_per_sequence + lax.div(start, launch.page_size)

    @pl.loop(0, pl.cdiv(keys, launch.page_size))
    def fetch_page(page):
        row = page * launch.page_size
        rows = jnp.minimum(keys - row, launch.page_size)
        pltpu.make_async_copy(
            cache_ref.at[tables.page_indices_ref[first_page + page], pl.ds(0, rows)],
            kv.slots_ref.at[slot, pl.ds(row, rows)],
            kv.fetch_semaphores.at[slot],
        ).start()


def fetch_token_kv_ahead(tables, cache_ref, kv, end_sequence, launch):
    """Starts the fetch of the launch's next KV block, if one is left, and moves the cursor on."""
    sequence = kv.cursor_ref[0]
    kv_block = kv.cursor_ref[2]
    slot = kv.cursor_ref[3]

    @pl.when(sequence < end_sequence)
    def fetch():
        span = span_of_token(tables, sequence, launch)
        start_kv_fetch(tables, cache_ref, kv, span, kv_block, slot, launch)
        span_ends = kv_block + 1 == kv_block_count(span, launch)
        kv.cursor_ref[0] = jnp.where(span_ends, sequence + 1, sequence)
        kv.cursor_ref[2] = jnp.where(span_ends, 0, kv_block + 1)
        kv.cursor_ref[3] = next_slot(slot, launch.kv_slots)


def fetch_kv_ahead(tables, cache_ref, kv, end_sequence, launch):
    """Starts the fetch of the launch's next KV block, if one is left, and moves the cursor on."""
    sequence = kv.cursor_ref[0]
    query_block = kv.cursor_ref[1]
    kv_block = kv.cursor_ref[2]
    slot = kv.cursor_ref[3]

    @pl.when(sequence < end_sequence)
    def fetch():
        span = span_of_query_block(tables, sequence, query_block, launch)
        start_kv_fetch(tables, cache_ref, kv, span, kv_block, slot, launch)
        span_ends = kv_block + 1 == kv_block_count(span, launch)
        query_ends = query_block + 1 == launch.query_blocks(tables, sequence)
        sequence_ends = jnp.logical_and(span_ends, query_ends)
        next_query_block = jnp.where(span_ends, query_block + 1, query_block)
        kv.cursor_ref[0] = jnp.where(sequence_ends, sequence + 1, sequence)
        kv.cursor_ref[1] = jnp.where(sequence_ends, 0, next_query_block)
        kv.cursor_ref[2] = jnp.where(span_ends, 0, kv_block + 1)
        kv.cursor_ref[3] = next_slot(slot, launch.kv_slots)


def wait_kv_fetch(kv, span, kv_block, slot, launch):
    """Waits for all copies of a KV block at once: a wait counts bytes, whoever brought them."""
    _, rows = kv_block_rows(span, kv_block, launch)
    landed = kv.slots_ref.at[slot, pl.ds(0, rows)]
    pltpu.make_async_copy(landed, landed, kv.fetch_semaphores.at[slot]).wait()


def clear_tail(kv, slot, keys, launch):
    """Zeroes a slot from its last key to the end of that key's compute block.

    Those keys get no weight, but a NaN left there would survive the product with zero.
    """
    words = support.words_of(kv.slots_ref, slot)  # u32[kv rows * words per token, 128]
    words_per_token = words.shape[0] // kv.slots_ref.shape[1]
    past = pl.cdiv(keys, launch.compute_block) * launch.compute_block

    @pl.loop(0, pl.cdiv(past - keys, support.TAIL_ROWS))
    def clear_rows(step):
        first = (keys + step * support.TAIL_ROWS) * words_per_token
        count = support.TAIL_ROWS * words_per_token
        words[pl.ds(first, count), :] = jnp.zeros((count, support.LANES), jnp.uint32)


def load_query_token(queries, slot, head, launch):
    """The queries of one kv head for a single token: [group, head dim]."""
    words = support.words_of(queries.slots_ref, slot)
    words_per_head = launch.group // launch.query_packing
    rows = support.load_rows(words, head * words_per_head, words_per_head, 1, launch.head_dim)
    return pltpu.bitcast(rows, QUERY_DTYPE)


def load_query_tile(queries, slot, head, tile, launch):
    """The queries of one kv head in a query tile.

    Rows are in the order (query head word, token, query head in word): a strided load picks one
    word of every token, and the heads packed in a word follow each other.
    """
    words = support.words_of(queries.slots_ref, slot)
    words_per_head = launch.group // launch.query_packing
    words_per_token = launch.kv_heads * words_per_head
    first = tile * launch.query_tile * words_per_token + head * words_per_head
    rows = [
        support.load_rows(words, first + word, launch.query_tile, words_per_token, launch.head_dim)
        for word in range(words_per_head)
    ]
    return pltpu.bitcast(jnp.concatenate(rows), QUERY_DTYPE)


def load_keys_and_values(kv, slot, head, compute_block, launch):
    """K and V of one head in a compute block, [compute block, head dim] each.

    A word holds K of the head in its low half and V in its high half.
    """
    words_ref = support.words_of(kv.slots_ref, slot)
    first = compute_block * launch.compute_block * launch.kv_heads + head
    words = support.load_rows(
        words_ref, first, launch.compute_block, launch.kv_heads, launch.head_dim
    )
    keys = pltpu.bitcast(words.astype(jnp.uint16), KV_DTYPE)
    values = pltpu.bitcast((words >> 16).astype(jnp.uint16), KV_DTYPE)
    return keys, values


def query_positions(span, tile, launch):
    """The position of every query row of a tile, in all lanes: i32[rows, 128]."""
    shape = (launch.query_tile * launch.group, support.LANES)
    row = lax.broadcasted_iota(jnp.int32, shape, 0)
    token = row // launch.query_packing % launch.query_tile
    return span.first_query + tile * launch.query_tile + token


def visible_keys(positions, first_key, end_key, launch):
    """Which keys of a compute block each query row counts: bool[rows, compute block].

    `positions` are the rows' own; `first_key` is the position of the compute block's first key
    and `end_key` the one past the last key of the KV block.
    """
    shape = (positions.shape[0], launch.compute_block)
    key = first_key + lax.broadcasted_iota(jnp.int32, shape, 1)
    end = jnp.minimum(positions + 1, end_key)  # causal
    visible = key < support.across_lanes(end, launch.compute_block)
    return visible


def scale_scores(scores, score_scale, launch):
    """Turns products of queries and keys into exponents of two; the scale holds log2(e)."""
    return scores * score_scale


def reset_softmax(softmax):
    """Starts the running maximum, sum and accumulator of a query block."""
    # Finite, so that a row without visible keys gets exponents of -inf and not of NaN.
    softmax.maximum_ref[...] = jnp.full(softmax.maximum_ref.shape, LOWEST_MAXIMUM, jnp.float32)
    softmax.sum_ref[...] = jnp.zeros(softmax.sum_ref.shape, jnp.float32)
    softmax.accumulator_ref[...] = jnp.zeros(softmax.accumulator_ref.shape, jnp.float32)


def score_and_softmax(queries, keys, visible, softmax, head, rows, score_scale, launch):
    """Step 1 of attention (FlashAttention-2, arXiv 2307.08691): scores to weights.

    Returns the weights of the keys, [rows, compute block], and what the accumulator must be
    multiplied with before they count, [rows, 128].
    """
    scores = lax.dot_general(
        queries,
        keys,
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    scores = jnp.where(visible, scale_scores(scores, score_scale, launch), -jnp.inf)
    old_maximum = softmax.maximum_ref[head, rows]
    maximum = jnp.maximum(old_maximum, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2(scores - support.across_lanes(maximum, launch.compute_block))
    rescale = jnp.exp2(old_maximum - maximum)
    weight_sum = jnp.sum(weights, axis=1, keepdims=True)
    softmax.sum_ref[head, rows] = rescale * softmax.sum_ref[head, rows] + weight_sum
    softmax.maximum_ref[head, rows] = maximum
    return weights.astype(QUERY_DTYPE), rescale


def accumulate(weights, rescale, values, head, rows, softmax, launch):
    """Step 2 of attention: adds the weighted values of a compute block to the accumulator."""
    weighted = lax.dot_general(
        weights,
        values,
        (((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    kept = support.across_lanes(rescale, launch.head_dim) * softmax.accumulator_ref[head, rows]
    softmax.accumulator_ref[head, rows] = kept + weighted


def attend(load_queries, kv, softmax, span, keys_at, score_scale, launch):
    """Attention of a query block to a compute block, in two steps.

    Work items are (kv head, query tile); `load_queries` takes both. Step 1 of an item is issued
    before step 2 of the 1 before it, so that the matrix unit has work while a
    softmax is under way.
    """
    waiting = []  # step-1 results whose step 2 has not run
    for head in range(launch.kv_heads):
        keys, values = load_keys_and_values(kv, keys_at.slot, head, keys_at.index, launch)
        for tile in range(launch.query_block // launch.query_tile):
            rows = pl.ds(tile * launch.tile_rows, launch.tile_rows)
            weights, rescale = score_and_softmax(
                load_queries(head, tile),
                keys,
                visible_keys(
                    query_positions(span, tile, launch), keys_at.first_key, keys_at.end_key, launch
                ),
                softmax,
                head,
                rows,
                score_scale,
                launch,
            )
            waiting.append((weights, rescale, values, head, rows))
            if len(waiting) > 1:
                accumulate(*waiting.pop(0), softmax, launch)
    for item in waiting:
        accumulate(*item, softmax, launch)


def normalise(softmax, head, rows, launch):
    """The attention output of one head; a row that saw no key gives 0."""
    total = softmax.sum_ref[head, rows]
    weight = jnp.where(total > 0.0, 1.0 / total, 0.0)
    out = softmax.accumulator_ref[head, rows] * support.across_lanes(weight, launch.head_dim)
    return out.astype(QUERY_DTYPE)


def wait_output(outputs, slot):
    """Waits until the output last sent from a slot has left it."""
    rows = outputs.rows_ref[slot]
    sent = outputs.slots_ref.at[slot, pl.ds(0, rows)]
    pltpu.make_async_copy(sent, sent, outputs.semaphores.at[slot]).wait()


def store_token_output(softmax, outputs, slot, launch):
    """Normalises the accumulator of a token and stores it in an output slot."""
    words = support.words_of(outputs.slots_ref, slot)
    words_per_head = launch.group // launch.query_packing
    rows = pl.ds(0, launch.group)
    for head in range(launch.kv_heads):
        out = pltpu.bitcast(normalise(softmax, head, rows, launch), jnp.uint32)
        support.store_rows(words, head * words_per_head, 1, out)


def start_token_output(tables, out_ref, outputs, sequence, slot):
    """Starts the copy of a token's output from its slot to HBM."""
    outputs.rows_ref[slot] = 1
    pltpu.make_async_copy(
        outputs.slots_ref.at[slot, 0],
        out_ref.at[tables.cu_q_lens_ref[sequence]],
        outputs.semaphores.at[slot],
    ).start()


def store_output(softmax, outputs, slot, launch):
    """Normalises the accumulator of a query block and stores it in an output slot."""
    words = support.words_of(outputs.slots_ref, slot)
    words_per_head = launch.group // launch.query_packing
    words_per_token = launch.kv_heads * words_per_head
    for head in range(launch.kv_heads):
        for tile in range(launch.query_block // launch.query_tile):
            rows = pl.ds(tile * launch.tile_rows, launch.tile_rows)
            out = pltpu.bitcast(normalise(softmax, head, rows, launch), jnp.uint32)
            first = tile * launch.query_tile * words_per_token + head * words_per_head
            for word in range(words_per_head):
                support.store_rows(
                    words,
                    first + word,
                    words_per_token,
                    out[word * launch.query_tile : (word + 1) * launch.query_tile],
                )


def start_output(tables, out_ref, outputs, span, query_block, slot, launch):
    """Starts the copy of a query block's output from its slot to HBM."""
    first_token, rows = query_rows(tables, span.sequence, query_block, launch)
    outputs.rows_ref[slot] = rows
    pltpu.make_async_copy(
        outputs.slots_ref.at[slot, pl.ds(0, rows)],
        out_ref.at[pl.ds(first_token, rows)],
        outputs.semaphores.at[slot],
    ).start()


def decode_kernel(
    kv_lens_ref,  # i32[sequences], SMEM
    page_indices_ref,  # i32[sequences * pages per sequence], SMEM
    cu_q_lens_ref,  # i32[sequences + 1], SMEM
    bounds_ref,  # i32[4]: 0 and the ends of the decode, prefill and mixed sequences, SMEM
    scales_ref,  # f32[1]: score scale; SMEM
    queries_ref,  # [tokens, kv heads * group / 2, 2, head dim]
    _out_operand_ref,  # [tokens, kv heads * group / 2, 2, head dim], the same as out_ref
    cache_ref,  # [pages, page size, kv heads, 2, head dim]
    out_ref,  # [tokens, kv heads * group / 2, 2, head dim]
    kv,
    queries,
    outputs,
    softmax,
    *,
    launch,
):
    """Attention of sequences with one new token each."""
    tables = Tables(kv_lens_ref, page_indices_ref, cu_q_lens_ref)
    first_sequence = bounds_ref[launch.first_bound]
    end_sequence = bounds_ref[launch.end_bound]
    score_scale = scales_ref[0]

    start_turns(kv, queries, outputs, first_sequence, launch)
    start_token_query_fetch(tables, queries_ref, queries, first_sequence, 0, end_sequence)
    for _ in range(launch.kv_slots - 1):
        fetch_token_kv_ahead(tables, cache_ref, kv, end_sequence, launch)

    @pl.loop(first_sequence, end_sequence)
    def sequence_loop(sequence):
        span = span_of_token(tables, sequence, launch)
        query_slot = queries.turn_ref[0]
        next_query_slot = next_slot(query_slot, 2)
        queries.turn_ref[0] = next_query_slot
        reset_softmax(softmax)
        start_token_query_fetch(
            tables, queries_ref, queries, sequence + 1, next_query_slot, end_sequence
        )
        wait_token_query_fetch(queries, query_slot)

        @pl.loop(0, kv_block_count(span, launch))
        def kv_block_loop(kv_block):
            slot = kv.turn_ref[0]
            kv.turn_ref[0] = next_slot(slot, launch.kv_slots)
            start, keys = kv_block_rows(span, kv_block, launch)
            fetch_token_kv_ahead(tables, cache_ref, kv, end_sequence, launch)
            wait_kv_fetch(kv, span, kv_block, slot, launch)
            clear_tail(kv, slot, keys, launch)

            @pl.loop(0, pl.cdiv(keys, launch.compute_block))
            def compute_block_loop(index):
                attend(
                    lambda head, _: load_query_token(queries, query_slot, head, launch),
                    kv,
                    softmax,
                    span,
                    ComputeBlock(slot, index, start + index * launch.compute_block, start + keys),
                    score_scale,
                    launch,
                )

        wait_output(outputs, query_slot)
        store_token_output(softmax, outputs, query_slot, launch)
        start_token_output(tables, out_ref, outputs, sequence, query_slot)

    for slot in range(2):
        wait_output(outputs, slot)


def prefill_and_mixed_kernel(
    kv_lens_ref,  # i32[sequences], SMEM
    page_indices_ref,  # i32[sequences * pages per sequence], SMEM
    cu_q_lens_ref,  # i32[sequences + 1], SMEM
    bounds_ref,  # i32[4]: 0 and the ends of the decode, prefill and mixed sequences, SMEM
    scales_ref,  # f32[1]: score scale; SMEM
    queries_ref,  # [tokens, kv heads * group / 2, 2, head dim]
    _out_operand_ref,  # [tokens, kv heads * group / 2, 2, head dim], the same as out_ref
    cache_ref,  # [pages, page size, kv heads, 2, head dim]
    out_ref,  # [tokens, kv heads * group / 2, 2, head dim]
    kv,
    queries,
    outputs,
    softmax,
    *,
    launch,
):
    """Attention of sequences with any number of new tokens each."""
    tables = Tables(kv_lens_ref, page_indices_ref, cu_q_lens_ref)
    first_sequence = bounds_ref[launch.first_bound]
    end_sequence = bounds_ref[launch.end_bound]
    score_scale = scales_ref[0]

    start_turns(kv, queries, outputs, first_sequence, launch)

    @pl.when(first_sequence < end_sequence)
    def fetch_first_queries():
        start_query_fetch(tables, queries_ref, queries, first_sequence, 0, 0, launch)

    for _ in range(launch.kv_slots - 1):
        fetch_kv_ahead(tables, cache_ref, kv, end_sequence, launch)

    @pl.loop(first_sequence, end_sequence)
    def sequence_loop(sequence):
        @pl.loop(0, launch.query_blocks(tables, sequence))
        def query_block_loop(query_block):
            span = span_of_query_block(tables, sequence, query_block, launch)
            query_slot = queries.turn_ref[0]
            next_query_slot = next_slot(query_slot, 2)
            queries.turn_ref[0] = next_query_slot
            reset_softmax(softmax)
            start_next_query_fetch(
                tables,
                queries_ref,
                queries,
                sequence,
                query_block,
                next_query_slot,
                end_sequence,
                launch,
            )
            wait_query_fetch(queries, query_slot, span.rows)

            @pl.loop(0, kv_block_count(span, launch))
            def kv_block_loop(kv_block):
                slot = kv.turn_ref[0]
                kv.turn_ref[0] = next_slot(slot, launch.kv_slots)
                start, keys = kv_block_rows(span, kv_block, launch)
                fetch_kv_ahead(tables, cache_ref, kv, end_sequence, launch)
                wait_kv_fetch(kv, span, kv_block, slot, launch)
                clear_tail(kv, slot, keys, launch)

                @pl.loop(0, pl.cdiv(keys, launch.compute_block))
                def compute_block_loop(index):
                    attend(
                        lambda head, tile: load_query_tile(queries, query_slot, head, tile, launch),
                        kv,
                        softmax,
                        span,
                        ComputeBlock(
                            slot, index, start + index * launch.compute_block, start + keys
                        ),
                        score_scale,
                        launch,
                    )

            wait_output(outputs, query_slot)
            store_output(softmax, outputs, query_slot, launch)
            start_output(tables, out_ref, outputs, span, query_block, query_slot, launch)

    for slot in range(2):
        wait_output(outputs, slot)


KERNELS = {
    "decode": decode_kernel,
    "prefill": prefill_and_mixed_kernel,
    "mixed": prefill_and_mixed_kernel,
}


def run_launch(launch, scalars, queries, out, kv_cache):
    """One pallas_call: attention of the sequences in one part of `distribution`."""
    query_slots = pltpu.VMEM((2, launch.query_block, *queries.shape[1:]), QUERY_DTYPE)
    rows = launch.query_block * launch.group
    statistics = pltpu.VMEM((launch.kv_heads, rows, support.LANES), jnp.float32)
    scratch = (
        KvScratch(
            slots_ref=pltpu.VMEM((launch.kv_slots, launch.kv_rows, *kv_cache.shape[2:]), KV_DTYPE),
            fetch_semaphores=pltpu.SemaphoreType.DMA((launch.kv_slots,)),
            cursor_ref=pltpu.SMEM((4,), jnp.int32),
            turn_ref=pltpu.SMEM((1,), jnp.int32),
        ),
        QueryScratch(
            slots_ref=query_slots,
            fetch_semaphores=pltpu.SemaphoreType.DMA((2,)),
            turn_ref=pltpu.SMEM((1,), jnp.int32),
        ),
        OutputScratch(
            slots_ref=query_slots,
            semaphores=pltpu.SemaphoreType.DMA((2,)),
            rows_ref=pltpu.SMEM((2,), jnp.int32),
        ),
        SoftmaxScratch(
            maximum_ref=statistics,
            sum_ref=statistics,
            accumulator_ref=pltpu.VMEM((launch.kv_heads, rows, launch.head_dim), jnp.float32),
        ),
    )
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    out_shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
    operands = (*scalars, queries, out, kv_cache)
    kernel = pl.pallas_call(
        functools.partial(KERNELS[launch.name], launch=launch),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[in_hbm] * (len(operands) - len(scalars)),
            out_specs=in_hbm,
            scratch_shapes=scratch,
        ),
        out_shape=out_shape,
        input_output_aliases={len(operands) - 2: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            vmem_limit_bytes=launch.vmem_limit_bytes,
            disable_bounds_checks=True,
        ),
        name=launch.profile_name(NAME),
    )
    return kernel(*operands)


@functools.partial(jax.jit, static_argnames=("launches", "out_dtype"))
def run_launches(
    queries,
    keys,
    values,
    kv_cache,
    kv_lens,
    page_indices,
    cu_q_lens,
    distribution,
    scales,
    *,
    launches,
    out_dtype,
):
    """Brings the operands into the kernels' form and runs the launches one after the other."""
    kv_heads = keys.shape[1]
    scalars = (kv_lens, page_indices, cu_q_lens, jnp.pad(distribution, (1, 0)), scales)
    padded_queries = support.pad_queries(queries, kv_heads, kv_cache.shape[-1])
    out = lax.empty(padded_queries.shape, padded_queries.dtype)
    for launch in launches:
        out = run_launch(launch, scalars, padded_queries, out, kv_cache)
    out = support.unpad_output(out, kv_heads, queries.shape[1], queries.shape[2])
    return out.astype(out_dtype), kv_cache


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
    sm_scale: Any = 1.0,
    chunk_prefill_size: int | None = None,
    out_dtype: Any = None,
    d_block_sizes: tuple[int, int, int, int] | None = None,
    p_block_sizes: tuple[int, int, int, int] | None = None,
    m_block_sizes: tuple[int, int, int, int] | None = None,
    vmem_limit_bytes: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Ragged paged attention with a cache that another layer fills, over a bfloat16 cache.

    Args:
        queries: [tokens, query heads, head dim], bfloat16.
        keys: [tokens, kv heads, head dim], bfloat16.
        values: like `keys`.
        kv_cache: [pages, page size, kv heads, 2, head dim], bfloat16.
        kv_lens: i32[sequences], keys of each sequence with those of this call.
        page_indices: i32[sequences * pages per sequence].
        cu_q_lens: i32[sequences + 1], where each sequence's new tokens begin.
        distribution: i32[3], ends of the decode, prefill and mixed sequences.
        sm_scale: multiplies the scores; a number or a traced scalar.
        chunk_prefill_size: most new tokens of a prefill sequence; without it, the prefill
            sequences are processed as mixed ones.
        out_dtype: dtype of the output; that of the queries if None.
        d_block_sizes: (query block, KV block, query tile, compute block) of the decode launch,
            in tokens; from the VMEM budget if None.
        p_block_sizes: the same for the prefill launch.
        m_block_sizes: the same for the mixed launch.
        vmem_limit_bytes: VMEM that a launch may take; all of it if None.

    Returns:
        The output, [tokens, query heads, head dim], and the KV cache with the new tokens in it.

    Raises:
        ValueError: if an operand's shape or dtype, or an option's value, does not fit.
    """
    support.check_platform()
    problem = support.check_operands(
        VARIANT, queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution
    )
    launches = support.plan_launches(
        support.Launch,
        problem,
        kv_slots=KV_SLOTS,
        chunk_prefill_size=chunk_prefill_size,
        block_sizes={"decode": d_block_sizes, "prefill": p_block_sizes, "mixed": m_block_sizes},
        vmem_limit_bytes=vmem_limit_bytes,
        distribution=distribution,
    )
    scales = jnp.stack([sm_scale * support.LOG2_E])
    attend_all = support.refuse_gradients(
        functools.partial(run_launches, launches=launches, out_dtype=out_dtype or queries.dtype)
    )
    return attend_all(
        queries,
        keys,
        values,
        kv_cache,
        kv_lens,
        page_indices,
        cu_q_lens,
        distribution,
        scales,
    )


VARIANT = support.Variant(
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
            support.Pipelining(
                kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
            ),
        ),
        (
            "prefill",
            support.Pipelining(
                kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
            ),
        ),
        (
            "mixed",
            support.Pipelining(
                kv_slots=2, attention_depth=1, dma_wait="aggregate", new_kv_fetch="select"
            ),
        ),
    ),
)
