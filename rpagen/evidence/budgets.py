"""The budget that dispatch relies on, beside what the compiler took."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rpagen.evidence.allocations import Allocated, Taken
from rpagen.spec import budget
from rpagen.spec.budget import Problem
from rpagen.spec.launches import LaunchPlan

TOLERANCE = 0.2
"""How far the model may be off what a kernel takes, as a share of the latter."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """One memory of one launch, in bytes.

    model: what the budget says that the kernel takes. margin: what it leaves to the compiler.
    """

    model: int
    margin: int
    taken: Taken

    @property
    def total(self) -> int:
        """All that is taken."""
        return self.taken.of_kernel + self.taken.of_compiler

    @property
    def off(self) -> float:
        """How far the model is off, as a share of what the kernel takes."""
        return self.model / self.taken.of_kernel - 1

    @property
    def is_held(self) -> bool:
        """Whether the model is near, and model and margin together suffice."""
        return abs(self.off) <= TOLERANCE and self.total <= self.model + self.margin


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch: its budget and what it took."""

    name: str
    vmem: Compared
    smem: Compared
    hbm_spills: int

    @property
    def is_held(self) -> bool:
        """Whether its budget holds."""
        return self.vmem.is_held and self.smem.is_held


def compare(
    plans: tuple[LaunchPlan, ...], problem: Problem, allocated: Mapping[str, Allocated]
) -> tuple[Launch, ...]:
    """Every launch of a call with what the compiler allocated for it, in order."""
    margin = budget.SMEM_OF_COMPILER
    smem = budget.smem_bytes(problem.sequences, problem.pages_per_sequence) - margin
    return tuple(
        Launch(
            plan.launch,
            Compared(plan.vmem_bytes, plan.spill_bytes, allocated[plan.launch].vmem),
            Compared(smem, margin, allocated[plan.launch].smem),
            allocated[plan.launch].hbm_spills,
        )
        for plan in plans
    )
