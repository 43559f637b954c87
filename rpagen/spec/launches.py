"""What each launch of a call takes, its blocks and their VMEM, as emitted kernels plan it."""

from __future__ import annotations

import dataclasses

from rpagen.spec import budget
from rpagen.spec.budget import Problem
from rpagen.spec.model import Variant

WITHOUT_PREFILL = tuple(budget.launch_parts(None))
"""The launches of a call that fixes no number of tokens for prefill."""


def blocks_argument(launch: str) -> str:
    """The argument of a call that takes the block sizes of a launch."""
    return f"{launch[0]}_block_sizes"


@dataclasses.dataclass(frozen=True)
class LaunchPlan:
    """The blocks of one launch, in tokens, and the VMEM that it takes, in bytes.

    vmem_bytes: its scratch. spill_bytes: what is left to the compiler besides.
    """

    launch: str
    query_block: int
    kv_block: int
    query_tile: int
    compute_block: int
    vmem_bytes: int
    spill_bytes: int

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """Query block, KV block, query tile and compute block."""
        return self.query_block, self.kv_block, self.query_tile, self.compute_block


def plan(
    variant: Variant, problem: Problem, generation: str, chunk_prefill_size: int | None
) -> tuple[LaunchPlan, ...]:
    """The launches of a call that gives no block sizes, in order."""
    sizes = {**problem.padded_sizes, **problem.widths}
    plans = []
    for launch, (_, _, static_tokens) in budget.launch_parts(chunk_prefill_size).items():
        most_kv_slots = variant.launches[launch].kv_slots
        query_block, kv_block, query_tile, compute_block = budget.default_blocks(
            launch,
            vmem_limit_bytes=budget.VMEM_BYTES[generation],
            static_tokens=static_tokens,
            tokens=problem.tokens,
            max_keys=problem.max_keys,
            page_size=problem.page_size,
            kv_slots=most_kv_slots,
            **sizes,
        )
        query_block, query_tile = budget.cut_to_tokens(query_block, query_tile, static_tokens)
        blocks = (query_block, kv_block, query_tile, compute_block)
        plans.append(with_blocks(launch, blocks, problem, generation, most_kv_slots))
    return tuple(plans)


def with_blocks(
    launch: str,
    blocks: tuple[int, int, int, int],
    problem: Problem,
    generation: str,
    most_kv_slots: int,
) -> LaunchPlan:
    """The plan of a launch with certain blocks, in the order of `LaunchPlan.blocks`."""
    query_block, kv_block, _, compute_block = blocks
    scratch = {
        "query_slots": budget.QUERY_SLOTS[launch],
        "query_block": query_block,
        "kv_block": kv_block,
        "compute_block": compute_block,
        **problem.padded_sizes,
        **problem.widths,
    }
    kv_slots = budget.fit_kv_slots(
        most_kv_slots, vmem_limit_bytes=budget.VMEM_BYTES[generation], **scratch
    )
    spills = budget.spill_bytes(
        **problem.padded_sizes,
        query_bytes=problem.query_bytes,
        query_block=query_block,
        compute_block=compute_block,
    )
    vmem = budget.vmem_bytes(kv_slots=kv_slots, **scratch)
    return LaunchPlan(launch, *blocks, vmem, spills)
