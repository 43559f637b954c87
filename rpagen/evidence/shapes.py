"""The sizes of a call that is compiled but never run."""

from __future__ import annotations

import dataclasses
import math

from rpagen.spec import budget
from rpagen.spec.budget import Problem
from rpagen.spec.model import BIT_WIDTHS, Variant


@dataclasses.dataclass(frozen=True)
class CallShape:
    """The sizes of a call of `rpa_kernels.ragged_paged_attention`."""

    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    tokens: int
    sequences: int
    pages_per_sequence: int

    def problem(self, variant: Variant) -> Problem:
        """What a kernel of `variant` is to plan for."""
        value_bytes = BIT_WIDTHS[variant.kv_dtype] // 8
        row = budget.page_shape(1, self.kv_heads, self.head_dim, value_bytes, layout=variant.layout)
        return Problem(
            **dataclasses.asdict(self),
            query_bytes=BIT_WIDTHS[variant.query_dtype] // 8,
            kv_row_bytes=math.prod(row) * value_bytes,
            layout=variant.layout,
        )
