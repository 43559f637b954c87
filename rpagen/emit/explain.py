"""Why a variant, and a line of its module, are as they are.

What a line depends on is found by trying: the module is rendered again with each axis at each of
its other values, and the line depends on those that change what its template line prints.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from rpagen.emit import bodies, header, mistakes, plan, render, stages, trace
from rpagen.emit.format import formatted
from rpagen.emit.render import Module
from rpagen.emit.trace import Place
from rpagen.errors import RpagenError
from rpagen.spec import axes
from rpagen.spec.axes import Axis, AxisValue
from rpagen.spec.model import Catalogue, Variant, field_name


@dataclasses.dataclass(frozen=True)
class StageLines:
    """A stage file of a variant, and where its functions are in the emitted module.

    lines: first and last, 1-based, of the file. launches: those that use it.
    """

    template: str
    launches: tuple[str, ...]
    lines: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Otherwise:
    """What a template line would print with another value of an axis; None is nothing like it."""

    value: AxisValue
    text: str | None


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of an emitted module, and what printed it.

    number: in the file, 1-based. place: the template's line, None in the header and where there
    is nothing to print. depends_on: by axis path, what other values would make of it.
    """

    number: int
    text: str
    place: Place | None
    template_text: str
    depends_on: Mapping[str, tuple[Otherwise, ...]]


def stage_lines(module: Module, catalogue: Catalogue) -> list[StageLines]:
    """The stages of a variant's module in order, with their lines.

    Raises:
        EmitError: a template is wrong.
    """
    assert module.variant is not None
    body = _body(module, catalogue)
    lines: dict[str, list[int]] = {}
    for number, place in trace.places_of(body, trace.traced(module, catalogue)).items():
        lines.setdefault(place.template, []).append(number + header.LINES)
    launches: dict[str, list[str]] = {}
    for use in stages.uses(module.variant):
        launches.setdefault(use.template, []).extend(use.launches)
    return [
        StageLines(template, tuple(used), (min(lines[template]), max(lines[template])))
        for template, used in launches.items()
    ]


def line(module: Module, catalogue: Catalogue, number: int) -> Line:
    """The line of a module with that number in its file.

    Raises:
        EmitError: a template is wrong.
        RpagenError: the module has no such line.
    """
    body = _body(module, catalogue)
    above = plan.expected_header(module, catalogue, "rpagen generate").sign(body)
    texts = (above.text() + body).removesuffix("\n").split("\n")
    if not 0 < number <= len(texts):
        raise RpagenError(f"{module.path} has {len(texts)} lines: there is no line {number}")
    text = texts[number - 1]
    place = trace.places_of(body, trace.traced(module, catalogue)).get(number - header.LINES)
    if place is None:
        return Line(number, text, None, "", {})
    depends_on = _depends_on(module, catalogue, place, text.strip()) if module.variant else {}
    return Line(number, text, place, place.text(), depends_on)


def _body(module: Module, catalogue: Catalogue) -> str:
    made = bodies.make_one(module, catalogue)
    mistakes.refuse(made.problems)
    return made.text


def _depends_on(
    module: Module, catalogue: Catalogue, place: Place, text: str
) -> dict[str, tuple[Otherwise, ...]]:
    """By axis, what `place` would print in the place of `text`."""
    assert module.variant is not None
    printed = _printed(place, module, catalogue)
    # A value on one line that black breaks into several is compared as black leaves it.
    lines_of = _printed if text in printed else _printed_and_formatted
    printed = lines_of(place, module, catalogue)
    found: dict[str, list[Otherwise]] = {}
    for path, value, variant in _others(module.variant):
        try:
            would = lines_of(place, dataclasses.replace(module, variant=variant), catalogue)
        except render.Unfinished:
            continue  # a combination that no template knows
        if text not in would:
            instead = _in_place_of(printed.index(text), printed, would)
            found.setdefault(path, []).append(Otherwise(value, instead))
    return {path: tuple(others) for path, others in found.items()}


def _printed(place: Place, module: Module, catalogue: Catalogue) -> list[str]:
    """The lines of a module that a template's line prints, without indentation."""
    part = trace.traced(module, catalogue).parts().get(place, "")
    return [line.strip() for line in part.splitlines()]


def _printed_and_formatted(place: Place, module: Module, catalogue: Catalogue) -> list[str]:
    """Those lines as black leaves them."""
    source = trace.traced(module, catalogue)
    body = formatted(source.text)
    lines = body.splitlines()
    places = trace.places_of(body, source)
    return [lines[number - 1].strip() for number in sorted(places) if places[number] == place]


def _in_place_of(index: int, lines: list[str], others: list[str]) -> str | None:
    """The line of `others` that stands for one of `lines`, if any does."""
    matcher = difflib.SequenceMatcher(None, lines, others, autojunk=False)
    for _, first, end, other_first, other_end in matcher.get_opcodes():
        if first <= index < end and other_first + index - first < other_end:
            return others[other_first + index - first]
    return None


def _others(variant: Variant) -> Iterator[tuple[str, AxisValue, Variant]]:
    """The variant with one axis at another value, for all axes and values: offered or not.

    A set of features differs in one of them; pipelining differs in every launch.
    """
    change: dict[str, Any]
    for axis in axes.WHOLE_AXES:
        name = field_name(axis.path)
        now: AxisValue = getattr(variant, name)
        for value in _sets(axis, now) if isinstance(now, tuple) else axis.names:
            if value != now:
                change = {name: value}
                yield axis.path, value, dataclasses.replace(variant, **change)
    for axis in axes.PIPELINING_AXES:
        name = field_name(axis.path)
        for value in axis.names:
            change = {name: value}
            launches = {
                launch: dataclasses.replace(plan, **change)
                for launch, plan in variant.launches.items()
            }
            if launches != variant.launches:
                yield axis.path, value, dataclasses.replace(variant, launches=launches)


def _sets(axis: Axis, now: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The sets that differ from `now` in one value."""
    toggled = [set(now) ^ {str(value)} for value in axis.names]
    return [tuple(str(name) for name in axis.names if name in each) for each in toggled]
