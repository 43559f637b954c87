"""All that the page says: its figures, the table of steps, and the slots that loops take."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence

from rpagen.schedule import accuracy, loops, timeline
from rpagen.schedule.call import Call, Step, Timed
from rpagen.schedule.floor import Floor
from rpagen.schedule.generations import Generation
from rpagen.schedule.loops import MATRIX_UNIT, Figures, Part
from rpagen.schedule.page import roofline
from rpagen.schedule.page.roofline import Diagram, Point
from rpagen.schedule.run import Run
from rpagen.schedule.timeline import Slice, Timeline

_OPEN_FROM = 0.05
"""Of the call's time: a step that takes less is folded."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """One of the figures at the top."""

    name: str
    value: str
    note: str


@dataclasses.dataclass(frozen=True)
class StepRow:
    """A row of the table of steps. share: of the call's time, from 0 to 1."""

    name: str
    kind: str
    begun: str
    time: str
    share: float
    bundles: str
    waited: str
    held: str
    read: str
    written: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """The share of a kind of slot that is taken, from 0 to 1; None where nothing is executed."""

    share: float | None
    binds: bool


@dataclasses.dataclass(frozen=True)
class LoopRow:
    """A row of a chart of slots. share: of the kernel's time, from 0 to 1."""

    name: str
    depth: int
    bundles: str
    iterations: str
    time: str
    share: float
    cells: tuple[Cell, ...]
    binding: str
    spills: str
    multiplies: str
    copies: str
    waited: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """The slots of a kernel or fusion."""

    name: str
    kind: str
    time: str
    is_open: bool
    columns: tuple[str, ...]
    rows: tuple[LoopRow, ...]


@dataclasses.dataclass(frozen=True)
class PointRow:
    """A row of the table of points."""

    number: int
    name: str
    operations: str
    bytes: str
    intensity: str
    rate: str
    share: str


@dataclasses.dataclass(frozen=True)
class Page:
    """The whole page. data: JSON of the timeline."""

    title: str
    about: str
    device: str
    figures: tuple[Figure, ...]
    steps: tuple[StepRow, ...]
    charts: tuple[Chart, ...]
    points: tuple[PointRow, ...]
    diagram: Diagram | None
    peak: str
    bandwidth: str
    notes: tuple[str, ...]
    data: str
    width: int = roofline.WIDTH
    height: int = roofline.HEIGHT


def of(call: Call, timed: Timed, title: str, about: str, floor: Floor | None) -> Page:
    """What the page says of a call.

    Raises:
        InputError: see `loops.of`, `accuracy.trust`.
    """
    generation = timed.generation
    parts = {
        number: loops.of(step.run.program.schedule, call.slots(step.name), generation, step.run)
        for number, step in enumerate(timed.steps)
        if step.run is not None
    }
    points = list(_points(timed, parts, floor))
    made = timeline.of(timed)
    return Page(
        title,
        about,
        generation.name,
        tuple(_figures(timed, floor)),
        tuple(_step(step, timed) for step in timed.steps),
        tuple(_chart(timed.steps[number], each, timed) for number, each in parts.items()),
        tuple(_point(number, point, generation) for number, point in enumerate(points, 1)),
        roofline.diagram(points, generation) if points else None,
        f"{generation.peak / 1e12:.4g}",
        f"{generation.bandwidth / 1e12:.3g}",
        (*made.notes, accuracy.trust([generation.name])),
        _data(made),
    )


def _figures(timed: Timed, floor: Floor | None) -> Iterator[Figure]:
    generation = timed.generation
    kernels = sum(step.cycles for step in timed.kernels)
    yield Figure("The call", _time(timed.cycles, generation), f"{timed.cycles:,.0f} cycles")
    for name, cycles in (("Kernels", kernels), ("XLA around them", timed.cycles - kernels)):
        note = f"{_share(_ratio(cycles, timed.cycles))} of the call"
        yield Figure(name, _time(cycles, generation), note)
    runs = [step.run for step in timed.steps if step.run is not None]
    copies = sum(len(run.transfers) for run in runs)
    moved = sum(run.read + run.written for run in runs)
    yield Figure("Moved", _bytes(moved), f"by {copies:,} copies")
    if floor is not None:
        note = f"{floor.bound} binds"
        if kernels:
            note += f"; kernels reach {_share(floor.cycles / kernels)} of it"
        yield Figure("The floor", _time(floor.cycles, generation), note)


def _step(step: Step, timed: Timed) -> StepRow:
    generation, run = timed.generation, step.run
    return StepRow(
        step.name,
        _kind(step),
        f"{generation.microseconds(step.begun):,.2f}",
        f"{generation.microseconds(step.cycles):,.2f}",
        _ratio(step.cycles, timed.cycles),
        f"{run.bundles:,}" if run else "",
        f"{generation.microseconds(_waited(run)):,.2f}" if run else "",
        f"{generation.microseconds(sum(run.matrix_stalls)):,.2f}" if run else "",
        _bytes(run.read) if run else "",
        _bytes(run.written) if run else "",
    )


def _kind(step: Step) -> str:
    if step.is_kernel:
        return "kernel"
    return "XLA" if step.run is not None else "wait for XLA's copy"


