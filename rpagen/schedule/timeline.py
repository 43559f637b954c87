"""What a call does when: slices of its core, its copies, and the bytes in flight.

Made for pictures: what would be too much for one is merged, and says so.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rpagen.schedule import loops
from rpagen.schedule.call import Step, Timed
from rpagen.schedule.generations import GRANULE, Generation
from rpagen.schedule.loops import Innermost, Loop
from rpagen.schedule.machine import Copy, Stall
from rpagen.schedule.read import Schedule
from rpagen.schedule.run import Run

MOST_SLICES = 40_000
"""Of loops and their iterations in a timeline: the innermost loops are left out before more."""
MOST_WAITS = 10_000
"""Of the core, in a timeline: the shortest are left out before more."""
MOST_COPIES = 20_000
"""In a timeline: consecutive ones are merged before more."""

_MULTIPLIES = "multiplies"

Details = Mapping[str, int | float | str]


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Something that takes time, from one cycle to another.

    depth: of slices of the same track around it. kind: "step", "launch", "run", "loop",
    "multiplying loop", "iteration", "wait", "end", "read", "write" or "inner". details: figures by
    name; times in cycles.
    """

    name: str
    kind: str
    begun: float
    ended: float
    depth: int
    details: Details

    @property
    def cycles(self) -> float:
        """What it takes."""
        return self.ended - self.begun


@dataclasses.dataclass(frozen=True, slots=True)
class InFlight:
    """The bytes of copies that were issued and have not arrived, from a cycle on."""

    at: float
    read: int
    written: int


@dataclasses.dataclass(frozen=True)
class Track:
    """Slices of which each begins in the order of the track, and lies within those around it."""

    name: str
    slices: tuple[Slice, ...]


