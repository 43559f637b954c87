"""`rpagen check`: compare the emitted files with what the specs and templates ask for."""

from __future__ import annotations

import argparse

from rpagen.commands import shared
from rpagen.emit import resources

DOES = "tell which emitted files are missing, stale, orphaned or edited by hand"
EXAMPLE = "rpagen check --json"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_package(verb)
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Print a line for every fault."""
    from rpagen.emit import check

    regenerate = shared.regenerate(options)
    faults = check.check(shared.output(options), options.specs, options.tier, regenerate)
    if shared.is_checked_in(options):
        faults += check.check_schema(resources.specs_dir() / shared.SCHEMA, regenerate)
    if options.json:
        shared.print_json(
            [
                {
                    "path": shared.shown(fault.path),
                    "state": fault.state.value,
                    "next_step": fault.next_step,
                }
                for fault in faults
            ]
        )
    else:
        for fault in faults:
            print(f"{fault.state.value}: {shared.shown(fault.path)}; to do: {fault.next_step}")
        if not faults:
            print("everything is up to date")
    return shared.FELL_SHORT if faults else shared.ALL_WELL
