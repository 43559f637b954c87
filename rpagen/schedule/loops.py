"""The loops of a schedule, and what each one takes of the slots of its bundles."""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from rpagen.errors import InputError
from rpagen.schedule import multiply
from rpagen.schedule.blocks import split
from rpagen.schedule.generations import Generation
from rpagen.schedule.read import Schedule, Slots
from rpagen.schedule.run import Run

MATRIX_UNIT = "matrix unit"
"""What binds where the matrix unit is nearer to its peak than any slot to its capacity."""

COPIES = "copies"
"""What binds where the time goes by in waits for them."""

SPILL, FILL = "VSTORE:SPILL", "VLOAD:FILL"
_BODY = "LB"


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of a schedule.

    first: the bundle where its body begins. last: the last delay slot of the branch back to there.
    depth: of loops, itself among them. parent: the index of the loop around it.
    """

    first: int
    last: int
    depth: int
    parent: int | None

    def holds(self, address: int) -> bool:
        """Whether a bundle is part of it."""
        return self.first <= address <= self.last


@dataclasses.dataclass(frozen=True)
class Figures:
    """What some bundles do, each one counted as often as it is executed, or once.

    idle: bundles that take no slot of the table. taken: slots, whether or not a predicate lets them
    take effect; `kinds`, `capacities` and `taken` are in the same order. copies, waits: operations
    that start a copy, or wait for some. multiplies: `vmatmul`s. operations: that these do, an
    addition and a multiplication being two; peak: those that the matrix units can do in a bundle's
    time, in bfloat16.
    """

    bundles: int
    idle: int
    kinds: tuple[str, ...]
    capacities: tuple[int, ...]
    taken: tuple[int, ...]
    copies: int
    waits: int
    multiplies: int
    operations: int
    peak: float

    @property
    def shares(self) -> dict[str, float]:
        """The share of its capacity that is taken, for each kind of slot."""
        return {
            kind: taken / (capacity * self.bundles) if capacity and self.bundles else 0.0
            for kind, capacity, taken in zip(self.kinds, self.capacities, self.taken, strict=True)
        }

    @property
    def share_of_peak(self) -> float:
        """The share of the matrix units' peak that is reached, without any wait."""
        return self.operations / (self.peak * self.bundles) if self.bundles else 0.0

    @property
    def binding(self) -> tuple[str, float] | None:
        """What is nearest to its limit, a kind of slot or the matrix unit, and its share.

        Only where the share is near to 1 could no other order of the operations be shorter. None
        where nothing is taken.
        """
        shares = {name: share for name, share in self.shares.items() if ":" not in name}
        shares[MATRIX_UNIT] = self.share_of_peak
        name = max(shares, key=lambda each: shares[each])
        return (name, shares[name]) if shares[name] else None

    @property
    def spills(self) -> int:
        """Vector registers stored for want of one."""
        return self._taken(SPILL)

    @property
    def fills(self) -> int:
        """Vector registers loaded again after that."""
        return self._taken(FILL)

    def _taken(self, kind: str) -> int:
        return self.taken[self.kinds.index(kind)]


@dataclasses.dataclass(frozen=True)
class Executed:
    """What a run made of a part of a schedule, without the loops inside.

    iterations: how often the body was begun. figures: each bundle as often as it was executed.
    copies: those through HBM that were started, and `read` and `written`, their bytes from HBM and
    to it: see `Run.transfers`.
    waited: cycles for copies. held: cycles for the matrix unit.
    """

    iterations: int
    figures: Figures
    copies: int
    read: int
    written: int
    waited: float
    held: float

    @property
    def cycles(self) -> float:
        """What it took of the time."""
        return self.figures.bundles + self.waited + self.held

    @property
    def binding(self) -> tuple[str, float] | None:
        """That of its figures, and copies where waits for them take half of the time or more."""
        if self.waited and 2 * self.waited >= self.cycles:
            return COPIES, self.waited / self.cycles
        return self.figures.binding


@dataclasses.dataclass(frozen=True)
class Part:
    """A loop, or what lies outside of all loops.

    loop: None outside of loops. own: its bundles without those of loops inside, each counted once;
    whole: with those. executed: None without a run.
    """

    loop: Loop | None
    own: Figures
    whole: Figures
    executed: Executed | None

    @property
    def depth(self) -> int:
        """Of loops."""
        return self.loop.depth if self.loop else 0

    @property
    def name(self) -> str:
        """To tell it from others."""
        return f"loop {self.loop.first:#x}" if self.loop else "outside of loops"


def nest(schedule: Schedule, generation: Generation) -> tuple[Loop, ...]:
    """The loops of a schedule, by address, so that each follows the one around it.

    Raises:
        InputError: a branch is of no known form, or loops are not nested as the schedule's marks
            say.
    """
    ends: dict[int, int] = {}
    for block in split(schedule, generation):
        if block.branch is not None and 0 <= block.taken <= block.branch:
            ends[block.taken] = max(ends.get(block.taken, 0), block.last)
    found: list[Loop] = []
    around: list[int] = []
    for bundle in schedule.bundles:
        first = bundle.address
        if (first in ends) != (_BODY in bundle.marks):
            raise schedule.error(
                bundle, "not a loop's body as marked", expected="a branch back to each mark LB"
            )
        if first not in ends:
            continue
        while around and found[around[-1]].last < first:
            around.pop()
        if around and found[around[-1]].last < ends[first]:
            raise schedule.error(
                bundle, "the loop does not end within the one around it", expected="nested loops"
            )
        if bundle.depth != len(around) + 1:
            raise schedule.error(
                bundle,
                f"{bundle.depth} loops are marked around it, and {len(around) + 1} branch back",
                expected="as many marks `>` as loops",
            )
        found.append(Loop(first, ends[first], bundle.depth, around[-1] if around else None))
        around.append(len(found) - 1)
    return tuple(found)


