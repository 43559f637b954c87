"""`rpagen schema`: the JSON Schema of a family spec, for editors."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rpagen.commands import shared
from rpagen.emit import resources, write
from rpagen.errors import RpagenError
from rpagen.spec import schema

DOES = "write the JSON Schema with which an editor completes and checks specs"
EXAMPLE = "rpagen schema -o -"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    verb.add_argument(
        "-o",
        dest="output",
        type=shared.place,
        metavar="FILE",
        help="where to; - prints it (default: specs/schema.json of the source checkout)",
    )
    verb.add_argument(
        "--check", action="store_true", help="write nothing, and end with 1 where it is stale"
    )


def run(options: argparse.Namespace) -> int:
    """Print, write or check the schema."""
    if options.output == "-":
        sys.stdout.write(schema.text())
        return shared.ALL_WELL
    path = Path(options.output) if options.output else _checked_in()
    shown = shared.shown(path)
    if options.check:
        if write.read(path) == schema.text():
            print(f"{shown} is up to date")
            return shared.ALL_WELL
        command = "rpagen schema" + (f" -o {shlex.quote(options.output)}" if options.output else "")
        print(f"{shown} is {'stale' if path.exists() else 'missing'}; to do: {command}")
        return shared.FELL_SHORT
    changed = write.write_changed(path.parent, {path.name: schema.text()})
    print(f"wrote {shown}" if changed else f"{shown} is up to date")
    return shared.ALL_WELL


def _checked_in() -> Path:
    if resources.checkout() is None:
        raise RpagenError(
            "rpagen does not run from its source checkout: say where with -o FILE, or -o - to print"
        )
    return resources.specs_dir() / shared.SCHEMA
