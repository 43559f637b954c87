"""How long the matrix units hold back the core, where a schedule is denser than they are.

Each unit takes its operations in order and without a queue: one that comes while the unit is busy
stalls the core. libtpu's schedules keep to that on v6e, and not on v7x.
"""

from __future__ import annotations

from rpagen.schedule import multiply
from rpagen.schedule.blocks import Block
from rpagen.schedule.generations import Generation
from rpagen.schedule.read import Schedule

Backlog = tuple[float, ...]
"""Cycles for which each unit is still busy."""

IDLE: Backlog = ()

_UNITS = 4


def later(backlog: Backlog, cycles: float) -> Backlog:
    """What is left of it some cycles later."""
    left = tuple(max(0.0, each - cycles) for each in backlog)
    return left if any(left) else IDLE


class Stalls:
    """Of a block of a schedule."""

    def __init__(self, schedule: Schedule, block: Block, generation: Generation) -> None:
        """Finds the operations of the matrix units.

        Raises:
            InputError: a multiplication has no name that is known.
        """
        self._length = block.length
        self._events: list[tuple[int, int, int]] = []  # offset, unit, cycles
        self._known: dict[Backlog, tuple[float, Backlog]] = {}
        costs = generation.matrix_unit
        if costs is None:
            return
        for bundle in schedule.bundles[block.first : block.last + 1]:
            for operation in bundle.operations:
                unit = multiply.pushed_to(operation)
                cost = costs.push
                if (found := multiply.of(schedule, bundle, operation)) is not None:
                    unit, cost = found.unit, costs.multiply[found.bits]
                if unit is not None:
                    self._events.append((bundle.address - block.first, unit, cost))

    @property
    def matters(self) -> bool:
        """Whether the block uses a matrix unit."""
        return bool(self._events)

    def after(self, backlog: Backlog) -> tuple[float, Backlog]:
        """Cycles that the core stalls in the block, and the backlog after it."""
        if backlog not in self._known:
            self._known[backlog] = self._simulated(backlog)
        return self._known[backlog]

    def _simulated(self, backlog: Backlog) -> tuple[float, Backlog]:
        free = list(backlog) + [0.0] * (_UNITS - len(backlog))
        stalled = 0.0
        for offset, unit, cost in self._events:
            at = offset + stalled
            if free[unit] > at:
                stalled += free[unit] - at
                at = free[unit]
            free[unit] = at + cost
        return stalled, later(tuple(free), self._length + stalled)
