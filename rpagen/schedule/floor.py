"""The least time that any kernel could take: bytes over bandwidth, operations over peak."""

from __future__ import annotations

import dataclasses

from rpagen.schedule.generations import Generation
from rpagen.schedule.workloads import Configuration, Workload
from rpagen.spec.model import BIT_WIDTHS


@dataclasses.dataclass(frozen=True)
class Floor:
    """What a call has to move and to compute.

    bytes: queries, new keys and values and the cache's pages read once, outputs and new slots
    written once. operations: of both matmuls, for keys that a query sees.
    memory, compute: cycles; of the compute, at the share of the matrix unit's columns or rows that
    the head dim can fill.
    """

    bytes: int
    operations: int
    memory: float
    compute: float

    @property
    def cycles(self) -> float:
        """The larger one."""
        return max(self.memory, self.compute)

    @property
    def bound(self) -> str:
        """What it is that binds."""
        return "HBM" if self.memory >= self.compute else "matrix unit"


def of(workload: Workload, configuration: Configuration, generation: Generation) -> Floor:
    """The floor of a call, of real lengths, not of what they are padded to."""
    c = configuration
    query_row = c.query_heads * c.head_dim * BIT_WIDTHS[c.query_dtype] // 8
    kv_row = 2 * c.kv_heads * c.head_dim * BIT_WIDTHS[c.kv_dtype] // 8
    moved = operations = 0
    for kv_len, new in zip(workload.kv_lens, workload.new_tokens, strict=True):
        cached = kv_len - new
        seen = sum(_keys(position, c.sliding_window) for position in range(cached, kv_len))
        if c.sliding_window is not None:
            cached = min(cached, c.sliding_window - 1)
        # New keys and values are read as they come, and written to the cache.
        moved += 2 * new * query_row + cached * kv_row + 2 * new * kv_row
        operations += 4 * c.query_heads * c.head_dim * seen
    filled = min(1.0, c.head_dim / generation.array)
    return Floor(
        moved,
        operations,
        moved / generation.bandwidth * generation.clock,
        operations / (generation.peak * filled) * generation.clock,
    )


def _keys(position: int, window: int | None) -> int:
    """That a query sees, itself among them."""
    return position + 1 if window is None else min(position + 1, window)
