"""`rpagen generate`: emit the package of kernels."""

from __future__ import annotations

import argparse
import shlex

from rpagen.commands import shared
from rpagen.console import ProgressBar
from rpagen.emit import resources, write
from rpagen.spec import schema

DOES = "emit the package of kernels, as far as it is not up to date"
EXAMPLE = "rpagen generate -o /tmp/kernels"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_package(verb)
    verb.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="processes that render (default: as many as there are cores)",
    )
    verb.add_argument(
        "--force", action="store_true", help="render every module, whatever its digests say"
    )


def run(options: argparse.Namespace) -> int:
    """Emit, and say what was done."""
    from rpagen.emit import generate

    root = shared.output(options)
    with ProgressBar("rendering") as progress:
        report = generate.generate(
            root,
            options.specs,
            options.tier,
            jobs=options.jobs,
            force=options.force,
            progress=progress,
        )
    for name in report.overwritten:
        print(f"overwrote {name}, which had been edited by hand")
    for name in report.removed:
        print(f"removed {name}, which nothing emits any more")
    for name in report.kept:
        path = shlex.quote(str(root / name))
        print(f"left {name}, which nothing emits but somebody edited; to be rid of it: rm {path}")
    written = len(report.written)
    if shared.is_checked_in(options):
        written += len(write.write_changed(resources.specs_dir(), {shared.SCHEMA: schema.text()}))
    print(f"{report.total} files, {len(report.rendered)} rendered, {written} written")
    return shared.ALL_WELL


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)
