"""Which TPU generation a schedule is for: else a wrong time looks like a right one."""

from __future__ import annotations

import re

from rpagen.errors import InputError
from rpagen.schedule.generations import Generation
from rpagen.schedule.read import Schedule, Slots

_CROSS_LANE_SLOTS = {"v5e": 3, "v6e": 2, "v7x": 2}
_RESULTS_IN = {"v5e": "mrf", "v6e": "mrf", "v7x": "mrb"}
"""What results of the matrix unit are popped from. A schedule without any tells nothing of it."""

_POP = re.compile(r"vpop\.\w+\.(mr[fb])\b")


def check(schedule: Schedule, slots: Slots, generation: Generation) -> None:
    """Refuses a schedule of another generation than the one that it is to be timed for.

    Raises:
        InputError: its slots, or its matrix unit, are those of another one.
    """
    possible = fitting(schedule, slots)
    if generation.name in _CROSS_LANE_SLOTS and generation.name not in possible:
        raise InputError(
            f"the schedule of {schedule.name} is not for {generation.name}",
            place=schedule.place,
            expected=f"a schedule for {generation.name}; this one is for"
            f" {' or '.join(possible) or 'no generation that is known'}",
            next_step="give the --device that the call was compiled for",
        )


def fitting(schedule: Schedule, slots: Slots) -> tuple[str, ...]:
    """The generations that a schedule may be for; without a matrix unit, v6e and v7x are alike."""
    capacities = dict(zip(slots.kinds, slots.capacities, strict=True))
    results = {
        match[1]
        for bundle in schedule.bundles
        for operation in bundle.operations
        if (match := _POP.match(operation.name))
    }
    return tuple(
        name
        for name, count in _CROSS_LANE_SLOTS.items()
        if capacities.get("XLU", count) == count and results <= {_RESULTS_IN[name]}
    )
