"""The basic blocks of a schedule: bundles that are executed together, delay slots included."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from rpagen.schedule.generations import Generation
from rpagen.schedule.read import Bundle, Operation, Schedule

BRANCH = "sbr.rel"
END = -1
"""The address after the last bundle, where a kernel is done."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Bundles that are executed one after the other, from `first` to `last`.

    branch: the bundle that ends it, some delay slots before `last`; None if there is none.
    taken, next: the addresses at which it goes on, where the branch is taken and where it is not.
    """

    first: int
    last: int
    branch: int | None
    taken: int
    next: int

    @property
    def length(self) -> int:
        """Bundles, which are cycles."""
        return self.last - self.first + 1


def split(schedule: Schedule, generation: Generation) -> list[Block]:
    """The blocks of a schedule, by address; those that begin in delay slots overlap others.

    Raises:
        InputError: a branch is of no known form, or lies in the delay slots of another.
    """
    regions = {
        bundle.address: _region(schedule, bundle, branch)
        for bundle in schedule.bundles
        if (branch := branch_of(bundle)) is not None
    }
    _refuse_several_ends(schedule, regions)
    # A region that starts nowhere is the end of the kernel.
    targets = {address: schedule.starts.get(region, END) for address, region in regions.items()}
    count = len(schedule.bundles)
    lasts = {address: _last(schedule, address, generation) for address in targets}
    for address, last in lasts.items():
        bundle = schedule.bundles[address]
        if last >= count:
            raise schedule.error(
                bundle,
                "a branch has no delay slots",
                expected=f"{last - address} bundles after it",
            )
        if any(other in targets for other in range(address + 1, last + 1)):
            raise schedule.error(
                bundle,
                "a branch lies in the delay slots of another",
                expected=f"{last - address} bundles without one after it: is --device right?",
            )
    after = {last + 1 for last in lasts.values()}
    starts = sorted({0, *targets.values(), *after} - {END, count})
    return [_block(start, starts, targets, lasts, count) for start in starts]


def _last(schedule: Schedule, branch: int, generation: Generation) -> int:
    """The last bundle that is executed after a branch, wherever it goes.

    Where empty ones are left out at the end, one of them stays. What is executed next then starts a
    region; and where all delay slots are there, a region ends with them. No other branch is among
    them: where one follows sooner, some are left out.
    """
    bundles = schedule.bundles
    whole = branch + generation.delay_slots
    if not generation.trims_delay_slots:
        return whole
    slots = range(branch + 1, min(whole, len(bundles)))
    other = next((address for address in slots if branch_of(bundles[address]) is not None), None)
    empty = [
        address
        for address in slots[: None if other is None else other - branch - 1]
        if not bundles[address].operations
    ]
    for address in empty:
        follows = bundles[address + 1] if address + 1 < len(bundles) else None
        if follows is None or follows.regions or follows.marks:
            return address
    is_whole = other is None and whole < len(bundles) and bundles[whole].ends_region
    return whole if is_whole or not empty else empty[0]


def branch_of(bundle: Bundle) -> Operation | None:
    """The branch in a bundle."""
    return next((each for each in bundle.operations if each.name == BRANCH), None)


def _block(
    start: int, starts: list[int], targets: dict[int, int], lasts: dict[int, int], count: int
) -> Block:
    known = set(starts)
    for address in range(start, count):
        if address in targets:
            last = lasts[address]
            follows = last + 1 if last + 1 < count else END
            return Block(start, last, address, targets[address], follows)
        if address + 1 in known:
            return Block(start, address, None, END, address + 1)
    return Block(start, count - 1, None, END, END)


def _region(schedule: Schedule, bundle: Bundle, branch: Operation) -> int:
    """The region that a branch goes to."""
    words = branch.operands[-1] if branch.operands else ""
    match = re.fullmatch(r"target = \$region(\d+)", words)
    if match is None or branch.predicate is None:
        raise schedule.error(
            bundle, "the branch is not known", expected="`sbr.rel (%p1) target = $region2`"
        )
    return int(match[1])


def _refuse_several_ends(schedule: Schedule, regions: Mapping[int, int]) -> None:
    """Refuse branches to more than one region that starts nowhere: only the end does."""
    ends = [address for address, region in regions.items() if region not in schedule.starts]
    for address in ends:
        pair = sorted({regions[ends[0]], regions[address]})
        if len(pair) > 1:
            raise schedule.error(
                schedule.bundles[address],
                f"regions {pair[0]} and {pair[1]} start nowhere",
                expected="one at most, the end of the kernel",
            )