def _waited(run: Run) -> float:
    return sum(stall.ended - stall.begun for stall in run.stalls)


def _chart(step: Step, parts: Sequence[Part], timed: Timed) -> Chart:
    columns = [kind for kind in parts[0].own.kinds if ":" not in kind]
    return Chart(
        step.name,
        _kind(step),
        _time(step.cycles, timed.generation),
        step.is_kernel and step.cycles >= _OPEN_FROM * timed.cycles,
        (*columns, MATRIX_UNIT),
        tuple(_loop(part, columns, step, timed.generation) for part in parts),
    )


def _loop(part: Part, columns: Sequence[str], step: Step, generation: Generation) -> LoopRow:
    executed = part.executed
    assert executed is not None
    figures = executed.figures
    return LoopRow(
        part.name,
        part.depth,
        f"{part.own.bundles:,}",
        f"{executed.iterations:,}",
        f"{generation.microseconds(executed.cycles):,.2f}",
        _ratio(executed.cycles, step.cycles),
        tuple(_cells(figures, columns)),
        f"{executed.binding[0]} {_share(executed.binding[1])}" if executed.binding else "",
        f"{part.own.spills:,} / {part.own.fills:,}",
        f"{part.own.multiplies:,}",
        f"{executed.copies:,}",
        f"{generation.microseconds(executed.waited):,.2f}",
    )


def _cells(figures: Figures, columns: Sequence[str]) -> Iterator[Cell]:
    shares = {**figures.shares, MATRIX_UNIT: figures.share_of_peak}
    binding = figures.binding[0] if figures.binding else ""
    for name in (*columns, MATRIX_UNIT):
        yield Cell(shares[name] if figures.bundles else None, name == binding)


def _points(
    timed: Timed, parts: Mapping[int, Sequence[Part]], floor: Floor | None
) -> Iterator[Point]:
    generation = timed.generation
    if floor is not None and floor.operations:
        peak = floor.operations / floor.compute * generation.clock
        kernels = sum(step.cycles for step in timed.kernels)
        for name, cycles in (("kernels", kernels), ("whole call", timed.cycles)):
            if not cycles:
                continue
            yield Point(
                f"what the call has to do, in the time of the {name}",
                floor.operations,
                floor.bytes,
                cycles / generation.clock,
                peak,
            )
    for number, step in enumerate(timed.steps):
        if not step.is_kernel or step.run is None:
            continue
        executed = [part.executed.figures for part in parts[number] if part.executed]
        operations = sum(figures.operations for figures in executed)
        moved = step.run.read + step.run.written
        if operations and moved:
            seconds = step.cycles / generation.clock
            yield Point(f"what {step.name} does", operations, moved, seconds, generation.peak)


def _point(number: int, point: Point, generation: Generation) -> PointRow:
    return PointRow(
        number,
        point.name,
        f"{point.operations / 1e9:,.3f}",
        _bytes(point.bytes),
        f"{point.intensity:,.1f}",
        f"{point.rate / 1e12:,.2f}",
        _share(point.share(generation)),
    )


def _data(made: Timeline) -> str:
    """The timeline as JSON, times in whole nanoseconds, that may stand within an element."""
    names: dict[str, int] = {}

    def number(text: str) -> int:
        return names.setdefault(text, len(names))

    def time(cycles: float) -> int:
        return round(made.generation.microseconds(cycles) * 1000)

    def slices(chosen: Sequence[Slice], lane: int | None = None) -> Iterator[list[int]]:
        for each in chosen:
            row = each.depth if lane is None else lane
            begun = time(each.begun)
            yield [
                number(each.name),
                number(each.kind),
                row,
                begun,
                time(each.ended) - begun,
                number(_details(each, made.generation)),
            ]

    tracks: dict[str, list[list[int]]] = {
        "steps": list(slices(made.steps.slices)),
        "core": [each for process in made.processes for each in slices(process.core.slices)],
    }
    for direction in ("read", "write", "inner"):
        found = tracks[direction] = []
        for process in made.processes:
            chosen = [each for each in process.copies if each.slices[0].kind == direction]
            for lane, track in enumerate(chosen):
                found += slices(track.slices, lane)
        found.sort(key=lambda each: each[3])
    in_flight = [
        [time(point.at), point.read, point.written]
        for process in made.processes
        for point in process.in_flight
    ]
    data = {"tracks": tracks, "inFlight": in_flight, "names": list(names)}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _details(each: Slice, generation: Generation) -> str:
    """In words."""
    details = each.details
    if "bytes" in details:
        copies = details["copies"]
        together = f"; {copies} copies" if copies != 1 else ""
        started = f"{details['kind']}, started at {details['bundle']}"
        return f"{details['bytes']:,} bytes, {started}{together}"
    if "bundles" in details:
        words = [f"{details['bundles']:,} bundles"]
        for name, said in (("waited", "waits for copies"), ("held", "held by the matrix unit")):
            if float(details[name]) >= 1:
                words.append(f"{_time(float(details[name]), generation)} {said}")
        return ", ".join(words)
    return ""


def _time(cycles: float, generation: Generation) -> str:
    return f"{generation.microseconds(cycles):,.2f} us"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _share(share: float) -> str:
    return f"{100 * share:.1f}%"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} B"