@dataclasses.dataclass(frozen=True)
class Process:
    """What one step of a call does.

    core: slices of the core. copies: tracks of copies of which no two overlap on one.
    """

    name: str
    is_kernel: bool
    core: Track
    copies: tuple[Track, ...]
    in_flight: tuple[InFlight, ...]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Of a whole call.

    steps: one slice for each process. notes: what was left out or merged.
    """

    generation: Generation
    steps: Track
    processes: tuple[Process, ...]
    notes: tuple[str, ...]


def of(timed: Timed) -> Timeline:
    """The timeline of a call that was timed with its paths: without them it has no loops.

    Raises:
        InputError: see `loops.nest`.
    """
    # A step may be taken again, in a loop: its name does not tell which it is.
    found = [
        list(_loops(step.run, timed.generation)) if step.run is not None and step.run.path else []
        for step in timed.steps
    ]
    runs = [step.run for step in timed.steps if step.run is not None]
    copies = [_copies(step.run) if step.run is not None else [] for step in timed.steps]
    depths = [each.depth for slices in found for _, each in slices]
    depth = _deepest(depths)
    shortest = _shortest([stall for run in runs for stall in run.stalls])
    group = -(-sum(map(len, copies)) // MOST_COPIES) or 1
    notes = []
    if depth < max(depths, default=0):
        notes.append(f"loops that {depth} others are around are left out: there are too many")
    if shortest:
        at_least = timed.generation.microseconds(shortest)
        notes.append(f"waits of less than {at_least:.3f} us are left out: there are too many")
    if group > 1:
        notes.append(f"{group} copies that were issued one after the other are drawn as one")
    return Timeline(
        timed.generation,
        Track("steps", tuple(Slice(s.name, "step", s.begun, s.ended, 0, {}) for s in timed.steps)),
        tuple(
            Process(
                step.name,
                step.is_kernel,
                Track("core", tuple(_core(step, slices, depth, shortest))),
                tuple(_lanes(own, group)),
                tuple(_in_flight(own, group)),
            )
            for step, slices, own in zip(timed.steps, found, copies, strict=True)
        ),
        tuple(notes),
    )


def _deepest(depths: Sequence[int]) -> int:
    """How deep loops may be so that there are not too many; those of depth 1 always may."""
    counts = Counter(depths)
    depth, total = 1, counts[1]
    while depth < max(counts, default=1) and total + counts[depth + 1] <= MOST_SLICES:
        depth += 1
        total += counts[depth]
    return depth


def _shortest(stalls: Sequence[Stall]) -> float:
    """Cycles that a wait takes at least so that there are not too many; 0 where all may be."""
    if len(stalls) <= MOST_WAITS:
        return 0.0
    return heapq.nlargest(MOST_WAITS, (stall.ended - stall.begun for stall in stalls))[-1]


def _copies(run: Run) -> list[Copy]:
    """Those that take time: a scalar register that is spilled takes none."""
    return [copy for copy in run.copies if copy.done > copy.issued]


def _core(
    step: Step, found: Sequence[tuple[int, Slice]], depth: int, shortest: float
) -> Iterator[Slice]:
    run = step.run
    if run is None:
        yield Slice("waits for a copy that XLA started", "wait", step.begun, step.ended, 0, {})
        return
    clock = _Clock(run)
    slices = []
    if run.begun > step.begun:
        slices.append(Slice("launch", "launch", step.begun, run.begun, 0, {}))
    slices.append(clock.slice("bundles", "run", 0, len(run.path)))
    slices += [each for _, each in sorted(found, key=lambda pair: pair[0]) if each.depth <= depth]
    slices += [
        Slice(f"wait at {stall.site:#x}", "wait", stall.begun, stall.ended, 0, {})
        for stall in run.stalls
        if stall.ended - stall.begun >= shortest
    ]
    if run.ended > clock.ended + 0.5:
        slices.append(Slice("last copies arrive", "end", clock.ended, run.ended, 0, {}))
    yield from _nested(slices)


def _nested(slices: Iterable[Slice]) -> Iterator[Slice]:
    """In the order in which they begin, outer ones first, with their depth."""
    around: list[Slice] = []
    for each in sorted(slices, key=lambda each: (each.begun, -each.ended)):
        while around and around[-1].ended <= each.begun:
            around.pop()
        # Sums of cycles are not exact.
        ended = min(each.ended, around[-1].ended) if around else each.ended
        inside = dataclasses.replace(each, ended=ended, depth=len(around))
        around.append(inside)
        yield inside


class _Clock:
    """The cycles, bundles and waits of a run before each block of its path, and after the last."""

    def __init__(self, run: Run) -> None:
        lengths = [run.program.blocks[index].length for index, _ in run.path]
        self._bundles = list(itertools.accumulate(lengths, initial=0))
        waited = sum(stall.ended - stall.begun for stall in run.stalls)
        self.ended = run.begun + run.bundles + waited + sum(run.matrix_stalls)
        """When the last bundle was executed."""
        self._times = [*(at for _, at in run.path), self.ended] if run.path else [run.begun]
        self._waited = []
        stalls, total = list(reversed(run.stalls)), 0.0
        for at in self._times:
            while stalls and stalls[-1].begun < at:
                stall = stalls.pop()
                total += stall.ended - stall.begun
            self._waited.append(total)

    def slice(self, name: str, kind: str, begun: int, ended: int, depth: int = 0) -> Slice:
        """From one place of the path to another."""
        bundles = self._bundles[ended] - self._bundles[begun]
        waited = self._waited[ended] - self._waited[begun]
        cycles = self._times[ended] - self._times[begun]
        figures = {"bundles": bundles, "waited": waited, "held": cycles - bundles - waited}
        details = {name: round(figure, 1) for name, figure in figures.items()}
        return Slice(name, kind, self._times[begun], self._times[ended], depth, details)


@dataclasses.dataclass
class _Active:
    """A loop that a path is in: where each iteration began."""

    loop: int
    begun: list[int]


def _loops(run: Run, generation: Generation) -> Iterator[tuple[int, Slice]]:
    """The loops of a run and their iterations, with an order in which outer ones come first.

    The iterations of the innermost loops are merged, unless nothing is around these.
    """
    schedule = run.program.schedule
    found = loops.nest(schedule, generation)
    does = [_does(schedule, found, index) for index in range(len(found))]
    holding = {loop.parent for loop in found}
    chains = [_chain(found, Innermost(found), block.first) for block in run.program.blocks]
    clock = _Clock(run)

    def closed(active: _Active, ended: int) -> Iterator[tuple[int, Slice]]:
        loop, count = found[active.loop], len(active.begun)
        times = f" \N{MULTIPLICATION SIGN} {count}" if count > 1 else ""
        said = f": {', '.join(does[active.loop])}" if does[active.loop] else ""
        kind = "multiplying loop" if _MULTIPLIES in does[active.loop] else "loop"
        yield (
            2 * loop.depth,
            clock.slice(
                f"loop {loop.first:#x}{times}{said}", kind, active.begun[0], ended, loop.depth
            ),
        )
        if count > 1 and (loop.depth == 1 or active.loop in holding):
            for number, (begun, end) in enumerate(itertools.pairwise([*active.begun, ended]), 1):
                yield (
                    2 * loop.depth + 1,
                    clock.slice(
                        f"iteration {number} of {count}", "iteration", begun, end, loop.depth
                    ),
                )

    around: list[_Active] = []
    for place, (index, _) in enumerate(run.path):
        chain = chains[index]
        common = 0
        while common < min(len(around), len(chain)) and around[common].loop == chain[common]:
            common += 1
        while len(around) > common:
            yield from closed(around.pop(), place)
        if common < len(chain):
            around += [_Active(each, [place]) for each in chain[common:]]
        elif chain and found[chain[-1]].first == run.program.blocks[index].first:
            around[-1].begun.append(place)
    while around:
        yield from closed(around.pop(), len(run.path))


def _chain(found: Sequence[Loop], innermost: Innermost, address: int) -> tuple[int, ...]:
    """The loops around a bundle, the outermost first."""
    chain = []
    index = innermost.at(address)
    while index is not None:
        chain.append(index)
        index = found[index].parent
    return tuple(reversed(chain))


def _does(schedule: Schedule, found: Sequence[Loop], index: int) -> list[str]:
    """What a loop does besides the loops inside."""
    loop = found[index]
    inside = [each for each in found if each.parent == index]
    names = {
        operation.name
        for bundle in schedule.bundles[loop.first : loop.last + 1]
        if not any(each.holds(bundle.address) for each in inside)
        for operation in bundle.operations
    }
    does = {
        _MULTIPLIES: any(name.startswith("vmatmul") for name in names),
        "reads": any(name.startswith("dma.hbm_to") for name in names),
        "writes": any(name.startswith("dma.") and name.endswith("_to_hbm") for name in names),
        "waits": "dma.done.wait" in names,
    }
    return [word for word, is_so in does.items() if is_so]


def _direction(copy: Copy) -> str:
    if copy.written:
        return "write"
    return "read" if copy.read else "inner"


def _lanes(copies: Sequence[Copy], group: int) -> Iterator[Track]:
    """As few tracks for each direction as it takes that no two copies overlap on one."""
    for direction, name in (("read", "HBM reads"), ("write", "HBM writes"), ("inner", "in core")):
        chosen = [copy for copy in copies if _direction(copy) == direction]
        merged = [
            _merged(chosen[start : start + group], direction)
            for start in range(0, len(chosen), group)
        ]
        lanes: list[list[Slice]] = []
        for each in sorted(merged, key=lambda each: each.begun):
            free = next((lane for lane in lanes if lane[-1].ended <= each.begun), None)
            if free is None:
                lanes.append([each])
            else:
                free.append(each)
        for number, lane in enumerate(lanes, 1):
            yield Track(f"{name} {number}", tuple(lane))


def _merged(copies: Sequence[Copy], direction: str) -> Slice:
    size = sum(copy.granules for copy in copies) * GRANULE
    first = copies[0]
    return Slice(
        f"{direction} {_size(size)}" if direction != "inner" else f"copy {_size(size)}",
        direction,
        min(copy.issued for copy in copies),
        max(copy.done for copy in copies),
        0,
        {"bytes": size, "copies": len(copies), "kind": first.kind, "bundle": f"{first.site:#x}"},
    )


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size // unit} {name}"
    return f"{size} B"


def _in_flight(copies: Sequence[Copy], group: int) -> Iterator[InFlight]:
    """At every change, or at the highest of so many changes."""
    changes: dict[float, list[int]] = {}
    for copy in copies:
        if not (copy.read or copy.written):
            continue
        for at, sign in ((copy.issued, 1), (copy.done, -1)):
            change = changes.setdefault(at, [0, 0])
            change[0] += sign * copy.read
            change[1] += sign * copy.written
    points = []
    read = written = 0
    for at in sorted(changes):
        read += changes[at][0]
        written += changes[at][1]
        points.append(InFlight(at, read, written))
    for start in range(0, len(points) - 1, group):
        chosen = points[start : min(start + group, len(points) - 1)]
        yield dataclasses.replace(
            max(chosen, key=lambda point: point.read + point.written), at=chosen[0].at
        )
    yield from points[-1:]
