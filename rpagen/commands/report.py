"""`rpagen report`: one page that shows what is known of every variant."""

from __future__ import annotations

import argparse
from pathlib import Path

from rpagen import errors
from rpagen.commands import shared
from rpagen.console import counted
from rpagen.emit import resources, write
from rpagen.errors import InputError
from rpagen.evidence import records
from rpagen.evidence.report.view import Page
from rpagen.spec import expand
from rpagen.spec.model import TIERS

DOES = "write a page that shows of every variant what was tried, and what came of it"
EXAMPLE = "rpagen report -o /tmp/report.html"

DEFAULT = "report.html"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    verb.add_argument(
        "-o",
        dest="output",
        type=shared.place,
        default=DEFAULT,
        metavar="FILE",
        help="where to (default: %(default)s)",
    )
    verb.add_argument(
        "--records",
        type=shared.place,
        metavar="DIR",
        help="the folder of the records (default: docs/evidence/ of the source checkout)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page, and say what it comes to."""
    from rpagen.evidence.report import formats, kernels, page, view

    found = formats.read(_folder(options))
    variants = expand.load_variants(resources.specs_dir(), TIERS)
    named = [variant for variant in variants if variant.name in found.named]
    made = view.make(variants, found, kernels.digests(named), records.instrument())
    path = Path(options.output)
    changed = write.write_changed(path.parent, {path.name: page.render(made)})
    shown = shared.shown(path)
    print(f"wrote {shown}" if changed else f"{shown} is up to date")
    print(_summary(made))
    return shared.ALL_WELL


def _folder(options: argparse.Namespace) -> Path:
    """Where the records are. No record is needed, but a folder that was named has to be there."""
    if options.records is None:
        return records.default_folder()
    folder = Path(options.records)
    if not folder.is_dir():
        raise InputError(
            "is not a folder",
            place=f"--records {errors.printable(options.records)}",
            expected="the folder of validate.json, mutants.json, compile.json and hardware.json",
            next_step="correct the path, or leave --records out",
        )
    return folder


def _summary(made: Page) -> str:
    bad = sum(row.is_bad for row in made.rows)
    stale = sum(row.is_stale for row in made.rows)
    older = sum(row.is_older for row in made.rows)
    unknown = sum(row.is_unknown for row in made.rows)
    no_specs = (
        f"\n{counted(len(made.unknown), 'variant')} that no spec makes:"
        f" {len(made.unknown_bad)} with something that is not well"
    )
    return (
        f"{counted(len(made.rows), 'variant')}: {bad} with something that is not well, {stale}"
        f" with a record that is stale, {older} judged by an older instrument, {unknown} of which"
        f" something was not run{no_specs if made.unknown else ''}"
    )
