"""A schedule as the arrays that the step takes, in shapes that stay the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .scheduler import Limits, Schedule

Array = Any  # NumPy's on the host, jax's inside of the step


class Batch(NamedTuple):
    """The arrays of a step. A row is a sequence for this step: the next one orders them anew."""

    tokens: Array  # i32[tokens], the new tokens of all rows one after the other
    positions: Array  # i32[tokens], where in its sequence each of them is
    kv_lens: Array  # i32[rows], the cached tokens of each sequence and its new ones
    page_indices: Array  # i32[rows * pages per sequence], in the order of the tokens
    cu_q_lens: Array  # i32[rows + 1], where the new tokens of each row begin
    distribution: Array  # i32[3], where the decode, the prefill and the mixed rows end
    last_tokens: Array  # i32[rows], the last new token of each row: what to sample from


def make_batch(schedule: Schedule, limits: Limits) -> Batch:
    """The arrays of a schedule, padded.

    What is past the last row and the last token is zeros. The kernel goes by `distribution` and
    `cu_q_lens`, and touches none of it.
    """
    shares = schedule.shares
    # Two sizes, so the step is compiled twice: most steps are decodes, and need few tokens.
    is_small = schedule.tokens <= limits.sequences
    size = limits.sequences if is_small else limits.tokens
    batch = Batch(
        tokens=np.zeros(size, np.int32),
        positions=np.zeros(size, np.int32),
        kv_lens=np.zeros(limits.sequences, np.int32),
        page_indices=np.zeros(limits.sequences * limits.pages_per_sequence, np.int32),
        cu_q_lens=np.zeros(limits.sequences + 1, np.int32),
        distribution=np.cumsum(
            [len(schedule.decode), len(schedule.prefill), len(schedule.mixed)], dtype=np.int32
        ),
        last_tokens=np.zeros(limits.sequences, np.int32),
    )
    page_table = batch.page_indices.reshape(limits.sequences, -1)  # a view of the same memory
    past = 0
    for row, share in enumerate(shares):
        request, first = share.request, past
        past += share.count
        kv_len = request.cached + share.count
        batch.tokens[first:past] = request.tokens[request.cached : kv_len]
        batch.positions[first:past] = range(request.cached, kv_len)
        batch.kv_lens[row] = kv_len
        page_table[row, : len(request.pages)] = request.pages
        batch.cu_q_lens[row + 1 :] = past
        batch.last_tokens[row] = past - 1
    return batch
