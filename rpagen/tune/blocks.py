"""The block sizes that a launch may have, and which lie next to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rpagen.spec import budget, launches
from rpagen.spec.budget import Problem
from rpagen.spec.launches import LaunchPlan

_, MOST_ROWS = budget.ROWS_PER_TILE
"""Of queries in one attention step: more compile for minutes, and never were faster."""

LEAST_KEYS, MOST_KEYS = 128, 1024
"""Of a compute block."""


@dataclasses.dataclass(frozen=True, order=True)
class Blocks:
    """The block sizes of one launch, in tokens, in the order in which a call takes them."""

    query_block: int
    kv_block: int
    query_tile: int
    compute_block: int

    @classmethod
    def of(cls, plan: LaunchPlan) -> Blocks:
        """Those of a planned launch."""
        return cls(*plan.blocks)

    @property
    def argument(self) -> tuple[int, int, int, int]:
        """As a call takes them."""
        return self.query_block, self.kv_block, self.query_tile, self.compute_block


@dataclasses.dataclass(frozen=True)
class Space:
    """What blocks of a launch may be: what fits the call, the VMEM and what is worth trying.

    kv_slots: the most that the variant has for the launch.
    """

    launch: str
    problem: Problem
    kv_slots: int
    device: str

    def neighbours(self, blocks: Blocks) -> Iterator[Blocks]:
        """The blocks that are one step away: one size doubled or halved, or tile and block."""
        steps: list[tuple[str, ...]] = [("kv_block",), ("compute_block",)]
        if self.launch != "decode":
            steps += [("query_block", "query_tile"), ("query_block",), ("query_tile",)]
        for names in steps:
            sizes = {name: getattr(blocks, name) for name in names}
            for changed in (
                {name: 2 * size for name, size in sizes.items()},
                {name: size // 2 for name, size in sizes.items()},
            ):
                neighbour = dataclasses.replace(blocks, **changed)
                if self.has(neighbour):
                    yield neighbour

    def has(self, blocks: Blocks) -> bool:
        """Whether a call takes the blocks, and they can be worth a try."""
        page_size, group = self.problem.page_size, self.problem.padded_sizes["group"]
        return (
            self._fits(blocks)
            and blocks.kv_block > 0
            and blocks.kv_block % page_size == 0
            and blocks.kv_block < 2 * self.problem.max_keys
            and LEAST_KEYS <= blocks.compute_block <= MOST_KEYS
            and blocks.compute_block <= max(blocks.kv_block, LEAST_KEYS)
            and 0 < blocks.query_tile <= blocks.query_block < 2 * self.problem.tokens
            and blocks.query_block % blocks.query_tile == 0
            and blocks.query_tile * group <= MOST_ROWS
        )

    def _fits(self, blocks: Blocks) -> bool:
        """Whether the scratch, and what the compiler may spill, fit VMEM."""
        plan = launches.with_blocks(
            self.launch, blocks.argument, self.problem, self.device, self.kv_slots
        )
        return plan.vmem_bytes + plan.spill_bytes <= budget.VMEM_BYTES[self.device]
