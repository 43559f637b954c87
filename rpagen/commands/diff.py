"""`rpagen diff`: how two variants differ, by axis and by source."""

from __future__ import annotations

import argparse
import difflib

from rpagen.commands import shared
from rpagen.console import table
from rpagen.emit import bodies, mistakes, wording
from rpagen.spec import axes
from rpagen.spec.model import Variant

DOES = "show in which axes two variants differ, and then their sources"
EXAMPLE = "rpagen diff rpa rpa_wait_per_page"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    verb.add_argument("first", metavar="A", help="a variant of any tier")
    verb.add_argument("second", metavar="B", help="another one")
    shared.add_specs(verb)
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Print the axes that differ, and the difference of the sources without their headers."""
    variants = []
    sources = []
    for name in (options.first, options.second):
        variant, module, catalogue = shared.find_variant(name, options.specs)
        made = bodies.make_one(module, catalogue)
        mistakes.refuse(made.problems)
        variants.append(variant)
        sources.append(made.text.splitlines(keepends=True))
    first, second = variants
    axes_that_differ = _differences(first, second)
    source = "".join(difflib.unified_diff(sources[0], sources[1], first.name, second.name))
    if options.json:
        shared.print_json(
            {
                "axes": {path: {"a": a, "b": b} for path, (a, b) in axes_that_differ.items()},
                "source": source,
            }
        )
        return shared.ALL_WELL
    if not axes_that_differ:
        print("no axis differs")
        return shared.ALL_WELL
    rows = [(path, wording.said(a), wording.said(b)) for path, (a, b) in axes_that_differ.items()]
    print(table(("AXIS", first.name, second.name), rows))
    print()
    print(source, end="")
    return shared.ALL_WELL


def _differences(
    first: Variant, second: Variant
) -> dict[str, tuple[axes.AxisValue, axes.AxisValue]]:
    """The axes in which two variants differ; by launch where the launches of one are not alike."""
    ours, theirs = wording.axes_in_short(first), wording.axes_in_short(second)
    if ours.keys() != theirs.keys():
        ours, theirs = dict(first.facts), dict(second.facts)
    return {path: (ours[path], theirs[path]) for path in ours if ours[path] != theirs[path]}