def of(
    schedule: Schedule, slots: Slots, generation: Generation, run: Run | None = None
) -> tuple[Part, ...]:
    """The parts of a schedule: what lies outside of loops, and the loops by address.

    run: one of the same schedule, for what was executed.

    Raises:
        InputError: the table of slots is of another schedule or lacks what counts spills, an
            operation of the matrix unit is not known, or see `nest`.
    """
    bundles = schedule.bundles
    if len(slots.taken) != len(bundles):
        raise InputError(
            f"there are {len(bundles)} bundles, and slots of {len(slots.taken)}",
            place=schedule.place,
            expected="as many rows in the table of slots beside it",
            next_step="dump the call anew, into an empty folder",
        )
    for kind in (SPILL, FILL):
        if kind not in slots.kinds:
            raise InputError(
                f"the table of slots has no column {kind}, and without it no spill is seen",
                place=schedule.place,
                expected=f"columns {SPILL} and {FILL} in the table of slots beside it",
                next_step="make the dump with libtpu 0.0.48 to 0.0.52; if it is, mend"
                " rpagen/schedule/loops.py",
            )
    loops = nest(schedule, generation)
    innermost = Innermost(loops)
    owners = [innermost.at(address) for address in range(len(bundles))]
    counter = _Counter(schedule, slots, generation)
    executed = _executed(run, counter, loops, owners) if run is not None else {}
    parts = []
    for index in (None, *range(len(loops))):
        loop = None if index is None else loops[index]
        own = [address for address, owner in enumerate(owners) if owner == index]
        whole = range(loop.first, loop.last + 1) if loop else range(len(bundles))
        parts.append(Part(loop, counter.once(own), counter.once(whole), executed.get(index)))
    return tuple(parts)


class Innermost:
    """Finds the innermost of some loops around a bundle."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        """loops: as `nest` gives them."""
        self._loops = loops
        self._firsts = [loop.first for loop in loops]

    def at(self, address: int) -> int | None:
        """Its index; None outside of loops."""
        index: int | None = bisect.bisect_right(self._firsts, address) - 1
        if index == -1:
            return None
        while index is not None and not self._loops[index].holds(address):
            index = self._loops[index].parent
        return index


class _Counter:
    """Adds up what bundles do."""

    def __init__(self, schedule: Schedule, slots: Slots, generation: Generation) -> None:
        self._slots = slots
        self._peak = generation.peak / generation.clock
        self._copies, self._waits, self._multiplies, self._operations = [], [], [], []
        for bundle in schedule.bundles:
            names = [operation.name for operation in bundle.operations]
            self._waits.append(
                sum(name.startswith("dma.") and name.endswith(".wait") for name in names)
            )
            self._copies.append(sum(name.startswith("dma.") for name in names) - self._waits[-1])
            rows = [
                found.rows
                for operation in bundle.operations
                if (found := multiply.of(schedule, bundle, operation)) is not None
            ]
            self._multiplies.append(len(rows))
            self._operations.append(2 * sum(rows) * generation.array**2)

    def once(self, addresses: Sequence[int]) -> Figures:
        """Of some bundles."""
        return self.of(dict.fromkeys(addresses, 1))

    def of(self, counts: Mapping[int, int]) -> Figures:
        """Of some bundles, each counted so often."""
        taken = [0] * len(self._slots.kinds)
        idle = 0
        for address, count in counts.items():
            row = self._slots.taken[address]
            idle += 0 if any(row) else count
            for kind, slots in enumerate(row):
                taken[kind] += slots * count

        def total(each: Sequence[int]) -> int:
            return sum(each[address] * count for address, count in counts.items())

        return Figures(
            sum(counts.values()),
            idle,
            self._slots.kinds,
            self._slots.capacities,
            tuple(taken),
            total(self._copies),
            total(self._waits),
            total(self._multiplies),
            total(self._operations),
            self._peak,
        )


def _executed(
    run: Run, counter: _Counter, loops: Sequence[Loop], owners: Sequence[int | None]
) -> dict[int | None, Executed]:
    """By the index of the loop."""
    counts: dict[int | None, dict[int, int]] = {}
    executions = run.executions()
    for address, (owner, count) in enumerate(zip(owners, executions, strict=True)):
        counts.setdefault(owner, {})[address] = count
    copies, read, written = Counter[int | None](), Counter[int | None](), Counter[int | None]()
    for copy in run.transfers:
        owner = owners[copy.site]
        copies[owner] += 1
        read[owner] += copy.read
        written[owner] += copy.written
    waited: dict[int | None, float] = {}
    for stall in run.stalls:
        owner = owners[stall.site]
        waited[owner] = waited.get(owner, 0.0) + stall.ended - stall.begun
    held: dict[int | None, float] = {}
    for block, cycles in zip(run.program.blocks, run.matrix_stalls, strict=True):
        owner = owners[block.first]
        held[owner] = held.get(owner, 0.0) + cycles
    return {
        index: Executed(
            1 if index is None else executions[loops[index].first],
            counter.of(counts.get(index, {})),
            copies[index],
            read[index],
            written[index],
            waited.get(index, 0.0),
            held.get(index, 0.0),
        )
        for index in (None, *range(len(loops)))
    }
